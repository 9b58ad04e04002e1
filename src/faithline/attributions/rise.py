"""RISE on the bank's Bernoulli masks: what the value is where a feature is kept, against what it is at all; no model call."""

from torch import Tensor

from faithline.attributions.query import Query
from faithline.config import RiseSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = ("fitting", "bernoulli")


def attribute(query: Query, settings: RiseSettings) -> Tensor:
    """Mean value over the masks that keep a feature, less the mean value over all masks.

    The paper's map is that first mean over masks drawn on a coarse grid, enlarged smoothly and shifted at random; it is
    everywhere positive. Here the masks are those of the game, one coin a feature and no smoothing, so that a map and the
    metrics speak of the same removals; the subtracted mean is the same for all features of a sample and gives the map its sign.
    Each feature is divided by how often it was kept and not by the expected number, so that a constant value gives exactly
    nothing. Over all 2^n masks the map is half the Banzhaf value: unlike a fit (`lime`, `banzhaf`) it leaves the chance
    imbalance of the other features in.

    Args:
        query: Its Bernoulli masks, at least `settings.masks`.
        settings: Number of `masks`.

    Returns:
        Attributions (B, n), float32: higher = the value is higher where the feature is kept; 0 where a text is padded.

    Raises:
        ValueError: If there are too few masks.

    Source:
        Petsiuk et al., RISE, BMVC 2018, equation 6.
    """
    masks = query.given_masks().first(settings.masks)
    values = masks.values.double()
    centred = (values - values.mean(1, keepdim=True))[:, None]
    keep = masks.keep.double()
    return ((centred @ keep)[:, 0] / keep.sum(1).clamp(min=1)).float().masked_fill(~masks.valid, 0.0)
