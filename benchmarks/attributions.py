"""Speed of the prior methods of images against captum: same network, inputs, masks and random draws, and equal values.

    PYTHONPATH=src python benchmarks/attributions.py

Two networks: that of `digits_cnn` on 28 x 28 inputs cut into 7 x 7 patches, and EfficientNet-Lite0 with its pretrained weights on
a photograph of scikit-image cut into 14 x 14 patches (left out, in so many words, where the extra `photos` is not installed).

captum is called as it comes: LIME and KernelSHAP sample by sample and one mask a pass, occlusion, ablation and Shapley sampling
all samples at once and one perturbation a pass, gradients all samples at once. The `..._one_by_one` entries hand it one sample at
a time, as a loop over single inputs does; the `..._one_pass` entries give it all masks, or as many as `max_batch` rows, a pass.
Its model is the plain one, as a user has it; ours is the same weights in a game. Our time includes the masked passes of the bank.
What is random is drawn once for both: captum's draws are replaced, outside of its time.

`..._all_priors` sums the methods that captum has. It has no RISE, no Grad-CAM++ and no Score-CAM: they have no peer of equal
values here (Score-CAM of the package grad-cam has a softmax over all channels). Times are medians; the sides take turns.
"""

import copy
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from captum._utils.models.linear_model import SkLearnRidge
from captum.attr import (
    LRP,
    Deconvolution,
    DeepLift,
    DeepLiftShap,
    FeatureAblation,
    GradientShap,
    GuidedBackprop,
    InputXGradient,
    IntegratedGradients,
    KernelShap,
    LayerGradCam,
    Lime,
    NoiseTunnel,
    Occlusion,
    Saliency,
    ShapleyValueSampling,
)
from captum.attr._utils.lrp_rules import EpsilonRule, GammaRule
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from faithline import api
from faithline.attributions.query import Query
from faithline.attributions.run import attribute_by_name, load_method
from faithline.attributions.shapley_sampling import _places
from faithline.attributions.smooth_grad import _noise
from faithline.bank import Law, Masks, draw
from faithline.masking import Baseline, MaskedModel, patch_features
from faithline.networks import timm_model
from faithline.pictures import fit_picture
from faithline.seeding import numpy_generator
from faithline.targets import SmallCNN

REPEATS = 3
TOLERANCE = {"kernel_shap": 5e-3}
"""Largest difference, as a share of the largest value, where it is not 1e-4: captum approaches its constraint by a weight."""
WIDTH, RIDGE, STD = 0.5, 0.01, 0.15
GRADIENT_ONLY = {"output": "prob"}

Side = Callable[[], Tensor]


@dataclass(frozen=True)
class Bench:
    """One network, its inputs, and how much work each method gets."""

    name: str
    model: nn.Module
    patch: int
    layer: str
    """Last layer with a grid, for captum's Grad-CAM."""
    x: Tensor
    background: Tensor
    max_batch: int
    masks: int
    permutations: int
    steps: int
    draws: int
    rows: int
    window: int
    other_ways: bool
    """Whether captum is measured sample by sample, and at its best, too."""


def _stretched(x: Tensor, low: float, high: float) -> Tensor:
    """Each input stretched to exactly this range: captum's noise has one deviation for all, ours a share of each range."""
    flat = x.flatten(1)
    least, most = (value.reshape(-1, 1, 1, 1) for value in (flat.amin(1), flat.amax(1)))
    return low + (high - low) * (x - least) / (most - least)


def digits() -> Bench:
    """The digits target's architecture; an untrained network hardly reacts to its input, so its weights are enlarged."""
    torch.manual_seed(0)
    model = SmallCNN(1, 28, 10, width=16, depth=4, dropout=0.0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    x = _stretched(torch.rand(32, 1, 28, 28), 0.0, 1.0)
    background = torch.rand(16, 1, 28, 28)
    return Bench("digits_cnn", model, 4, "features.11", x, background, 512, 300, 10, 50, 25, 16, 2, other_ways=True)


def photos() -> Bench | None:
    """EfficientNet-Lite0 on a photograph that comes with scikit-image; None where the extra `photos` is not installed."""
    from faithline.checkpoints import read_checkpoint
    from faithline.tasks import photos_effnet

    if find_spec(photos_effnet.PACKAGE) is None or find_spec("skimage") is None:
        return None
    from PIL import Image
    from skimage import data

    model = timm_model(photos_effnet.ARCHITECTURE, classes=1000, channels=3, image_size=224, dropout=0.0).eval()
    weights = read_checkpoint(photos_effnet.weights_file(), photos_effnet.SHA256)
    model.load_state_dict({photos_effnet.timm_name(name): value for name, value in weights.items()})
    pictures = [Image.fromarray(getattr(data, name)()) for name in ("coffee", "chelsea", "rocket")]
    pixels = [torch.from_numpy(fit_picture(picture, size=224, channels=3, resize=256)) for picture in pictures]
    x = _stretched(torch.stack(pixels).permute(0, 3, 1, 2).contiguous(), -1.0, 1.0)
    return Bench("photos_effnet", model, 16, "bn2", x[:1], x[1:], 16, 250, 1, 8, 8, 2, 3, other_ways=False)


class Rig:
    """A bench's game, captum's plain model, and both ways to each method's maps, on the features (B, n)."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.x = bench, bench.x
        channels, size, _ = bench.x.shape[1:]
        self.features = patch_features(size, bench.patch, channels)
        self.plain = copy.deepcopy(bench.model).eval().requires_grad_(False)
        self.prob = nn.Sequential(self.plain, nn.Softmax(1))
        self.game = MaskedModel(bench.model, self.features, Baseline.zero(), max_batch=bench.max_batch)
        self.target = self.game.predict(self.x)[1].clone()
        self.patches = self.features.expand(torch.arange(self.features.n)[None].float()).long()
        self.seeds = torch.zeros(len(self.x), dtype=torch.int64)  # one seed for all: captum permutes a batch as one
        self.peer_calls = 0
        self.plain.register_forward_hook(self._count)

    def _count(self, _module: nn.Module, _args: object, output: Tensor) -> None:
        self.peer_calls += len(output)

    def settings(self) -> dict[str, dict[str, Any]]:
        """Settings of our methods; each is what captum is given too."""
        bench = self.bench
        return {
            "saliency": GRADIENT_ONLY | {"absolute": False},
            "smooth_grad": GRADIENT_ONLY | {"samples": bench.draws, "std": STD},
            "input_x_gradient": GRADIENT_ONLY,
            "guided_backprop": GRADIENT_ONLY,
            "deconvolution": GRADIENT_ONLY,
            "integrated_gradients": GRADIENT_ONLY | {"steps": bench.steps},
            "expected_gradients": GRADIENT_ONLY | {"samples": bench.draws},
            "deeplift": {"output": "logit"},  # captum's rule of the softmax mixes the samples of a batch
            "deeplift_shap": {"output": "logit", "rows": bench.rows},
            "lrp": {"epsilon": 1.0e-4, "gamma": 0.25},
            "occlusion": {"window": bench.window, "stride": 1},
            "feature_ablation": {},
            "lime": {"masks": bench.masks, "kernel_width": WIDTH, "ridge": RIDGE},
            "kernel_shap": {"masks": bench.masks, "ridge": 1.0e-6},
            "shapley_sampling": {"permutations": bench.permutations},
            "grad_cam": {"output": "logit"},
        }

    # ------------------------------------------------------------------------------------------------------------- ours

    def drawn(self, law: Law) -> Tensor:
        """Keep masks (B, S, n) as the bank draws them."""
        valid = self.features.valid(self.x).numpy()
        return torch.stack(
            [
                torch.from_numpy(draw(law, valid[i], self.bench.masks, 0.5, numpy_generator(0, "benchmark", law, i)))
                for i in range(len(self.x))
            ]
        )

    def ours(self, name: str) -> Side:
        """Draw, play and fit with this package."""
        settings = api._settings(name, self.settings()[name])
        wanted = load_method(name).MASKS

        def work() -> Tensor:
            masks = None
            if wanted is not None and wanted[1] != "table":
                keep, valid = self.drawn(wanted[1]), self.features.valid(self.x)  # type: ignore[arg-type]
                values = self.game.values(self.x, torch.cat([torch.stack([valid, ~valid], 1), keep], 1), self.target)
                masks = Masks(keep, values[:, 2:], values[:, 0], values[:, 1], valid)
            query = Query(self.game, self.x, self.target, masks, self.bench.background, self.seeds)
            return self.features.to_features(attribute_by_name(name, query, settings))

        return work

    # ------------------------------------------------------------------------------------------------------------ captum

    def folded(self, pixels: Tensor) -> Tensor:
        """captum's map of pixels (B, C, H, W) on the features."""
        return self.features.to_features(pixels.detach().sum(1).float())

    def of_patches(self, pixels: Tensor) -> Tensor:
        """captum's number a patch, which it repeats on each of its pixels, on the features."""
        corner = pixels.detach()[:, 0, :: self.bench.patch, :: self.bench.patch]
        return corner.flatten(1).float()

    def peers(self) -> dict[str, Side]:
        """captum's way to each method."""
        x, target, prob, bench = self.x, self.target, self.prob, self.bench
        draws = bench.draws

        def gradient(method: type) -> Side:
            return lambda: self.folded(method(prob).attribute(x.clone().requires_grad_(), target=target))

        def saliency() -> Tensor:
            return self.folded(Saliency(prob).attribute(x.clone().requires_grad_(), target=target, abs=False))

        def smooth_grad() -> Tensor:
            tunnel = NoiseTunnel(Saliency(prob))
            return self.folded(
                tunnel.attribute(
                    x.clone().requires_grad_(),
                    nt_type="smoothgrad",
                    nt_samples=draws,
                    stdevs=STD * float(x[0].max() - x[0].min()),
                    target=target,
                    abs=False,
                )
            )

        def integrated() -> Tensor:
            return self.folded(IntegratedGradients(prob).attribute(x, baselines=0, target=target, n_steps=bench.steps))

        def expected() -> Tensor:
            return self.folded(GradientShap(prob).attribute(x, bench.background, n_samples=draws, target=target))

        def deeplift() -> Tensor:
            return self.folded(DeepLift(self.plain).attribute(x.clone().requires_grad_(), baselines=0, target=target))

        def deeplift_shap() -> Tensor:
            return self.folded(
                DeepLiftShap(self.plain).attribute(x.clone().requires_grad_(), bench.background[: bench.rows], target=target)
            )

        def grad_cam() -> Tensor:
            coarse = LayerGradCam(self.plain, self.plain.get_submodule(bench.layer)).attribute(x, target=target)
            return self.folded(F.interpolate(coarse.detach(), size=x.shape[2:], mode="bilinear", align_corners=False))

        ways: dict[str, Side] = {
            "saliency": saliency,
            "smooth_grad": smooth_grad,
            "input_x_gradient": gradient(InputXGradient),
            "guided_backprop": gradient(GuidedBackprop),
            "deconvolution": gradient(Deconvolution),
            "integrated_gradients": integrated,
            "expected_gradients": expected,
            "deeplift": deeplift,
            "deeplift_shap": deeplift_shap,
            "occlusion": lambda: self.occlusion(x, target, 1),
            "feature_ablation": lambda: self.ablation(x, target, 1),
            "lime": lambda: self.lime(1),
            "kernel_shap": lambda: self.kernel_shap(1),
            "shapley_sampling": lambda: self.shapley(x, target),
            "grad_cam": grad_cam,
        }
        if isinstance(self.plain, SmallCNN):
            ways["lrp"] = self.lrp()
        if not any(isinstance(module, nn.ReLU) for module in self.plain.modules()):  # both say so of themselves
            del ways["guided_backprop"], ways["deconvolution"]
        return ways

    def lrp(self) -> Side:
        """captum's LRP, which is handed the folded network and our rules: without them its values mean something else."""
        model = copy.deepcopy(self.plain)
        layers = model.features
        for place in range(0, len(layers), 3):
            layers[place] = fuse_conv_bn_eval(layers[place], layers[place + 1])
            layers[place + 1] = nn.Identity()
        model.requires_grad_(False)  # the counting hook was copied with it
        weighted = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]

        def work() -> Tensor:
            for module in model.modules():
                if not list(module.children()) and not isinstance(module, nn.ReLU | nn.Dropout):
                    module.rule = GammaRule(0.25) if module in weighted[1:-1] else EpsilonRule(1.0e-4)
            return self.folded(LRP(model).attribute(self.x.clone().requires_grad_(), target=self.target))

        return work

    def lime(self, masks_a_pass: int) -> Tensor:
        """captum's LIME, sample by sample."""
        keep = self.drawn("bernoulli")

        def similarity(_original: Tensor, _perturbed: Tensor, sample: Tensor, **_rest: object) -> Tensor:
            distance = 1 - F.cosine_similarity(sample.float(), torch.ones(1, self.features.n))
            return torch.exp(-(distance**2) / (2 * WIDTH**2))

        scores = []
        for i in range(len(self.x)):

            def perturb(_original: Tensor, row: int = i, **_rest: object) -> Iterator[Tensor]:
                yield from keep[row, :, None].long()

            peer = Lime(self.prob, SkLearnRidge(alpha=RIDGE), similarity, perturb)
            scores.append(self._fit(peer, i, self.bench.masks, masks_a_pass))
        return torch.cat(scores)

    def kernel_shap(self, masks_a_pass: int) -> Tensor:
        """captum's KernelSHAP, sample by sample."""
        keep = self.drawn("shapley_kernel")
        ends = torch.stack([torch.ones(self.features.n), torch.zeros(self.features.n)]).long()
        scores = []
        for i in range(len(self.x)):

            def perturb(_original: Tensor, row: int = i, **_rest: object) -> Iterator[Tensor]:
                yield from ends[:, None]
                yield from keep[row, :, None].long()

            peer = KernelShap(self.prob)
            peer.perturb_func = perturb
            scores.append(self._fit(peer, i, self.bench.masks + 2, masks_a_pass))
        return torch.cat(scores)

    def _fit(self, peer: Lime | KernelShap, i: int, masks: int, masks_a_pass: int) -> Tensor:
        """The scores of sample i, (1, n)."""
        scores: Tensor = peer.attribute(
            self.x[i : i + 1],
            baselines=0,
            target=self.target[i],
            feature_mask=self.patches,
            n_samples=masks,
            perturbations_per_eval=masks_a_pass,
            return_input_shape=False,
        )
        return scores.float()

    def shapley(self, x: Tensor, target: Tensor) -> Tensor:
        """captum's ShapleyValueSampling."""
        peer, count = ShapleyValueSampling(self.prob), self.bench.permutations
        places = _places(torch.ones(self.features.n, dtype=torch.bool), count, int(self.seeds[0]))
        peer.permutation_generator = lambda _features, _samples: (row.argsort().tolist() for row in places)
        return self.of_patches(peer.attribute(x, baselines=0, target=target, feature_mask=self.patches, n_samples=count))

    def occlusion(self, x: Tensor, target: Tensor, masks_a_pass: int) -> Tensor:
        """captum's Occlusion."""
        channels, side = x.shape[1], self.bench.patch
        pixels = Occlusion(self.prob).attribute(
            x,
            (channels, side * self.bench.window, side * self.bench.window),
            strides=(channels, side, side),
            target=target,
            baselines=0,
            perturbations_per_eval=masks_a_pass,
        )
        return self.of_patches(pixels)

    def ablation(self, x: Tensor, target: Tensor, masks_a_pass: int) -> Tensor:
        """captum's FeatureAblation."""
        pixels = FeatureAblation(self.prob).attribute(
            x, baselines=0, target=target, feature_mask=self.patches, perturbations_per_eval=masks_a_pass
        )
        return self.of_patches(pixels)

    def other_ways(self) -> dict[str, tuple[Side, str]]:
        """captum sample by sample, and with as many masks a pass as it can take of a sample, or as `max_batch` allows of all."""
        x, target, many = self.x, self.target, self.game.max_batch // len(self.x)

        def one_by_one(way: Callable[[Tensor, Tensor], Tensor]) -> tuple[Side, str]:
            parts = list(zip(x.split(1), target.split(1), strict=True))
            return lambda: torch.cat([way(*part) for part in parts]), "captum, as it comes, a sample at a time"

        best = "captum, as many masks a pass as fit"
        return {
            "occlusion_one_by_one": one_by_one(lambda *part: self.occlusion(*part, 1)),
            "feature_ablation_one_by_one": one_by_one(lambda *part: self.ablation(*part, 1)),
            "shapley_sampling_one_by_one": one_by_one(self.shapley),
            "lime_one_pass": (lambda: self.lime(self.bench.masks), best),
            "kernel_shap_one_pass": (lambda: self.kernel_shap(self.bench.masks + 2), best),
            "occlusion_one_pass": (lambda: self.occlusion(x, target, many), best),
            "feature_ablation_one_pass": (lambda: self.ablation(x, target, many), best),
        }

    def same_draws(self) -> ExitStack:
        """For the time of a block, captum draws what our methods draw: noise of SmoothGrad, rows and points of GradientShap."""
        count, draws = len(self.x), self.bench.draws
        which = list(range(draws)) * count
        noise = _noise(self.seeds.repeat_interleave(draws).tolist(), which, draws, self.x.shape[1:])
        rows, points = [], []
        for seed in self.seeds.tolist():
            generator = torch.Generator().manual_seed(seed)
            rows.append(torch.randint(len(self.bench.background), (draws,), generator=generator))
            points.append(torch.rand(draws, generator=generator))

        def normal(_mean: float, std: Tensor) -> Tensor:
            return std * noise if bool((std > 0).all()) else torch.zeros_like(std)

        stack = ExitStack()
        stack.enter_context(mock.patch.object(torch, "normal", normal))
        stack.enter_context(mock.patch.object(np.random, "choice", return_value=torch.cat(rows).numpy()))
        stack.enter_context(mock.patch.object(np.random, "uniform", return_value=torch.cat(points).numpy()))
        return stack


def _race(rig: Rig, name: str, peer: Side) -> dict[str, Any]:
    """Median seconds of our method and of a peer, in turns, calls of one run, and how far apart the maps are.

    Raises:
        AssertionError: If the maps are not equal.
    """
    ours = rig.ours(name)
    seconds: tuple[list[float], list[float]] = ([], [])
    maps: list[Tensor] = []
    calls: list[int] = []
    for repeat in range(REPEATS):
        for side, work in enumerate((ours, peer)):
            before = (rig.game.passes, rig.peer_calls)[side]
            start = time.perf_counter()
            found = work()
            seconds[side].append(time.perf_counter() - start)
            if not repeat:
                maps.append(found)
                calls.append((rig.game.passes, rig.peer_calls)[side] - before)
    apart = float((maps[0] - maps[1]).abs().max() / maps[1].abs().max())
    assert apart < TOLERANCE.get(name, 1e-4), f"{name}: maps differ by {apart:.1e} of their largest value"
    mine, theirs = statistics.median(seconds[0]), statistics.median(seconds[1])
    return {
        "ratio": theirs / mine,
        "ours": mine,
        "peer": theirs,
        "unit": "s",
        "our_calls": calls[0],
        "peer_calls": calls[1],
        "difference": apart,
    }


def _measure(bench: Bench) -> dict[str, dict[str, Any]]:
    rig = Rig(bench)
    results: dict[str, dict[str, Any]] = {}
    with rig.same_draws():
        for name, peer in rig.peers().items():
            results[f"{bench.name}_{name}"] = _race(rig, name, peer) | {"peer_name": "captum, as it comes"}
        every = list(results.values())
        total = {key: sum(entry[key] for entry in every) for key in ("ours", "peer", "our_calls", "peer_calls")}
        results[f"{bench.name}_all_priors"] = {
            **total,
            "ratio": total["peer"] / total["ours"],
            "unit": "s",
            "difference": max(entry["difference"] for entry in every),
            "peer_name": f"captum, as it comes, {len(every)} methods",
        }
        if bench.other_ways:
            for way, (peer, peer_name) in rig.other_ways().items():
                name = way.removesuffix("_one_by_one").removesuffix("_one_pass")
                results[f"{bench.name}_{way}"] = _race(rig, name, peer) | {"peer_name": peer_name}
    return results


def measure() -> dict[str, dict[str, Any]]:
    """Seconds of each method, ours and captum's, their ratio (above 1: ours is faster), and both sides' model calls.

    Raises:
        AssertionError: If the two do not give the same maps.
    """
    results = _measure(digits())
    bench = photos()
    if bench is None:
        print("photos_effnet: left out, the extra `photos` is not installed")
    else:
        results |= _measure(bench)
    return results


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("FAITHLINE_THREADS") or os.cpu_count() or 1))
    for key, entry in measure().items():
        print(f"{key:38} {entry['ratio']:7.2f}  {entry['ours']:8.3f} {entry['peer']:8.3f} s  {entry['peer_name']}")
