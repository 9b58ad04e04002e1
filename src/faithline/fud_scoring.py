"""What the in-distribution samples of a task say: scores with controls, rankings, and whether the samples are in-distribution.

Reads `data/fud/<task>/` and writes `reports/fud/<task>.json`, and beside it the few pictures that the report shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from scipy import stats
from torch import Tensor

from faithline import clustered, detection, fud, fud_films, fud_sampling, image_quality, score_models, workspace
from faithline.artifacts import read_json, read_table, write_json, write_table
from faithline.diffusion.plan import cost, plan
from faithline.diffusion.presets import PAPER, Preset
from faithline.errors import ArtifactError
from faithline.fud_intervals import interval, pairs
from faithline.fud_sampling import COLUMNS, CONTROLS, EMPTY, MAIN, Stage
from faithline.maps import refuse_strangers
from faithline.metrics import infidelity, insertion_deletion, road, sensitivity_n
from faithline.metrics.catalogue import METRICS
from faithline.metrics.responses import respond
from faithline.schemas.fud import EvidenceSettings
from faithline.seeding import numpy_generator
from faithline.workspace import Workspace

GRADIENT_MAPS = ("saliency", "smooth_grad", "guided_backprop", "deconvolution")
"""Methods whose maps say how the output changes with a value; all others say what a feature contributes."""

ROAD_NOISE = 0.01
"""Of the paper (Rong et al., 2022)."""

LARGEST_SUBSET = 0.8
"""Largest removed share of Sensitivity-N (Ancona et al., 2018)."""

DENOISING = replace(PAPER, denoising_steps=50, variance="fixed_small", scale=0.0)
"""The paper's chain, with as many steps as a small score model affords: for what is asked of a chain and not of a method."""

VSI_IMAGES = 72
"""Images that VSI sees, spread evenly: it works at 256 pixels whatever the size and costs more than all others together."""

FILMED = 2
"""Candidates of which pictures are shown, best first; and the random order."""

HALF = 0.5
"""Kept fraction of the comparison of hard with soft masks, and of the watched chain."""


@dataclass(frozen=True)
class Judged:
    """One candidate's confidences of the class.

    Attributes:
        role: Of the candidate.
        prob: Main sampler, float64 (I, F, R), levels as in params.
        label: Probability of the true class, (I, F, R); NaN without a label.
        second: Of the second classifier, (I, F, R); NaN without one.
        logodds: (I, F, R).
        matched: Of random maps as smooth, (I, F, R); None for a control.
        variants: Mean confidence of the first images by sampler, (V, ).
        frame: All rows of the candidate.
    """

    role: str
    prob: Tensor
    label: Tensor
    second: Tensor
    logodds: Tensor
    matched: Tensor | None
    variants: dict[str, Tensor]
    frame: pl.DataFrame


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
    candidates = {name: _candidate(stage, name) for name in names if name not in misfits}
    controls = read_table(fud_sampling.folder_of(opened.task, CONTROLS), COLUMNS)
    for control in settings.controls:
        candidates[control] = _judged(stage, "control", controls.filter(pl.col("candidate") == control))
    empty = _tensor(stage, controls.filter(pl.col("candidate") == EMPTY), "prob", [0.0])[:, 0].mean(1)
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
    rivals = _rivals(stage, candidates, clean_logits)
    own = _fud_evidence(stage, candidates, clean_logits)
    result["evidence"] = {
        "fud": own.found,
        **{name: item.found | {"minus_fud": _minus(stage, item, own)} for name, item in rivals.evidence.items()},
    }
    result["second"] = _second(stage, candidates, full)
    result["settings_of_quality"] = {
        name: {"published": item.published, "options": item.options, "unavailable": item.unavailable}
        for name, item in image_quality.quality_settings((clean.shape[2], clean.shape[3]), clean.shape[1]).items()
    }
    for name, row in result["methods"].items():
        row["rivals"] = rivals.scores[name]
    result["agreement"] = _agreement(opened, stage, result["methods"])
    result["hard_vs_soft"] = _hard_vs_soft(stage)
    result["chain"] = _chain(stage, clean_logits)
    result["reference"] = _reference(stage)
    scored = {name: mean for name in names if (mean := result["methods"][name]["score"]["mean"]) is not None}
    shown = sorted(scored, key=lambda name: -scored[name])[:FILMED]
    shown += [name for name in ("random",) if name in candidates]
    pictures = fud_films.films(stage, {name: candidates[name].frame for name in shown}, _maps(stage, shown))
    write_table(f"reports/fud/{opened.task}.parquet", pictures)
    write_json(f"reports/fud/{opened.task}.json", result)


# ---------------------------------------------------------------------------------------------------------------- reading


def _candidate(stage: Stage, name: str) -> Judged:
    roles = stage.opened.params.image.methods.roles()
    folder = fud_sampling.folder_of(stage.opened.task, name)
    return _judged(stage, roles.get(name, "explainer"), read_table(folder, COLUMNS))


def _judged(stage: Stage, role: str, frame: pl.DataFrame) -> Judged:
    settings = stage.settings
    levels = list(settings.levels)
    own = frame.filter((pl.col("ordering") == "own") & (pl.col("sampler") == MAIN))
    random = frame.filter((pl.col("ordering") == "matched_random") & (pl.col("sampler") == MAIN))
    first = stage.take(range(settings.variant_samples))
    variants = {
        name: _tensor(
            first, frame.filter((pl.col("sampler") == name) & pl.col("sample_id").is_in(first.ids.tolist())), "prob", levels
        )
        for name in settings.variants
    }
    log_odds = own.with_columns(_log_odds())
    return Judged(
        role=role,
        prob=_tensor(stage, own, "prob", levels),
        label=_tensor(stage, own, "label_prob", levels),
        second=_tensor(stage, own, "second_prob", levels),
        logodds=_tensor(stage, log_odds, "logodds", levels),
        matched=None if random.is_empty() else _tensor(stage, random, "prob", levels),
        variants={name: fud.score(values) for name, values in variants.items()},
        frame=frame,
    )


def _log_odds() -> pl.Expr:
    """log p / (1 - p) by way of the stored logit and logsumexp: exact where p rounds to 1."""
    gap = pl.col("logit") - pl.col("logsumexp")
    return (gap - (-gap.exp()).log1p()).alias("logodds")


def _tensor(stage: Stage, frame: pl.DataFrame, column: str, levels: Sequence[float]) -> Tensor:
    """A column as (I, F, R), in the order of images, levels and draws.

    Raises:
        ArtifactError: If a row is missing or there are more.
    """
    order = pl.DataFrame({"level": list(levels), "place": range(len(levels))}, schema_overrides={"level": pl.Float64})
    images = pl.DataFrame({"sample_id": list(stage.scene.image_ids), "row": range(len(stage.scene.image_ids))})
    found = frame.join(order, on="level").join(images, on="sample_id").sort("row", "place", "draw")
    shape = (len(stage.scene.image_ids), len(levels), stage.settings.draws)
    if len(found) != np.prod(shape) or len(found) != len(frame):
        raise ArtifactError(
            f"data/fud/{stage.opened.task}: {len(frame)} rows of {column}, {np.prod(shape)} expected: run `dvc repro`"
        )
    values = found[column].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    return torch.from_numpy(values.copy()).reshape(shape)


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


# ----------------------------------------------------------------------------------------------------------------- scores


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
        row |= dict(zip(columns, _interval(torch.stack(list(columns.values()), 1), stage), strict=True))
        row["curve"] = _interval(confidence, stage)
        row["second_curve"] = _interval(item.second.mean(2), stage)
        row["calls"] = max(item.frame.filter(pl.col("sampler") == MAIN)["calls"].drop_nulls().to_list(), default=None)
        row["matched_random"], row["above_matched_random"], row["calibrated"] = None, None, None
        if item.matched is not None:
            matched = fud.score(item.matched)
            row["matched_random"], row["above_matched_random"] = _interval(
                torch.stack([matched, scores[:, k] - matched], 1), stage
            )
            row["matched_curve"] = _interval(item.matched.mean(2), stage)
            row["calibrated"] = _ratio(scores[:, k] - matched, best - matched, stage)
        row["above_random"] = None if random is None else _interval((scores[:, k] - random)[:, None], stage)[0]
        table[name] = row
    return table


def _interval(values: Tensor, stage: Stage) -> list[dict[str, Any]]:
    return interval(values, stage.opened.params)


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
        means = _interval(torch.stack(list(scores.values()), 1), stage)
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
            found[sampler]["contrast"], found[sampler]["contrast_below_main"] = _interval(columns, stage)
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
    rows = _interval(torch.stack([clean, fall, second_fall], 1), stage)
    named = dict(zip(("clean_confidence", "target_fall", "second_fall"), rows, strict=True))
    return named | {"share": _ratio(second_fall, fall, stage)}


# --------------------------------------------------------------------------------------------------------------- evidence


@dataclass(frozen=True)
class Rivals:
    """The metrics that FUD is compared with: scores by candidate and rival, and how in-distribution their images are."""

    scores: dict[str, dict[str, Any]]
    evidence: dict[str, "Evidence"]


@dataclass(frozen=True)
class Evidence:
    """How in-distribution a set of pictures is: the numbers, and those of each bootstrap draw of the images."""

    found: dict[str, Any]
    draws: dict[str, np.ndarray]


def _minus(stage: Stage, rival: Evidence, own: Evidence) -> dict[str, clustered.Interval]:
    """Rival minus FUD in every number that has draws, paired by image."""
    confidence = stage.opened.params.evaluate.confidence
    found = {}
    for name in own.draws.keys() & rival.draws.keys():
        first, second = rival.found[name], own.found[name]
        difference = None if first is None or second is None else first - second
        found[name] = clustered.interval(difference, rival.draws[name] - own.draws[name], confidence)
    return found


def _images_of(frame: pl.DataFrame) -> Tensor:
    return torch.stack([fud_sampling.from_png(data) for data in frame["png"].to_list()])


def _fud_evidence(stage: Stage, candidates: Mapping[str, Judged], clean_logits: Tensor) -> Evidence:
    """Of the main sampler's images of all candidates, controls apart."""
    rows = [
        item.frame.filter((pl.col("sampler") == MAIN) & (pl.col("ordering") == "own") & pl.col("prob").is_not_null())
        for item in candidates.values()
        if item.role != "control"
    ]
    frame = pl.concat(rows)
    place = {sample: row for row, sample in enumerate(stage.scene.image_ids)}
    owners = torch.tensor([place[sample] for sample in frame["sample_id"].to_list()])
    energies = torch.from_numpy(frame["logsumexp"].to_numpy().copy()) * stage.settings.evidence.temperature
    levels = frame["level"].to_list()
    if stage.settings.evidence.temperature != 1:
        energies = detection.energy_score(fud_sampling.predictor(stage)(_images_of(frame)), stage.settings.evidence.temperature)
    return _evidence(stage, clean_logits, energies, _images_of(frame), owners, levels)


def _evidence(
    stage: Stage, clean_logits: Tensor, scores: Tensor, images: Tensor, owners: Tensor, levels: Sequence[float] | None
) -> Evidence:
    """How well detectors tell images from clean ones, and their quality.

    Args:
        stage: The task.
        clean_logits: Of the clean images.
        scores: In-distribution score by energy of each image, (Q,).
        images: (Q, C, S, S) in [0, 1].
        owners: Clean image of each, (Q,).
        levels: Kept fraction of each, where there is one.
    """
    settings = stage.settings.evidence
    clean = detection.energy_score(clean_logits, settings.temperature)
    samples = stage.opened.samples
    reference = score_models.pooled_features(stage.opened, samples.x[samples.index("train")[:500]])
    own = score_models.pooled_features(stage.opened, score_models.normalised(stage.scene.pixels.cpu(), samples))
    made = score_models.pooled_features(stage.opened, score_models.normalised(images, samples))
    near_clean, near = (_near(features, reference, settings) for features in (own, made))
    references = stage.scene.pixels.cpu()[owners]
    quick = tuple(name for name in image_quality.METRICS if name != "vsi")
    quality = image_quality.image_quality(images, references, metrics=quick)
    some = torch.linspace(0, len(images) - 1, min(VSI_IMAGES, len(images))).long()
    quality |= image_quality.image_quality(images[some], references[some], metrics=("vsi",))
    found: dict[str, Any] = {
        "images": len(images),
        "auroc": detection.auroc(clean, scores),
        "fpr95": detection.fpr95(clean, scores),
        "auroc_neighbours": detection.auroc(near_clean, near),
        "fpr95_neighbours": detection.fpr95(near_clean, near),
    }
    found |= {str(name): None if values is None else _number(values.nanmean()) for name, values in quality.items()}
    evaluate = stage.opened.params.evaluate
    drawn = clustered.draws(len(own), evaluate.bootstrap, stage.opened.params.seed)
    judged = (clean.numpy(), scores.double().numpy(), owners.numpy())
    neighbours = (near_clean.numpy(), near.numpy(), owners.numpy())
    draws = {
        "auroc": clustered.auroc(*judged, drawn),
        "fpr95": clustered.fpr95(*judged, drawn),
        "auroc_neighbours": clustered.auroc(*neighbours, drawn),
        "fpr95_neighbours": clustered.fpr95(*neighbours, drawn),
    }
    for name, values in quality.items():
        if values is not None:
            pictures = owners[some] if name == "vsi" else owners
            draws[str(name)] = clustered.mean(values.double().numpy(), pictures.numpy(), drawn)
    found["intervals"] = {
        name: clustered.interval(found[name], resampled, evaluate.confidence) for name, resampled in draws.items()
    }
    if levels is not None:
        by_level = {}
        for level in dict.fromkeys(levels):
            rows = torch.tensor([value == level for value in levels])
            by_level[f"{level:g}"] = detection.auroc(clean, scores[rows])
        found["auroc_by_level"] = by_level
    return Evidence(found, draws)


def _near(features: Tensor, reference: Tensor, settings: EvidenceSettings) -> Tensor:
    """Neighbour scores; features of no direction (all zero, as a dead layer gives) lie as far off as can be."""
    silent = features.abs().sum(1) == 0
    scores = torch.full((len(features),), -2.0, dtype=torch.float64)
    if bool((~silent).any()):
        alive = reference[reference.abs().sum(1) > 0]
        scores[~silent] = detection.neighbour_score(features[~silent], alive, settings.neighbours)
    return scores


def _number(value: Tensor) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None


def _rivals(stage: Stage, candidates: Mapping[str, Judged], clean_logits: Tensor) -> Rivals:
    """INS/DEL, Sensitivity-N, INFID and ROAD of every candidate and control on the same images, classes and masks."""
    settings, images, ids = stage.settings, stage.scene.pixels.cpu(), stage.scene.image_ids
    target, predict, seed = stage.scene.targets.cpu(), fud_sampling.predictor(stage), stage.scene.seed
    real = [name for name, item in candidates.items() if item.role != "control"]
    per_image = max(2, len(settings.levels) * len(real))  # as many images as FUD made, for each rival
    full = fud.confidence(clean_logits.double(), target)

    sizes = sensitivity_n.subset_sizes(images[0, 0].numel(), len(settings.levels), LARGEST_SUBSET)
    subsets = max(settings.evidence.subsets, len(real))
    removed = sensitivity_n.random_subsets(ids, (images.shape[2], images.shape[3]), sizes, subsets, seed=seed)
    shown = sensitivity_n.subset_images(images, removed)
    falls = clean_logits.gather(1, target[:, None])[:, :, None] - respond(predict, shown, target).logit
    noise, sides = settings.evidence.noise, _squares(images.shape[-1])
    perturbed = {
        "noise": infidelity.noisy_baseline_images(images, ids, per_image, std=noise, share=HALF, seed=seed),
        "square": infidelity.square_removal_images(images, ids, per_image, sides=sides, seed=seed),
    }
    answers = {kind: full[:, None] - respond(predict, made, target).probability.double() for kind, made in perturbed.items()}

    scores: dict[str, dict[str, Any]] = {}
    collected: list[_Made] = []
    for name, maps in _maps(stage, list(candidates)).items():
        usable = fud_sampling.orders_something(maps)
        if not bool(usable.any()):
            scores[name] = {}
            continue
        own, rows = maps[usable], usable.nonzero()[:, 0]
        values, made = _removal_scores(stage.choose(usable), own, full[usable], rows)
        confidence = candidates[name].prob[usable].mean(2)
        values["tau_above_black"] = fud.smoothness(confidence, list(settings.levels)) - values["black_tau"]
        values["rises_above_black"] = fud.rises(confidence, list(settings.levels), full[usable]) - values["black_rises"]
        values["sensitivity_n"] = sensitivity_n.sensitivity_n(
            own, removed[usable], falls[usable], images.shape[1]
        ).correlation.nanmean(1)
        meaning: infidelity.Meaning = "per_unit" if name in GRADIENT_MAPS else "contribution"
        for kind, versions in perturbed.items():
            for normalize in (True, False):
                values[f"infid_{kind}" + ("" if normalize else "_raw")] = infidelity.infidelity(
                    own, meaning, images[usable], versions[usable], answers[kind][usable], normalize=normalize
                )
        columns = torch.full((len(maps), len(values)), torch.nan, dtype=torch.float64)
        columns[usable] = torch.stack([value.double() for value in values.values()], 1)
        scores[name] = dict(zip(values, _interval(columns, stage), strict=True))
        if name in real:
            collected += made

    owners = torch.arange(len(images))
    mixed = torch.stack(list(perturbed.values()), 2).flatten(1, 2)[:, :per_image]  # noise and squares in turn
    subset = shown[:, :, : len(real)].flatten(1, 2)
    collected += [
        _Made("sensitivity_n", subset.flatten(0, 1), owners.repeat_interleave(subset.shape[1]), None),
        _Made("infid", mixed.flatten(0, 1), owners.repeat_interleave(mixed.shape[1]), None),
    ]
    evidence = {}
    for rival in dict.fromkeys(part.rival for part in collected):
        parts = [part for part in collected if part.rival == rival]
        made_images = torch.cat([part.images for part in parts])
        levels = None if parts[0].levels is None else [level for part in parts for level in part.levels or ()]
        energies = detection.energy_score(predict(made_images), settings.evidence.temperature)
        owned = torch.cat([part.owners for part in parts])
        evidence[rival] = _evidence(stage, clean_logits, energies, made_images, owned, levels)
    return Rivals(scores, evidence)


@dataclass(frozen=True)
class _Made:
    """Images that a rival made of one candidate: (Q, C, S, S), their clean images (Q,), and the fraction each keeps."""

    rival: str
    images: Tensor
    owners: Tensor
    levels: list[float] | None


def _removal_scores(stage: Stage, maps: Tensor, full: Tensor, rows: Tensor) -> tuple[dict[str, Tensor], list[_Made]]:
    """What fills removed pixels with black, blur or their neighbours: scores (I,) each, and the images.

    Args:
        stage: The images that the maps order.
        maps: (I, H, W).
        full: Clean confidence, (I,).
        rows: Their places among all images, (I,).
    """
    settings, scene = stage.settings, stage.scene
    images, target = scene.pixels.cpu(), scene.targets.cpu()
    levels, predict = tuple(settings.levels), fud_sampling.predictor(stage)
    keep = {
        "lerf": fud_sampling.keep_masks(stage, maps, levels).cpu(),
        "morf": _least_kept(stage, maps, levels).cpu(),
    }
    owners, fractions = rows.repeat_interleave(len(levels)), list(levels) * len(rows)
    values: dict[str, Tensor] = {}
    made: list[_Made] = []
    kinds: tuple[insertion_deletion.Substrate, ...] = ("black", "blur")
    for kind in kinds:
        filled = insertion_deletion.substrate(images, kind, blur_sigma=settings.evidence.blur)
        for order, masks in keep.items():
            curve = insertion_deletion.removal_curve(predict, images, filled, masks, levels, target)
            prob = curve.responses.probability.double()
            values[f"{kind}_{order}"] = insertion_deletion.curve_area(curve.fractions, prob)
            if kind == "black" and order == "lerf":  # FUD's own removal, but for the fill
                inner, rising = prob[:, 1:-1], sorted(levels)
                values["black_tau"] = fud.smoothness(inner, rising)
                values["black_rises"] = fud.rises(inner, rising, full)
                values["black_score"] = inner.mean(1)
            shown = insertion_deletion.removal_images(images, filled, masks).flatten(0, 1)
            made.append(_Made("ins_del" if kind == "black" else "ins_del_blur", shown, owners, fractions))
    for order, masks in keep.items():
        interpolated = road.road_images(images, scene.image_ids, masks, noise=ROAD_NOISE, seed=scene.seed)
        values[f"road_{order}"] = respond(predict, interpolated, target).probability.double().mean(1)
        made.append(_Made("road", interpolated.flatten(0, 1), owners, fractions))
    return values, made


def _squares(side: int) -> tuple[int, ...]:
    return tuple(sorted({max(1, side // 8), max(1, side // 4), max(1, side // 2)}))


def _least_kept(stage: Stage, maps: Tensor, levels: tuple[float, ...]) -> Tensor:
    """MoRF: the same counts, the unimportant pixels kept."""
    settings = stage.settings
    return insertion_deletion.removal_keep(
        maps,
        stage.scene.image_ids,
        tuple(stage.scene.pixels.shape[-2:]),  # type: ignore[arg-type]
        levels,
        "morf",
        settings.unit,
        settings.reduction,
        patch=settings.patch,
        seed=stage.scene.seed,
    ).to(stage.scene.pixels.device)


def _maps(stage: Stage, names: Sequence[str]) -> dict[str, Tensor]:
    """Maps of candidates and controls."""
    found = {order.candidate: order.maps for order in fud_sampling.orders(stage, CONTROLS)}
    return {name: found[name] if name in found else fud_sampling.candidate_maps(stage.opened, name, stage.ids) for name in names}


# ------------------------------------------------------------------------------------------------------------- experiments


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
        if len(known) < 3:
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


def _half_kept(stage: Stage, name: str) -> tuple[Stage, Tensor]:
    """The images that a method's maps order, and the masks that keep half of their pixels."""
    maps = fud_sampling.candidate_maps(stage.opened, name, stage.ids)
    usable = fud_sampling.orders_something(maps)
    some = stage.choose(usable)
    return some, fud_sampling.keep_masks(some, maps[usable], [HALF])


def _hard_vs_soft(stage: Stage) -> dict[str, Any]:
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
            str(metric): None if values is None else _number(values.nanmean()) for metric, values in quality.items()
        }
        by_image.append({str(metric): values for metric, values in quality.items() if values is not None})
    hard, soft = by_image
    differences = torch.stack([hard[metric] - soft[metric] for metric in hard], 1)
    found["hard_minus_soft"] = dict(zip(hard, _interval(differences, stage), strict=True))
    return found


def _chain(stage: Stage, clean_logits: Tensor) -> dict[str, Any]:
    """Energy AUROC of the samples on their way, and of the clean images they aim at, against the share of steps that remain.

    Half of the pixels kept in the order of the report's reference method, no anti-class term: where does a chain enter the
    distribution? The switch of the paper stands at 5 %.
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
    clean_energy = detection.energy_score(clean_logits, temperature)

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
    curve, curves = np.array([[row["auroc_sample"] for row in rows]]), np.stack(resampled, 1)
    fall = clustered.interval(float(curve[0, 0] - curve[0, -1]), curves[:, 0] - curves[:, -1], evaluate.confidence)
    half_way = float(_half_way(curve)[0])
    return {
        "steps": rows,
        "fall": fall,
        "half_way_remaining": half_way,
        "half_way": clustered.interval(half_way, _half_way(curves), evaluate.confidence),
        "images": count,
    }


def _half_way(curves: np.ndarray) -> np.ndarray:
    """Share of steps that remain when curves (B, steps) last pass the middle of their first and last value: (B,)."""
    steps = curves.shape[1]
    above = curves > (curves[:, :1] + curves[:, -1:]) / 2
    last = np.where(above.any(1), steps - 1 - above[:, ::-1].argmax(1), -1)  # step after which no value is above
    return (steps - (last + 1)) / steps


def _reference(stage: Stage) -> dict[str, Any] | None:
    """Agreement with a sampler of many calls (benchmarks/fud_many_calls/rank.py); None where none was run with these models."""
    path = Path("benchmarks/fud_many_calls") / f"{stage.opened.task}.json"
    if not path.exists():
        return None
    found = read_json(path)
    same = (found["target_sha256"], found["score_model_sha256"]) == (stage.opened.target.sha256, stage.score.sha256)
    return found if same else None
