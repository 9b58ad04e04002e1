"""Feature ablation: each feature is removed alone. Read off the bank's single-removal masks; no model call."""

from torch import Tensor

from faithline.attributions.query import Query
from faithline.config import MethodSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = ("evaluation", "singles")


def attribute(query: Query, settings: MethodSettings) -> Tensor:  # noqa: ARG001
    """v(all) - v(all but feature i).

    Args:
        query: Its single removals: mask i keeps all but feature i, so that there are n of them.
        settings: Not used.

    Returns:
        Attributions (B, n), float32: higher = the value falls more without the feature; 0 where a text is padded.

    Raises:
        ValueError: If the masks are not n a sample.

    Source:
        captum.attr.FeatureAblation.
    """
    masks, n = query.given_masks(), query.game.features.n
    if masks.keep.shape[1] != n:
        raise ValueError(f"feature_ablation needs {n} single-removal masks a sample; it got {masks.keep.shape[1]} a sample")
    return masks.effects.masked_fill(~masks.valid, 0.0)
