"""Removing columns of a table in distribution: a Gaussian copula, whose conditionals are drawn in its latent normals.

Marginals are the empirical ones. Each value has an interval of cumulated shares `(share below it, share up to it]`. Where ties
are rare the latent is the quantile of the middle of that interval. In a column with a frequent value (`_FREQUENT`) it is
anywhere in the quantiles of the interval: such latents are drawn from their joint conditional (Gibbs sampling), in the fit as in
the removal, because a point in their place would understate every correlation. A draw goes back to a value of the training rows
by the inverse of the same shares, so that discrete columns stay discrete. A constant column is allowed: it correlates with
nothing and is always regenerated as it was.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from faithline.diffusion.removal import nested_keep
from faithline.seeding import torch_generator
from faithline.tilting import choose, tilted_weights

Predict = Callable[[Tensor], Tensor]
"""Rows (Q, n) -> logits (Q, classes)."""

_FREQUENT = 0.05
"""A column is discrete if one value holds more than this share of its rows: the middle of an interval is off by half of it."""
_FARTHEST = 8.0
"""Latent normals end here."""


@dataclass(frozen=True)
class Copula:
    """A fitted distribution of rows.

    Attributes:
        values: Training values of each column, rising, float64 (n, N).
        discrete: Whether a column is discrete, bool (n,).
        correlation: Of the latent normals, positive definite, float64 (n, n).
        shrinkage: Share of the identity that was mixed into the estimated correlation; 0 for none.
    """

    values: Tensor
    discrete: Tensor
    correlation: Tensor
    shrinkage: float


@dataclass(frozen=True)
class Rows:
    """Regenerated rows.

    Attributes:
        rows: float32 (I, F, D, n); kept columns are bit-equal to the clean row.
        effective: Effective sample size of the candidates of each draw, float64 (I, F, D); their number where nothing tilts.
    """

    rows: Tensor
    effective: Tensor


def fit_copula(rows: Tensor, *, sweeps: int, least_eigenvalue: float, seed: int) -> Copula:
    """Fit marginals and latent correlation.

    The correlation is that of the latent normals, which are drawn anew in each sweep within their intervals given all others and
    the correlation so far (stochastic expectation-maximisation); the last half of the sweeps is averaged. Without discrete
    columns nothing is drawn, and it is the correlation of the normal scores.

    Args:
        rows: Training rows, (N, n).
        sweeps: Sweeps over the discrete columns.
        least_eigenvalue: The correlation is mixed with the identity until its smallest eigenvalue is this, in (0, 1).
        seed: Root seed.

    Raises:
        ValueError: If there are fewer rows than columns + 2, or a value is not finite.

    Source:
        Hoff, 2007 (latent normals within the ranks).
    """
    if rows.ndim != 2 or len(rows) < rows.shape[1] + 2 or rows.shape[1] < 2:
        raise ValueError(f"rows are {tuple(rows.shape)}: two columns and two rows more than columns are the least for a copula")
    if not rows.isfinite().all():
        raise ValueError("rows have values that are not finite")
    if not 0 < least_eigenvalue < 1 or sweeps < 1:
        raise ValueError(f"least_eigenvalue {least_eigenvalue} in (0, 1) and at least 1 sweep expected, not {sweeps}")
    values = rows.double().T.sort(1).values.contiguous()
    most = [int(column.unique_consecutive(return_counts=True)[1].max()) for column in values]
    discrete = torch.tensor(most).double() / len(rows) > _FREQUENT
    varies = values[:, 0] < values[:, -1]
    low, high = _interval(values, discrete, rows)
    draw = torch_generator(seed, "copula")
    latent = _between(low, high, torch.rand(low.shape, generator=draw, dtype=torch.float64))
    correlation, shrinkage = _correlation(latent, varies, least_eigenvalue)
    if discrete.any():
        total = torch.zeros_like(correlation)
        for sweep in range(sweeps):
            uniform = torch.rand(1, int(discrete.sum()), len(rows), generator=draw, dtype=torch.float64)
            latent = _gibbs(latent, low, high, correlation.inverse(), discrete, uniform)
            correlation, _ = _correlation(latent, varies, least_eigenvalue)
            if sweep >= sweeps // 2:
                total += correlation
        correlation = total / (sweeps - sweeps // 2)
        correlation, shrinkage = _positive(correlation, least_eigenvalue)
    return Copula(values, discrete, correlation, shrinkage)


def kept_counts(columns: int, fractions: Sequence[float]) -> tuple[int, ...]:
    """How many columns stay at each kept fraction: the nearest count that keeps some and removes some, each count once."""
    return tuple(dict.fromkeys(min(max(round(fraction * columns), 1), columns - 1) for fraction in fractions))


def columns_kept(attribution: Tensor, sample_ids: tuple[int, ...], counts: Sequence[int], seed: int) -> Tensor:
    """Keep the most important columns: nested masks, ties in an order seeded by the sample.

    Args:
        attribution: Importance, higher = more support, (I, n).
        sample_ids: Ids (I): they name the order of ties.
        counts: Columns that stay, each from 1 to n - 1.
        seed: Root seed.

    Returns:
        bool (I, F, n).

    Raises:
        ValueError: If a map is not finite or constant, or a count is out of range or repeated.
    """
    if attribution.ndim != 2:
        raise ValueError(f"attribution has shape {tuple(attribution.shape)}: (I, n) expected")
    columns = attribution.shape[1]
    if not all(0 < count < columns for count in counts):
        raise ValueError(f"counts are {tuple(counts)}: 1 to {columns - 1} of {columns} columns stay")
    fractions = tuple(count / columns for count in counts)
    return nested_keep(attribution[:, None], sample_ids, (1, columns), fractions, "pixel", "sum", seed=seed)[:, :, 0, 0]


def reconstruct_rows(
    copula: Copula,
    rows: Tensor,
    sample_ids: Sequence[int],
    keep: Tensor,
    targets: Tensor,
    predict: Predict | None,
    *,
    draws: int,
    scale: float,
    candidates: int,
    sweeps: int,
    seed: int,
    max_batch: int,
) -> Rows:
    """Regenerate removed columns from their conditional given the kept ones, tilted by `p_y^-s`.

    Each draw has candidates from the conditional, of which one is chosen with weight `p^-s`. As candidates grow this is the
    tilted conditional; with few, or where `effective` is small, it is less tilted. A sample id and a draw name all random
    numbers, whatever map, level or batch.

    Args:
        copula: The distribution.
        rows: Clean rows, float32 (I, n).
        sample_ids: Their ids (I).
        keep: Kept columns, bool (I, F, n).
        targets: Class whose evidence is removed, int64 (I,).
        predict: The model; may be None if the scale is 0. It sees `draws * candidates` rows for each mask.
        draws: Draws D of each row and level.
        scale: Strength s of the tilt; 0 for none, then one candidate is made.
        candidates: Candidates M of each draw.
        sweeps: Gibbs sweeps over kept discrete columns.
        seed: Root seed.
        max_batch: Rows that the model sees at once.

    Raises:
        ValueError: If shapes disagree, a value is not finite, or a tilt has nothing to choose from or no model.
    """
    _check(copula, rows, sample_ids, keep, targets)
    if draws < 1 or sweeps < 1 or max_batch < 1 or (scale != 0 and (candidates < 2 or predict is None)):
        raise ValueError(
            f"{draws} draws of {candidates} candidates, {sweeps} sweeps, max_batch {max_batch}: at least 1 each; "
            f"a tilt of {scale} needs 2 candidates and a model"
        )
    made = candidates if scale != 0 else 1
    count, levels, columns = keep.shape
    found = torch.empty(count, levels, draws, made, columns)
    pick = torch.empty(count, draws, dtype=torch.float64)
    low, high = _interval(copula.values, copula.discrete, rows)
    k = int(copula.discrete.sum())
    for i, sample_id in enumerate(sample_ids):
        own = [torch_generator(seed, "copula draw", sample_id, draw) for draw in range(draws)]
        pick[i] = torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in own])
        normal = torch.cat([torch.randn(made, columns, generator=g, dtype=torch.float64) for g in own])
        start = torch.cat([torch.rand(made, columns, generator=g, dtype=torch.float64) for g in own])
        moves = torch.cat([torch.rand(sweeps, k, made, generator=g, dtype=torch.float64) for g in own], 2)
        for level in range(levels):
            kept = keep[i, level]
            latent = _conditional(copula, kept, low[i], high[i], normal, start, moves)
            filled = torch.where(kept, rows[i], _values(copula.values, latent))
            found[i, level] = filled.reshape(draws, made, columns)
    if scale == 0 or predict is None:
        return Rows(found[:, :, :, 0], torch.full((count, levels, draws), float(candidates), dtype=torch.float64))
    log_p = torch.cat([part.double().log_softmax(1) for part in _logits(predict, found.flatten(0, 3), max_batch)])
    rows_of = torch.arange(count).repeat_interleave(levels * draws * made)
    weights, effective = tilted_weights(log_p.gather(1, targets[rows_of, None]).reshape(found.shape[:4]), scale)
    chosen = choose(weights, pick[:, None].expand(-1, levels, -1).contiguous())
    index = chosen[..., None, None].expand(-1, -1, -1, 1, columns)
    return Rows(found.gather(3, index)[:, :, :, 0], effective)


def row_confidences(predict: Predict, rows: Tensor, targets: Tensor, max_batch: int) -> Tensor:
    """Softmax probability of each row's own class, float32 (I, F, D), of rows (I, F, D, n).

    Their mean over levels and draws is the score of a map.
    """
    logits = torch.cat(_logits(predict, rows.flatten(0, 2), max_batch))
    own = targets.repeat_interleave(rows.shape[1] * rows.shape[2])
    return logits.softmax(1).gather(1, own[:, None]).reshape(rows.shape[:3])


def _logits(predict: Predict, rows: Tensor, max_batch: int) -> list[Tensor]:
    return [predict(part) for part in rows.split(max_batch)]


def _check(copula: Copula, rows: Tensor, sample_ids: Sequence[int], keep: Tensor, targets: Tensor) -> None:
    columns = len(copula.values)
    if rows.dtype != torch.float32 or rows.ndim != 2 or rows.shape[1] != columns:
        raise ValueError(f"rows are {rows.dtype} {tuple(rows.shape)}: float32 (I, {columns}) expected")
    if not len(rows) == len(sample_ids) == len(set(sample_ids)) == len(targets) == len(keep):
        raise ValueError(
            f"{len(rows)} rows, {len(set(sample_ids))} different ids, {len(targets)} targets, masks of {len(keep)}: they differ"
        )
    if keep.dtype != torch.bool or keep.ndim != 3 or keep.shape[2] != columns:
        raise ValueError(f"keep is {keep.dtype} {tuple(keep.shape)}: bool (I, F, {columns}) expected")
    if not rows.isfinite().all():
        raise ValueError("rows have values that are not finite")


def _interval(values: Tensor, discrete: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of the latent normals of rows (B, n), float64 (B, n) each; they are equal where the latent is a point."""
    columns, size = rows.double().T.contiguous(), values.shape[1]
    below, upto = torch.searchsorted(values, columns), torch.searchsorted(values, columns, right=True)
    middle = ((below + upto) / 2).clamp(0.5, size - 0.5)
    # A value that training rows lack has an empty interval: it is a point too.
    point = ~discrete[:, None] | (below == upto)
    low, high = (torch.where(point, middle, edge.double()) / size for edge in (below, upto))
    bounds = [torch.special.ndtri(share).clamp(-_FARTHEST, _FARTHEST).T.contiguous() for share in (low, high)]
    return bounds[0], bounds[1]


def _values(values: Tensor, latent: Tensor) -> Tensor:
    """Training values at latent normals (B, n), float32: the smallest value whose cumulated share reaches the normal's."""
    share = torch.special.ndtr(latent) * values.shape[1]
    place = (share.ceil().long() - 1).clamp(0, values.shape[1] - 1)
    return values.T.gather(0, place).float()


def _between(low: Tensor, high: Tensor, uniform: Tensor) -> Tensor:
    """Standard normals between bounds, by the inverse of their distribution; a pair of equal bounds gives that point.

    Computed in the lower tail, where a small probability keeps its digits.
    """
    flip = low + high > 0
    low, high = torch.where(flip, -high, low), torch.where(flip, -low, high)
    first, last = torch.special.ndtr(low), torch.special.ndtr(high)
    found = torch.special.ndtri(first + uniform * (last - first)).clamp(low, high)
    return torch.where(flip, -found, found)


def _gibbs(latent: Tensor, low: Tensor, high: Tensor, precision: Tensor, moves: Tensor, uniform: Tensor) -> Tensor:
    """Sweeps over some columns: each is drawn within its bounds given all others.

    Args:
        latent: (B, n).
        low: Lower bounds, (B, n) or (n,).
        high: Upper bounds.
        precision: Inverse covariance of the n latents, (n, n).
        moves: Columns that are drawn, bool (n,); k of them.
        uniform: Numbers in [0, 1), (sweeps, k, B).
    """
    latent = latent.clone()
    columns = moves.nonzero()[:, 0].tolist()
    for sweep in uniform:
        for own, column in zip(sweep, columns, strict=True):
            std = precision[column, column] ** -0.5
            # Sums over one short row: what a batch mate holds changes no bit.
            others = (latent * precision[column]).sum(1) - latent[:, column] * precision[column, column]
            mean = -others * std**2
            drawn = mean + std * _between((low[..., column] - mean) / std, (high[..., column] - mean) / std, own)
            latent[:, column] = torch.minimum(torch.maximum(drawn, low[..., column]), high[..., column])
    return latent


def _conditional(copula: Copula, kept: Tensor, low: Tensor, high: Tensor, normal: Tensor, start: Tensor, moves: Tensor) -> Tensor:
    """Latent normals of rows whose kept columns have latents within bounds (n,); float64 (Q, n).

    Args:
        copula: The distribution.
        kept: bool (n,).
        low: Lower bounds, (n,).
        high: Upper bounds, (n,).
        normal: Standard normals (Q, n).
        start: Numbers in [0, 1) from which the Gibbs sampler starts, (Q, n).
        moves: Numbers in [0, 1) of its sweeps over all discrete columns, (sweeps, k, Q).
    """
    free = normal @ torch.linalg.cholesky(copula.correlation).T
    if not kept.any():
        return free
    block = copula.correlation[kept][:, kept]
    known = _between(low[kept], high[kept], start[:, kept])
    discrete = copula.discrete[kept]
    if discrete.any():
        # The numbers of a column are the same whichever others are kept.
        own = moves[:, kept[copula.discrete]]
        known = _gibbs(known, low[kept], high[kept], block.inverse(), discrete, own)
    # A draw without condition, moved by what its kept latents are off, is a draw from the conditional.
    off = torch.linalg.solve(block, (known - free[:, kept]).T)
    return free + (copula.correlation[:, kept] @ off).T


def _correlation(latent: Tensor, varies: Tensor, least: float) -> tuple[Tensor, float]:
    """Correlation of latents (N, n), whose columns have variance 1 up to rounding of the marginals, made positive definite."""
    found = latent.T.corrcoef()
    constant = ~varies
    found[constant], found[:, constant] = 0.0, 0.0
    found.fill_diagonal_(1.0)
    return _positive(found, least)


def _positive(correlation: Tensor, least: float) -> tuple[Tensor, float]:
    smallest = float(torch.linalg.eigvalsh(correlation)[0])
    share = max(0.0, (least - smallest) / (1 - smallest)) if smallest < 1 else 0.0
    mixed = (1 - share) * correlation
    return mixed.fill_diagonal_(1.0), share
