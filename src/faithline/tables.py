"""Tables become samples: split over groups of rows, standardised by the training split; CSV files are checked first."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import torch

from faithline.artifacts import rounded
from faithline.config import DatasetSettings, TableFileSettings
from faithline.dataset import Samples, assign_splits
from faithline.errors import ArtifactError
from faithline.masking import column_features
from faithline.seeding import numpy_generator


def standardised_samples(
    settings: DatasetSettings,
    seed: int,
    *,
    name: str,
    raw: np.ndarray,
    label: np.ndarray,
    group: np.ndarray,
    feature_names: Sequence[str],
    class_names: Sequence[str],
    source: str,
) -> Samples:
    """Samples of a numeric table.

    Args:
        settings: Counts.
        seed: Draws the splits.
        name: Of the data set, for the seed.
        raw: Finite values, float64 (N, n).
        label: Class indices (N,).
        group: Rows of one group lie in one split, (N,).
        feature_names: One a column.
        class_names: One a class.
        source: Where the data comes from.

    Raises:
        ArtifactError: If there are fewer rows than were asked for, or a column is constant over the training split.
    """
    chosen, split, supervised = assign_splits(
        group,
        {"train": settings.train, "validation": settings.validation, "test": settings.test},
        settings.supervised,
        numpy_generator(seed, name, "split"),
    )
    raw = raw[chosen]
    # Rounded first, so that the frozen numbers, applied to a raw row, give exactly the input the model saw.
    mean = rounded(raw[split == "train"].mean(0).tolist())
    std = rounded(raw[split == "train"].std(0).tolist())
    constant = [column for column, size in zip(feature_names, std, strict=True) if not size]
    if constant:
        raise ArtifactError(f"{name}: columns {constant} are constant over the training split")
    return Samples(
        x=torch.from_numpy(((raw - np.array(mean)) / np.array(std)).astype(np.float32)),
        label=torch.from_numpy(label[chosen].astype(np.int64)),
        split=split,
        supervised=supervised,
        features=column_features(raw.shape[1]),
        class_names=tuple(class_names),
        feature_names=tuple(feature_names),
        preprocessing={"mean": mean, "std": std},
        source=source,
    )


def distinct_rows(raw: np.ndarray) -> np.ndarray:
    """Groups of equal rows, int64 (N,)."""
    return np.unique(raw, axis=0, return_inverse=True)[1].reshape(-1)


def table_samples(
    settings: TableFileSettings,
    seed: int,
    *,
    name: str,
    columns: Sequence[str],
    label: str,
    classes: Mapping[str, str],
    source: str,
) -> Samples:
    """Samples of a CSV file; rows that repeat another row's inputs lie in one split with it.

    Args:
        settings: Counts and path.
        seed: Draws the splits.
        name: Of the data set, for the seed and messages.
        columns: Inputs, in the order of the features.
        label: Column of the class.
        classes: What the label column holds -> what to call the class, in the order of class indices.
        source: Where the data comes from.

    Raises:
        ArtifactError: If the file is missing, is no such table, holds anything but numbers in an input column, an unknown class
            or a constant column, or has fewer rows than were asked for.
    """
    raw, target = read_columns(Path(settings.path), name, columns, label, list(classes))
    return standardised_samples(
        settings,
        seed,
        name=name,
        raw=raw,
        label=target,
        group=distinct_rows(raw),
        feature_names=columns,
        class_names=tuple(classes.values()),
        source=source,
    )


def read_columns(
    path: Path, name: str, columns: Sequence[str], label: str, classes: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs float64 (N, n) and class indices int64 (N,) of a CSV file.

    Raises:
        ArtifactError: See `table_samples`.
    """
    if not path.is_file():
        raise ArtifactError(f"{path} is {'a folder' if path.is_dir() else 'missing'}: it must be the CSV file of {name}")
    try:
        table = pl.read_csv(path, infer_schema_length=None)
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path} cannot be read as CSV: {str(error).splitlines()[0]}") from error
    missing = [column for column in (label, *columns) if column not in table.columns]
    if missing:
        raise ArtifactError(f"{path} lacks the columns {missing} of {name} (it has {table.columns})")
    for column in columns:
        if not table[column].dtype.is_numeric():
            raise ArtifactError(f"{path}: column {column!r} holds {table[column].dtype}, not numbers")
        bad = np.flatnonzero(~np.isfinite(table[column].cast(pl.Float64).fill_null(float("nan")).to_numpy()))
        if len(bad):
            raise ArtifactError(f"{path}: column {column!r} is empty or not finite in rows {(bad[:10] + 1).tolist()}")
    given = table[label].cast(pl.String).to_list()
    unknown = sorted({str(value) for value in given} - set(classes))
    if unknown:
        raise ArtifactError(f"{path}: column {label!r} holds {unknown[:5]}, not only {list(classes)}")
    index = {value: number for number, value in enumerate(classes)}
    raw = table.select(columns).cast(pl.Float64).to_numpy()
    return raw, np.array([index[value] for value in given], dtype=np.int64)
