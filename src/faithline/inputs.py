"""Raw files become inputs of a task: its frozen preprocessing, applied to images, texts and tables that a user brings."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from faithline.dataset import Samples
from faithline.errors import ArtifactError
from faithline.pictures import IMAGE_SUFFIXES, read_picture


@dataclass(frozen=True)
class Inputs:
    """B inputs made of files.

    Attributes:
        names: What to call each of them: the file's stem; a table's rows are numbered from 1.
        x: As the target takes them (B, ...).
        shown: As a person sees each of them: an image float32 (H, W, C) in [0, 1], the words of a text as list[str] (at most L,
            without padding), or the values of a table's row as list[float].
    """

    names: tuple[str, ...]
    x: Tensor
    shown: tuple[Any, ...]


def read_files(paths: list[Path], samples: Samples) -> Inputs:
    """Read files with the preprocessing of a task.

    Args:
        paths: Images (png, jpg, bmp, webp), texts (one document a file, UTF-8), or CSV tables with the task's columns.
        samples: The frozen task.

    Raises:
        ArtifactError: If a file is missing, damaged, of the wrong kind, lacks columns or holds what is no number, or if a text
            has no word that the task's vocabulary knows. The message names the file.
    """
    readers: dict[str, Callable[[Path, Samples], list[tuple[str, Tensor, Any]]]]
    readers = {"image": _read_image, "text": _read_text, "table": _read_table}
    reader = readers[samples.features.kind]
    rows = [row for path in paths for row in reader(_existing(path), samples)]
    if not rows:
        raise ArtifactError("no input: name at least one file")
    return Inputs(
        names=_distinct([name for name, _, _ in rows]),
        x=torch.stack([x for _, x, _ in rows]),
        shown=tuple(shown for _, _, shown in rows),
    )


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ArtifactError(f"{path} is {'a folder' if path.is_dir() else 'missing'}: name a file")
    return path


def _distinct(names: list[str]) -> tuple[str, ...]:
    """Names of outputs: `a`, then `a-2` for the next file of that name."""
    counts: dict[str, int] = {}
    result = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        result.append(name if counts[name] == 1 else f"{name}-{counts[name]}")
    return tuple(result)


def _setting(samples: Samples, key: str) -> Any:
    if key not in samples.preprocessing:
        raise ArtifactError(f"this task's file gives no preprocessing[{key!r}]: it takes no {samples.features.kind} files")
    return samples.preprocessing[key]


def _read_image(path: Path, samples: Samples) -> list[tuple[str, Tensor, Any]]:
    size, channels = int(_setting(samples, "size")), int(_setting(samples, "channels"))
    mean, std = np.array(_setting(samples, "mean")), np.array(_setting(samples, "std"))
    if path.suffix.lower() not in IMAGE_SUFFIXES:
        raise ArtifactError(f"{path}: an image task takes {', '.join(IMAGE_SUFFIXES)}")
    shown = read_picture(path, size=size, channels=channels, resize=samples.preprocessing.get("resize"))
    x = ((shown - mean) / std).astype(np.float32)
    return [(path.stem, torch.from_numpy(x).permute(2, 0, 1).contiguous(), shown)]


def _read_text(path: Path, samples: Samples) -> list[tuple[str, Tensor, Any]]:
    token_id = {word: number for number, word in enumerate(_setting(samples, "vocabulary"))}
    unknown = token_id.get("<unk>", samples.features.pad_id)
    if path.suffix.lower() in (*IMAGE_SUFFIXES, ".parquet", ".npz"):
        raise ArtifactError(f"{path}: a text task takes plain text files")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    words = re.findall(_setting(samples, "pattern"), text.lower())[: samples.features.n]
    if not any(word in token_id for word in words):
        raise ArtifactError(f"{path}: none of its first {samples.features.n} words is in the vocabulary of the task")
    ids = torch.full((samples.features.n,), samples.features.pad_id, dtype=torch.int64)
    ids[: len(words)] = torch.tensor([token_id.get(word, unknown) for word in words])
    return [(path.stem, ids, words)]


def _read_table(path: Path, samples: Samples) -> list[tuple[str, Tensor, Any]]:
    columns = samples.feature_names
    mean, std = np.array(_setting(samples, "mean")), np.array(_setting(samples, "std"))
    if path.suffix.lower() != ".csv":
        raise ArtifactError(f"{path}: a table task takes .csv files with the columns {', '.join(columns)}")
    try:
        table = pl.read_csv(path, infer_schema_length=None)
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path} cannot be read as CSV: {str(error).splitlines()[0]}") from error
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise ArtifactError(f"{path} lacks the columns {missing} (it has {table.columns})")
    if not len(table):
        raise ArtifactError(f"{path} has no rows")
    for name in columns:
        if not table[name].dtype.is_numeric():
            raise ArtifactError(f"{path}: column {name!r} holds {table[name].dtype}, not numbers")
        bad = np.flatnonzero(~np.isfinite(table[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()))
        if len(bad):
            raise ArtifactError(f"{path}: column {name!r} is empty or not finite in rows {(bad[:10] + 1).tolist()}")
    raw = table.select(columns).cast(pl.Float64).to_numpy()
    x = torch.from_numpy(((raw - mean) / std).astype(np.float32))
    single = len(raw) == 1
    return [(path.stem if single else f"{path.stem}-{i + 1}", x[i], raw[i].tolist()) for i in range(len(raw))]
