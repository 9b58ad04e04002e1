"""Files that other stages trust: written whole or not at all, read with a clear error, the same bytes for the same content."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from faithline.errors import ArtifactError

Json = Any


# ------------------------------------------------------------------------------------------------------------ publishing


@contextmanager
def publish(out: str | Path) -> Iterator[Path]:
    """A folder to fill; when the block ends without error it becomes `out` by one rename, otherwise `out` stays as it was.

    Args:
        out: The stage's output folder.
    """
    out = Path(out)
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in sorted(partial.rglob("*")):
            if path.is_file():
                _fsync(path)
        if out.is_dir():
            shutil.rmtree(out)
        os.replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary file to write; when the block ends without error it becomes `path`, otherwise `path` stays as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        yield temporary
        _fsync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically."""
    with _replacing(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def rounded(value: Json, digits: int = 6) -> Json:
    """The same nested value with floats at `digits` significant digits, NumPy scalars as Python numbers, mappings as dicts."""
    if isinstance(value, Mapping):
        return {str(key): rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    if isinstance(value, np.generic):
        return rounded(value.item(), digits)
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def write_json(path: str | Path, value: Json) -> None:
    """Write JSON atomically: sorted keys, 6 significant digits, never NaN (ValueError), so that git diffs are quiet."""
    write_text(path, json.dumps(rounded(value), sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: str | Path) -> Json:
    """Read a JSON file.

    Raises:
        ArtifactError: If it is missing or not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtifactError(f"{path} is missing: run `dvc repro` (or `dvc pull`) first") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path} is not valid JSON ({error}): remove it and run `dvc repro`") from error


# ---------------------------------------------------------------------------------------------------------------- tables


def write_table(path: str | Path, table: pl.DataFrame | pa.Table, metadata: Mapping[str, str] | None = None) -> None:
    """Write Parquet atomically (zstd); equal tables give equal bytes.

    Floats are not dictionary-encoded (it costs size and time); NaN is refused: an undefined number is null.

    Args:
        path: File to write.
        table: Its content.
        metadata: Schema metadata: what made the table (task, method, model hash); no times, hosts or absolute paths.

    Raises:
        ValueError: If a float column holds NaN.
    """
    path = Path(path)
    if isinstance(table, pl.DataFrame):
        for name, dtype in table.schema.items():
            if dtype.is_float() and table[name].is_nan().any():
                raise ValueError(f"{path.name}: column {name} holds NaN; write null for an undefined value")
        table = table.to_arrow(compat_level=pl.CompatLevel.oldest())
    words = [f.name for f in table.schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
    table = table.replace_schema_metadata(dict(sorted((metadata or {}).items())))
    with _replacing(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            use_dictionary=words,
            row_group_size=2048,
            store_schema=True,
            write_statistics=True,
        )


def read_table(path: str | Path, columns: Mapping[str, Any] | None = None) -> pl.DataFrame:
    """Read one Parquet file, or all `part-*.parquet` of a folder in order.

    Args:
        path: File or folder.
        columns: Columns that must be there (others are read too): name -> polars type, or None for any type.

    Raises:
        ArtifactError: If it is missing, truncated, not Parquet, or lacks a column.
    """
    path = Path(path)
    files = sorted(path.glob("part-*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].exists():
        raise ArtifactError(f"{path} is missing: run `dvc repro` (or `dvc pull`) first")
    frames = []
    for file in files:
        try:
            frames.append(pl.read_parquet(file, hive_partitioning=False))
        except (pl.exceptions.ComputeError, OSError, pa.ArrowException) as error:
            raise ArtifactError(
                f"{file} cannot be read as Parquet (truncated or damaged): remove it and run `dvc repro`"
            ) from error
        for name, dtype in (columns or {}).items():
            found = frames[-1].schema.get(name)
            if found is None:
                raise ArtifactError(f"{file} has no column {name!r} (it has {frames[-1].columns})")
            if dtype is not None and found != dtype:
                raise ArtifactError(f"{file}: column {name!r} is {found}, not {dtype}")
    return pl.concat(frames, how="vertical")


def read_metadata(path: str | Path) -> dict[str, str]:
    """Schema metadata of a Parquet file, or of the first part of a folder (see `write_table`)."""
    path = Path(path)
    file = min(path.glob("part-*.parquet"), default=path) if path.is_dir() else path
    if file.is_dir():
        raise ArtifactError(f"{path} is missing: run `dvc repro` (or `dvc pull`) first")
    try:
        found = pq.read_schema(file).metadata or {}
    except FileNotFoundError as error:
        raise ArtifactError(f"{file} is missing: run `dvc repro` (or `dvc pull`) first") from error
    except pa.ArrowException as error:
        raise ArtifactError(f"{file} cannot be read as Parquet (truncated or damaged): remove it and run `dvc repro`") from error
    return {key.decode(): value.decode() for key, value in found.items() if key != b"ARROW:schema"}


def maps_column(maps: Tensor) -> pa.Array:
    """Maps (B, ...) as a column of nested fixed-size float32 lists, whose shape any Parquet reader sees."""
    array = maps.detach().cpu().float().contiguous().numpy()
    column: pa.Array = pa.array(array.reshape(-1), type=pa.float32())
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, int(size))
    return column


# --------------------------------------------------------------------------------------------------------------- tensors


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors as safetensors, atomically; no pickle, and equal content gives equal bytes."""
    contiguous = {name: tensors[name].detach().cpu().contiguous().clone() for name in sorted(tensors)}
    with _replacing(Path(path)) as temporary:
        try:
            save_file(contiguous, temporary, metadata=dict(metadata) if metadata else None)
        except SafetensorError as error:  # a full disk, for one
            raise OSError(f"{path} cannot be written: {error}") from error


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        ArtifactError: If it is missing or damaged.
    """
    try:
        return load_file(Path(path))
    except FileNotFoundError as error:
        raise ArtifactError(f"{path} is missing: run `dvc repro` (or `dvc pull`) first") from error
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"{path} is not a whole safetensors file ({error}): remove it and run `dvc repro`") from error


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
