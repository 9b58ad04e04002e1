"""Does the affordable sampler rank methods as a reference of many calls does? `python benchmarks/fud_many_calls/rank.py TASK`

Run it in a checkout whose pipeline has run; it writes `benchmarks/fud_many_calls/TASK.json`, which `fud_score` reads. Finished
candidates lie in `.scratch/fud_reference` and are found again.
"""

import argparse
import json
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import torch
from scipy import stats
from torch import Tensor

from faithline import config, engine, fud, fud_sampling, score_models, seeding, workspace
from faithline.artifacts import read_tensors, write_json, write_tensors
from faithline.diffusion.plan import cost, plan
from faithline.diffusion.presets import Preset
from faithline.fud_intervals import interval, pairs

IMAGES = 24
LEVELS = (0.6, 0.3)
CANDIDATES = (
    "deepfaith", "integrated_gradients", "lime", "feature_ablation", "grad_cam", "saliency", "random", "inverse",
)  # fmt: skip
STEPS, LEVEL_STEPS, AT = 250, 200, (50, 25, 12, 5)
"""The reference: denoising at 250 steps to t = 50, then 200 Langevin steps at each of four levels."""


def confidences(stage: fud_sampling.Stage, name: str, maps: Tensor, preset: Preset, label: str) -> Tensor:
    """Confidence of the class, (I, F): computed once, then read from scratch."""
    files = [workspace.target_folder(stage.opened.task), score_models.folder_of(stage.opened.task)]
    key = engine.content_key([name, label, repr(preset), LEVELS, IMAGES, stage.scene.seed, maps.double().sum().item()], files)
    path = engine.scratch_folder("fud_reference", stage.opened.task) / f"{name}-{label}-{key}.safetensors"
    if not path.exists():
        keep = fud_sampling.keep_masks(stage, maps, LEVELS)
        made = fud.regenerate(stage.scene, keep, preset, 1).pixels[:, :, 0]
        logits = fud_sampling.predictor(stage)(made.flatten(0, 1)).double()
        target = stage.scene.targets.cpu().repeat_interleave(len(LEVELS))
        write_tensors(path, {"prob": fud.confidence(logits, target).reshape(IMAGES, len(LEVELS))})
        print(f"{label}: {name} done", flush=True)
    return read_tensors(path)["prob"].double()


def main() -> None:
    """Compare the rankings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    task = parser.parse_args().task
    params = config.load()
    seeding.setup(params.seed)
    raw = params.model_dump()
    raw["fud"]["image"] |= {"samples": IMAGES, "draws": 1}
    fud_settings = type(params.fud).model_validate(raw["fud"])
    opened = workspace.open_workspace(task, params.model_copy(update={"fud": fud_settings}))
    stage = fud_sampling.open_stage(opened)
    preset = fud_sampling.preset_of(stage.settings.sampler)
    reference = replace(preset, denoising_steps=STEPS, langevin_levels=AT, langevin_steps=LEVEL_STEPS)
    samplers = {"preset": preset, "reference": reference}
    calls = {label: cost(plan(item, stage.score.schedule)).calls for label, item in samplers.items()}
    print(f"plan: {IMAGES * len(LEVELS) * len(CANDIDATES) * sum(calls.values()):,} calls of the score model", flush=True)
    controls = {order.candidate: order.maps for order in fud_sampling.orders(stage, fud_sampling.CONTROLS)}
    scores: dict[str, dict[str, Tensor]] = {"preset": {}, "reference": {}}
    for name in CANDIDATES:
        maps = controls[name] if name in controls else fud_sampling.candidate_maps(opened, name, stage.ids)
        for label, item in samplers.items():
            scores[label][name] = confidences(stage, name, maps, item, label).mean(1)
    found = {label: pairs(values, params) for label, values in scores.items()}
    apart = [row for row in found["reference"] if row["separated"]]
    cheap = {(row["first"], row["second"]): row["difference"]["mean"] for row in found["preset"]}
    agree = [row for row in apart if row["difference"]["mean"] * cheap[row["first"], row["second"]] > 0]
    means = {label: {name: float(value.mean()) for name, value in values.items()} for label, values in scores.items()}
    order = sorted(CANDIDATES, key=lambda name: -means["reference"][name])
    needed = {frozenset((row["first"], row["second"])): row["images_needed"] for row in found["reference"]}
    result = {
        "task": task,
        "target_sha256": opened.target.sha256,
        "score_model_sha256": stage.score.sha256,
        "images": IMAGES,
        "levels": list(LEVELS),
        "calls": calls["preset"],
        "reference_calls": calls["reference"],
        "call_ratio": calls["preset"] / calls["reference"],
        "kendall_tau": float(
            stats.kendalltau([means["preset"][n] for n in CANDIDATES], [means["reference"][n] for n in CANDIDATES]).statistic
        ),
        "pairs": len(list(combinations(CANDIDATES, 2))),
        "separated_pairs": len(apart),
        "separated_pairs_agreement": len(agree) / len(apart) if apart else None,
        "disagreeing": [[row["first"], row["second"]] for row in apart if row not in agree],
        "scores": {
            label: dict(zip(values, interval(torch.stack(list(values.values()), 1), params), strict=True))
            for label, values in scores.items()
        },
        "images_to_separate_neighbours": {f"{a} > {b}": needed[frozenset((a, b))] for a, b in pairwise(order)},
    }
    write_json(Path("benchmarks/fud_many_calls") / f"{task}.json", result)
    print(json.dumps({key: result[key] for key in ("kendall_tau", "separated_pairs", "separated_pairs_agreement", "call_ratio")}))


if __name__ == "__main__":
    main()
