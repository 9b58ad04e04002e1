"""The stages of `photos_effnet` end to end, images a second of each, and bfloat16 against float32: `benchmarks/gpu.sh`.

The settings are those of `params/photos_gpu.yaml`, with fewer photographs; on a CPU they shrink to a test of the script itself.
"""

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import yaml
from scipy.stats import kendalltau, spearmanr
from torch import Tensor, nn

from faithline import config, seeding
from faithline.api import attribute, score
from faithline.explainers.load import Explainer, load_explainer
from faithline.masking import MaskedModel
from faithline.metrics import ranking
from faithline.sweeping import read_all_maps
from faithline.workspace import Workspace, explainer_folder, open_workspace

ROOT = Path(__file__).parents[2]
TASK = "photos_effnet"
RECOMPUTED = ("integrated_gradients", "grad_cam", "occlusion", "lime")
"""Methods whose maps are made again in both precisions."""


class InBfloat16(nn.Module):
    """A network under autocast, as a user would run it; logits come back in float32."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            logits = self.network(x)
        return logits.float()


def scaled(pictures: Path, on_gpu: bool) -> dict[str, Any]:
    """The preset for a GPU with fewer photographs; for a CPU with little of anything."""
    params: dict[str, Any] = yaml.safe_load((ROOT / "params/photos_gpu.yaml").read_text(encoding="utf-8"))
    task = params["tasks"][TASK]
    task["dataset"] |= {"path": str(pictures), "train": 300, "supervised": 60, "validation": 40, "test": 60}
    if not on_gpu:
        task["dataset"] |= {"train": 8, "supervised": 2, "validation": 2, "test": 4, "image_size": 96}
        task["game"] |= {"steps": 6, "max_batch": 16}
        task["bank"] |= {"fitting": 40, "training": 16, "evaluation": 20, "reference": 40}
        methods = params["image"]["methods"]
        for name, few in (
            ("smooth_grad", {"samples": 2}),
            ("integrated_gradients", {"steps": 3}),
            ("expected_gradients", {"samples": 2}),
            ("deeplift_shap", {"rows": 2}),
            ("lime", {"masks": 40}),
            ("kernel_shap", {"masks": 40}),
            ("rise", {"masks": 40}),
            ("shapley_sampling", {"permutations": 1}),
            ("score_cam", {"channels": 8}),
        ):
            if name in methods:
                methods[name] |= few
        for explainer in params["image"]["explainers"].values():
            explainer |= {"epochs": 3, "batch": 4, "masks_per_step": 16}
        for refinement in params["image"]["refinements"].values():
            refinement |= {"masks": 16}
    return params


def run_stages(params: dict[str, Any]) -> list[dict[str, Any]]:
    """Every stage up to the evaluation, in this process and folder; seconds and images of each."""
    games: dict[int, MaskedModel] = {}
    build = MaskedModel.__init__

    def noted(game: MaskedModel, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        build(game, model, *args, **kwargs)
        games.setdefault(id(model), game)  # the counter of a model's first game counts every road to it

    jobs: list[tuple[str, ...]] = [("dataset",), ("target",), ("bank",)]
    jobs += [("attribute", method) for method in params["image"]["methods"]]
    jobs += [("curves",), ("curate",)]
    jobs += [("explain", explainer) for explainer in params["image"]["explainers"]]
    jobs += [("evaluate",)]
    made = []
    with mock.patch.object(MaskedModel, "__init__", noted):
        for stage, *names in jobs:
            games.clear()
            start = time.perf_counter()
            with mock.patch.object(sys, "argv", [f"stages/{stage}.py", TASK, *names]):
                runpy.run_path(f"stages/{stage}.py", run_name="__main__")
            seconds, images = time.perf_counter() - start, sum(game.passes for game in games.values())
            name = " ".join([stage, *names])
            print(f"{name:32} {seconds:8.1f} s {images:9,} images {images / seconds:9.1f} images/s", flush=True)
            made.append({"stage": name, "seconds": seconds, "images": images, "images_per_second": images / seconds})
    return made


def in_bfloat16(game: MaskedModel) -> MaskedModel:
    """The same game, its model under autocast."""
    return MaskedModel(InBfloat16(game.model), game.features, game.baseline, output=game.output, max_batch=game.max_batch)


def compare(opened: Workspace) -> dict[str, Any]:
    """Rankings and maps in bfloat16 against float32, on the test photographs."""
    params, ids = opened.params, opened.samples.index("test")
    x, target = opened.samples.x[ids], opened.explained[ids]
    maps = {name: stored.of(ids).attribution for name, stored in read_all_maps(opened).items()}
    networks: dict[str, Explainer] = {}
    for name in params.image.explainers:
        networks[name] = load_explainer(explainer_folder(TASK, name), opened.target.model, max_batch=opened.game.max_batch)
        maps[name] = networks[name](x).cpu()
    games = {"fp32": opened.game, "bf16": in_bfloat16(opened.game)}
    settings = opened.settings
    ranks, rates, top = {}, {}, {}
    for precision, game in games.items():
        top[precision] = game.predict(x)[1].cpu()
        before, start = game.passes, time.perf_counter()
        frame = score(game, x, maps, target, steps=settings.game.steps, masks=settings.bank.evaluation, seed=params.seed)
        rates[precision] = (game.passes - before) / (time.perf_counter() - start)
        metrics = frame["metric"].unique(maintain_order=True).to_list()
        # One block a (candidate, metric), each in the order of samples.
        values = torch.from_numpy(frame["value"].cast(float).fill_null(float("nan")).to_numpy().copy())
        scores = values.reshape(len(maps), len(metrics), len(x)).permute(2, 0, 1)
        found = ranking.candidate_ranks(scores, metrics, range(len(maps)), [None] * len(maps))
        ranks[precision] = ranking.mean_rank(found, metrics).nanmean(0)
    again: dict[str, float] = {}
    for method in RECOMPUTED:
        if method in maps:
            chosen = {name: value for name, value in getattr(params.image.methods, method).model_dump().items() if name != "role"}
            both = [attribute(method, game, x, target, settings=chosen, seed=params.seed) for game in games.values()]
            again[method] = _agreement(*both)
    for name, explainer in networks.items():
        if explainer.layers is None:
            continue
        plain = explainer(x).cpu()
        with torch.autocast(seeding.device().type, dtype=torch.bfloat16):
            again[name] = _agreement(plain, explainer(x).float().cpu())
    return {
        "images": len(x),
        "candidates": {name: {precision: float(ranks[precision][k]) for precision in games} for k, name in enumerate(maps)},
        "mean_rank_kendall_tau": float(kendalltau(ranks["fp32"], ranks["bf16"]).statistic),
        "mean_rank_spearman": float(spearmanr(ranks["fp32"], ranks["bf16"]).statistic),
        "same_first_choice": float((top["fp32"] == top["bf16"]).float().mean()),
        "maps_spearman": again,
        "images_per_second": rates,
    }


def _agreement(one: Tensor, other: Tensor) -> float:
    """Mean Spearman correlation of two sets of maps (B, n); maps without a finite correlation do not count."""
    values = torch.tensor([spearmanr(a, b).statistic for a, b in zip(one.numpy(), other.numpy(), strict=True)])
    return float(values.nanmean())


def main() -> None:
    """Run, compare, print, and write `stages.json` and `bf16.json`."""
    out, pictures = (Path(argument).resolve() for argument in sys.argv[1:])
    device = seeding.device()
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else f"{os.cpu_count()} CPU cores (small form)"
    print(f"device: {name}; torch {torch.__version__}", flush=True)
    if not on_gpu:
        print("no GPU: 14 photographs at 96 px, 6 steps, 3 epochs; the numbers only test this script", flush=True)
    start = time.perf_counter()
    place = out / "run"
    place.mkdir()
    for folder in ("src", "stages"):
        (place / folder).symlink_to(ROOT / folder)
    settings = scaled(pictures, on_gpu)
    (place / "params.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    os.chdir(place)
    params = config.load()
    made = run_stages(settings)
    total = {key: sum(row[key] for row in made) for key in ("seconds", "images")}
    machine = {"device": name, "torch": torch.__version__, "tf32_convolutions": torch.backends.cudnn.allow_tf32 and on_gpu}
    (out / "stages.json").write_text(json.dumps({**machine, "stages": made, "total": total}, indent=2), encoding="utf-8")

    seeding.setup(params.seed)
    found = compare(open_workspace(TASK, params))
    (out / "bf16.json").write_text(json.dumps({**machine, **found}, indent=2), encoding="utf-8")
    print(f"bf16 against fp32 on {found['images']} photographs, {len(found['candidates'])} candidates:")
    tau, rho = found["mean_rank_kendall_tau"], found["mean_rank_spearman"]
    print(f"  mean ranks: Kendall tau {tau:.3f}, Spearman {rho:.3f}; same first choice: {found['same_first_choice']:.1%}")
    print("  maps, Spearman: " + ", ".join(f"{method} {value:.3f}" for method, value in found["maps_spearman"].items()))
    print("  scoring: " + ", ".join(f"{key} {rate:.1f} images/s" for key, rate in found["images_per_second"].items()))
    print(f"all: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
