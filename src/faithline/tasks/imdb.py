"""Text, 2 classes: is a film review negative or positive? Read by an LSTM or a transformer.

Data: the Large Movie Review Dataset (Maas et al., ACL 2011) as it is unpacked,
`aclImdb/{train,test}/{neg,pos}/<id>_<rating>.txt`; the user brings it.
"""

import re
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
CLASSES = ("neg", "pos")


def load_samples(settings: TextFileSettings, seed: int) -> Samples:
    """The first words of each review; test reviews that are also training reviews are dropped.

    Raises:
        ArtifactError: If the folder has another layout, or a review is not UTF-8; the message names it.
    """
    root = Path(settings.path)
    texts: list[str] = []
    label: list[int] = []
    official: list[str] = []
    for part in ("train", "test"):
        for number, name in enumerate(CLASSES):
            files = sorted((root / part / name).glob("*.txt"))
            if not files:
                raise ArtifactError(
                    f"{root / part / name} holds no .txt file: {root} must be aclImdb as it is unpacked, with train/ and test/, "
                    "each with neg/ and pos/"
                )
            odd = [path.name for path in files if not re.fullmatch(r"\d+_\d+", path.stem)]
            if odd:
                raise ArtifactError(f"{root / part / name}: {odd[:5]} are not named <id>_<rating>.txt")
            texts += [_read(path) for path in files]
            label += [number] * len(files)
            official += [part] * len(files)
    return text_samples(
        texts,
        np.array(label),
        np.array(official),
        settings,
        seed,
        name="imdb",
        class_names=("negative", "positive"),
        source="Large Movie Review Dataset (Maas et al., ACL 2011), reviews of IMDb",
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").replace("<br />", " ")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error


def build_target(settings: TextTargetSettings, samples: Samples) -> nn.Module:
    """The network that `architecture` names."""
    return text_network(settings, samples)
