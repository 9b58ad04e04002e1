"""Which maps may teach: near-duplicates go, then a map must pass the quantile of every metric on its sample."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from torch import Tensor

from faithline.metrics.catalogue import signs
from faithline.metrics.correlation import average_ranks

OnEmpty = Literal["best_mean_rank", "drop"]
Weights = Literal["equal", "rank"]
REASONS = ("kept", "non_finite", "duplicate", "below_quantile")

NON_FINITE = -1
"""What `deduplicate` says of a map that cannot be compared."""

SLACK = 1e-12
"""Relative rounding error that a comparison with a threshold forgives, so that a tie is a tie."""


def deduplicate(maps: Tensor, finite: Tensor, cosine: float, place: Tensor | None = None) -> Tensor:
    """Greedy leader clustering of each sample's maps, in the given order or by their places.

    Walk the list: a map that no earlier leader has removed becomes a leader and removes every later map whose cosine with it is
    at least `cosine`. This is no transitive closure: of a chain a ~ b ~ c with a unlike c, a and c stay. Cosines are those of the
    raw signed maps; on maps scaled to [0, 1] they would be inflated.

    Args:
        maps: Raw signed maps, (B, K, n); methods in order of precedence.
        finite: Whether the method calls the map finite, bool (B, K).
        cosine: Threshold in (0, 1].
        place: Walk each sample's list in ascending order of these numbers instead, (B, K); of equals the first comes first.

    Returns:
        Leader of each map, int64 (B, K): its own position if it stays, the position of the map it repeats, or `NON_FINITE` for a
        map that is not finite or zero everywhere.

    Source:
        DeepFaith, 2025 (spec, section 3.6, steps 1 and 2).
    """
    if place is not None:
        walk = place.argsort(dim=1, stable=True)
        rows = torch.arange(len(maps))[:, None]
        found = deduplicate(maps[rows, walk], finite[rows, walk], cosine)
        named = torch.where(found >= 0, walk.gather(1, found.clamp(min=0)), NON_FINITE)
        return torch.empty_like(named).scatter(1, walk, named)
    maps = maps.double()
    norm = maps.norm(dim=2)
    usable = finite & torch.isfinite(norm) & (norm > 0)
    unit = torch.where(usable[:, :, None], maps / norm[:, :, None], 0.0)
    alike = unit @ unit.mT >= cosine * (1 - SLACK)
    count = maps.shape[1]
    leader = torch.where(usable, torch.arange(count), NON_FINITE)
    for k in range(count):  # greedy: whether a map leads depends on all before it
        leads = leader[:, k] == k
        free = leader == torch.arange(count)
        free[:, : k + 1] = False
        leader = torch.where(leads[:, None] & alike[:, k] & free, k, leader)
    return leader


def mean_place(scores: Tensor, alive: Tensor, metrics: Sequence[str]) -> Tensor:
    """Mean rank of each map among the living maps of its sample, float64 (B, K), 1 = best; infinity for the others.

    Equal scores share a rank; an undefined score ranks last.

    Args:
        scores: (B, K, M), NaN where undefined.
        alive: Maps that take part, bool (B, K).
        metrics: Names of the M metrics, which give the directions.
    """
    oriented = torch.where(alive[:, :, None], scores.double() * signs(metrics), torch.nan)
    place = average_ranks(-oriented.mT).mT
    place = torch.where(place.isnan(), alive.sum(1)[:, None, None].double(), place).mean(2)
    return torch.where(alive, place, torch.inf)


def quantile_filter(
    scores: Tensor, alive: Tensor, metrics: Sequence[str], quantile: float, on_empty: OnEmpty
) -> tuple[Tensor, Tensor]:
    """Keep the maps that are not among the worst `quantile` of their sample in any metric.

    Thresholds are linear quantiles over the scores of the sample's living maps. A tie with the threshold passes. An undefined
    score fails its metric; a metric that is undefined for all living maps is skipped.

    Args:
        scores: (B, K, M), NaN where undefined.
        alive: Maps that take part, bool (B, K).
        metrics: Names of the M metrics, which give the directions.
        quantile: p in [0, 1); 0 lets every map with ten defined scores pass.
        on_empty: What a sample without survivor does: `best_mean_rank` keeps its living map with the best mean rank (an undefined
            score ranks last; the first of equals wins), `drop` keeps none.

    Returns:
        kept (B, K) and passed (B, K): they differ only where on_empty saved a map.

    Source:
        DeepFaith, 2025 (spec, section 3.6, steps 3 to 5 and edge rules a to d).
    """
    oriented = torch.where(alive[:, :, None], scores.double() * signs(metrics), torch.nan)
    threshold = torch.nanquantile(oriented, quantile, dim=1, keepdim=True)
    skipped = oriented.isnan().all(1, keepdim=True)
    passed = ((oriented >= threshold - SLACK * threshold.abs()) | skipped).all(2) & alive
    if on_empty == "drop":
        return passed, passed
    empty = alive.any(1) & ~passed.any(1)
    best = mean_place(scores, alive, metrics).argmin(1)
    saved = empty[:, None] & (torch.arange(alive.shape[1]) == best[:, None])
    return passed | saved, passed


def teaching_weights(kept: Tensor, place: Tensor, weights: Weights) -> Tensor:
    """How much each map counts in L_PC, float64 (B, K): the kept maps of a sample sum to 1, so that each sample counts once.

    Args:
        kept: bool (B, K).
        place: From `mean_place`.
        weights: `equal`, or `rank`: in proportion to 1 / place.
    """
    share = torch.where(kept, 1 / place if weights == "rank" else 1.0, 0.0).double()
    return share / share.sum(1, keepdim=True).clamp(min=torch.finfo(share.dtype).tiny)


def index_frame(
    sample_ids: Tensor, methods: Sequence[str], leader: Tensor, kept: Tensor, passed: Tensor, weight: Tensor
) -> pl.DataFrame:
    """One row a (sample, method): what became of each map.

    Args:
        sample_ids: int64 (B,).
        methods: Names of the K methods.
        leader: From `deduplicate`.
        kept: From `quantile_filter`.
        passed: From `quantile_filter`.
        weight: From `teaching_weights`.

    Returns:
        `sample_id i64, method str, kept bool, reason str, duplicate_of str, weight f32`. A map that `on_empty` saved is kept, and
        its reason still says `below_quantile`.
    """
    batch, count = leader.shape
    own = torch.arange(count)
    names = np.asarray(methods, dtype=str)
    duplicate = ((leader != own) & (leader != NON_FINITE)).numpy()
    reason = np.where(passed.numpy(), "kept", "below_quantile")
    reason[(leader == NON_FINITE).numpy()] = "non_finite"
    reason[duplicate] = "duplicate"
    return pl.DataFrame(
        {
            "sample_id": sample_ids.cpu().numpy().astype(np.int64).repeat(count),
            "method": np.tile(names, batch),
            "kept": kept.flatten().numpy(),
            "reason": reason.reshape(-1),
            "duplicate_of": names[leader.clamp(min=0).numpy()].reshape(-1),
            "weight": weight.flatten().float().numpy(),
        }
    ).with_columns(duplicate_of=pl.when(pl.col("reason") == "duplicate").then("duplicate_of"))


def summary(index: pl.DataFrame) -> dict[str, Any]:
    """Counts for `reports/curate/<task>.json`.

    Args:
        index: Rows of `index_frame`.

    Returns:
        `methods`: kept maps and reasons of each method; `samples`; `mean_unique` and `mean_kept`: maps a sample after
        de-duplication and after the filter; `on_empty`: samples whose living maps all failed, as count, rate over samples, and
        how many of them kept one map after all; `lost`: samples that teach nothing.
    """
    counts = index.group_by("method", maintain_order=True).agg(
        pl.len().alias("maps"),
        pl.col("kept").sum().alias("taught"),
        *[(pl.col("reason") == reason).sum().alias(reason) for reason in REASONS],
    )
    samples = index.group_by("sample_id").agg(
        pl.col("kept").sum().alias("kept"),
        pl.col("reason").is_in(["kept", "below_quantile"]).sum().alias("unique"),
        ((pl.col("reason") == "below_quantile").any() & ~(pl.col("reason") == "kept").any()).alias("empty"),
    )
    total = samples.height
    empty = int(samples["empty"].sum())
    return {
        "methods": {row.pop("method"): row for row in counts.to_dicts()},
        "samples": total,
        "mean_unique": float(samples["unique"].sum()) / max(total, 1),
        "mean_kept": float(samples["kept"].sum()) / max(total, 1),
        "on_empty": {
            "count": empty,
            "rate": empty / max(total, 1),
            "saved": int(samples.filter("empty")["kept"].sum()),
        },
        "lost": int((samples["kept"] == 0).sum()),
    }
