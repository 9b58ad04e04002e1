"""Target models: small reference networks, their training, and how a target is saved, checked and loaded again."""

import importlib.util
import itertools
import math
import sys
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faithline import seeding
from faithline.artifacts import file_sha256, publish, read_json, read_tensors, write_json, write_table, write_tensors
from faithline.checkpoints import load_checkpoint, misfits
from faithline.config import (
    BaselineSettings,
    CheckpointTargetSettings,
    DatasetSettings,
    GameSettings,
    Section,
    TargetSettings,
    TaskSettings,
    TimmTargetSettings,
    TrainingSettings,
    target_settings,
)
from faithline.dataset import Samples
from faithline.errors import ArtifactError
from faithline.masking import Baseline, MaskedModel

# ------------------------------------------------------------------------------------------------------ reference networks


class MLP(nn.Module):
    """Multi-layer perceptron for tables: `body` (hidden layers, their output is the last hidden layer) and a linear `head`.

    Each ReLU is a module of its own, used once, as DeepLIFT's hooks need.
    """

    def __init__(self, columns: int, classes: int, *, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        sizes = [columns] + [width] * depth
        self.body = nn.Sequential(
            *(
                layer
                for inputs, outputs in itertools.pairwise(sizes)
                for layer in (nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout))
            )
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Columns (B, n) -> logits (B, classes)."""
        return self.head(self.body(x))


class SmallCNN(nn.Module):
    """Small convolutional network: `features` (last 4-D feature map), global average pool, dropout, linear `head`.

    `depth` convolutions, the first 5x5 and the others 3x3, each with batch normalisation and a ReLU of its own. The first of them
    halve the resolution, down to a map of at least 7x7 (an explainer reads it), and each but the first of these doubles the
    channels; the rest keep both and widen the view. Strided convolutions stand where max-pooling would: they are linear, so
    DeepLIFT needs no rule for them.
    """

    def __init__(self, channels: int, size: int, classes: int, *, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs, outputs = channels, width
        for block in range(depth):
            stride = 2 if size >= 14 else 1
            if block > 0 and stride == 2:
                outputs *= 2
            size = math.ceil(size / stride)
            kernel = 5 if block == 0 else 3
            layers += [
                nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
            inputs = outputs
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) -> logits (B, classes)."""
        return self.head(self.dropout(self.pool(self.features(x)).flatten(1)))


class _Attention(nn.Module):
    """Multi-head self-attention written out: the fused kernel of torch hides its softmax from DeepLIFT's hooks."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.softmax = nn.Softmax(dim=-1)
        self.out = nn.Linear(width, width)

    def forward(self, hidden: Tensor, padded: Tensor) -> Tensor:
        query, key, value = self.project(hidden).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-2, -1)) / math.sqrt(query.shape[-1])
        # The smallest finite number, not -inf: a text without tokens then has a uniform softmax instead of NaN.
        scores = scores.masked_fill(padded[:, None, None, :], torch.finfo(scores.dtype).min)
        return self.out((self.softmax(scores) @ value).transpose(1, 2).flatten(2))


class _Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = _Attention(width, heads)
        self.norm_network = nn.LayerNorm(width)
        self.network = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.dropout_attention = nn.Dropout(dropout)
        self.dropout_network = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, padded: Tensor) -> Tensor:
        hidden = hidden + self.dropout_attention(self.attention(self.norm_attention(hidden), padded))
        return hidden + self.dropout_network(self.network(self.norm_network(hidden)))


class TextTransformer(nn.Module):
    """Small transformer over token ids: `embedding`, learned positions, pre-norm `blocks`, mean over the tokens, linear `head`.

    Positions whose id is `pad_id` are nobody's key and outside the mean, so padding changes nothing and a text of which all
    tokens were taken away still has finite logits. In training each token is taken away with probability `token_dropout`: it
    regularises, and it teaches the model texts with holes, which is what the game shows it.
    """

    def __init__(
        self,
        vocabulary: int,
        length: int,
        classes: int,
        *,
        width: int,
        depth: int,
        heads: int,
        dropout: float,
        token_dropout: float,
        pad_id: int,
    ) -> None:
        super().__init__()
        self.pad_id = pad_id
        self.token_dropout = token_dropout
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=pad_id)
        nn.init.normal_(self.embedding.weight, std=0.1)
        nn.init.zeros_(self.embedding.weight[pad_id])
        # A parameter, not a second nn.Embedding: the game takes a text's gradient at the one embedding there is.
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids int64 (B, L) -> logits (B, classes)."""
        if self.training and self.token_dropout:
            ids = ids.masked_fill(torch.rand(ids.shape, device=ids.device) < self.token_dropout, self.pad_id)
        padded = ids == self.pad_id
        hidden = self.dropout(self.embedding(ids) + self.positions[: ids.shape[1]])
        for block in self.blocks:
            hidden = block(hidden, padded)
        present = (~padded)[:, :, None].to(hidden.dtype)
        pooled = (self.norm(hidden) * present).sum(1) / present.sum(1).clamp(min=1)
        return self.head(self.dropout(pooled))


# ------------------------------------------------------------------------------------------------------------- task files


class TaskModule(Protocol):
    """What a task file defines; a user's own file outside the package has the same three names.

    A file that needs more than the counts and a network's size says so with `DATASET_SETTINGS` and `TARGET_SETTINGS`, the
    sections of `config.py` that it reads.
    """

    MODALITY: str

    def load_samples(self, settings: DatasetSettings, seed: int) -> Samples:
        """Inputs, labels, splits and features."""
        ...

    def build_target(self, settings: TrainingSettings, samples: Samples) -> nn.Module:
        """The network: inputs -> logits (B, classes). With `epochs: 0` its weights are used as they are."""
        ...


def load_task_module(source: str | Path) -> TaskModule:
    """Import a task file by its path, wherever it lies.

    Raises:
        ArtifactError: If there is no such file, or it lacks `MODALITY`, `load_samples` or `build_target`.
    """
    path = Path(source)
    if not path.is_file():
        raise ArtifactError(f"task file {path} is missing: write it, or correct `source` in params.yaml")
    name = f"faithline_task_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ArtifactError(f"task file {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles of a user's file look their module up here
    spec.loader.exec_module(module)
    lacking = [word for word in ("load_samples", "build_target") if not callable(getattr(module, word, None))]
    if not isinstance(getattr(module, "MODALITY", None), str):
        lacking.insert(0, "MODALITY")
    if lacking:
        raise ArtifactError(f"task file {path} lacks {', '.join(lacking)}: it must define MODALITY, load_samples, build_target")
    return cast(TaskModule, module)


def _check_settings(module: TaskModule, task: TaskSettings) -> None:
    """Refuse params whose `dataset` or `target` has other keys than the task file reads."""
    wanted: tuple[tuple[str, Section, type[Section]], ...] = (
        ("dataset", task.dataset, getattr(module, "DATASET_SETTINGS", DatasetSettings)),
        ("target", task.target, getattr(module, "TARGET_SETTINGS", TargetSettings)),
    )
    for name, given, kind in wanted:
        if type(given) is not kind:
            keys, own = set(kind.model_fields), set(type(given).model_fields)
            faults = [f"lacks {', '.join(sorted(keys - own))}"] if keys - own else []
            if own - keys:
                faults.append(f"has {', '.join(sorted(own - keys))}, which it does not read")
            raise ArtifactError(f"{task.source}: `{name}` in params.yaml {' and '.join(faults)}")


def load_samples(task: TaskSettings, seed: int) -> Samples:
    """Samples of a task, made by its file.

    Raises:
        ArtifactError: If the modality of file, samples and params.yaml disagree, or the settings have other keys than the file
            reads.
    """
    module = load_task_module(task.source)
    _check_settings(module, task)
    if task.modality != module.MODALITY:
        raise ArtifactError(f"{task.source}: MODALITY is {module.MODALITY!r}, params.yaml says modality: {task.modality}")
    samples = module.load_samples(task.dataset, seed)
    if samples.features.kind != task.modality:
        raise ArtifactError(f"{task.source}: features are of kind {samples.features.kind!r}, MODALITY is {task.modality!r}")
    return samples


def build_model(task: TaskSettings, samples: Samples, seed: int) -> nn.Module:
    """Network of a task with seeded initial weights, or with those of its checkpoint.

    It is tried on two samples, so that a misfit shows before training.

    Raises:
        ArtifactError: If it does not take the task's inputs or does not give one logit a class, if its checkpoint is refused, or
            if the settings have other keys than the file reads.
    """
    module = load_task_module(task.source)
    _check_settings(module, task)
    with torch.random.fork_rng():
        torch.manual_seed(seeding.derive(seed, "target", "weights"))
        model = module.build_target(task.target, samples)
    if isinstance(task.target, CheckpointTargetSettings | TimmTargetSettings) and task.target.checkpoint is not None:
        load_checkpoint(model, task.target.checkpoint.path, task.target.checkpoint.sha256)
    was_training = model.training
    shape = tuple(samples.x.shape[1:])
    try:
        with torch.no_grad():
            output = model.eval()(samples.x[:2])
    except (RuntimeError, IndexError) as error:
        raise ArtifactError(f"{task.source}: the model does not take inputs of shape {shape}: {error}") from error
    model.train(was_training)
    classes = len(samples.class_names)
    if not isinstance(output, Tensor) or output.ndim != 2:
        raise ArtifactError(f"{task.source}: the model must give logits of shape (B, {classes})")
    if output.shape[1] != classes:
        raise ArtifactError(f"{task.source}: the model gives {output.shape[1]} classes, the task has {classes}")
    return model


# ----------------------------------------------------------------------------------------------------------------- training


def train_target(model: nn.Module, samples: Samples, settings: TrainingSettings, seed: int) -> list[dict[str, float]]:
    """Train a target in place: AdamW, one-cycle learning rate, cross-entropy; no result depends on anything but the seed.

    The weights kept are those of the epoch with the best validation accuracy (the later one of equals); they are in eval mode.

    Args:
        model: Network from `build_model`; with `epochs: 0` it is left as it is.
        samples: The frozen task; only its training and validation splits are seen.
        settings: Epochs, batch, learning rate (the peak), weight decay.
        seed: Orders the samples and draws dropout.

    Returns:
        One row an epoch: `epoch` (from 1), `train_loss` (mean over the epoch, dropout on), `validation_accuracy`.

    Raises:
        ArtifactError: If the loss becomes NaN or infinite.
    """
    device = seeding.device()
    model.to(device)
    if not settings.epochs:
        model.eval()
        return []
    train, validation = samples.index("train"), samples.index("validation")
    x, label = samples.x.to(device), samples.label.to(device)
    if samples.features.kind == "image":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    steps = settings.epochs * math.ceil(len(train) / settings.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.learning_rate, total_steps=steps + 1)
    order = seeding.torch_generator(seed, "target", "order")
    history: list[dict[str, float]] = []
    best, best_weights = -1.0, model.state_dict()
    # Dropout draws from the global generator: seeded here, and put back after the training.
    with torch.random.fork_rng():
        torch.manual_seed(seeding.derive(seed, "target", "dropout"))
        for epoch in range(1, settings.epochs + 1):
            model.train()
            total = torch.zeros((), device=device)
            for rows in train[torch.randperm(len(train), generator=order)].split(settings.batch):
                loss = F.cross_entropy(model(x[rows]), label[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                total += loss.detach() * len(rows)
            if not torch.isfinite(total):
                raise ArtifactError(f"the target's training loss is not finite in epoch {epoch}: lower target.learning_rate")
            accuracy = _accuracy(model, x, label, validation)
            history.append(
                {"epoch": epoch, "train_loss": float(total) / len(train), "validation_accuracy": accuracy},
            )
            if accuracy >= best:
                best, best_weights = accuracy, deepcopy(model.state_dict())
    model.load_state_dict(best_weights)
    model.eval()
    return history


@torch.no_grad()
def _accuracy(model: nn.Module, x: Tensor, label: Tensor, rows: Tensor) -> float:
    model.eval()
    hits = [(model(x[part]).argmax(1) == label[part]).sum() for part in rows.split(512)]
    return int(torch.stack(hits).sum()) / len(rows)


# ------------------------------------------------------------------------------------------------------- saving and loading


@dataclass(frozen=True)
class Target:
    """A target as later stages get it.

    Attributes:
        model: Inputs -> logits (B, classes), in eval mode, on the configured device.
        info: What `model.json` says: source, settings, classes, test accuracy and AUC, sha256 of the weights, history.
    """

    model: nn.Module
    info: dict[str, Any]

    @property
    def sha256(self) -> str:
        """Identity of the target: the hash of its weights file. Banks, maps and explainers name it."""
        return str(self.info["sha256"])


def save_target(
    folder: str | Path, model: nn.Module, samples: Samples, task: TaskSettings, seed: int, history: list[dict[str, float]]
) -> dict[str, Any]:
    """Write a target: `model.safetensors`, `model.json`, and `predictions.parquet` of all samples.

    Args:
        folder: Output folder, published whole.
        model: The trained network.
        samples: The frozen task.
        task: Its section of params.yaml.
        seed: The run's seed.
        history: From `train_target`.

    Returns:
        The content of `model.json`; `accuracy`, `auc` (one-vs-rest, macro over the classes that are there; None
        if that is one class) and `majority` are those of the test split.

    Raises:
        ArtifactError: If a logit is not finite.
    """
    from sklearn.metrics import roc_auc_score  # late: slow to import, and only training needs it

    game = MaskedModel(model, samples.features, Baseline.zero(), max_batch=task.game.max_batch)
    logits, target = (part.cpu() for part in game.predict(samples.x))
    game.close()
    bad = (~torch.isfinite(logits)).any(1).nonzero()[:, 0].tolist()
    if bad:
        raise ArtifactError(f"the target gives NaN or infinity for {len(bad)} samples (first: {bad[:10]})")
    prob = logits.softmax(1)
    test = samples.index("test")
    truth, classes = samples.label[test], len(samples.class_names)
    scores = prob[test].double()
    scores = scores / scores.sum(1, keepdim=True)  # scikit-learn refuses rows that miss 1 by a float32 rounding
    found = truth.unique()
    if len(found) < classes:  # a model that knows more classes than the data has
        each = [roc_auc_score(truth == own, scores[:, own]) for own in found.tolist()] if len(found) > 1 else []
        auc = sum(each) / len(each) if each else None
    elif classes == 2:
        auc = roc_auc_score(truth, scores[:, 1])
    else:
        auc = roc_auc_score(truth, scores, multi_class="ovr")
    with publish(folder) as out:
        weights = out / "model.safetensors"
        write_tensors(weights, model.state_dict())
        info = {
            "source": task.source,
            "source_sha256": file_sha256(task.source),
            "sha256": file_sha256(weights),
            "settings": task.target.model_dump(),
            "seed": seed,
            "classes": classes,
            "input_shape": list(samples.features.shape),
            "accuracy": float((target[test] == truth).double().mean()),
            "auc": None if auc is None else float(auc),
            "majority": float(torch.bincount(truth).max()) / len(test),
            "n_test": len(test),
            "history": history,
        }
        write_json(out / "model.json", info)
        write_table(
            out / "predictions.parquet",
            pl.DataFrame(
                {
                    "sample_id": np.arange(len(prob), dtype=np.int64),
                    "target": target.to(torch.int32).numpy(),
                    "prob": prob.gather(1, target[:, None])[:, 0].numpy(),
                }
            ),
            {"target_sha256": str(info["sha256"])},
        )
    return info


def load_target(folder: str | Path, samples: Samples) -> Target:
    """Build the network with the task's file again and give it the saved weights.

    Args:
        folder: Written by `save_target`.
        samples: The frozen task it belongs to.

    Raises:
        ArtifactError: If a file is missing or damaged, the weights are not those `model.json` names, or classes, input shape or a
            tensor's shape disagree with the task.
    """
    folder = Path(folder)
    info = read_json(folder / "model.json")
    weights = read_tensors(folder / "model.safetensors")
    classes, shape = len(samples.class_names), list(samples.features.shape)
    if info["classes"] != classes:
        raise ArtifactError(f"{folder}: checkpoint has {info['classes']} classes, task has {classes}")
    if info["input_shape"] != shape:
        raise ArtifactError(f"{folder}: checkpoint takes inputs of shape {info['input_shape']}, task has {shape}")
    if file_sha256(folder / "model.safetensors") != info["sha256"]:
        raise ArtifactError(f"{folder}: model.safetensors is not the file that model.json names: run `dvc repro`")
    model = load_task_module(info["source"]).build_target(target_settings(info["settings"]), samples)
    faults = misfits(model, weights)
    if faults:
        changed = file_sha256(info["source"]) != info["source_sha256"]
        hint = f" ({info['source']} has changed since: run `dvc repro`)" if changed else ""
        raise ArtifactError(f"{folder}: the checkpoint does not fit the model{hint}: " + "; ".join(faults[:5]))
    model.load_state_dict(weights)
    return Target(model.to(seeding.device()).eval(), info)


# ----------------------------------------------------------------------------------------------------------------- games


def make_baseline(kind: str, samples: Samples, settings: BaselineSettings, seed: int) -> Baseline:
    """What a removed feature of a task becomes.

    Args:
        kind: `zero`, `mean` (training mean of a table, an image's own mean colour), `blur`, `noise`, `background`, `pad`, `mask`.
        samples: The frozen task; only training samples are read.
        settings: Strengths.
        seed: Draws noise and background rows.

    Raises:
        ArtifactError: If the task has too few rows for the background, or its vocabulary has no `<unk>` for `mask`.
    """
    train = samples.index("train")
    if kind == "zero":
        return Baseline.zero()
    if kind == "mean":
        return Baseline.mean(samples.x[train].mean(0) if samples.features.kind == "table" else None)
    if kind == "blur":
        return Baseline.blur(settings.blur.sigma)
    if kind == "noise":
        generator = seeding.torch_generator(seed, "baseline", "noise")
        return Baseline.noise(settings.noise.std, samples.features.shape, generator)
    if kind == "background":
        rows = settings.background.rows
        if rows > len(train):
            raise ArtifactError(f"baselines.background.rows = {rows}: the task has {len(train)} training samples")
        generator = seeding.torch_generator(seed, "baseline", "background")
        return Baseline.background(samples.x[train[torch.randperm(len(train), generator=generator)[:rows]]])
    if kind == "pad":
        return Baseline.token("pad", samples.features.pad_id)
    vocabulary = samples.preprocessing.get("vocabulary", [])
    if "<unk>" not in vocabulary:
        raise ArtifactError("baseline mask needs the token <unk> in preprocessing['vocabulary']")
    return Baseline.token("mask", vocabulary.index("<unk>"))


def build_game(target: Target, samples: Samples, game: GameSettings, baselines: BaselineSettings, seed: int) -> MaskedModel:
    """The game of a task: its target, its features and its removal."""
    return MaskedModel(
        target.model,
        samples.features,
        make_baseline(game.baseline, samples, baselines, seed),
        output=game.output,
        max_batch=game.max_batch,
    )


def insertion_game(
    removal: MaskedModel, samples: Samples, game: GameSettings, baselines: BaselineSettings, seed: int
) -> MaskedModel | None:
    """The game that insertion is played in, made from the removal game, with which it shares model and pass counter.

    Returns:
        None where `insertion_baseline` is `same` (or names the removal's own): then one sweep serves both.
    """
    if game.insertion_baseline in ("same", game.baseline):
        return None
    return removal.with_baseline(make_baseline(game.insertion_baseline, samples, baselines, seed))
