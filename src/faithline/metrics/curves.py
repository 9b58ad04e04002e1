"""Sweeps: the values of a sample while its features go in the order of a map. Metrics are functions of these curves.

DEL, POS, RP and IROF read one most-relevant-first sweep (MoRF), NEG one least-relevant-first sweep (LeRF), INS the same one
backwards where insertion starts from the input that removal ends with, FE and MC the chunks between two steps, each removed
alone. A state of the game is evaluated once, and all of them run through the model in one stream over samples x steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import Tensor

from faithline.bank import Masks
from faithline.masking import Outcome
from faithline.seeding import derive

Evaluate = Callable[[Tensor, Tensor], Outcome]
"""Plays Q coalitions: (sample of each, int64 (Q,); keep, bool (Q, n)) -> Outcome. A model and an exact table serve alike."""

CURVES = ("morf", "lerf", "insertion", "chunk")
"""Names of the sweeps in a frame."""


@dataclass(frozen=True)
class Sweeps:
    """Curves of B maps in T steps.

    Attributes:
        counts: Features removed after k steps, int64 (B, T + 1), from 0 to all.
        morf: Value after the most relevant features went, float32 (B, T + 1); column 0 is the clean input.
        morf_top: Whether the explained class is still the first choice there, bool (B, T + 1).
        lerf: Value after the least relevant features went, float32 (B, T + 1).
        lerf_top: First-choice flag there, bool (B, T + 1).
        insertion: Value after the most relevant features came into the empty input, float32 (B, T + 1); the last column is
            the clean input.
        chunk: Value without the features of step k alone, float32 (B, T); NaN where the step takes no feature.
    """

    counts: Tensor
    morf: Tensor
    morf_top: Tensor
    lerf: Tensor
    lerf_top: Tensor
    insertion: Tensor
    chunk: Tensor


def removal_counts(valid: Tensor, steps: int) -> Tensor:
    """How many features are gone after k of T steps: `round(k * n_i / T)`, halves up, in integers.

    Args:
        valid: Which positions are features, bool (B, n).
        steps: T.

    Returns:
        Counts, int64 (B, T + 1): 0 at k = 0, n_i at k = T. A sample with fewer features than steps repeats counts.

    Raises:
        ValueError: If steps is not positive or a sample has no feature; the message names the rows.
    """
    if steps < 1:
        raise ValueError(f"steps = {steps}: must be at least 1")
    sizes = valid.sum(1)
    if bool((sizes == 0).any()):
        raise ValueError(f"samples without features (rows {(sizes == 0).nonzero()[:, 0].tolist()[:10]}) have no curve")
    k = torch.arange(steps + 1, device=valid.device)
    return (2 * k * sizes[:, None] + steps) // (2 * steps)


def relevance_ranks(attribution: Tensor, valid: Tensor, sample_ids: Tensor, seed: int) -> Tensor:
    """Place of each feature when features are sorted by attribution.

    Ties are broken by a key of (seed, sample, feature): never by position, which would prefer the top left of a coarse map, and
    never by the batch. All maps of a sample share the key.

    Args:
        attribution: Maps, (B, n), higher = more relevant.
        valid: Which positions are features, bool (B, n).
        sample_ids: int64 (B,).
        seed: Seed of the run.

    Returns:
        Ranks, int64 (B, n): 0 = most relevant, n_i - 1 = least; positions that are no feature come after them.

    Raises:
        ValueError: If a feature's attribution is not finite; the message names the rows.
    """
    bad = (~torch.isfinite(attribution) & valid).any(1)
    if bool(bad.any()):
        raise ValueError(f"{int(bad.sum())} maps are not finite (rows {bad.nonzero()[:, 0].tolist()[:10]}): drop them first")
    sortable = torch.where(valid, attribution, -torch.inf)
    by_key = _tie_keys(sample_ids, attribution.shape[1], seed).to(attribution.device).argsort(dim=1)
    order = by_key.gather(1, sortable.gather(1, by_key).argsort(dim=1, descending=True, stable=True))
    positions = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, positions)


def _tie_keys(sample_ids: Tensor, n: int, seed: int) -> Tensor:
    """A pseudo-random int64 for each (sample, feature), (B, n), by a counter hash: no generator to draw from in order."""
    golden = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number; int64 arithmetic wraps
    state = _mix(derive(seed, "ties") + sample_ids.long() * golden)
    return _mix(state[:, None] + (1 + torch.arange(n, device=sample_ids.device)) * golden)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele et al., OOPSLA 2014). The mask makes the arithmetic shift of int64 a logical one."""
    x = (x ^ ((x >> 30) & (2**34 - 1))) * -4658895280553007687
    x = (x ^ ((x >> 27) & (2**37 - 1))) * -7723592293110705685
    return x ^ ((x >> 31) & (2**33 - 1))


def sweep(
    evaluate: Evaluate,
    ranks: Tensor,
    valid: Tensor,
    clean: Tensor,
    steps: int,
    *,
    insertion: Evaluate | None,
    singles: Masks | None,
    empty: Tensor | None,
) -> Sweeps:
    """Remove features in the order of a map, from both ends and chunk by chunk.

    Args:
        evaluate: The game; row b of the batch is its sample b.
        ranks: Place of each feature, int64 (B, n) (`relevance_ranks`).
        valid: Which positions are features, bool (B, n).
        clean: v(all), (B,).
        steps: T.
        insertion: The game whose removed features are what insertion starts from; None if that is `evaluate` itself. Then
            insertion at k is LeRF at T - k and costs nothing.
        singles: Values without each feature alone (bank, law `singles`), read for every chunk of one feature; None makes
            the sweep evaluate them.
        empty: v(none), (B,); None makes the sweep evaluate it, once a sample. Where it is given, the first-choice flag of the
            empty input repeats that of the state before it; no metric reads it.

    Returns:
        The curves, on the CPU. `planned_passes` says how many evaluations they took.

    Raises:
        ValueError: If a sample has no feature.
    """
    counts = removal_counts(valid, steps)
    batch = counts.shape[0]
    sizes = counts[:, -1:]
    changed = torch.cat([torch.ones_like(counts[:, :1], dtype=torch.bool), counts[:, 1:] != counts[:, :-1]], 1)
    interior = changed & (counts > 0) & (counts < sizes)
    row, k = interior.nonzero(as_tuple=True)
    rank, exists = ranks[row], valid[row]

    chunk_sizes = counts[:, 1:] - counts[:, :-1]
    chunk_row, j = (chunk_sizes > (0 if singles is None else 1)).nonzero(as_tuple=True)
    chunk_rank = ranks[chunk_row]
    inside = (chunk_rank >= counts[chunk_row, j][:, None]) & (chunk_rank < counts[chunk_row, j + 1][:, None])

    gone = counts[row, k][:, None]
    last = torch.arange(batch if empty is None else 0)
    rows = torch.cat([row, row, chunk_row, last])
    keep = torch.cat([(rank >= gone) | ~exists, (rank < sizes[row] - gone) | ~exists, ~inside | ~valid[chunk_row], ~valid[last]])
    # Sorted by sample, so that a batch of the model holds few samples and many states of each.
    by_sample = rows.argsort(stable=True)
    played = evaluate(rows[by_sample], keep[by_sample])
    value, top = torch.empty_like(played.value), torch.empty_like(played.top)
    value[by_sample], top[by_sample] = played.value, played.top
    parts = [len(row), len(row), len(chunk_row), len(last)]
    morf_value, lerf_value, chunk_value, empty_value = value.split(parts)
    morf_flag, lerf_flag, _, empty_flag = top.split(parts)
    if empty is not None:
        empty_value = empty

    at_end = changed & (counts == sizes)
    known = changed if empty is None else changed & ~at_end
    morf = _curve(interior, morf_value, at_end, empty_value, clean)
    lerf = _curve(interior, lerf_value, at_end, empty_value, clean)
    chunk = torch.full(chunk_sizes.shape, torch.nan)
    if singles is not None:
        chunk = _single_chunks(singles, ranks, counts, chunk_sizes)
    chunk[chunk_row, j] = chunk_value

    return Sweeps(
        counts=counts,
        morf=_held(changed, morf),
        morf_top=_held(known, _flags(interior, morf_flag, at_end, empty_flag)),
        lerf=_held(changed, lerf),
        lerf_top=_held(known, _flags(interior, lerf_flag, at_end, empty_flag)),
        insertion=_held(changed, lerf).flip(1) if insertion is None else _insert(insertion, ranks, valid, clean, counts),
        chunk=chunk,
    )


def _curve(interior: Tensor, values: Tensor, at_end: Tensor, empty: Tensor, clean: Tensor) -> Tensor:
    """Values at the states that differ from the one before; the rest is filled by `_held`."""
    curve = clean.float()[:, None].repeat(1, interior.shape[1])
    curve[interior] = values
    curve[at_end] = empty.float()  # exactly one state a sample, in the order of samples
    return curve


def _flags(interior: Tensor, flags: Tensor, at_end: Tensor, empty: Tensor) -> Tensor:
    """First-choice flags at the states that differ; True for the clean input, whose first choice is the explained class."""
    curve = torch.ones_like(interior)
    curve[interior] = flags
    if len(empty):
        curve[at_end] = empty
    return curve


def _held(known: Tensor, curve: Tensor) -> Tensor:
    """Each state that is not known takes the last known one before it (column 0 always is)."""
    positions = torch.arange(curve.shape[1]).expand(curve.shape)
    return curve.gather(1, torch.where(known, positions, 0).cummax(1).values)


def _single_chunks(singles: Masks, ranks: Tensor, counts: Tensor, chunk_sizes: Tensor) -> Tensor:
    """Values of the chunks of one feature, NaN elsewhere, (B, T)."""
    order = torch.empty_like(ranks).scatter_(1, ranks, torch.arange(ranks.shape[1]).expand_as(ranks))
    # The only feature of such a chunk has the rank counts[k - 1]; clamped where the chunk is empty and the value unused.
    feature = order.gather(1, counts[:, :-1].clamp(max=ranks.shape[1] - 1))
    return torch.where(chunk_sizes == 1, singles.values.gather(1, feature), torch.nan)


def _insert(evaluate: Evaluate, ranks: Tensor, valid: Tensor, clean: Tensor, counts: Tensor) -> Tensor:
    """The insertion curve (B, T + 1) in a game of its own: one evaluation for each distinct state but the full input."""
    inserted = counts[:, -1:] - counts.flip(1)
    changed = torch.cat([torch.ones_like(counts[:, :1], dtype=torch.bool), inserted[:, 1:] != inserted[:, :-1]], 1)
    played = changed & (inserted < counts[:, -1:])
    row, k = played.nonzero(as_tuple=True)
    keep = (ranks[row] < inserted[row, k][:, None]) | ~valid[row]
    curve = clean.float()[:, None].repeat(1, counts.shape[1])
    curve[played] = evaluate(row, keep).value
    return _held(changed, curve)


def planned_passes(valid: Tensor, steps: int, *, own_insertion: bool, singles: bool, empty: bool) -> int:
    """How many coalitions `sweep` evaluates for one map of each sample.

    A sample of n features and T steps costs `min(T, n) - 1` states from each end, one empty input if that is not given,
    `min(T, n)` more if insertion has a game of its own, and the chunks of more than one feature (all chunks without `singles`).
    That is below the `3T` of the shared design's column (spec, section 5) with either of the last two, below `4T` with both.

    Args:
        valid: Which positions are features, bool (B, n).
        steps: T.
        own_insertion: Whether `insertion` is given.
        singles: Whether `singles` are given.
        empty: Whether `empty` is given.
    """
    n = valid.sum(1)
    distinct = n.clamp(max=steps)
    chunks = (n - steps).clamp(0, steps) if singles else distinct
    per_sample = 2 * (distinct - 1) + (distinct if own_insertion else 0) + chunks + (0 if empty else 1)
    return int(per_sample.sum())


# ------------------------------------------------------------------------------------------------------------------ frames


def to_frame(sample_ids: Tensor, splits: Sequence[str], sweeps: Sweeps) -> pl.DataFrame:
    """The curves as rows, for Parquet.

    Args:
        sample_ids: int64 (B,).
        splits: Split of each sample.
        sweeps: Curves of B maps.

    Returns:
        `sample_id i64, split str, sweep str, step i32, fraction f32, value f32, top bool`, in order of samples, sweeps
        (`CURVES`) and steps. `fraction` is the share of features removed (insertion: put back) after the step; for a chunk, which
        is removed alone, where it ends in the order. `top` is null for insertion and chunks. Steps without a feature have no
        chunk row.
    """
    batch, points = sweeps.counts.shape
    sizes = sweeps.counts[:, -1:]
    fraction = (sweeps.counts / sizes).float()
    inserted = ((sizes - sweeps.counts.flip(1)) / sizes).float()
    lengths = [points, points, points, points - 1]
    exists = torch.ones(batch, sum(lengths), dtype=torch.bool)
    exists[:, 3 * points :] = sweeps.counts[:, 1:] > sweeps.counts[:, :-1]
    flagged = np.zeros((batch, sum(lengths)), dtype=bool)
    flagged[:, : 2 * points] = True
    return (
        pl.DataFrame(
            {
                "sample_id": sample_ids.cpu().numpy().astype(np.int64).repeat(sum(lengths)),
                "split": np.asarray(splits, dtype=str).repeat(sum(lengths)),
                "sweep": np.tile(np.asarray(CURVES).repeat(lengths), batch),
                "step": np.tile(np.concatenate([np.arange(points)] * 3 + [np.arange(1, points)]).astype(np.int32), batch),
                "fraction": torch.cat([fraction, fraction, inserted, fraction[:, 1:]], 1).flatten().numpy(),
                "value": torch.cat([sweeps.morf, sweeps.lerf, sweeps.insertion, sweeps.chunk], 1).flatten().numpy(),
                "top": torch.cat([sweeps.morf_top, sweeps.lerf_top, torch.zeros(batch, 2 * points - 1, dtype=torch.bool)], 1)
                .flatten()
                .numpy(),
                "flagged": flagged.reshape(-1),
                "exists": exists.flatten().numpy(),
            }
        )
        .filter(pl.col("exists"))
        .with_columns(top=pl.when("flagged").then("top"))
        .drop("exists", "flagged")
    )


def from_frame(frame: pl.DataFrame, sample_ids: Tensor, valid: Tensor) -> Sweeps:
    """The curves of some samples out of the rows of `to_frame`.

    Args:
        frame: Rows of one candidate; rows of other samples are ignored.
        sample_ids: Wanted samples in the wanted order, int64 (B,).
        valid: Their features, bool (B, n).

    Raises:
        ValueError: If a sample's curve is missing or has gaps, or if a sample id is asked for twice.
    """
    ids = sample_ids.cpu().numpy().astype(np.int64)
    if len(np.unique(ids)) != len(ids):
        raise ValueError("sample_ids holds an id twice")
    steps = frame["step"].max()
    if not isinstance(steps, int):
        raise ValueError("the frame has no curve")
    wanted = pl.DataFrame({"sample_id": ids, "position": np.arange(len(ids), dtype=np.int64)})
    rows = frame.join(wanted, on="sample_id", how="inner")
    values, tops = {}, {}
    for name in CURVES:
        part = rows.filter(pl.col("sweep") == name)
        at = (torch.from_numpy(part["position"].to_numpy().copy()), torch.from_numpy(part["step"].to_numpy().astype(np.int64)))
        values[name] = torch.full((len(ids), steps + 1), torch.nan)
        values[name][at] = torch.from_numpy(part["value"].to_numpy().copy())
        tops[name] = torch.zeros(len(ids), steps + 1, dtype=torch.bool)
        tops[name][at] = torch.from_numpy(part["top"].fill_null(False).to_numpy().copy())
    counts = removal_counts(valid, steps)
    gap = torch.cat([values[name] for name in CURVES[:3]], 1).isnan().any(1)
    gap |= (values["chunk"][:, 1:].isnan() & (counts[:, 1:] > counts[:, :-1])).any(1)
    if bool(gap.any()):
        raise ValueError(f"{int(gap.sum())} samples have no whole curve (ids {ids[gap.numpy()].tolist()[:10]})")
    return Sweeps(
        counts=counts,
        morf=values["morf"],
        morf_top=tops["morf"],
        lerf=values["lerf"],
        lerf_top=tops["lerf"],
        insertion=values["insertion"],
        chunk=values["chunk"][:, 1:],
    )
