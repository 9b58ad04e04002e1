"""Where a task's files lie, and how a stage opens them. DVC's outputs and these paths are the same words."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl
import torch
from torch import Tensor

from faithline import dataset, targets
from faithline.artifacts import read_table
from faithline.bank import Bank, Use, open_bank
from faithline.config import Params, TaskSettings
from faithline.masking import MaskedModel


@dataclass(frozen=True)
class Workspace:
    """One task, opened: its samples, its target model and its game.

    Attributes:
        task: Name.
        params: All settings.
        samples: Frozen samples.
        target: The model to be explained.
        explained: Explained class of every sample, the model's own first choice on the clean input, int64 (N,).
        prob: Its probability, float32 (N,).
        game: v(keep).
        insertion: The game of insertion where its baseline differs, else None.
    """

    task: str
    params: Params
    samples: dataset.Samples
    target: targets.Target
    explained: Tensor
    prob: Tensor
    game: MaskedModel
    insertion: MaskedModel | None

    @property
    def settings(self) -> TaskSettings:
        """The task's own section of the params."""
        return self.params.tasks[self.task]

    def bank(self, use: Use) -> Bank:
        """One use of the task's mask bank; refused if it was made for another model."""
        return open_bank(bank_folder(self.task, use), self.target.sha256)

    def metadata(self) -> dict[str, str]:
        """Schema metadata of every table made from this task."""
        return {"task": self.task, "target_sha256": self.target.sha256, "n_features": str(self.samples.features.n)}


def open_workspace(task: str, params: Params) -> Workspace:
    """Open a task whose `dataset` and `target` stages have run.

    Raises:
        ArtifactError: If a file is missing, damaged or does not fit the others.
    """
    samples = dataset.read(task_folder(task))
    target = targets.load_target(target_folder(task), samples)
    predictions = read_table(target_folder(task) / "predictions.parquet", {"target": pl.Int32, "prob": pl.Float32})
    explained = torch.from_numpy(predictions["target"].to_numpy().astype("int64"))
    prob = torch.from_numpy(predictions["prob"].to_numpy().copy())
    settings = params.tasks[task].game
    game = targets.build_game(target, samples, settings, params.baselines, params.seed)
    insertion = targets.insertion_game(game, samples, settings, params.baselines, params.seed)
    return Workspace(task, params, samples, target, explained, prob, game, insertion)


def task_folder(task: str) -> Path:
    """Frozen samples of a task."""
    return Path("data/tasks") / task


def target_folder(task: str) -> Path:
    """Target model of a task."""
    return Path("models/target") / task


def bank_folder(task: str, use: Use) -> Path:
    """One use of a task's mask bank."""
    return Path("data/bank") / task / use


def attribution_folder(task: str, method: str) -> Path:
    """Maps of one method."""
    return Path("data/attributions") / task / method


def curves_folder(task: str) -> Path:
    """Sweeps of all methods of a task, one file a method."""
    return Path("data/curves") / task


def curated_folder(task: str) -> Path:
    """What the explainers learn from."""
    return Path("data/curated") / task


def explainer_folder(task: str, explainer: str) -> Path:
    """A trained explainer."""
    return Path("models/explainers") / task / explainer


def evaluation_folder(task: str) -> Path:
    """Per-sample scores of all candidates; maps and sweeps of those that are no prior method."""
    return Path("data/evaluation") / task
