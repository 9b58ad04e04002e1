"""KernelSHAP as one batched constrained fit on the bank's Shapley-kernel masks; no model call."""

from torch import Tensor

from faithline.attributions.least_squares import efficient_ridge
from faithline.attributions.query import Query
from faithline.config import KernelShapSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = ("fitting", "shapley_kernel")


def attribute(query: Query, settings: KernelShapSettings) -> Tensor:
    """Least squares of the value on the kept features, with the sum of the slopes held at v(all) - v(none).

    The masks' sizes already follow the Shapley kernel, so every mask weighs the same. The constraint holds exactly; captum
    approaches it with a weight of a million.

    Args:
        query: Its Shapley-kernel masks, at least `settings.masks`.
        settings: Number of `masks`, `ridge` on the slopes.

    Returns:
        Estimated Shapley values (B, n), float32: higher = more support for the class; 0 where a text is padded.

    Raises:
        ValueError: If there are too few masks.

    Source:
        Lundberg and Lee, NeurIPS 2017; constrained form of Covert and Lee, Improving KernelSHAP, AISTATS 2021, equation 7.
    """
    masks = query.given_masks().first(settings.masks)
    return efficient_ridge(masks.keep, masks.values, masks.empty, masks.full, masks.valid, settings.ridge)
