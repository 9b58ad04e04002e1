"""Test-time refinement: a trained explainer's map, refitted on a few removals of the sample's own; costs those passes.

The explainer's map is the prior mean of a Bayesian linear regression of the removals' effects on what they remove; the posterior
mean is a ridge fit that shrinks towards the map instead of towards 0. It does what gradient descent on the squared error does
that starts at the map and stops early, without a step size. How far to trust the map is decided sample by sample by generalised
cross-validation, so few masks change little and a good map is left alone.
"""

import torch
from torch import Tensor

from faithline.bank import Masks

SAMPLES_AT_ONCE = 64
"""Bounds the float64 copy of the masks."""

STRENGTHS = torch.logspace(-6, 5, 45, dtype=torch.float64)
"""Ridge strengths among which cross-validation chooses, in units of the mean squared singular value of the masks."""


def refine(attribution: Tensor, masks: Masks) -> Tensor:
    """Refit maps on masks with known values.

    A map is first scaled to the effects by least squares (correlation losses leave its scale open); a map that does not go along
    with the effects of its own sample at all is replaced by zeros, which makes the fit an ordinary ridge.

    Args:
        attribution: Maps to start from, (B, n); 0 at features that do not exist.
        masks: S masks of these samples.

    Returns:
        float32 (B, n), in units of the value; 0 at features that do not exist. A row whose map is not finite stays as it is.

    Source:
        faithline; generalised cross-validation after Golub, Heath and Wahba, Technometrics 1979.
    """
    rows = torch.arange(len(attribution)).split(SAMPLES_AT_ONCE)
    return torch.cat([_refine(attribution[some], masks.take(some)) for some in rows])


def _refine(attribution: Tensor, masks: Masks) -> Tensor:
    removed = (~masks.keep & masks.valid[:, None]).double()
    effects = masks.effects.double()
    prior = attribution.double()
    removed = removed - removed.mean(1, keepdim=True)
    effects = effects - effects.mean(1, keepdim=True)
    said = torch.einsum("bsn,bn->bs", removed, prior)
    power = said.square().sum(1)
    scale = ((said * effects).sum(1) / torch.where(power > 0, power, 1)).clamp(min=0)
    prior = prior * scale[:, None]
    rest = effects - said * scale[:, None]
    left, singular, right = torch.linalg.svd(removed, full_matrices=False)
    inside = torch.einsum("bsk,bs->bk", left, rest)
    power = singular.square()[:, None]  # (B, 1, K)
    strength = STRENGTHS[:, None] * power.mean(2, keepdim=True)
    share = power / torch.where(power + strength > 0, power + strength, 1)  # (B, strengths, K): how much of a direction is fitted
    outside = rest.square().sum(1, keepdim=True) - inside.square().sum(1, keepdim=True)
    error = ((1 - share) * inside[:, None]).square().sum(2) + outside.clamp(min=0)
    # One degree of freedom went into the mean.
    freedom = removed.shape[1] - 1 - share.sum(2)
    best = (error / freedom.clamp(min=1e-9).square()).argmin(1)
    chosen = share[torch.arange(len(best)), best]
    step = inside * chosen / torch.where(singular > 0, singular, 1)
    refined = (prior + torch.einsum("bkn,bk->bn", right, step)).float()
    refined = torch.where(masks.valid, refined, 0)
    return torch.where(torch.isfinite(attribution).all(1, keepdim=True), refined, attribution)
