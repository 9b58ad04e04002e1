"""A candidate's in-distribution samples, read back as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import Tensor

from faithline import fud, fud_sampling
from faithline.artifacts import read_table
from faithline.errors import ArtifactError
from faithline.fud_sampling import COLUMNS, MAIN, Stage


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


def candidate(stage: Stage, name: str) -> Judged:
    roles = stage.opened.params.image.methods.roles()
    folder = fud_sampling.folder_of(stage.opened.task, name)
    return judged(stage, roles.get(name, "explainer"), read_table(folder, COLUMNS))


def judged(stage: Stage, role: str, frame: pl.DataFrame) -> Judged:
    settings = stage.settings
    levels = list(settings.levels)
    own = frame.filter((pl.col("ordering") == "own") & (pl.col("sampler") == MAIN))
    random = frame.filter((pl.col("ordering") == "matched_random") & (pl.col("sampler") == MAIN))
    first = stage.take(range(settings.variant_samples))
    variants = {
        name: tensor(
            first, frame.filter((pl.col("sampler") == name) & pl.col("sample_id").is_in(first.ids.tolist())), "prob", levels
        )
        for name in settings.variants
    }
    log_odds = own.with_columns(_log_odds())
    return Judged(
        role=role,
        prob=tensor(stage, own, "prob", levels),
        label=tensor(stage, own, "label_prob", levels),
        second=tensor(stage, own, "second_prob", levels),
        logodds=tensor(stage, log_odds, "logodds", levels),
        matched=None if random.is_empty() else tensor(stage, random, "prob", levels),
        variants={name: fud.score(values) for name, values in variants.items()},
        frame=frame,
    )


def _log_odds() -> pl.Expr:
    """log p / (1 - p) by way of the stored logit and logsumexp: exact where p rounds to 1."""
    gap = pl.col("logit") - pl.col("logsumexp")
    return (gap - (-gap.exp()).log1p()).alias("logodds")


def tensor(stage: Stage, frame: pl.DataFrame, column: str, levels: Sequence[float]) -> Tensor:
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
