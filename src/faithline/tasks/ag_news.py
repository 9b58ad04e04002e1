"""Text, 4 classes: which section of a newspaper is an article from? Read by an LSTM or a transformer.

Data: AG's News as Zhang et al. (NeurIPS 2015) cut it, a folder with `train.csv` and `test.csv`: class (1 to 4), title,
description, with or without a header; the user brings it, for non-commercial use.
"""

import csv
from pathlib import Path

import numpy as np
from torch import nn

from faithline.config import TextFileSettings, TextTargetSettings
from faithline.dataset import Samples
from faithline.errors import ArtifactError
from faithline.texts import text_network, text_samples

MODALITY = "text"
DATASET_SETTINGS = TextFileSettings
TARGET_SETTINGS = TextTargetSettings
CLASSES = ("World", "Sports", "Business", "Sci/Tech")
COLUMNS = 3


def load_samples(settings: TextFileSettings, seed: int) -> Samples:
    """The first words of title and description; test articles that are also training articles are dropped.

    Raises:
        ArtifactError: If a file is missing or has other columns; the message names the row.
    """
    texts: list[str] = []
    label: list[int] = []
    official: list[str] = []
    for part in ("train", "test"):
        rows = _read(Path(settings.path) / f"{part}.csv")
        texts += [f"{title} {description}".replace("\\", " ") for _, title, description in rows]
        label += [int(number) - 1 for number, _, _ in rows]
        official += [part] * len(rows)
    return text_samples(
        texts,
        np.array(label),
        np.array(official),
        settings,
        seed,
        name="ag_news",
        class_names=CLASSES,
        source="AG's News (Zhang et al., NeurIPS 2015), for non-commercial use",
    )


def _read(path: Path) -> list[list[str]]:
    if not path.is_file():
        raise ArtifactError(f"{path} is missing: the folder must hold train.csv and test.csv of AG's News")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ArtifactError(f"{path} cannot be read as CSV: {error}") from error
    if rows and rows[0][:1] == ["Class Index"]:
        rows = rows[1:]
    known = {str(number + 1) for number in range(len(CLASSES))}
    for number, row in enumerate(rows, 1):
        if len(row) != COLUMNS or row[0] not in known:
            raise ArtifactError(
                f"{path}: article {number} has {len(row)} columns and class {row[0] if row else ''!r}; "
                "class (1 to 4), title and description are wanted"
            )
    return rows


def build_target(settings: TextTargetSettings, samples: Samples) -> nn.Module:
    """The network that `architecture` names."""
    return text_network(settings, samples)
