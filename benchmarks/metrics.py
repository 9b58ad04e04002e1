"""Ten metrics against Quantus: the five that both have, on the same samples, maps and masks, with equal values.

PYTHONPATH=src python benchmarks/metrics.py
"""

import time
import warnings
from collections.abc import Callable
from unittest import mock

import numpy as np
import quantus
import torch
from torch import Tensor, nn

from faithline.bank import Masks
from faithline.masking import Baseline, MaskedModel, Outcome, patch_features
from faithline.metrics.curves import relevance_ranks, sweep
from faithline.metrics.ten import area, faithfulness_estimate, monotonicity_correlation, region_perturbation, subset_correlation
from faithline.targets import SmallCNN

SAMPLES, MAPS, SUBSETS, REMOVED = 16, 11, 100, 10
PATCH, SIDE = 4, 28
STEPS = (SIDE // PATCH) ** 2


class Scaled(nn.Module):
    """The CNN of `digits_cnn`, its logits scaled so that an untrained network still reacts to each patch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = SmallCNN(1, SIDE, 10, width=16, depth=4, dropout=0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, 10)."""
        return 40 * self.body(x)


def _seconds(work: Callable[[], dict[str, np.ndarray]], repeats: int) -> tuple[float, dict[str, np.ndarray]]:
    """Shortest wall time of some runs, and the values."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        values = work()
        times.append(time.perf_counter() - start)
    return min(times), values


def _ours(game: MaskedModel, x: Tensor, maps: Tensor, keep: Tensor) -> dict[str, np.ndarray]:
    """The five metrics of K maps (B, K, n), from the model's first forward pass on."""
    batch, count, n = maps.shape
    logits, target = game.predict(x)
    clean = logits.softmax(1).gather(1, target[:, None])[:, 0]
    valid = game.features.valid(x)
    singles_keep = (~torch.eye(n, dtype=torch.bool)).expand(batch, n, n)
    empty_keep = torch.zeros(batch, 1, n, dtype=torch.bool)
    values = game.values(x, torch.cat([keep, singles_keep, empty_keep], 1), target)
    fixed_values, single_values, empty = values.split([keep.shape[1], n, 1], 1)
    empty = empty[:, 0]
    source = torch.arange(batch).repeat_interleave(count)  # one row a (sample, map)
    ids, flat, exists = source, maps.flatten(0, 1), valid[source]
    fixed = Masks(keep[source], fixed_values[source], clean[source], empty[source], exists)
    singles = Masks(singles_keep[source], single_values[source], clean[source], empty[source], exists)

    ranks = relevance_ranks(flat, exists, ids, 0)
    most = ranks.argmin(1)

    def evaluate(rows: Tensor, kept: Tensor) -> Outcome:
        # The sweep from the least relevant feature on serves INS and NEG, which are not among the five: it is not played.
        wanted = ~kept[torch.arange(len(rows)), most[rows]]
        value, top = torch.full((len(rows),), torch.nan), torch.zeros(len(rows), dtype=torch.bool)
        played = game.evaluate(x, source[rows[wanted]], kept[wanted], target)
        value[wanted], top[wanted] = played.value, played.top
        return Outcome(value, top)

    curves = sweep(evaluate, ranks, exists, clean[source], n, insertion=None, singles=singles, empty=empty[source])
    scores = {
        "fc": subset_correlation(flat, fixed),
        "fe": faithfulness_estimate(flat, ranks, curves),
        "mc": monotonicity_correlation(flat, ranks, curves, absolute=False, min_prob=1e-3),
        "rp": region_perturbation(curves),
        "del": area(curves.morf, "official"),
    }
    return {name: value.reshape(batch, count).numpy() for name, value in scores.items()}


def _quantus(model: nn.Module, x: Tensor, target: Tensor, pixel_maps: Tensor, subsets: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The same by Quantus, one call a metric and map; a map spread evenly over patches makes its pixel chunks our patches."""
    options = {"normalise": False, "disable_warnings": True, "perturb_baseline": 0.0}
    pixels = PATCH * PATCH
    metrics = {
        "fc": quantus.FaithfulnessCorrelation(nr_runs=SUBSETS, subset_size=REMOVED * pixels, return_aggregate=False, **options),
        "fe": quantus.FaithfulnessEstimate(
            features_in_step=pixels, similarity_func=quantus.similarity_func.correlation_pearson, **options
        ),
        "mc": quantus.MonotonicityCorrelation(features_in_step=pixels, nr_samples=1, abs=False, **options),
        "rp": quantus.RegionPerturbation(patch_size=PATCH, regions_evaluation=STEPS, **options),
        "del": quantus.PixelFlipping(features_in_step=pixels, return_auc_per_sample=True, **options),
    }
    values: dict[str, list[np.ndarray]] = {name: [] for name in metrics}
    for k in range(pixel_maps.shape[1]):
        for name, metric in metrics.items():
            # Quantus draws subsets with np.random.choice (it is handed ours) and calls np.trapz, which NumPy 2.4 lacks.
            with (
                mock.patch.object(np.random, "choice", side_effect=subsets),
                mock.patch.object(np, "trapz", np.trapezoid, create=True),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")
                found = metric(
                    model=model,
                    x_batch=x.numpy(),
                    y_batch=target.numpy(),
                    a_batch=pixel_maps[:, k, None].numpy(),
                    channel_first=True,
                    softmax=True,
                    device="cpu",
                )
            values[name].append(np.asarray(found))
    columns = {name: np.stack(column, 1) for name, column in values.items()}
    return columns | {"rp": columns["rp"].mean(2), "del": columns["del"] / STEPS}


def measure() -> dict[str, dict[str, object]]:
    """Time both and check that they agree.

    Returns:
        `{"five_metrics": {"ratio", "ours", "peer", "unit", "peer_name"}}`, ratio = peer / ours.

    Raises:
        AssertionError: If a value differs.
    """
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Scaled().eval()
    features = patch_features(SIDE, PATCH, 1)
    game = MaskedModel(model, features, Baseline.zero(), max_batch=512)
    # Noise, so that no patch equals the baseline: equal effects would be ordered by rounding errors.
    x = torch.randn(SAMPLES, 1, SIDE, SIDE, generator=generator)
    maps = torch.randn(SAMPLES, MAPS, STEPS, generator=generator)
    gone = torch.rand(SAMPLES, SUBSETS, STEPS, generator=generator).argsort(2)[:, :, :REMOVED]
    keep = torch.ones(SAMPLES, SUBSETS, STEPS, dtype=torch.bool).scatter_(2, gone, False)
    spread = features.expand(keep.flatten(0, 1).float()).flatten(1).reshape(SAMPLES, SUBSETS, -1).numpy()
    subsets = [np.flatnonzero(spread[b, j] == 0) for j in range(SUBSETS) for b in range(SAMPLES)]
    pixel_maps = features.to_map(maps.flatten(0, 1)).reshape(SAMPLES, MAPS, SIDE, SIDE)
    _, target = game.predict(x)

    ours, own = _seconds(lambda: _ours(game, x, maps, keep), repeats=4)
    game.close()
    # One run of some 15,000 passes in 900 model calls: its own warm-up is lost in it.
    peer, theirs = _seconds(lambda: _quantus(model, x, target, pixel_maps, subsets), repeats=1)
    for name, values in own.items():
        # Two effects that differ by a rounding error may swap ranks: Spearman over 49 then moves by 1e-4 (MC only).
        tolerance = 5e-4 if name == "mc" else 1e-5
        error = float(np.abs(values - theirs[name]).max())
        if not error <= tolerance:
            raise AssertionError(f"{name} differs from Quantus by {error:.2g}")
    return {
        "five_metrics": {
            "ratio": round(peer / ours, 2),
            "ours": round(ours, 4),
            "peer": round(peer, 4),
            "unit": "s",
            "peer_name": "quantus 0.6",
        }
    }


if __name__ == "__main__":
    print(measure())
