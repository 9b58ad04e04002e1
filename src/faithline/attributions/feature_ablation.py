"""Feature ablation: each feature is removed alone. Read off the bank's single-removal masks; no model call."""

from torch import Tensor

from faithline.bank import Masks
from faithline.config import MethodSettings
from faithline.masking import MaskedModel

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = ("evaluation", "singles")


def attribute(
    game: MaskedModel,
    x: Tensor,  # noqa: ARG001
    target: Tensor,  # noqa: ARG001
    settings: MethodSettings,  # noqa: ARG001
    *,
    masks: Masks | None,
    background: Tensor | None,  # noqa: ARG001
    seeds: Tensor,  # noqa: ARG001
) -> Tensor:
    """v(all) - v(all but feature i).

    Args:
        game: The game.
        x: Not used.
        target: Not used.
        settings: Not used.
        masks: Single removals: mask i keeps all but feature i, so that there are n of them.
        background: Not used.
        seeds: Not used.

    Returns:
        Attributions (B, n), float32: higher = the value falls more without the feature; 0 where a text is padded.

    Raises:
        ValueError: If the masks are not n a sample.

    Source:
        captum.attr.FeatureAblation.
    """
    if masks is None or masks.keep.shape[1] != game.features.n:
        found = "none" if masks is None else f"{masks.keep.shape[1]} a sample"
        raise ValueError(f"feature_ablation needs {game.features.n} single-removal masks a sample; it got {found}")
    return masks.effects.masked_fill(~masks.valid, 0.0)
