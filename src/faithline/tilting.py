"""The anti-class tilt of a distribution that can be sampled: draws are chosen again with weights `p^-s`."""

import torch
from torch import Tensor


def tilted_weights(log_p: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Self-normalised weights of draws from a distribution q, as draws from the one proportional to `q p^-s`.

    Args:
        log_p: `log p_y` of M draws each, (..., M).
        scale: Strength s; 0 for equal weights.

    Returns:
        Weights that sum to 1, float64 (..., M), and their effective sample size `1 / sum w^2`, float64 (...), from 1 to M: where
        it is near 1 the tilt asks for draws that M draws do not contain.

    Raises:
        ValueError: If a log probability is NaN or positive infinite.
    """
    if log_p.isnan().any() or (log_p == torch.inf).any():
        raise ValueError("log_p has values that are not log probabilities")
    # A draw of probability 0 would take all weight, and two of them have no ratio.
    weights = (-scale * log_p.double().clamp(min=-700)).softmax(-1)
    return weights, 1 / weights.square().sum(-1)


def choose(weights: Tensor, uniform: Tensor) -> Tensor:
    """One draw by its weight: where the cumulated weights (..., M) pass a number in [0, 1), (...). Returns int64 (...)."""
    place = torch.searchsorted(weights.cumsum(-1), uniform.double()[..., None], right=True)[..., 0]
    return place.clamp(max=weights.shape[-1] - 1)
