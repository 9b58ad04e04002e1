"""Maps that a user brings, scored as the pipeline scores its own: same samples, same masks, same sweeps, same conventions."""

import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from faithline.artifacts import read_table
from faithline.errors import ArtifactError
from faithline.metrics import ranking
from faithline.metrics.catalogue import METRICS
from faithline.sweeping import open_judge
from faithline.workspace import Workspace, evaluation_folder

SCORES = {"sample_id": pl.Int64, "candidate": pl.String, "metric": pl.String, "value": pl.Float32}


def read_submission(path: Path, opened: Workspace) -> tuple[Tensor, Tensor]:
    """Read maps of test samples from Parquet or npz: `sample_id` (B,) and `attribution` (B, n) or (B, *map_shape).

    Args:
        path: `.parquet` (nested lists) or `.npz` (arrays).
        opened: The task they explain.

    Returns:
        Sample ids, int64 (B,), ascending, and maps, float32 (B, n), in that order. A map that is not finite stays so.

    Raises:
        ArtifactError: If the file is missing or damaged, lacks a column, has maps of another shape, or explains a sample twice or
            one that is not in the test split.
    """
    if not path.is_file():
        raise ArtifactError(f"{path} is missing")
    readers = {".parquet": _read_parquet, ".npz": _read_npz}
    if path.suffix not in readers:
        raise ArtifactError(f"{path}: maps come as .parquet or .npz")
    ids, maps = readers[path.suffix](path)
    features = opened.samples.features
    if ids.ndim != 1 or len(ids) != len(maps) or not np.issubdtype(ids.dtype, np.integer):
        raise ArtifactError(f"{path}: sample_id must be one integer a map (it is {ids.dtype} {ids.shape}, maps {maps.shape})")
    if not len(ids):
        raise ArtifactError(f"{path} holds no map")
    if maps.shape[1:] not in ((features.n,), features.map_shape):
        shapes = " or ".join(dict.fromkeys((str((features.n,)), str(features.map_shape))))
        raise ArtifactError(f"{path}: maps have shape {maps.shape[1:]}; task {opened.task} needs {shapes}")
    names, counts = np.unique(ids, return_counts=True)
    if len(names) < len(ids):
        raise ArtifactError(f"{path} explains samples twice: {names[counts > 1][:10].tolist()}")
    strangers = np.setdiff1d(ids, opened.samples.index("test").numpy())
    if len(strangers):
        raise ArtifactError(f"{path}: samples {strangers[:10].tolist()} ({len(strangers)} in all) are not in the test split")
    order = np.argsort(ids)
    tensor = torch.from_numpy(np.ascontiguousarray(maps[order], dtype=np.float32))
    return torch.from_numpy(ids[order].astype(np.int64)), tensor if tensor.ndim == 2 else features.to_features(tensor)


def _read_parquet(path: Path) -> tuple[np.ndarray, np.ndarray]:
    table = read_table(path, {"sample_id": None, "attribution": None})
    try:
        return table["sample_id"].to_numpy(), np.array(table["attribution"].to_list(), dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise ArtifactError(f"{path}: attribution must hold lists of numbers, all of one shape") from error


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if missing := {"sample_id", "attribution"} - set(arrays.files):
                raise ArtifactError(f"{path} lacks the arrays {sorted(missing)} (it has {sorted(arrays.files)})")
            ids, maps = arrays["sample_id"], arrays["attribution"]
    except (zipfile.BadZipFile, ValueError, EOFError, OSError) as error:
        raise ArtifactError(f"{path} cannot be read as npz (truncated, damaged, or with pickled objects)") from error
    if not np.issubdtype(maps.dtype, np.number):
        raise ArtifactError(f"{path}: attribution holds {maps.dtype}, not numbers")
    return ids, maps


def score_submission(opened: Workspace, name: str, sample_ids: Tensor, maps: Tensor) -> pl.DataFrame:
    """The ten metrics of each map.

    Args:
        opened: The task.
        name: What to call the candidate.
        sample_ids: Test samples (B,).
        maps: Their maps (B, n); one that is not finite has no score.

    Returns:
        `sample_id, candidate, metric, value`, as `data/evaluation/<task>/scores.parquet`; null where undefined.
    """
    judge = open_judge(opened, sample_ids)
    finite = (torch.isfinite(maps) | ~judge.valid).all(1)
    scores = torch.full((len(maps), len(METRICS)), torch.nan)
    rows = finite.nonzero()[:, 0]
    if len(rows):
        some = judge.take(rows)
        scores[rows] = torch.stack(list(some.score(maps[rows], some.sweep(maps[rows])).values()), 1)
    return pl.DataFrame(
        {
            "sample_id": sample_ids.repeat_interleave(len(METRICS)).numpy(),
            "candidate": name,
            "metric": list(METRICS) * len(maps),
            "value": pl.Series(scores.flatten().numpy(), dtype=pl.Float32).fill_nan(None),
        }
    )


def compare(opened: Workspace, scored: pl.DataFrame) -> pl.DataFrame:
    """Means and bootstrap intervals of a submission, of the reference method on the same samples, and of their difference.

    Args:
        opened: The task; `report.reference` names the reference, `evaluate` the intervals.
        scored: From `score_submission`.

    Returns:
        One row a metric: `metric, direction`, then `mean, low, high, n, null` of `own`, `reference` and `difference` (own minus
        reference, paired) as `own_mean, ...`; null where nothing is defined.

    Raises:
        ArtifactError: If the task has not been evaluated.
    """
    reference = opened.params.report.reference
    known = read_table(evaluation_folder(opened.task) / "scores.parquet", SCORES)
    known = known.filter(pl.col("candidate") == reference).select("sample_id", "metric", reference="value")
    both = scored.join(known, on=["sample_id", "metric"], how="left", maintain_order="left")
    rows: list[dict[str, object]] = []
    for name, metric in METRICS.items():
        part = both.filter(pl.col("metric") == name)
        own, other = (torch.from_numpy(part[c].fill_null(float("nan")).to_numpy().copy()) for c in ("value", "reference"))
        columns = ranking.interval(
            torch.stack([own, other, own - other], 1),
            repeats=opened.params.evaluate.bootstrap,
            confidence=opened.params.evaluate.confidence,
            seed=opened.params.seed,
        ).rows()
        row: dict[str, object] = {"metric": name, "direction": metric.direction}
        for word, column in zip(("own", "reference", "difference"), columns, strict=True):
            row |= {f"{word}_{key}": value for key, value in column.items()}
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)
