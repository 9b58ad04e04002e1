"""Stored attribution maps of one method, read back as tensors; or, stored in their place, why the method does not fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from faithline.artifacts import publish, read_json, read_metadata, read_table, write_json
from faithline.errors import ArtifactError
from faithline.masking import Features

COLUMNS = {"sample_id": pl.Int64, "split": pl.String, "attribution": None, "finite": pl.Boolean, "passes": pl.Float32}

MISFIT = "does_not_fit.json"
"""Stored instead of maps where a method does not fit the target of a task."""


@dataclass(frozen=True)
class StoredMaps:
    """Maps of one method.

    Attributes:
        sample_ids: int64 (B,), ascending.
        maps: As stored, float32 (B, *map_shape).
        attribution: Summed within features, float32 (B, n).
        finite: Whether the method gave a finite map, bool (B,); a map that is not is stored as zeros.
        passes: Model calls of one explanation, mean over samples.
    """

    sample_ids: Tensor
    maps: Tensor
    attribution: Tensor
    finite: Tensor
    passes: float

    def of(self, sample_ids: Tensor) -> "StoredMaps":
        """The maps of these samples, in their order.

        Raises:
            ArtifactError: If a sample has none.
        """
        rows = torch.searchsorted(self.sample_ids, sample_ids).clamp(max=len(self.sample_ids) - 1)
        lacking = sample_ids[self.sample_ids[rows] != sample_ids].tolist()
        if lacking:
            raise ArtifactError(f"no map of samples {lacking[:10]} ({len(lacking)} in all)")
        return StoredMaps(sample_ids, self.maps[rows], self.attribution[rows], self.finite[rows], self.passes)


def write_misfit(folder: Path, reason: str, metadata: Mapping[str, str]) -> None:
    """Publish, in place of maps, that a method does not fit.

    Args:
        folder: The method's folder.
        reason: One sentence.
        metadata: What the maps would have said of themselves: task, method, target.
    """
    with publish(folder) as partial:
        write_json(partial / MISFIT, {**metadata, "reason": reason})


def read_misfit(folder: Path, target_sha256: str) -> str | None:
    """Why a method does not fit, or None where it has maps.

    Raises:
        ArtifactError: If the file is damaged or speaks of another model.
    """
    path = folder / MISFIT
    if not path.exists():
        return None
    found = read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("reason"), str):
        raise ArtifactError(f"{path} gives no reason: remove {folder} and run `dvc repro`")
    _refuse_other_model(folder, found.get("target_sha256"), target_sha256)
    return str(found["reason"])


def _refuse_other_model(folder: Path, found: str | None, target_sha256: str) -> None:
    if found != target_sha256:
        raise ArtifactError(
            f"{folder} explains another model (sha256 {str(found)[:12]}, the target is {target_sha256[:12]}): run `dvc repro`"
        )


def read_maps(folder: Path, features: Features, target_sha256: str) -> StoredMaps:
    """Read the maps of a method.

    Raises:
        ArtifactError: If they are missing, damaged, of another shape, or explain another model.
    """
    _refuse_other_model(folder, read_metadata(folder).get("target_sha256"), target_sha256)
    table = read_table(folder, COLUMNS)
    maps = column_to_maps(table["attribution"])
    if tuple(maps.shape[1:]) != features.map_shape:
        raise ArtifactError(f"{folder}: maps have shape {tuple(maps.shape[1:])}, the task's have {features.map_shape}")
    return StoredMaps(
        sample_ids=torch.from_numpy(table["sample_id"].to_numpy().copy()),
        maps=maps,
        attribution=features.to_features(maps),
        finite=torch.from_numpy(table["finite"].to_numpy().copy()),
        passes=float(table["passes"].mean() or 0.0),  # type: ignore[arg-type]
    )


def column_to_maps(column: pl.Series) -> Tensor:
    """A nested fixed-size list column as a float32 tensor (B, ...)."""
    return torch.from_numpy(np.array(column.to_numpy(), dtype=np.float32))


def refuse_strangers(folder: Path, known: Sequence[str], suffix: str = "") -> None:
    """Stop if a folder holds entries that params.yaml does not name: they would count without anyone having asked.

    Raises:
        ArtifactError: Naming them and the command that removes them, or naming what is missing.
    """
    if not folder.is_dir():
        raise ArtifactError(f"{folder} is missing: run `dvc repro` (or `dvc pull`) first")
    wanted = {name + suffix for name in known}
    found = {path.name for path in folder.iterdir() if path.name != ".gitignore"}
    if strangers := sorted(found - wanted):
        paths = " ".join(str(folder / name) for name in strangers)
        raise ArtifactError(f"{folder} holds {strangers}, which params.yaml does not name: remove them with `rm -r {paths}`")
    if missing := sorted(wanted - found):
        raise ArtifactError(f"{folder} lacks {missing}: run `dvc repro` (or `dvc pull`) first")
