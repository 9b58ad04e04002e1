"""Image, 4 classes: retinal scans (optical coherence tomography) in the folders they are published in, and a model of timm.

Data: Kermany et al., Cell 2018 (CC BY 4.0), `{train,test}/{CNV,DME,DRUSEN,NORMAL}/<class>-<patient>-<number>.jpeg`; the user
brings it. Patients of the official test part are left out of training: some of its versions have scans of them in both.
"""

import re
from pathlib import Path

import numpy as np
import torch
from torch import nn

from faithline.config import ImageFolderSettings, TimmTargetSettings
from faithline.dataset import Samples, assign_official
from faithline.errors import ArtifactError
from faithline.masking import patch_features
from faithline.networks import timm_model
from faithline.pictures import class_folders, read_picture
from faithline.seeding import numpy_generator

MODALITY = "image"
DATASET_SETTINGS = ImageFolderSettings
TARGET_SETTINGS = TimmTargetSettings
CLASSES = ("CNV", "DME", "DRUSEN", "NORMAL")
CROP = 0.875
"""Share of the resized short side that the centre crop keeps."""


def load_samples(settings: ImageFolderSettings, seed: int) -> Samples:
    """Scans as three equal channels in [0, 1] and no other normalisation: 0 is black.

    Raises:
        ArtifactError: If the folder has another layout; the message says which is wanted.
    """
    root = Path(settings.path)
    files: list[tuple[Path, int, str]] = []
    for part in ("train", "test"):
        folders = class_folders(root / part, f"the class folders {', '.join(CLASSES)}")
        if tuple(folders) != CLASSES:
            raise ArtifactError(f"{root / part} holds the folders {list(folders)[:6]}, not {list(CLASSES)}")
        files += [(path, label, part) for label, paths in enumerate(folders.values()) for path in paths]
    odd = [path.name for path, _, _ in files if not re.fullmatch(r"[A-Z]+-\d+-\d+", path.stem)]
    if odd:
        raise ArtifactError(
            f"{root}: {odd[:5]} ({len(odd)} in all) are not named <class>-<patient>-<number>, so nobody knows whose"
        )
    chosen, split, supervised = assign_official(
        np.array([part for _, _, part in files]),
        np.array([path.stem.split("-")[1] for path, _, _ in files]),
        {"train": settings.train, "validation": settings.validation, "test": settings.test},
        settings.supervised,
        numpy_generator(seed, "oct", "split"),
    )
    resize = round(settings.image_size / CROP)
    x = torch.empty(len(chosen), 3, settings.image_size, settings.image_size)
    for row, position in enumerate(chosen.tolist()):
        picture = read_picture(files[position][0], size=settings.image_size, channels=3, resize=resize)
        x[row] = torch.from_numpy(picture).permute(2, 0, 1)
    return Samples(
        x=x,
        label=torch.tensor([files[position][1] for position in chosen.tolist()]),
        split=split,
        supervised=supervised,
        features=patch_features(settings.image_size, settings.patch),
        class_names=CLASSES,
        feature_names=(),
        preprocessing={"size": settings.image_size, "channels": 3, "mean": [0.0] * 3, "std": [1.0] * 3, "resize": resize},
        source="retinal OCT scans of Kermany et al. (Cell 2018), CC BY 4.0",
        showable=False,
    )


def build_target(settings: TimmTargetSettings, samples: Samples) -> nn.Module:
    """The model of timm that `architecture` names; its weights come from `checkpoint`."""
    channels, size, _ = samples.features.shape
    return timm_model(
        settings.architecture, classes=len(samples.class_names), channels=channels, image_size=size, dropout=settings.dropout
    )
