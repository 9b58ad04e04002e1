"""Table, 30 columns: is a breast tumour benign? Too many columns to enumerate, so its bank is sampled.

Data: scikit-learn `breast_cancer` (Wisconsin diagnostic, 569 tumours; UCI, CC BY 4.0).
"""

import numpy as np
import torch
from torch import nn

from faithline.artifacts import rounded
from faithline.config import DatasetSettings, TargetSettings
from faithline.dataset import Samples, assign_splits
from faithline.masking import column_features
from faithline.seeding import numpy_generator
from faithline.targets import MLP

MODALITY = "table"


def load_samples(settings: DatasetSettings, seed: int) -> Samples:
    """Thirty measurements of cell nuclei a tumour, standardised by the training split."""
    from sklearn.datasets import load_breast_cancer  # late: every stage loads this file for its network, few need the data

    data = load_breast_cancer()
    chosen, split, supervised = assign_splits(
        np.arange(len(data.data)),
        {"train": settings.train, "validation": settings.validation, "test": settings.test},
        settings.supervised,
        numpy_generator(seed, "breast_cancer_mlp", "split"),
    )
    raw = data.data[chosen]
    # Rounded first, so that the frozen numbers, applied to a raw row, give exactly the input the model saw.
    mean = rounded(raw[split == "train"].mean(0).tolist())
    std = rounded(raw[split == "train"].std(0).tolist())
    return Samples(
        x=torch.from_numpy(((raw - np.array(mean)) / np.array(std)).astype(np.float32)),
        label=torch.from_numpy(data.target[chosen].astype(np.int64)),
        split=split,
        supervised=supervised,
        features=column_features(raw.shape[1]),
        class_names=tuple(str(name) for name in data.target_names),
        feature_names=tuple(str(name) for name in data.feature_names),
        preprocessing={"mean": mean, "std": std},
        source="scikit-learn dataset breast_cancer (Wisconsin diagnostic, UCI), CC BY 4.0",
    )


def build_target(settings: TargetSettings, samples: Samples) -> nn.Module:
    """A small perceptron."""
    return MLP(samples.features.n, len(samples.class_names), width=settings.width, depth=settings.depth, dropout=settings.dropout)
