"""Image, 1,000 classes: photographs of ImageNet in the folders of their WordNet ids, and a model of timm from a checkpoint.

Data: any folder of `<wnid>/*.JPEG` (ILSVRC2012 validation sorted into class folders, or a part of it); the user brings it, for it
may be used for research only. Classes come from the folder's name, never from its position. The report shows photographs of
scikit-image in their place.
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from faithline.config import ImageFolderSettings, TimmTargetSettings
from faithline.dataset import Samples, assign_splits
from faithline.errors import ArtifactError
from faithline.masking import patch_features
from faithline.networks import timm_model
from faithline.pictures import class_folders, fit_picture, read_picture
from faithline.seeding import numpy_generator

MODALITY = "image"
DATASET_SETTINGS = ImageFolderSettings
TARGET_SETTINGS = TimmTargetSettings
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP = 0.875
"""Share of the resized short side that the centre crop keeps."""
GALLERY = {
    "astronaut": None,
    "camera": "n04485082",
    "chelsea": "n02123045",
    "coffee": "n07920052",
    "rocket": "n03773504",
}
"""Photographs of `skimage.data` with the WordNet id of what they show: tripod, tabby cat, espresso, missile."""


def load_samples(settings: ImageFolderSettings, seed: int) -> Samples:
    """Photographs normalised as most models of timm expect them."""
    return load_photographs(settings, seed, mean=MEAN, std=STD)


def load_photographs(
    settings: ImageFolderSettings, seed: int, *, mean: tuple[float, float, float], std: tuple[float, float, float]
) -> Samples:
    """Photographs of the chosen samples and of the gallery, resized (bicubic) and cropped at the centre.

    Args:
        settings: Counts, path, size and patches.
        seed: Draws the splits.
        mean: Of each channel, for the normalisation.
        std: Of each channel.

    Raises:
        ArtifactError: If the folder is missing or is no folder of WordNet ids, a picture is damaged, there are fewer pictures
            than were asked for, or scikit-image is not installed.
    """
    from timm.data import ImageNetInfo  # late: slow to import

    info = ImageNetInfo()
    index = {wnid: number for number, wnid in enumerate(info.label_names())}
    folders = class_folders(Path(settings.path), "one folder a class, named by its WordNet id (n01440764, ...)")
    strangers = [name for name in folders if name not in index]
    if strangers:
        raise ArtifactError(
            f"{settings.path} holds the folders {strangers[:5]} ({len(strangers)} in all): no WordNet ids of ImageNet-1k"
        )
    files = [(path, index[wnid]) for wnid, paths in folders.items() for path in paths]
    chosen, split, supervised = assign_splits(
        np.arange(len(files)),
        {"train": settings.train, "validation": settings.validation, "test": settings.test},
        settings.supervised,
        numpy_generator(seed, "imagenet", "split"),
    )
    resize = round(settings.image_size / CROP)
    shown = [fit_picture(image, size=settings.image_size, channels=3, resize=resize) for image in _gallery()]
    label = [files[position][1] for position in chosen.tolist()]
    label += [-1 if wnid is None else index[wnid] for wnid in GALLERY.values()]
    x = torch.empty(len(label), 3, settings.image_size, settings.image_size)
    for row, position in enumerate(chosen.tolist()):  # one by one: two copies of all of ImageNet would be too many
        x[row] = _normalised(read_picture(files[position][0], size=settings.image_size, channels=3, resize=resize), mean, std)
    for row, picture in enumerate(shown, len(chosen)):
        x[row] = _normalised(picture, mean, std)
    return Samples(
        x=x,
        label=torch.tensor(label),
        split=np.concatenate([split, np.full(len(GALLERY), "gallery")]),
        supervised=np.concatenate([supervised, np.zeros(len(GALLERY), dtype=bool)]),
        features=patch_features(settings.image_size, settings.patch),
        class_names=tuple(info.index_to_description(number) for number in range(len(index))),
        feature_names=(),
        preprocessing={"size": settings.image_size, "channels": 3, "mean": list(mean), "std": list(std), "resize": resize},
        source="photographs of ImageNet (ILSVRC), for non-commercial research; the gallery shows photographs of scikit-image",
        showable=False,
        complete=False,
    )


def _normalised(pixels: np.ndarray, mean: tuple[float, float, float], std: tuple[float, float, float]) -> Tensor:
    """Pixels (H, W, 3) in [0, 1] as an input (3, H, W)."""
    scaled = (pixels - np.array(mean, dtype=np.float32)) / np.array(std, dtype=np.float32)
    return torch.from_numpy(scaled).permute(2, 0, 1)


def _gallery() -> list[Image.Image]:
    """Photographs that may be shown, from inside the package scikit-image.

    Raises:
        ArtifactError: If it is not installed.
    """
    try:
        from skimage import data  # late: an optional package
    except ImportError as error:
        raise ArtifactError(
            "the gallery of ImageNet tasks needs scikit-image: install the extra, pip install 'faithline[photos]'"
        ) from error
    return [Image.fromarray(getattr(data, name)()) for name in GALLERY]


def build_target(settings: TimmTargetSettings, samples: Samples) -> nn.Module:
    """The model of timm that `architecture` names; its weights come from `checkpoint`."""
    channels, size, _ = samples.features.shape
    return timm_model(
        settings.architecture, classes=len(samples.class_names), channels=channels, image_size=size, dropout=settings.dropout
    )
