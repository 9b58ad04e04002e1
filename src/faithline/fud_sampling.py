"""The in-distribution samples of one candidate, or of all controls of a task: `data/fud/<task>/<name>/`."""

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from faithline import engine, fud, score_models, workspace
from faithline.controls import control_map
from faithline.diffusion.guidance import classifier_evidence
from faithline.diffusion.plan import cost, plan
from faithline.diffusion.presets import Preset
from faithline.diffusion.removal import nested_keep
from faithline.errors import ArtifactError
from faithline.explainers.load import load_explainer
from faithline.fud import Scene
from faithline.maps import read_maps, read_misfit, write_misfit
from faithline.schemas.fud import ImageFudSettings, SamplerSettings
from faithline.seeding import device, torch_generator
from faithline.workspace import Workspace

CONTROLS = "controls"
"""Name of the job, and of the folder, of all controls of a task."""

EMPTY = "empty"
"""Nothing kept: one sample an image and draw, the end point of every curve."""

MAIN = "main"
"""The sampler of `fud.image.sampler`; the others are its variants."""

COLUMNS = {
    "sample_id": pl.Int64,
    "candidate": pl.String,
    "ordering": pl.String,
    "sampler": pl.String,
    "level": pl.Float64,
    "draw": pl.Int32,
    "prob": pl.Float64,
    "label_prob": pl.Float64,
    "predicted": pl.Int32,
    "logit": pl.Float64,
    "logsumexp": pl.Float64,
    "entropy": pl.Float64,
    "second_prob": pl.Float64,
    "calls": pl.Int32,
    "gradients": pl.Int32,
    "dose": pl.Float64,
    "gradient_norm": pl.Float64,
    "mask_sha256": pl.String,
    "png": pl.Binary,
}
"""One row a reconstruction. `ordering`: `own`, or `matched_random` for the random map as smooth as the candidate's. `png` is
there for the main sampler's and for soft masks' images; an image without a label has no `label_prob`. Where a map orders nothing
(constant, not finite) all that was measured is null."""


@dataclass(frozen=True)
class Stage:
    """A task, opened for FUD.

    Attributes:
        opened: Samples, target, game.
        settings: `fud.image`.
        scene: The judged images.
        labels: True classes, int64 (I,).
        score: The score model with its second classifier.
    """

    opened: Workspace
    settings: ImageFudSettings
    scene: Scene
    labels: Tensor
    score: score_models.LoadedScore

    @property
    def ids(self) -> Tensor:
        """Sample ids, int64 (I,)."""
        return torch.tensor(self.scene.image_ids)

    def take(self, rows: range) -> "Stage":
        """The same for some of the images in a row."""
        chosen = torch.zeros(len(self.labels), dtype=torch.bool)
        chosen[rows.start : rows.stop] = True
        return self.choose(chosen)

    def choose(self, chosen: Tensor) -> "Stage":
        """The same for some of the images, bool (I,)."""
        where = chosen.to(self.scene.pixels.device)
        scene = replace(
            self.scene,
            pixels=self.scene.pixels[where],
            image_ids=tuple(i for i, wanted in zip(self.scene.image_ids, chosen.tolist(), strict=True) if wanted),
            targets=self.scene.targets[where],
        )
        return replace(self, scene=scene, labels=self.labels[chosen])


@dataclass(frozen=True)
class Order:
    """One order of removal: maps (I, h, w) of a candidate, and how its rows are named."""

    candidate: str
    ordering: str
    maps: Tensor


def _cut(order: Order, rows: range) -> Order:
    return replace(order, maps=order.maps[rows.start : rows.stop])


def preset_of(settings: SamplerSettings) -> Preset:
    """The sampler that params describe."""
    values = settings.model_dump()
    for key in ("langevin_levels", "denoising_window", "langevin_window"):
        values[key] = tuple(values[key])
    return Preset(**values)


def open_stage(opened: Workspace) -> Stage:
    """Open a task whose `score_model` stage has run.

    Raises:
        ArtifactError: If the score model is missing, damaged or does not fit.
    """
    settings, samples = opened.params.fud.image, opened.samples
    loaded = score_models.load(opened.task, samples, opened.target.sha256)
    ids = samples.index("test")[: settings.samples]
    images = score_models.pixels(samples.x[ids], samples)
    if images.shape[-1] != loaded.size:
        images = functional.interpolate(images, (loaded.size,) * 2, mode="bilinear", antialias=True, align_corners=False)
        images = images.clamp(0, 1)
    labels = samples.label[ids]
    targets = opened.explained[ids] if settings.target == "predicted" else labels
    preprocessing = samples.preprocessing
    evidence = classifier_evidence(opened.game.model, preprocessing["mean"], preprocessing["std"], samples.features.shape[1])
    try:
        for preset in (preset_of(item) for item in (settings.sampler, *settings.samplers().values())):
            plan(preset, loaded.schedule)
        scene = Scene(
            images.to(device()),
            tuple(ids.tolist()),
            targets.to(device()),
            loaded.model,
            loaded.schedule,
            evidence,
            opened.params.seed,
            settings.max_batch,
        )
    except ValueError as error:
        raise ArtifactError(f"fud.image: {error}") from error
    return Stage(opened, settings, scene, labels, loaded)


# -------------------------------------------------------------------------------------------------------------------- maps


def candidate_maps(opened: Workspace, name: str, ids: Tensor) -> Tensor:
    """Maps of a prior method or an explainer for some samples, (I, H, W); all NaN where the method gave none that is finite.

    Raises:
        ArtifactError: If the method does not fit the task.
    """
    samples = opened.samples
    if name in opened.params.image.explainers:
        folder = workspace.explainer_folder(opened.task, name)
        explainer = load_explainer(folder, opened.target.model, max_batch=opened.settings.game.max_batch)
        return samples.features.to_map(explainer(samples.x[ids]).cpu())
    folder = workspace.attribution_folder(opened.task, name)
    if (reason := misfit(opened, name)) is not None:
        raise ArtifactError(f"{name} does not fit {opened.task}: {reason}")
    stored = read_maps(folder, samples.features, opened.target.sha256).of(ids)
    return torch.where(stored.finite[:, None, None], stored.maps, torch.nan)


def misfit(opened: Workspace, name: str) -> str | None:
    """Why a prior method does not fit the target of a task; None for one that does, and for explainers and controls."""
    if name not in opened.params.image.methods:
        return None
    return read_misfit(workspace.attribution_folder(opened.task, name), opened.target.sha256)


def orders_something(maps: Tensor) -> Tensor:
    """Which maps (I, ...) order their pixels: finite, and not constant; bool (I,)."""
    flat = maps.flatten(1)
    return flat.isfinite().all(1) & (flat != flat[:, :1]).any(1)


def orders(stage: Stage, name: str) -> list[Order]:
    """What a job removes by: a candidate's maps and random ones as smooth, or every control."""
    opened, ids = stage.opened, stage.ids
    if name != CONTROLS:
        maps = candidate_maps(opened, name, ids)
        if not bool(orders_something(maps).any()):
            raise ArtifactError(f"{name} has no map of samples {ids.tolist()} that orders anything: all constant or not finite")
        random = fud.matched_random(maps, stage.scene.image_ids, opened.params.seed)
        return [Order(name, "own", maps), Order(name, "matched_random", random)]
    features = opened.samples.features
    found = []
    reference = candidate_maps(opened, opened.params.report.reference, ids)
    for control in stage.settings.controls:
        if control == "random":
            draws = [
                torch.randn(features.shape[1:], generator=torch_generator(opened.params.seed, "random pixels", i))
                for i in stage.scene.image_ids
            ]
            maps = torch.stack(draws)
        elif control == "another":
            maps = reference.roll(1, 0)
        elif control == "inverse":
            maps = -reference
        else:
            blank = torch.zeros(features.n)
            maps = features.to_map(control_map(control, features, opened.samples.x[ids], ids, blank, opened.params.seed))
        found.append(Order(control, "own", maps))
    return found


def keep_masks(stage: Stage, maps: Tensor, levels: Sequence[float]) -> Tensor:
    """Nested masks of maps of the stage's images, bool (I, F, 1 or C, S, S).

    Raises:
        ArtifactError: If a map orders nothing or is of a wrong shape, or a level keeps nothing or all.
    """
    settings, size = stage.settings, tuple(stage.scene.pixels.shape[-2:])
    try:
        keep = nested_keep(
            maps,
            stage.scene.image_ids,
            (size[0], size[1]),
            tuple(levels),
            settings.unit,
            settings.reduction,
            patch=settings.patch,
            seed=stage.scene.seed,
        )
    except ValueError as error:
        raise ArtifactError(str(error)) from error
    return keep.to(stage.scene.pixels.device)


# ----------------------------------------------------------------------------------------------------------------- samples


def sample(opened: Workspace, name: str) -> None:
    """Regenerate what a candidate's maps remove and write `data/fud/<task>/<name>/`.

    Work is cut into groups of images; a killed run finds the finished ones again and ends with the same bytes. Of a method that
    does not fit the target, the folder says why.
    """
    if (reason := misfit(opened, name)) is not None:
        write_misfit(folder_of(opened.task, name), reason, {**opened.metadata(), "candidate": name})
        return
    stage = open_stage(opened)
    settings = stage.settings
    removed_by = orders(stage, name)
    group = max(1, settings.max_batch // (len(settings.levels) * settings.draws))
    samplers = {MAIN: preset_of(settings.sampler), **{key: preset_of(item) for key, item in settings.samplers().items()}}
    tqdm.write(_announcement(stage, name, len(removed_by), samplers))
    key = engine.content_key(
        [
            opened.params.seed,
            opened.task,
            name,
            [settings.samples, settings.draws, settings.levels, settings.unit, settings.patch, settings.reduction],
            [settings.target, settings.max_batch, settings.sampler.model_dump(), settings.variants, settings.variant_samples],
            [settings.controls, opened.params.report.reference] if name == CONTROLS else [],
        ],
        [
            *engine.loaded_code(),
            workspace.task_folder(opened.task),
            workspace.target_folder(opened.task),
            score_models.folder_of(opened.task),
            *_map_folders(opened, name),
        ],
    )

    def work(rows: range) -> pa.Table:
        part = stage.take(rows)
        found = [_records(part, _cut(order, rows), MAIN, samplers[MAIN]) for order in removed_by]
        few = range(rows.start, min(rows.stop, settings.variant_samples))
        if few:
            some = stage.take(few)
            own = [_cut(order, few) for order in removed_by if order.ordering == "own"]
            found += [_records(some, order, key, preset) for key, preset in samplers.items() if key != MAIN for order in own]
        if name == CONTROLS:
            found.append(_empty(part, samplers[MAIN]))
        return pa.concat_tables(found)

    metadata = {**opened.metadata(), "candidate": name, "score_model_sha256": stage.score.sha256, "seed": str(opened.params.seed)}
    engine.run_shards(
        work,
        settings.samples,
        folder_of(opened.task, name),
        stage=f"fud-{opened.task}-{name}",
        key=key,
        metadata=metadata,
        shard_rows=group,
    )


def folder_of(task: str, name: str) -> Path:
    """Samples of one candidate, or of the controls."""
    return Path("data/fud") / task / name


def _map_folders(opened: Workspace, name: str) -> list[Path]:
    if name == CONTROLS:
        name = opened.params.report.reference
    if name in opened.params.image.explainers:
        return [workspace.explainer_folder(opened.task, name)]
    return [workspace.attribution_folder(opened.task, name)]


def _announcement(stage: Stage, name: str, orders: int, samplers: dict[str, Preset]) -> str:
    settings = stage.settings
    calls = {key: cost(plan(preset, stage.score.schedule)).calls for key, preset in samplers.items()}
    each = len(settings.levels) * settings.draws
    total = settings.samples * orders * each * calls[MAIN]
    own = orders if name == CONTROLS else 1
    total += settings.variant_samples * own * each * sum(count for key, count in calls.items() if key != MAIN)
    if name == CONTROLS:
        total += settings.samples * settings.draws * calls[MAIN]  # nothing kept
    return f"plan: {total:,} calls of the score model"


def _records(stage: Stage, order: Order, sampler: str, preset: Preset) -> pa.Table:
    """Reconstructions of one order under one sampler: a table of `COLUMNS`. Where a map orders nothing, they are null."""
    settings = stage.settings
    usable = orders_something(order.maps)
    tables = []
    if bool(usable.any()):
        part = stage.choose(usable)
        keep = keep_masks(part, order.maps[usable], settings.levels)
        try:
            made = fud.regenerate(part.scene, keep, preset, settings.draws)
        except ValueError as error:
            raise ArtifactError(f"fud.image: {error}") from error
        tables.append(_table(part, order, sampler, settings.levels, keep, made, pictures=sampler == MAIN or not preset.hard))
    if not bool(usable.all()):
        tables.append(_nothing(stage.choose(~usable), order, sampler))
    return pa.concat_tables(tables)


def _nothing(stage: Stage, order: Order, sampler: str) -> pa.Table:
    levels, draws = stage.settings.levels, range(stage.settings.draws)
    rows = [(sample, level, draw) for sample in stage.scene.image_ids for level in levels for draw in draws]
    columns: dict[str, Any] = {name: [None] * len(rows) for name in COLUMNS}
    columns |= dict(zip(("sample_id", "level", "draw"), zip(*rows, strict=True), strict=True))
    columns |= {
        "candidate": [order.candidate] * len(rows),
        "ordering": [order.ordering] * len(rows),
        "sampler": [sampler] * len(rows),
    }
    return pl.DataFrame(columns, schema=COLUMNS).to_arrow(compat_level=pl.CompatLevel.oldest())


def _empty(stage: Stage, preset: Preset) -> pa.Table:
    keep = torch.zeros_like(stage.scene.pixels[:, None, :1], dtype=torch.bool)
    made = fud.regenerate(stage.scene, keep, preset, stage.settings.draws)
    return _table(stage, Order(EMPTY, "own", keep[:, 0, 0]), MAIN, [0.0], keep, made, pictures=True)


def predictor(stage: Stage) -> Callable[[Tensor], Tensor]:
    """The target, from pixels of the score model's grid."""
    opened = stage.opened
    return lambda images: opened.game.predict(score_models.normalised(images, opened.samples))[0].cpu()


def _table(
    stage: Stage,
    order: Order,
    sampler: str,
    levels: Sequence[float],
    keep: Tensor,
    made: fud.Regenerated,
    *,
    pictures: bool,
) -> pa.Table:
    images, masks, draws = made.pixels.shape[:3]
    per_image = masks * draws
    flat = made.pixels.flatten(0, 2)
    target = stage.scene.targets.cpu().repeat_interleave(per_image)
    label = stage.labels.repeat_interleave(per_image)
    logits = predictor(stage)(flat).double()
    log_probabilities = logits.log_softmax(1)
    second: list[float] | list[None] = [None] * len(flat)
    if stage.score.second is not None:
        inputs = score_models.normalised(flat, stage.opened.samples)
        second = fud.confidence(stage.score.second(inputs).cpu(), target).double().tolist()
    hashes = [
        hashlib.sha256(np.packbits(mask.cpu().numpy()).tobytes()).hexdigest()[:16]
        for mask in keep.flatten(0, 1).expand(-1, -1, -1, -1)
    ]
    columns: dict[str, Any] = {
        "sample_id": stage.ids.repeat_interleave(per_image).tolist(),
        "candidate": [order.candidate] * len(flat),
        "ordering": [order.ordering] * len(flat),
        "sampler": [sampler] * len(flat),
        "level": [level for _ in range(images) for level in levels for _ in range(draws)],
        "draw": list(range(draws)) * (images * masks),
        "prob": log_probabilities.gather(1, target[:, None])[:, 0].exp().tolist(),
        "label_prob": [
            float(row[own].exp()) if own >= 0 else None for row, own in zip(log_probabilities, label.tolist(), strict=True)
        ],
        "predicted": logits.argmax(1).tolist(),
        "logit": logits.gather(1, target[:, None])[:, 0].tolist(),
        "logsumexp": logits.logsumexp(1).tolist(),
        "entropy": (-(log_probabilities.exp() * log_probabilities).sum(1)).tolist(),
        "second_prob": second,
        "calls": made.calls.flatten().tolist(),
        "gradients": made.gradients.flatten().tolist(),
        "dose": made.dose.flatten().double().tolist(),
        "gradient_norm": made.gradient_norm.flatten().double().tolist(),
        "mask_sha256": [name for name in hashes for _ in range(draws)],
        "png": [png(image) for image in flat] if pictures else [None] * len(flat),
    }
    return pl.DataFrame(columns, schema=COLUMNS).to_arrow(compat_level=pl.CompatLevel.oldest())


def png(image: Tensor) -> bytes:
    """Pixels (C, H, W) in [0, 1] as a PNG of 8 bits a channel."""
    values = (image.cpu() * 255).round().to(torch.uint8).numpy()
    picture = Image.fromarray(values[0] if len(values) == 1 else values.transpose(1, 2, 0))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def from_png(data: bytes) -> Tensor:
    """Pixels (C, H, W) in [0, 1] of a PNG."""
    values = np.asarray(Image.open(io.BytesIO(data)), dtype=np.float32) / 255
    return torch.from_numpy(values[None] if values.ndim == 2 else values.transpose(2, 0, 1).copy())
