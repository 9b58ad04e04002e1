"""The ten faithfulness metrics as functions of curves, mask effects and a map: no model, no files.

All take B samples and give float64 (B,), NaN where the metric is undefined. Directions, families and ranges: `catalogue.METRICS`.
"""

from typing import Literal

import torch
from torch import Tensor

from faithline.bank import Masks
from faithline.metrics.correlation import pearson, spearman
from faithline.metrics.curves import Sweeps

Convention = Literal["strict", "official"]


# ------------------------------------------------------------------------------------------------------------- correlations


def removed_sums(attribution: Tensor, masks: Masks) -> Tensor:
    """Summed attribution of what each mask removes, float64 (B, S); padding adds nothing."""
    own = torch.where(masks.valid, attribution, 0.0).double()
    return ((~masks.keep).double() @ own[:, :, None])[:, :, 0]


def subset_correlation(attribution: Tensor, masks: Masks) -> Tensor:
    """FC on fixed-size masks, INF on Bernoulli masks: Pearson of summed attribution and effect over subsets. Higher is better.

    A constant map has no FC (its sums are equal). It has an INF: there the sum is the size of the subset.

    Source:
        Bhatt et al., IJCAI 2020 (FC); DeepFaith, 2025, Eq. 1 (INF as a correlation).
    """
    return pearson(removed_sums(attribution, masks), masks.effects)


def chunk_sums(attribution: Tensor, ranks: Tensor, counts: Tensor) -> Tensor:
    """Summed attribution of the features that each step of a sweep takes, float64 (B, T).

    Args:
        attribution: Maps (B, n).
        ranks: Place of each feature, int64 (B, n), as in the sweep; positions that are no feature rank last.
        counts: Features removed after k steps, int64 (B, T + 1).
    """
    steps = counts.shape[1] - 1
    # Feature of rank r goes in the first step after which more than r features are gone.
    step = torch.searchsorted(counts[:, 1:].contiguous(), ranks, right=True)
    exists = step < steps
    own = torch.where(exists, attribution, 0.0).double()
    return torch.zeros(len(counts), steps, dtype=torch.float64).scatter_add_(1, step.clamp(max=steps - 1), own)


def faithfulness_estimate(attribution: Tensor, ranks: Tensor, sweeps: Sweeps) -> Tensor:
    """FE: Pearson over rank chunks of summed attribution and the drop when the chunk alone is removed. Higher is better.

    Source:
        Alvarez-Melis and Jaakkola, NeurIPS 2018; chunked as in Quantus.
    """
    taken = sweeps.counts[:, 1:] > sweeps.counts[:, :-1]
    return pearson(chunk_sums(attribution, ranks, sweeps.counts), sweeps.morf[:, :1].double() - sweeps.chunk.double(), taken)


def monotonicity_correlation(attribution: Tensor, ranks: Tensor, sweeps: Sweeps, *, absolute: bool, min_prob: float) -> Tensor:
    """MC: Spearman over rank chunks of summed attribution and the squared relative change. Higher is better.

    The change has no sign, the map has: a feature that speaks strongly against the class looks wrong unless `absolute`.

    Args:
        attribution: Maps (B, n).
        ranks: Place of each feature, int64 (B, n), as in the sweep.
        sweeps: Curves.
        absolute: Correlate |attribution| instead (Quantus' default; equal to it at one feature a step).
        min_prob: Undefined where the clean value is below this.

    Source:
        Nguyen and Martinez, 2020, with one baseline instead of samples of it.
    """
    clean = sweeps.morf[:, :1].double()
    taken = sweeps.counts[:, 1:] > sweeps.counts[:, :-1]
    change = (sweeps.chunk.double() - clean) ** 2 / clean**2
    sums = chunk_sums(attribution.abs() if absolute else attribution, ranks, sweeps.counts)
    return torch.where(clean[:, 0] < min_prob, torch.nan, spearman(sums, change, taken))


# -------------------------------------------------------------------------------------------------------------------- areas


def area(curve: Tensor, convention: Convention) -> Tensor:
    """Area under a curve by the trapezoid rule on x = k / T.

    Args:
        curve: Value after k of T steps, (B, T + 1).
        convention: `strict`: k = 0..T, width 1. `official`: k = 1..T, so the clean end is missing and the width is (T - 1) / T.

    Returns:
        float64 (B,).
    """
    points = curve.double() if convention == "strict" else curve[:, 1:].double()
    return torch.trapezoid(points, dx=1 / (curve.shape[1] - 1))


def width(steps: int, convention: Convention) -> float:
    """W, the area under a curve that is 1 everywhere."""
    return 1.0 if convention == "strict" else (steps - 1) / steps


def frozen(curve: Tensor, top: Tensor) -> Tensor:
    """The curve, held from the first state whose first choice is another class: later values are that state's, (B, T + 1)."""
    positions = torch.arange(curve.shape[1], device=curve.device).expand(curve.shape)
    flipped = torch.where(top, curve.shape[1] - 1, positions).amin(1, keepdim=True)
    return curve.gather(1, torch.minimum(positions, flipped))


def region_perturbation(sweeps: Sweeps) -> Tensor:
    """RP: mean drop over k = 1..T, most relevant first, the same in both conventions. Higher is better.

    Source:
        Samek et al., TNNLS 2017, Eq. 12 (AOPC without the zero at k = 0).
    """
    return sweeps.morf[:, 0].double() - sweeps.morf[:, 1:].double().mean(1)


def insertion(sweeps: Sweeps, convention: Convention) -> Tensor:
    """INS: area under the insertion curve. Higher is better.

    Source:
        Petsiuk et al., RISE, BMVC 2018.
    """
    return area(sweeps.insertion, convention)


def deletion(sweeps: Sweeps, convention: Convention) -> Tensor:
    """DEL: area under the most-relevant-first curve. Lower is better.

    Source:
        Petsiuk et al., RISE, BMVC 2018.
    """
    return area(sweeps.morf, convention)


def negative_perturbation(sweeps: Sweeps, convention: Convention) -> Tensor:
    """NEG: area under the least-relevant-first curve, frozen once the class changes. Higher is better.

    Source:
        DeepFaith, 2025, after Chefer et al., CVPR 2021.
    """
    return area(frozen(sweeps.lerf, sweeps.lerf_top), convention)


def positive_perturbation(sweeps: Sweeps, convention: Convention) -> Tensor:
    """POS: area under the most-relevant-first curve, frozen once the class changes. Lower is better.

    Source:
        DeepFaith, 2025, after Chefer et al., CVPR 2021.
    """
    return area(frozen(sweeps.morf, sweeps.morf_top), convention)


def irof(sweeps: Sweeps, convention: Convention, min_prob: float) -> Tensor:
    """IROF: area of `1 - value / clean value`, most relevant first. Higher is better. NaN if the clean value is below min_prob.

    Equals `width - DEL / clean value`, so it adds no evidence to DEL. Features, not superpixels.

    Source:
        Rieger and Hansen, 2020, on features as in DeepFaith, 2025.
    """
    clean = sweeps.morf[:, :1].double()
    return torch.where(clean[:, 0] < min_prob, torch.nan, area(1 - sweeps.morf.double() / clean, convention))


# ---------------------------------------------------------------------------------------------------------------- all of them


def score(
    attribution: Tensor,
    ranks: Tensor,
    sweeps: Sweeps,
    *,
    bernoulli: Masks,
    fixed_size: Masks,
    convention: Convention,
    mc_absolute: bool,
    min_prob: float,
) -> dict[str, Tensor]:
    """All ten metrics of one map a sample.

    Args:
        attribution: Maps, float (B, n), higher = supports the target; their scale does not matter.
        ranks: Place of each feature, int64 (B, n), as in the sweep.
        sweeps: Curves of these maps.
        bernoulli: Bernoulli(1/2) masks of the evaluation seed (INF).
        fixed_size: Masks of one size of the evaluation seed (FC).
        convention: Curve convention (`area`).
        mc_absolute: See `monotonicity_correlation`.
        min_prob: Clean value below which MC and IROF are undefined.

    Returns:
        Metric name (in catalogue order) -> float32 (B,), NaN where undefined. float32, so that equal maps tie.
    """
    scores = {
        "fc": subset_correlation(attribution, fixed_size),
        "fe": faithfulness_estimate(attribution, ranks, sweeps),
        "mc": monotonicity_correlation(attribution, ranks, sweeps, absolute=mc_absolute, min_prob=min_prob),
        "inf": subset_correlation(attribution, bernoulli),
        "rp": region_perturbation(sweeps),
        "ins": insertion(sweeps, convention),
        "del": deletion(sweeps, convention),
        "neg": negative_perturbation(sweeps, convention),
        "pos": positive_perturbation(sweeps, convention),
        "irof": irof(sweeps, convention, min_prob),
    }
    return {name: value.float() for name, value in scores.items()}
