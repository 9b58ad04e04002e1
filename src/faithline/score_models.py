"""The score model of an image task: trained on its training images or loaded from a checkpoint, published, and read back."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from faithline import engine, second_classifier, workspace
from faithline.artifacts import file_sha256, publish, read_json, read_tensors, write_json, write_table, write_tensors
from faithline.dataset import Samples
from faithline.diffusion.adm import ADM_256, adm_network, load_adm
from faithline.diffusion.frechet import frechet_distance
from faithline.diffusion.presets import PAPER
from faithline.diffusion.sampler import Items, reconstruct
from faithline.diffusion.schedule import Schedule, linear_schedule
from faithline.diffusion.score import NetworkScore
from faithline.errors import ArtifactError
from faithline.schemas.fud import AdmScoreSettings, ImageFudSettings, SecondClassifierSettings, TrainedScoreSettings
from faithline.seeding import device
from faithline.workspace import Workspace

SHEET = replace(PAPER, denoising_steps=50, variance="fixed_small", kept="noised", scale=0.0)
"""How the sample sheet is drawn: plain denoising of pure noise."""


@dataclass(frozen=True)
class LoadedScore:
    """A score model, opened.

    Attributes:
        model: Noisy images in [-1, 1] (B, C, size, size) and time steps -> noise.
        schedule: Its noise levels.
        channels: Of its images.
        size: Side of its images in pixels.
        learned_variance: Whether it returns the variance of a step too (ADM).
        second: The second classifier, normalised images of the task -> logits; None without one.
        sha256: Of the weights.
        target_sha256: Of the target that it was made beside.
    """

    model: NetworkScore
    schedule: Schedule
    channels: int
    size: int
    learned_variance: bool
    second: nn.Module | None
    sha256: str
    target_sha256: str


def folder_of(task: str) -> Path:
    """The score model of a task."""
    return Path("models/score_models") / task


def pixels(x: Tensor, samples: Samples) -> Tensor:
    """Normalised inputs (B, C, H, W) as pixels in [0, 1]."""
    mean, std = (x.new_tensor(samples.preprocessing[key]).reshape(1, -1, 1, 1) for key in ("mean", "std"))
    return (x * std + mean).clamp(0, 1)


def normalised(images: Tensor, samples: Samples) -> Tensor:
    """Pixels in [0, 1] of any size as the task's normalised inputs; other sizes are resized (bilinear, antialiased)."""
    size = samples.features.shape[1:]
    if images.shape[-2:] != size:
        images = functional.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)
    mean, std = (images.new_tensor(samples.preprocessing[key]).reshape(1, -1, 1, 1) for key in ("mean", "std"))
    return (images - mean) / std


def pooled_features(opened: Workspace, x: Tensor) -> Tensor:
    """Outputs of the last of `target.layers`, mean over places: (B, d), in batches of the game's size."""
    layer = opened.settings.target.layers[-1]
    parts = []
    for part in x.split(opened.game.max_batch):
        found = opened.game.activations(part, [layer])[0][layer].cpu().float()
        parts.append(found.flatten(2).mean(2) if found.ndim == 4 else found.mean(1) if found.ndim == 3 else found)
    return torch.cat(parts)


def make(opened: Workspace) -> None:
    """Train or convert the score model of a task and write `models/score_models/<task>/`.

    Raises:
        ArtifactError: If images, network or checkpoint do not fit.
    """
    fud, samples = opened.params.fud.image, opened.samples
    settings = fud.score_model
    channels, height, width = samples.features.shape
    if height != width:
        raise ArtifactError(f"{opened.task}: images are {height} x {width}, a score model needs square ones")
    history: list[dict[str, float]] = []
    network: nn.Module
    if isinstance(settings, TrainedScoreSettings):
        size, schedule = height, linear_schedule(settings.schedule.steps, settings.schedule.first, settings.schedule.last)
        try:
            network, history = _train(opened, settings, schedule)
        except ValueError as error:
            raise ArtifactError(f"{opened.task}: {error}") from error
    else:
        network, size, schedule = _adm(settings, channels)
    with publish(folder_of(opened.task)) as folder:
        write_tensors(folder / "network.safetensors", network.state_dict())
        info: dict[str, Any] = {
            "task": opened.task,
            "sha256": file_sha256(folder / "network.safetensors"),
            "target_sha256": opened.target.sha256,
            "settings": settings.model_dump(),
            "channels": channels,
            "size": size,
            "classes": len(samples.class_names),
            "inputs": samples.x[0].numel(),
            "range": [-1.0, 1.0],
            "parameters": sum(p.numel() for p in network.parameters()),
            "history": history,
            "second_classifier": None,
        }
        if fud.second_classifier is not None:
            info["second_classifier"] = _second(opened, fud.second_classifier, folder)
        score = NetworkScore(network.to(device()), _dtype(settings.precision))
        sheet = _sheet(score, schedule, channels, size, fud)
        info["frechet"] = _frechet(opened, sheet)
        write_tensors(folder / "sheet.safetensors", {"pixels": (sheet * 255).round().to(torch.uint8)})
        if history:
            write_table(folder / "history.parquet", pl.DataFrame(history))
        write_json(folder / "model.json", info)


def _train(opened: Workspace, settings: TrainedScoreSettings, schedule: Schedule) -> tuple[nn.Module, list[dict[str, float]]]:
    from faithline.diffusion.training import (
        train_score_model,
    )  # with diffusers: seconds that no other reader of a model waits for

    samples = opened.samples
    images, validation = (2 * pixels(samples.x[samples.index(split)], samples) - 1 for split in ("train", "validation"))
    key = engine.content_key(
        [opened.params.seed, settings.model_dump()], [*engine.loaded_code(), workspace.task_folder(opened.task)]
    )
    scratch = engine.scratch_folder(f"score_model-{opened.task}", key)
    with tqdm(total=settings.steps, desc=f"score model of {opened.task}", unit="step") as progress:
        trained = train_score_model(
            images,
            validation,
            schedule,
            settings,
            seed=opened.params.seed,
            scratch=scratch,
            live=lambda row: progress.update(int(row["step"]) - progress.n),
        )
    return trained.network, trained.history


def _adm(settings: AdmScoreSettings, channels: int) -> tuple[nn.Module, int, Schedule]:
    if channels != 3:
        raise ArtifactError(f"score_model.kind = adm: it knows colour images, the task's have {channels} channel(s)")
    try:
        network = load_adm(settings.checkpoint.path, settings.checkpoint.sha256, ADM_256)
    except ArtifactError as error:
        raise ArtifactError(str(error).replace("target.checkpoint", "fud.image.score_model.checkpoint")) from error
    return network, ADM_256.image_size, linear_schedule(settings.schedule.steps, settings.schedule.first, settings.schedule.last)


def _second(opened: Workspace, settings: SecondClassifierSettings, folder: Path) -> dict[str, Any]:
    samples = opened.samples
    train, test = samples.index("train"), samples.index("test")
    model = second_classifier.train(
        samples.x[train], samples.label[train], len(samples.class_names), settings, seed=opened.params.seed
    )
    write_tensors(folder / "second.safetensors", model.state_dict())
    accuracy = float((model(samples.x[test]).argmax(1) == samples.label[test]).float().mean())
    return {"settings": settings.model_dump(), "accuracy": accuracy, "sha256": file_sha256(folder / "second.safetensors")}


def _sheet(score: NetworkScore, schedule: Schedule, channels: int, size: int, fud: ImageFudSettings) -> Tensor:
    """Images without a mask, pixels in [0, 1] (sheet, C, size, size)."""
    count = fud.score_model.sheet
    blank = torch.zeros(count, channels, size, size, device=device())
    preset = replace(SHEET, variance="learned_range") if fud.score_model.kind == "adm" else SHEET
    items = Items(
        images=blank,
        image_ids=tuple(range(count)),
        targets=torch.zeros(count, dtype=torch.int64),
        rows=torch.arange(count),
        draws=torch.full((count,), -1),
        keep=torch.zeros(count, 1, size, size, dtype=torch.bool, device=device()),
    )
    made = reconstruct(score, schedule, preset, items, None, seed=0, max_batch=min(count, fud.max_batch))
    return ((made.images + 1) / 2).clamp(0, 1).cpu()


def _frechet(opened: Workspace, sheet: Tensor) -> dict[str, float]:
    """Distance of sampled from validation images in the target's features, and that of as many training images."""
    samples = opened.samples
    count = min(len(sheet), len(samples.index("train")))
    real = pooled_features(opened, samples.x[samples.index("validation")])
    train = pooled_features(opened, samples.x[samples.index("train")[:count]])
    sampled = pooled_features(opened, normalised(sheet[:count], samples))
    return {"samples": frechet_distance(sampled, real), "training_images": frechet_distance(train, real), "images": count}


def load_score_model(folder: str | Path) -> LoadedScore:
    """Open a score model by its folder: `models/score_models/<task>`.

    Raises:
        ArtifactError: If a file is missing, damaged or not the one that `model.json` names.
    """
    folder = Path(folder)
    info = read_json(folder / "model.json")
    try:
        settings, size, channels = info["settings"], int(info["size"]), int(info["channels"])
        recorded, value_range, target_sha256 = info["sha256"], info["range"], info["target_sha256"]
        second, kind, levels = info["second_classifier"], settings["kind"], settings["schedule"]
        classes, inputs = int(info["classes"]), int(info["inputs"])
        schedule = linear_schedule(levels["steps"], levels["first"], levels["last"])
        dtype = _dtype(settings["precision"])
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{folder}/model.json does not describe a score model ({error!r}): run `dvc repro`") from error
    if value_range != [-1.0, 1.0]:
        raise ArtifactError(f"{folder} knows pixel values from {value_range[0]} to {value_range[1]}, -1 to 1 expected")
    weights = _tensors(folder / "network.safetensors", recorded)
    if kind == "adm":
        network = adm_network(ADM_256)
    else:
        from faithline.diffusion.training import build_network

        network = build_network(TrainedScoreSettings.model_validate(settings), channels, size)
    _load_weights(network, weights, folder)
    classifier = None
    if second is not None:
        classifier = second_classifier.build(SecondClassifierSettings.model_validate(second["settings"]), inputs, classes)
        _load_weights(classifier, _tensors(folder / "second.safetensors", second["sha256"]), folder)
        classifier = classifier.to(device()).eval().requires_grad_(False)
    score = NetworkScore(network.to(device()), dtype)
    return LoadedScore(score, schedule, channels, size, kind == "adm", classifier, recorded, target_sha256)


def load(task: str, samples: Samples, target_sha256: str) -> LoadedScore:
    """Open the score model of a task.

    Raises:
        ArtifactError: As `load_score_model`; or it was made for other images, or beside another target.
    """
    folder = folder_of(task)
    loaded = load_score_model(folder)
    channels, side = samples.features.shape[:2]
    if loaded.channels != channels:
        raise ArtifactError(f"{folder} knows images of {loaded.channels} channel(s), those of {task} have {channels}")
    if not loaded.learned_variance and loaded.size != side:
        raise ArtifactError(f"{folder} was trained on images of {loaded.size} pixels, those of {task} have {side}")
    if loaded.target_sha256 != target_sha256:
        raise ArtifactError(
            f"{folder} was made beside another target ({loaded.target_sha256[:12]}, not {target_sha256[:12]}): run `dvc repro`"
        )
    return loaded


def _tensors(path: Path, sha256: str) -> dict[str, Tensor]:
    tensors = read_tensors(path)
    if file_sha256(path) != sha256:
        raise ArtifactError(f"{path} is not the file that model.json names: run `dvc repro`")
    return tensors


def _load_weights(network: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise ArtifactError(f"{folder}: weights and model.json disagree: {error}") from error


def _dtype(precision: str) -> torch.dtype:
    return torch.bfloat16 if precision == "bf16" else torch.float32
