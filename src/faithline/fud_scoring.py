"""What the in-distribution samples of a task say: scores with controls, rankings, and whether the samples are in-distribution.

Reads `data/fud/<task>/` and writes `reports/fud/<task>.json`, and beside it the few pictures that the report shows.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from scipy import stats
from torch import Tensor

from faithline import (
    fud,
    fud_evidence,
    fud_experiments,
    fud_films,
    fud_records,
    fud_sampling,
    image_quality,
    score_models,
    workspace,
)
from faithline.artifacts import read_json, read_table, write_json, write_table
from faithline.diffusion.plan import cost, plan
from faithline.fud_intervals import interval, pairs
from faithline.fud_records import Judged
from faithline.fud_sampling import COLUMNS, CONTROLS, EMPTY, MAIN, Stage
from faithline.maps import refuse_strangers
from faithline.metrics.catalogue import METRICS
from faithline.seeding import numpy_generator
from faithline.workspace import Workspace

FILMED = 2
"""Candidates of which pictures are shown, best first; and the random order."""


def judge(opened: Workspace) -> None:
    """Score all candidates and controls of a task and write `reports/fud/<task>.json`.

    Raises:
        ArtifactError: If samples are missing, damaged, or not those that params name.
    """
    stage = fud_sampling.open_stage(opened)
    settings, levels = stage.settings, list(stage.settings.levels)
    names = [*settings.methods, *settings.explainers]
    refuse_strangers(fud_sampling.folder_of(opened.task, ""), [*names, CONTROLS])
    misfits = {name: reason for name in settings.methods if (reason := fud_sampling.misfit(opened, name)) is not None}
    candidates = {name: fud_records.candidate(stage, name) for name in names if name not in misfits}
    controls = read_table(fud_sampling.folder_of(opened.task, CONTROLS), COLUMNS)
    for control in settings.controls:
        candidates[control] = fud_records.judged(stage, "control", controls.filter(pl.col("candidate") == control))
    empty = fud_records.tensor(stage, controls.filter(pl.col("candidate") == EMPTY), "prob", [0.0])[:, 0].mean(1)
    clean = stage.scene.pixels
    clean_logits = fud_sampling.predictor(stage)(clean)
    full = fud.confidence(clean_logits.double(), stage.scene.targets.cpu())

    result: dict[str, Any] = {
        "task": opened.task,
        "images": settings.samples,
        "levels": levels,
        "conventions": _conventions(stage),
        "target": {"accuracy": opened.target.info["accuracy"], "clean_confidence": float(full.mean())},
        "score_model": read_json(score_models.folder_of(opened.task) / "model.json"),
        "misfits": misfits,
        "empty_confidence": float(empty.mean()),
        "methods": _methods(stage, candidates, levels, full, empty),
        "pairs": pairs({name: fud.score(item.prob) for name, item in candidates.items()}, opened.params),
        "samplers": _samplers(stage, candidates),
    }
    rivals = fud_evidence.rivals(stage, candidates, clean_logits)
    own = fud_evidence.fud_evidence(stage, candidates, clean_logits)
    result["evidence"] = {
        "fud": own.found,
        **{name: item.found | {"minus_fud": fud_evidence.minus(stage, item, own)} for name, item in rivals.evidence.items()},
    }
    result["second"] = _second(stage, candidates, full)
    result["settings_of_quality"] = {
        name: {"published": item.published, "options": item.options, "unavailable": item.unavailable}
        for name, item in image_quality.quality_settings((clean.shape[2], clean.shape[3]), clean.shape[1]).items()
    }
    for name, row in result["methods"].items():
        row["rivals"] = rivals.scores[name]
    result["agreement"] = _agreement(opened, stage, result["methods"])
    result["hard_vs_soft"] = fud_experiments.hard_vs_soft(stage)
    result["chain"] = fud_experiments.chain(stage)
    result["reference"] = _reference(stage)
    scored = {
        name: mean for name in names if name in candidates and (mean := result["methods"][name]["score"]["mean"]) is not None
    }
    shown = sorted(scored, key=lambda name: -scored[name])[:FILMED]
    shown += [name for name in ("random",) if name in candidates]
    pictures = fud_films.films(stage, {name: candidates[name].frame for name in shown}, fud_evidence.maps_of(stage, shown))
    write_table(f"reports/fud/{opened.task}.parquet", pictures)
    write_json(f"reports/fud/{opened.task}.json", result)


def _conventions(stage: Stage) -> dict[str, Any]:
    settings = stage.settings
    spent = cost(plan(fud_sampling.preset_of(settings.sampler), stage.score.schedule))
    return {
        "unit": settings.unit,
        "patch": settings.patch,
        "reduction": settings.reduction,
        "target": settings.target,
        "draws": settings.draws,
        "grid": stage.score.size,
        "calls": spent.calls,
        "gradients": spent.gradients,
        "sampler": settings.sampler.model_dump(),
        "seed": stage.opened.params.seed,
    }


def _methods(
    stage: Stage, candidates: Mapping[str, Judged], levels: list[float], full: Tensor, empty: Tensor
) -> dict[str, dict[str, Any]]:
    scores = torch.stack([fud.score(item.prob) for item in candidates.values()], 1)
    ranks = torch.from_numpy(stats.rankdata(-scores.numpy(), axis=1, nan_policy="omit"))
    names = list(candidates)
    real = [k for k, item in enumerate(candidates.values()) if item.role != "control"]
    best = scores[:, real].nan_to_num(nan=-1.0).max(1).values
    random = scores[:, names.index("random")] if "random" in names else None
    table = {}
    for k, (name, item) in enumerate(candidates.items()):
        confidence = item.prob.mean(2)
        columns = {
            "score": scores[:, k],
            "tau": fud.smoothness(confidence, levels),
            "area": fud.area(confidence, levels, empty, full),
            "rises": fud.rises(confidence, levels, full),
            "mean_rank": ranks[:, k],
            "label_score": fud.score(item.label),
            "log_odds": fud.score(item.logodds),
            "second_score": fud.score(item.second),
        }
        row: dict[str, Any] = {"role": item.role}
        row |= dict(zip(columns, interval(torch.stack(list(columns.values()), 1), stage.opened.params), strict=True))
        row["curve"] = interval(confidence, stage.opened.params)
        row["second_curve"] = interval(item.second.mean(2), stage.opened.params)
        row["calls"] = max(item.frame.filter(pl.col("sampler") == MAIN)["calls"].drop_nulls().to_list(), default=None)
        row["matched_random"], row["above_matched_random"], row["calibrated"] = None, None, None
        if item.matched is not None:
            matched = fud.score(item.matched)
            row["matched_random"], row["above_matched_random"] = interval(
                torch.stack([matched, scores[:, k] - matched], 1), stage.opened.params
            )
            row["matched_curve"] = interval(item.matched.mean(2), stage.opened.params)
            row["calibrated"] = _ratio(scores[:, k] - matched, best - matched, stage)
        row["above_random"] = None if random is None else interval((scores[:, k] - random)[:, None], stage.opened.params)[0]
        table[name] = row
    return table


def _ratio(above: Tensor, possible: Tensor, stage: Stage) -> dict[str, float | None]:
    """Ratio of two means over images with a percentile bootstrap; None where the denominator's interval reaches 0."""
    evaluate = stage.opened.params.evaluate
    known = ~above.isnan()
    above, possible = above[known], possible[known]
    drawn = numpy_generator(stage.opened.params.seed, "fud", "calibrated").integers(
        len(above), size=(evaluate.bootstrap, len(above))
    )
    upper, lower = above.numpy()[drawn].mean(1), possible.numpy()[drawn].mean(1)
    tail = (1 - evaluate.confidence) / 2
    if np.quantile(lower, tail) <= 0:
        return {"mean": None, "low": None, "high": None}
    low, high = np.quantile(upper / lower, [tail, 1 - tail])
    return {"mean": float(above.mean() / possible.mean()), "low": float(low), "high": float(high)}


def _samplers(stage: Stage, candidates: Mapping[str, Judged]) -> dict[str, Any]:
    """Scores and ranking of every sampler on the first images, beside the main one's on the same images."""
    settings = stage.settings
    first = settings.variant_samples
    real = [name for name, item in candidates.items() if item.role != "control"]
    main = {name: fud.score(item.prob[:first]) for name, item in candidates.items()}
    own_contrast = _contrast(main, real)
    found: dict[str, Any] = {}
    presets = {MAIN: settings.sampler, **settings.samplers()}
    for sampler, own in presets.items():
        scores = main if sampler == MAIN else {name: item.variants[sampler] for name, item in candidates.items()}
        means = interval(torch.stack(list(scores.values()), 1), stage.opened.params)
        spent = cost(plan(fud_sampling.preset_of(own), stage.score.schedule))
        rows = pl.concat([item.frame.filter(pl.col("sampler") == sampler) for item in candidates.values()])
        order = [float(scores[name].nanmean()) for name in real]
        tau = stats.kendalltau([float(main[name].nanmean()) for name in real], order).statistic
        found[sampler] = {
            "changes": settings.variants.get(sampler, {}),
            "calls": spent.calls,
            "gradients": spent.gradients,
            "dose": float(rows["dose"].mean() or 0.0),  # type: ignore[arg-type]
            "scores": dict(zip(scores, means, strict=True)),
            "kendall_tau_with_main": None if tau != tau else float(tau),
            "contrast": None,
            "contrast_below_main": None,
        }
        if (contrast := _contrast(scores, real)) is not None and own_contrast is not None:
            columns = torch.stack([contrast, own_contrast - contrast], 1)
            found[sampler]["contrast"], found[sampler]["contrast_below_main"] = interval(columns, stage.opened.params)
    return found


def _contrast(scores: Mapping[str, Tensor], real: Sequence[str]) -> Tensor | None:
    """How far the methods stand above the random order on each image, their mean: (I,); None without a random order."""
    return None if "random" not in scores else torch.stack([scores[name] for name in real]).nanmean(0) - scores["random"]


def _second(stage: Stage, candidates: Mapping[str, Judged], full: Tensor) -> dict[str, Any] | None:
    """How much confidence the target and the second classifier lose in the class, mean over methods and levels; their ratio."""
    if stage.score.second is None:
        return None
    inputs = score_models.normalised(stage.scene.pixels, stage.opened.samples)
    clean = fud.confidence(stage.score.second(inputs).cpu(), stage.scene.targets.cpu()).double()
    real = [item for item in candidates.values() if item.role != "control"]
    fall = full - torch.stack([fud.score(item.prob) for item in real]).nanmean(0)
    second_fall = clean - torch.stack([fud.score(item.second) for item in real]).nanmean(0)
    rows = interval(torch.stack([clean, fall, second_fall], 1), stage.opened.params)
    named = dict(zip(("clean_confidence", "target_fall", "second_fall"), rows, strict=True))
    return named | {"share": _ratio(second_fall, fall, stage)}


def _agreement(opened: Workspace, stage: Stage, methods: Mapping[str, Any]) -> dict[str, Any]:
    """Kendall and Spearman between the order of methods by FUD and by every other metric, on the same images."""
    names = [name for name, row in methods.items() if row["role"] != "control"]
    own = [methods[name]["score"]["mean"] for name in names]
    scores = read_table(
        workspace.evaluation_folder(opened.task) / "scores.parquet",
        {"sample_id": pl.Int64, "candidate": pl.String, "metric": pl.String, "value": None},
    ).filter(pl.col("sample_id").is_in(list(stage.scene.image_ids)))
    means = {
        (candidate, metric): value
        for candidate, metric, value in scores.group_by("candidate", "metric").agg(pl.col("value").mean()).iter_rows()
    }
    others: dict[str, tuple[list[float | None], bool]] = {
        metric: ([means.get((name, metric)) for name in names], METRICS[metric].direction == "higher")
        for metric in opened.params.evaluate.metrics
    }
    lower = ("black_morf", "blur_morf", "road_morf", "infid_noise", "infid_square")
    for rival in ("black_lerf", "black_morf", "blur_lerf", "blur_morf", "road_lerf", "road_morf", "sensitivity_n", *lower[3:]):
        if all(rival in methods[name]["rivals"] for name in names):
            others[rival] = ([methods[name]["rivals"][rival]["mean"] for name in names], rival not in lower)
    found: dict[str, dict[str, float | int | None]] = {}
    for metric, (values, higher) in others.items():
        known = [(a, b if higher else -b) for a, b in zip(own, values, strict=True) if b is not None]
        if len(known) < 3 or any(len({pair[side] for pair in known}) < 2 for side in (0, 1)):
            found[metric] = {"kendall": None, "spearman": None, "methods": len(known)}
            continue
        first, second = zip(*known, strict=True)
        kendall, spearman = stats.kendalltau(first, second).statistic, stats.spearmanr(first, second).statistic
        found[metric] = {
            "kendall": None if kendall != kendall else float(kendall),
            "spearman": None if spearman != spearman else float(spearman),
            "methods": len(known),
        }
    return found


def _reference(stage: Stage) -> dict[str, Any] | None:
    """Agreement with a sampler of many calls (benchmarks/fud_many_calls/rank.py); None where none was run with these models."""
    path = Path("benchmarks/fud_many_calls") / f"{stage.opened.task}.json"
    if not path.exists():
        return None
    found = read_json(path)
    same = (found["target_sha256"], found["score_model_sha256"]) == (stage.opened.target.sha256, stage.score.sha256)
    return found if same else None
