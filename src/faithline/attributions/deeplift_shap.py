"""DeepLIFT SHAP: DeepLIFT from several real inputs, averaged (captum)."""

import torch
from torch import Tensor

from faithline.attributions.gradients import fold, references, repeated
from faithline.attributions.query import Query
from faithline.attributions.rescale import contributions
from faithline.config import DeepLiftShapSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: DeepLiftShapSettings) -> Tensor:
    """Mean over background rows of the contributions of x - row, by the Rescale rule.

    captum's DeepLiftShap holds all pairs of inputs and rows at once and has its own softmax rule, which mixes them; here the
    pairs go through the model as one stream, each for itself (see `rescale.contributions`). On a network of linear layers and
    activation modules a map sums to value(x) - mean value(rows). Texts are aligned by position, as in `gradients.references`.

    Args:
        query: The game, inputs, classes, and a background of at least `settings.rows` inputs of the same kind.
        settings: `rows` of the background, the first ones, each two forward passes and a backward one; `output` that is
            explained.

    Returns:
        Maps (B, *map_shape), float32: higher = more support for the class.

    Raises:
        ValueError: If the background has too few rows.
        RuntimeError: If the model uses one activation module twice (captum's limit).

    Source:
        Lundberg and Lee, NeurIPS 2017, section 4.2; captum.attr.DeepLiftShap.
    """
    game, background, count = query.game, query.given_background(), settings.rows
    if count > len(background):
        raise ValueError(f"deeplift_shap.rows = {count}: there are only {len(background)} background rows")
    total = torch.zeros(len(query.x), *game.features.map_shape)
    for part, number, view, classes in repeated(query, settings.output, count, max(1, game.max_batch // 2)):
        inputs = query.x[part].clone()
        attribution = contributions(view, references(game, inputs, background[number], view), classes, settings.output)
        total.index_add_(0, part, fold(game, inputs, attribution))
    return total / count
