"""LIME as one batched closed-form fit on the bank's Bernoulli masks; no model call."""

import torch
from torch import Tensor

from faithline.attributions.least_squares import weighted_ridge
from faithline.attributions.query import Query
from faithline.config import LimeSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = ("fitting", "bernoulli")


def attribute(query: Query, settings: LimeSettings) -> Tensor:
    """Weighted ridge regression of the value on the kept features, with an intercept.

    A mask weighs exp(-d^2 / (2 width^2)), where d is the cosine distance between the mask and the full one: with k of m features
    kept, d = 1 - sqrt(k / m). That is captum's default kernel, on the masks as in the paper and not on the masked inputs.

    Args:
        query: Its Bernoulli masks, at least `settings.masks`.
        settings: Number of `masks`, `kernel_width`, `ridge` (scikit-learn's alpha).

    Returns:
        Slopes (B, n), float32: higher = the value is higher with the feature; 0 where a text is padded.

    Raises:
        ValueError: If there are too few masks, or none of them weighs anything.

    Source:
        Ribeiro et al., Why Should I Trust You?, KDD 2016; captum.attr.Lime.
    """
    masks = query.given_masks().first(settings.masks)
    kept = (masks.keep & masks.valid[:, None]).sum(2)
    distance = 1 - (kept / masks.valid.sum(1, keepdim=True)).double().sqrt()
    weights = torch.exp(-(distance**2) / (2 * settings.kernel_width**2))
    if bool((weights.sum(1) == 0).any()):
        raise ValueError(f"lime.kernel_width = {settings.kernel_width}: so small that every mask of a sample weighs nothing")
    return weighted_ridge(masks.keep, masks.values, weights, masks.valid, settings.ridge)
