"""Who is better, and how sure are we: ranks per sample, bootstrap intervals over samples, paired tests."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from statsmodels.stats.multitest import multipletests
from torch import Tensor

from faithline.metrics.catalogue import families, signs
from faithline.seeding import numpy_generator

SAME = 0.999
"""Candidates whose maps have a larger cosine than this on every sample are one candidate."""

BLOCK = 128
"""Samples, or bootstrap repeats, handled at once: bounds memory."""


# -------------------------------------------------------------------------------------------------------------------- ranks


def duplicates(maps: Tensor) -> list[int | None]:
    """Which candidates repeat an earlier one: cosine above 0.999 on every sample.

    A sample on which both maps are unusable (zero or not finite) says nothing; one on which only one is tells them apart.

    Args:
        maps: Raw signed maps, (N, K, n), candidates in order of precedence.

    Returns:
        For each candidate the position of the one it repeats (which itself repeats none), or None.
    """
    count = maps.shape[1]
    same = torch.ones(count, count, dtype=torch.bool)
    compared = torch.zeros(count, count, dtype=torch.bool)
    for part in maps.split(BLOCK):
        part = part.double()
        norm = part.norm(dim=2)
        usable = torch.isfinite(norm) & (norm > 0)
        unit = torch.where(usable[:, :, None], part / norm[:, :, None], 0.0)
        both = usable[:, :, None] & usable[:, None]
        same &= (~(usable[:, :, None] ^ usable[:, None]) & (~both | (unit @ unit.mT > SAME))).all(0)
        compared |= both.any(0)
    same &= compared
    leaders: list[int | None] = []
    for candidate in range(count):
        leaders.append(next((j for j in range(candidate) if leaders[j] is None and bool(same[candidate, j])), None))
    return leaders


def candidate_ranks(scores: Tensor, metrics: Sequence[str], pool: Sequence[int], duplicate_of: Sequence[int | None]) -> Tensor:
    """Mid-rank of each candidate on each sample and metric, 1 = best.

    The rank of a candidate counts those of the pool that beat it, itself aside, and half of those that tie. A candidate outside
    the pool (a reference) thus gets the rank it would have in it, and moves nobody. A duplicate takes the rank of the one it
    repeats and is no member. Undefined scores are not ranked: they beat nobody, and their own rank is NaN.

    Args:
        scores: (N, K, M), NaN where undefined.
        metrics: Names of the M metrics, which give the directions.
        pool: Candidates that are ranked against each other.
        duplicate_of: As `duplicates` gives it.

    Returns:
        float64 (N, K, M), NaN where the score is.

    Raises:
        ValueError: If the shapes do not fit the names.
    """
    if scores.shape[1:] != (len(duplicate_of), len(metrics)):
        raise ValueError(f"scores have shape {tuple(scores.shape)}; (N, {len(duplicate_of)}, {len(metrics)}) expected")
    member = torch.zeros(len(duplicate_of), dtype=torch.bool)
    member[list(pool)] = True
    for candidate, leader in enumerate(duplicate_of):
        if leader is not None:
            member[leader] |= member[candidate]
            member[candidate] = False
    members = member.nonzero()[:, 0]
    oriented = scores.double() * signs(metrics)
    itself = torch.zeros(len(duplicate_of), len(members), dtype=torch.float64)
    itself[members, torch.arange(len(members))] = 0.5  # a member ties with itself, and that is no opponent
    parts = []
    for part in oriented.split(BLOCK):
        own, rival = part[:, :, None], part[:, members][:, None]
        ahead = (rival > own).double() + 0.5 * (rival == own).double() - itself[None, :, :, None]
        parts.append(torch.where(part.isnan(), torch.nan, 1 + ahead.sum(2)))
    ranks = torch.cat(parts) if parts else torch.empty_like(oriented)
    source = [candidate if leader is None else leader for candidate, leader in enumerate(duplicate_of)]
    return ranks[:, source]


def mean_rank(ranks: Tensor, metrics: Sequence[str], without: Sequence[str] = ()) -> Tensor:
    """Mean rank over the metrics, those of `without` left out; undefined ones do not count. (N, K, M) -> (N, K)."""
    chosen = [i for i, name in enumerate(metrics) if name not in without]
    return ranks[:, :, chosen].nanmean(2)


def family_rank(ranks: Tensor, metrics: Sequence[str]) -> Tensor:
    """Mean over families of the mean rank within a family: one vote each, though deletion has four metrics. -> (N, K)."""
    grouped = families(metrics).values()
    return torch.stack([ranks[:, :, [metrics.index(name) for name in names]].nanmean(2) for names in grouped]).nanmean(0)


# ---------------------------------------------------------------------------------------------------------------- intervals


@dataclass(frozen=True)
class Interval:
    """Means over samples with percentile-bootstrap intervals.

    Attributes:
        mean: Mean of the defined values, float64 (C,).
        low: Lower end.
        high: Upper end.
        n: Defined values, int64 (C,).
        null: Undefined values, int64 (C,).
    """

    mean: Tensor
    low: Tensor
    high: Tensor
    n: Tensor
    null: Tensor

    def rows(self) -> list[dict[str, float | int | None]]:
        """One dict a column, for JSON: an undefined number is None."""
        columns = zip(self.mean.tolist(), self.low.tolist(), self.high.tolist(), self.n.tolist(), self.null.tolist(), strict=True)
        return [
            {
                "mean": None if mean != mean else mean,
                "low": None if low != low else low,
                "high": None if high != high else high,
                "n": n,
                "null": null,
            }
            for mean, low, high, n, null in columns
        ]


def interval(values: Tensor, *, repeats: int, confidence: float, seed: int) -> Interval:
    """Mean over samples of each column, with a percentile bootstrap over samples.

    The same seed and number of samples give the same resamples, so intervals of several calls belong together. For a paired
    comparison hand over differences per sample: `scores - scores[:, [reference]]`, or the difference of two mean ranks.

    Args:
        values: (N, C), NaN where undefined; undefined values are left out and counted.
        repeats: Bootstrap resamples.
        confidence: Share of resamples inside the interval, for example 0.95.
        seed: Seed of the run.

    Returns:
        Interval of each column; NaN for a column without a defined value.

    Source:
        Efron and Tibshirani, 1993, chapter 13.
    """
    values = values.double()
    defined = ~values.isnan()
    filled = torch.where(defined, values, 0.0)
    samples = values.shape[0]
    generator = numpy_generator(seed, "bootstrap", samples)
    means = []
    for start in range(0, repeats, BLOCK):
        rows = min(BLOCK, repeats - start)
        chosen = generator.integers(samples, size=(rows, samples)) + samples * np.arange(rows)[:, None]
        # How often each sample is drawn, instead of which: a mean is then one matrix product.
        drawn = torch.from_numpy(np.bincount(chosen.ravel(), minlength=rows * samples).reshape(rows, samples)).double()
        means.append((drawn @ filled) / (drawn @ defined.double()))
    resampled = torch.cat(means)
    tail = (1 - confidence) / 2
    ends = torch.nanquantile(resampled, torch.tensor([tail, 1 - tail], dtype=torch.float64), dim=0)
    n = defined.sum(0)
    return Interval(mean=filled.sum(0) / n, low=ends[0], high=ends[1], n=n, null=samples - n)


def wilcoxon(differences: Tensor) -> Tensor:
    """Two-sided p value of the paired Wilcoxon signed-rank test of each column (N, C) -> float64 (C,).

    Undefined differences are left out. Columns without a difference have p = 1 (identical), those without a value NaN.

    Source:
        Wilcoxon, 1945 (scipy.stats.wilcoxon).
    """
    values = differences.double()
    defined = (~values.isnan()).any(0)
    differs = (values.nan_to_num() != 0).any(0)
    p = torch.where(defined, 1.0, torch.nan).double()
    if bool(differs.any()):
        result = stats.wilcoxon(values[:, differs].numpy(), axis=0, nan_policy="omit")
        p[differs] = torch.from_numpy(np.atleast_1d(result.pvalue))
    return p


def holm(p: Tensor) -> Tensor:
    """Holm-adjusted p values of a family of tests, (C,) -> float64 (C,): those below a level reject at that familywise error.

    An undefined p value is no member of the family and stays NaN.

    Source:
        Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979 (statsmodels.stats.multitest.multipletests).
    """
    adjusted = p.double().clone()
    known = ~p.isnan()
    if bool(known.any()):
        adjusted[known] = torch.from_numpy(multipletests(p[known].double().numpy(), method="holm")[1])
    return adjusted
