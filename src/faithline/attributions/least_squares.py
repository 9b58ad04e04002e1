"""Linear fits of a game on its masks, all samples at once, in float64: the algebra of LIME, KernelSHAP and Banzhaf values.

Features that do not exist (padding) are zero columns: they get exactly 0 and change nothing else. Every system is solved by its
pseudo-inverse, so that with fewer masks than features, or a feature that never changes, the smallest solution comes out and not
an explosion. The matrices hold masks only: a value that is not finite makes its own row NaN and no other.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

SAMPLES_AT_ONCE = 64
"""Bounds the float64 copy of the masks."""

DETERMINED = 1e-10
"""Directions with a smaller share of the largest eigenvalue count as undetermined; torch's default lies within rounding."""


def weighted_ridge(keep: Tensor, values: Tensor, weights: Tensor, valid: Tensor, ridge: float) -> Tensor:
    """Slopes b that minimise sum_s w_s (v_s - a - keep_s . b)^2 + ridge |b|^2, with a free intercept a.

    Args:
        keep: Features that stay, bool (B, S, n).
        values: v(keep), (B, S).
        weights: Weight of each mask, >= 0, (B, S).
        valid: Which positions are features, bool (B, n).
        ridge: Penalty, in the units of the weighted squared error's sum (scikit-learn's alpha).

    Returns:
        Slopes (B, n), float32; 0 where not valid.
    """
    slopes = []
    for rows in _blocks(len(keep)):
        design = (keep[rows] & valid[rows, None]).double()
        weight = weights[rows].double()[:, :, None]
        total = weight.sum(1, keepdim=True)
        design = design - (weight * design).sum(1, keepdim=True) / total
        response = values[rows].double()[:, :, None]
        response = response - (weight * response).sum(1, keepdim=True) / total
        slopes.append(_solve((weight * design).mT @ design, (weight * design).mT @ response, ridge, valid[rows]))
    return torch.cat(slopes)[:, :, 0].float()


def efficient_ridge(keep: Tensor, values: Tensor, empty: Tensor, full: Tensor, valid: Tensor, ridge: float) -> Tensor:
    """Slopes b that minimise sum_s (v_s - v(none) - keep_s . b)^2 + ridge |b|^2 subject to sum_i b_i = v(all) - v(none).

    Args:
        keep: Features that stay, bool (B, S, n).
        values: v(keep), (B, S).
        empty: v(none), (B,).
        full: v(all), (B,).
        valid: Which positions are features, bool (B, n).
        ridge: Penalty, in the units of the squared error's sum.

    Returns:
        Slopes (B, n), float32; 0 where not valid.
    """
    slopes = []
    for rows in _blocks(len(keep)):
        exists = valid[rows].double()[:, :, None]
        count = exists.sum(1, keepdim=True)
        design = (keep[rows] & valid[rows, None]).double()
        # b = equal shares + a part that sums to 0; the penalty on b and on that part differ by a constant.
        shares = exists * (full[rows] - empty[rows]).double()[:, None, None] / count
        response = (values[rows] - empty[rows, None]).double()[:, :, None] - design @ shares
        # Row means over the existing features drop out: what is left of each mask sums to 0.
        design = design - design.sum(2, keepdim=True) / count.mT * exists.mT
        part = _solve(design.mT @ design, design.mT @ response, ridge, valid[rows])
        # The sum of the part is rounding, divided by what may be a tiny penalty: take it out.
        slopes.append(shares + part - exists * part.sum(1, keepdim=True) / count)
    return torch.cat(slopes)[:, :, 0].float()


def _blocks(samples: int) -> Iterator[slice]:
    for start in range(0, samples, SAMPLES_AT_ONCE):
        yield slice(start, start + SAMPLES_AT_ONCE)


def _solve(gram: Tensor, moment: Tensor, ridge: float, valid: Tensor) -> Tensor:
    penalty = ridge * valid.to(gram.dtype).diag_embed()
    return torch.linalg.pinv(gram + penalty, rtol=DETERMINED, hermitian=True) @ moment
