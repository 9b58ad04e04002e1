"""Two experiments of FUD's paper: hard against soft masks, and where a chain of samples enters the distribution."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from faithline import clustered, detection, fud, fud_sampling, image_quality
from faithline.diffusion.plan import plan
from faithline.diffusion.presets import PAPER, Preset
from faithline.fud_evidence import number
from faithline.fud_intervals import interval
from faithline.fud_sampling import Stage

DENOISING = replace(PAPER, denoising_steps=50, variance="fixed_small", scale=0.0)
"""The paper's chain, with as many steps as a small score model affords: for what is asked of a chain and not of a method."""

HALF = 0.5
"""Kept fraction of both."""


def _half_kept(stage: Stage, name: str) -> tuple[Stage, Tensor]:
    """The images that a method's maps order, and the masks that keep half of their pixels."""
    maps = fud_sampling.candidate_maps(stage.opened, name, stage.ids)
    usable = fud_sampling.orders_something(maps)
    some = stage.choose(usable)
    return some, fud_sampling.keep_masks(some, maps[usable], [HALF])


def hard_vs_soft(stage: Stage) -> dict[str, Any]:
    """Quality of hard and of soft masks, half of the pixels kept, in the order of the report's reference method."""
    name = stage.opened.params.report.reference
    stage, keep = _half_kept(stage, name)
    scale = stage.settings.sampler.scale
    learned = stage.settings.score_model.kind == "adm"
    found: dict[str, Any] = {"method": name, "kept": HALF}
    by_image: list[dict[str, Tensor]] = []
    for kind in ("clean", "soft"):
        preset: Preset = replace(DENOISING, kept=kind, scale=scale, variance="learned_range" if learned else DENOISING.variance)
        made = fud.regenerate(stage.scene, keep, preset, 1).pixels[:, 0, 0].cpu()
        quality = image_quality.image_quality(made, stage.scene.pixels.cpu())
        found["hard" if kind == "clean" else kind] = {
            str(metric): None if values is None else number(values.nanmean()) for metric, values in quality.items()
        }
        by_image.append({str(metric): values for metric, values in quality.items() if values is not None})
    hard, soft = by_image
    differences = torch.stack([hard[metric] - soft[metric] for metric in hard], 1)
    found["hard_minus_soft"] = dict(zip(hard, interval(differences, stage.opened.params), strict=True))
    return found


def chain(stage: Stage) -> dict[str, Any]:
    """Energy AUROC of the samples on their way, and of the clean images they aim at, against the share of steps that remain.

    Half of the pixels kept in the order of the report's reference method, no anti-class term: where does a chain enter the
    distribution? The switch of the paper stands at 5 %. `fall` and `half_way` are of how well energy tells samples from clean
    images (`told_apart`), from the first step to the last.
    """
    stage, keep = _half_kept(stage, stage.opened.params.report.reference)
    learned = stage.settings.score_model.kind == "adm"
    preset = replace(DENOISING, kept="noised", variance="learned_range" if learned else DENOISING.variance)
    steps = [step.t for step in plan(preset, stage.score.schedule)]
    seen: dict[int, dict[int, tuple[Tensor, Tensor]]] = {t: {} for t in steps}

    def watch(rows: Tensor, t: int, x: Tensor, clean: Tensor) -> None:
        for row, noisy, aim in zip(rows.tolist(), x.cpu(), clean.cpu(), strict=True):
            seen[t][row] = (noisy, aim)

    fud.regenerate(stage.scene, keep, preset, 1, watch)
    temperature, predict = stage.settings.evidence.temperature, fud_sampling.predictor(stage)
    clean_energy = detection.energy_score(predict(stage.scene.pixels), temperature)

    def energy(images: list[Tensor]) -> Tensor:
        return detection.energy_score(predict(((torch.stack(images) + 1) / 2).clamp(0, 1)), temperature)

    evaluate, count = stage.opened.params.evaluate, len(stage.scene.image_ids)
    drawn = clustered.draws(count, evaluate.bootstrap, stage.opened.params.seed)
    rows, resampled = [], []
    for place, t in enumerate(steps):
        pairs = [seen[t][row] for row in sorted(seen[t])]
        noisy, aims = energy([noisy for noisy, _ in pairs]), energy([aim for _, aim in pairs])
        resampled.append(clustered.auroc(clean_energy.numpy(), noisy.numpy(), np.arange(count), drawn))
        value = detection.auroc(clean_energy, noisy)
        band = clustered.interval(value, resampled[-1], evaluate.confidence)
        rows.append(
            {
                "remaining": (len(steps) - place) / len(steps),
                "t": t,
                "auroc_sample": value,
                "low": band["low"],
                "high": band["high"],
                "auroc_aim": detection.auroc(clean_energy, aims),
            }
        )
    curve, curves = told_apart(np.array([[row["auroc_sample"] for row in rows]])), told_apart(np.stack(resampled, 1))
    fall = clustered.interval(float(curve[0, 0] - curve[0, -1]), curves[:, 0] - curves[:, -1], evaluate.confidence)
    half_way = float(_half_way(curve)[0])
    return {
        "steps": rows,
        "fall": fall,
        "half_way_remaining": half_way,
        "half_way": clustered.interval(half_way, _half_way(curves), evaluate.confidence),
        "images": count,
    }


def told_apart(auroc: np.ndarray) -> np.ndarray:
    """How well a detector tells two sets apart, whichever it takes for the clean one: AUROC or 1 - AUROC, the larger.

    A classifier may be surer of noise than of any image: then its energy calls all noise clean, and an AUROC of 0 tells as much
    as one of 1.
    """
    return np.maximum(auroc, 1 - auroc)


def _half_way(curves: np.ndarray) -> np.ndarray:
    """Share of steps that remain when curves (B, steps) last pass the middle of their first and last value: (B,)."""
    steps = curves.shape[1]
    above = curves > (curves[:, :1] + curves[:, -1:]) / 2
    last = np.where(above.any(1), steps - 1 - above[:, ::-1].argmax(1), -1)  # step after which no value is above
    return (steps - (last + 1)) / steps
