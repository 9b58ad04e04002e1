"""Banzhaf values by least squares on the bank's reference masks; no model call."""

import torch
from torch import Tensor

from faithline.attributions.least_squares import weighted_ridge
from faithline.bank import Masks
from faithline.config import BanzhafSettings
from faithline.masking import MaskedModel

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = ("reference", "bernoulli")


def attribute(
    game: MaskedModel,  # noqa: ARG001
    x: Tensor,  # noqa: ARG001
    target: Tensor,  # noqa: ARG001
    settings: BanzhafSettings,
    *,
    masks: Masks | None,
    background: Tensor | None,  # noqa: ARG001
    seeds: Tensor,  # noqa: ARG001
) -> Tensor:
    """Slopes of the value on the kept features over Bernoulli(1/2) masks, with an intercept; over all masks they are exact.

    No other map has a higher correlation between its sums over removed features and their effects on these masks (INF).

    Args:
        game: Not used.
        x: Not used.
        target: Not used.
        settings: `ridge` on the slopes.
        masks: Bernoulli masks; all of them are used.
        background: Not used.
        seeds: Not used.

    Returns:
        Estimated Banzhaf values (B, n), float32: higher = more support for the class; 0 where a text is padded.

    Raises:
        ValueError: If there are no masks.

    Source:
        Hammer and Holzman, Approximations of pseudo-Boolean functions, 1992: these slopes are the Banzhaf values.
    """
    if masks is None:
        raise ValueError("banzhaf needs masks")
    return weighted_ridge(masks.keep, masks.values, torch.ones_like(masks.values), masks.valid, settings.ridge)
