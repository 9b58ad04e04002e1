"""Banzhaf values by least squares on the bank's reference masks; no model call."""

import torch
from torch import Tensor

from faithline.attributions.least_squares import weighted_ridge
from faithline.attributions.query import Query
from faithline.config import BanzhafSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = ("reference", "bernoulli")


def attribute(query: Query, settings: BanzhafSettings) -> Tensor:
    """Slopes of the value on the kept features over Bernoulli(1/2) masks, with an intercept; over all masks they are exact.

    No other map has a higher correlation between its sums over removed features and their effects on these masks (INF).

    Args:
        query: Its Bernoulli masks, all of which are used.
        settings: `ridge` on the slopes.

    Returns:
        Estimated Banzhaf values (B, n), float32: higher = more support for the class; 0 where a text is padded.

    Raises:
        ValueError: If there are no masks.

    Source:
        Hammer and Holzman, Approximations of pseudo-Boolean functions, 1992: these slopes are the Banzhaf values.
    """
    masks = query.given_masks()
    return weighted_ridge(masks.keep, masks.values, torch.ones_like(masks.values), masks.valid, settings.ridge)
