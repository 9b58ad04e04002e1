"""Speed of the mask methods against captum's own loops: same model, same samples, same masks, same values.

    PYTHONPATH=src python benchmarks/attributions.py

The model is a small CNN on 28 x 28 digits cut into 7 x 7 patches. Our time includes the masked forward passes of the bank. captum
explains one sample at a time; it is measured at its best (all masks of a sample in one forward pass) and, under `..._default`, as
it comes (one mask a pass). Times are the least of three.
"""

import os
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from captum._utils.models.linear_model import SkLearnRidge
from captum.attr import FeatureAblation, KernelShap, Lime, Occlusion
from torch import Tensor, nn

from faithline.attributions.query import Query
from faithline.attributions.run import attribute_by_name
from faithline.bank import Law, Masks, draw
from faithline.config import KernelShapSettings, LimeSettings, MethodSettings, OcclusionSettings
from faithline.masking import Baseline, MaskedModel, patch_features
from faithline.seeding import numpy_generator
from faithline.targets import SmallCNN

SAMPLES, MASKS, WIDTH, RIDGE, REPEATS = 32, 300, 0.5, 0.01, 3


def _model() -> nn.Module:
    """The digits target's architecture; an untrained network hardly reacts to its input, so its weights are enlarged."""
    torch.manual_seed(0)
    model = SmallCNN(1, 28, 10, width=16, depth=3, dropout=0.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model


def _race(ours: Callable[[], Tensor], peer: Callable[[], Tensor]) -> tuple[float, Tensor, float, Tensor]:
    """Least seconds and result of each; they take turns, so that a busy machine slows both."""
    seconds: tuple[list[float], list[float]] = ([], [])
    results = [ours(), peer()]
    for _ in range(REPEATS):
        for side, work in enumerate((ours, peer)):
            start = time.perf_counter()
            results[side] = work()
            seconds[side].append(time.perf_counter() - start)
    return min(seconds[0]), results[0], min(seconds[1]), results[1]


class _Rig:
    """One game, its samples, and captum's view of them."""

    def __init__(self) -> None:
        self.features = patch_features(28, 4, 1)
        self.game = MaskedModel(_model(), self.features, Baseline.zero(), max_batch=512)
        self.x = torch.rand(SAMPLES, 1, 28, 28, generator=torch.Generator().manual_seed(1))
        self.target = self.game.predict(self.x)[1].clone()
        self.forward = nn.Sequential(self.game.model, nn.Softmax(1))
        self.patches = self.features.expand(torch.arange(self.features.n)[None].float()).long()
        self.seeds = torch.arange(SAMPLES)

    def draw(self, law: Law) -> Tensor:
        """Keep masks (B, S, n) as the bank draws them."""
        everything = self.features.valid(self.x).numpy()
        return torch.stack(
            [
                torch.from_numpy(draw(law, everything[i], MASKS, 0.5, numpy_generator(0, "benchmark", law, i)))
                for i in range(SAMPLES)
            ]
        )

    def play(self, keep: Tensor) -> Masks:
        """The bank's passes."""
        valid = self.features.valid(self.x)
        ends = torch.stack([valid, ~valid], dim=1)
        values = self.game.values(self.x, torch.cat([ends, keep], dim=1), self.target)
        return Masks(keep, values[:, 2:], values[:, 0], values[:, 1], valid)

    def ours(self, name: str, settings: MethodSettings, law: Law | None) -> Tensor:
        """Draw, play and fit with this package: maps (B, 28, 28)."""
        masks = None if law is None else self.play(self.draw(law))
        return attribute_by_name(name, Query(self.game, self.x, self.target, masks, None, self.seeds), settings)

    def spread(self, scores: Tensor) -> Tensor:
        """captum's numbers a patch as a map like ours."""
        return self.features.to_map(scores.float())

    def lime(self, keep: Tensor, masks_a_pass: int) -> Tensor:
        """captum's LIME, sample by sample."""

        def similarity(_original: Tensor, _perturbed: Tensor, sample: Tensor, **_rest: object) -> Tensor:
            distance = 1 - F.cosine_similarity(sample.float(), torch.ones(1, self.features.n))
            return torch.exp(-(distance**2) / (2 * WIDTH**2))

        scores = []
        for i in range(SAMPLES):

            def perturb(_original: Tensor, row: int = i, **_rest: object) -> Iterator[Tensor]:
                yield from keep[row, :, None].long()

            scores.append(
                Lime(self.forward, SkLearnRidge(alpha=RIDGE), similarity, perturb).attribute(
                    self.x[i : i + 1],
                    baselines=0,
                    target=self.target[i],
                    feature_mask=self.patches,
                    n_samples=MASKS,
                    perturbations_per_eval=masks_a_pass,
                    return_input_shape=False,
                )
            )
        return self.spread(torch.cat(scores))

    def kernel_shap(self, keep: Tensor, masks_a_pass: int) -> Tensor:
        """captum's KernelSHAP, sample by sample."""
        scores = []
        for i in range(SAMPLES):
            peer = KernelShap(self.forward)

            def perturb(_original: Tensor, row: int = i, **_rest: object) -> Iterator[Tensor]:
                yield torch.ones(1, self.features.n, dtype=torch.long)
                yield torch.zeros(1, self.features.n, dtype=torch.long)
                yield from keep[row, :, None].long()

            peer.perturb_func = perturb
            scores.append(
                peer.attribute(
                    self.x[i : i + 1],
                    baselines=0,
                    target=self.target[i],
                    feature_mask=self.patches,
                    n_samples=MASKS + 2,
                    perturbations_per_eval=masks_a_pass,
                    return_input_shape=False,
                )
            )
        return self.spread(torch.cat(scores))

    def occlusion(self) -> Tensor:
        """captum's Occlusion, all samples at once, up to max_batch rows a pass."""
        scores = Occlusion(self.forward).attribute(
            self.x,
            (1, 8, 8),
            strides=(1, 4, 4),
            target=self.target,
            baselines=0,
            perturbations_per_eval=self.game.max_batch // SAMPLES,
        )
        return scores[:, 0].float() / 16  # a patch's number on each of its 16 pixels

    def ablation(self) -> Tensor:
        """captum's FeatureAblation, all samples at once, up to max_batch rows a pass."""
        scores = FeatureAblation(self.forward).attribute(
            self.x,
            baselines=0,
            target=self.target,
            feature_mask=self.patches,
            perturbations_per_eval=self.game.max_batch // SAMPLES,
        )
        return scores[:, 0].float() / 16


@torch.no_grad()
def measure() -> dict[str, dict[str, object]]:
    """Seconds for 32 samples, ours and captum's, and their ratio (above 1: ours is faster).

    Raises:
        AssertionError: If the two do not give the same maps.
    """
    rig = _Rig()
    bernoulli, shapley = rig.draw("bernoulli"), rig.draw("shapley_kernel")
    lime = LimeSettings(role="supervision", masks=MASKS, kernel_width=WIDTH, ridge=RIDGE)
    kernel_shap = KernelShapSettings(role="supervision", masks=MASKS, ridge=1e-6)
    occlusion = OcclusionSettings(role="supervision", window=2, stride=1)
    ablation = MethodSettings(role="supervision")

    def our_lime() -> Tensor:
        return rig.ours("lime", lime, "bernoulli")

    def our_kernel_shap() -> Tensor:
        return rig.ours("kernel_shap", kernel_shap, "shapley_kernel")

    pairs: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor], float, str]] = {
        "lime": (our_lime, lambda: rig.lime(bernoulli, MASKS), 1e-4, "captum Lime, all masks a pass"),
        "lime_default": (our_lime, lambda: rig.lime(bernoulli, 1), 1e-4, "captum Lime, default"),
        "kernel_shap": (
            our_kernel_shap,
            lambda: rig.kernel_shap(shapley, MASKS + 2),
            1e-3,
            "captum KernelShap, all masks a pass",
        ),
        "kernel_shap_default": (our_kernel_shap, lambda: rig.kernel_shap(shapley, 1), 1e-3, "captum KernelShap, default"),
        "occlusion": (lambda: rig.ours("occlusion", occlusion, None), rig.occlusion, 1e-5, "captum Occlusion"),
        "feature_ablation": (
            lambda: rig.ours("feature_ablation", ablation, "singles"),
            rig.ablation,
            1e-5,
            "captum FeatureAblation",
        ),
    }
    results: dict[str, dict[str, object]] = {}
    for name, (our_work, peer_work, tolerance, peer_name) in pairs.items():
        ours, our_maps, peer, peer_maps = _race(our_work, peer_work)
        torch.testing.assert_close(our_maps * 16, peer_maps * 16, atol=tolerance, rtol=1e-3)
        results[name] = {"ratio": peer / ours, "ours": ours, "peer": peer, "unit": "s", "peer_name": peer_name}
        print(f"{name:20} {ours:8.3f} s  {peer_name:36} {peer:8.3f} s  ratio {peer / ours:6.2f}")
    return results


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("FAITHLINE_THREADS") or os.cpu_count() or 1))
    measure()
