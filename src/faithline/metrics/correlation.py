"""Pearson and Spearman correlation of many rows at once, undefined (NaN) where a side is constant."""

import torch
from torch import Tensor

CONSTANT = 1e-9
"""A row whose standard deviation is at most this fraction of its root mean square counts as constant."""


def pearson(a: Tensor, b: Tensor, mask: Tensor | None = None) -> Tensor:
    """Pearson correlation over the last axis, in float64; neither scale nor offset of a row matters.

    No epsilon is added to a root: it would make the result depend on the scale of the map (spec, section 7.1).

    Args:
        a: Values, shape (..., k).
        b: Values, shape (..., k).
        mask: Entries that count, bool (..., k); all where not given.

    Returns:
        Correlation in [-1, 1], float64 (...). NaN where fewer than two entries count, where a side is constant, or where a
        counted entry is NaN.

    Source:
        Pearson, 1895.
    """
    a, b = a.double(), b.double()
    if mask is None:
        mask = torch.ones_like(a, dtype=torch.bool)
    a, b = _standardised(a, mask), _standardised(b, mask)
    return (a * b).sum(-1).clamp(-1.0, 1.0)


def _standardised(values: Tensor, mask: Tensor) -> Tensor:
    """Rows with mean 0 and norm 1 over the entries of mask, 0 outside it; a row without variance or with a NaN is all NaN."""
    values = torch.where(mask, values, 0.0)
    # Scaled to the row's largest entry first, so that squares of tiny or huge values neither vanish nor overflow.
    values = values / values.abs().amax(-1, keepdim=True)
    centred = torch.where(mask, values - values.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True), 0.0)
    norm = centred.norm(dim=-1, keepdim=True)
    varies = norm > CONSTANT * values.norm(dim=-1, keepdim=True)  # False too where a row of zeros made 0/0
    return torch.where(varies, centred / norm, torch.nan)


def average_ranks(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Ranks over the last axis, 1 = smallest; equal values share the mean of their ranks.

    Args:
        values: Shape (..., k).
        mask: Entries that are ranked, bool (..., k); all where not given.

    Returns:
        Ranks, float64 (..., k); NaN for entries outside the mask and for NaN entries, which take no rank from others.
    """
    values = values.double()
    if mask is not None:
        values = torch.where(mask, values, torch.nan)
    ordered, order = values.sort(dim=-1, stable=True)  # NaN goes last
    k = values.shape[-1]
    position = torch.arange(k, device=values.device).expand(values.shape)
    step = ordered[..., 1:] != ordered[..., :-1]
    edge = torch.ones_like(ordered[..., :1], dtype=torch.bool)
    first = torch.where(torch.cat([edge, step], -1), position, 0).cummax(-1).values
    last = torch.where(torch.cat([step, edge], -1), position, k - 1).flip(-1).cummin(-1).values.flip(-1)
    shared = (first + last).double() / 2 + 1
    return torch.empty_like(values).scatter_(-1, order, torch.where(ordered.isnan(), torch.nan, shared))


def spearman(a: Tensor, b: Tensor, mask: Tensor | None = None) -> Tensor:
    """Spearman rank correlation over the last axis: `pearson` of average ranks. Arguments and result as there.

    Source:
        Spearman, 1904.
    """
    return pearson(average_ranks(a, mask), average_ranks(b, mask), mask)
