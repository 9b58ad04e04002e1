"""Are removals in-distribution? Detectors and picture quality: of FUD's images, and of those of metrics it is compared with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from faithline import clustered, detection, fud, fud_sampling, image_quality, score_models
from faithline.fud_intervals import interval
from faithline.fud_records import Judged
from faithline.fud_sampling import CONTROLS, MAIN, Stage
from faithline.metrics import infidelity, insertion_deletion, road, sensitivity_n
from faithline.metrics.responses import respond
from faithline.schemas.fud import EvidenceSettings

GRADIENT_MAPS = ("saliency", "smooth_grad", "guided_backprop", "deconvolution")
"""Methods whose maps say how the output changes with a value; all others say what a feature contributes."""

ROAD_NOISE = 0.01
"""Of the paper (Rong et al., 2022)."""

LARGEST_SUBSET = 0.8
"""Largest removed share of Sensitivity-N (Ancona et al., 2018)."""

VSI_IMAGES = 24
"""Images that VSI sees, spread evenly: it works at 256 pixels whatever the size and costs more than all others together."""

HALF = 0.5
"""Share of the pixels that INFID's noisy baseline perturbs."""


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


def minus(stage: Stage, rival: Evidence, own: Evidence) -> dict[str, clustered.Interval]:
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


def fud_evidence(stage: Stage, candidates: Mapping[str, Judged], clean_logits: Tensor) -> Evidence:
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
    found |= {str(name): None if values is None else number(values.nanmean()) for name, values in quality.items()}
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


def number(value: Tensor) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None


def rivals(stage: Stage, candidates: Mapping[str, Judged], clean_logits: Tensor) -> Rivals:
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
    for name, maps in maps_of(stage, list(candidates)).items():
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
        scores[name] = dict(zip(values, interval(columns, stage.opened.params), strict=True))
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


def maps_of(stage: Stage, names: Sequence[str]) -> dict[str, Tensor]:
    """Maps of candidates and controls."""
    found = {order.candidate: order.maps for order in fud_sampling.orders(stage, CONTROLS)}
    return {name: found[name] if name in found else fud_sampling.candidate_maps(stage.opened, name, stage.ids) for name in names}
