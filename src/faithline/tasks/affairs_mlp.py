"""Table, 8 columns: does a woman report an affair? Small enough for all 2^8 keep sets.

Data: statsmodels `fair` (Fair, 1978; Redbook survey of 6,366 women), shipped "with permission of the author".
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
COLUMNS = ("rate_marriage", "age", "yrs_married", "children", "religious", "educ", "occupation", "occupation_husb")


def load_samples(settings: DatasetSettings, seed: int) -> Samples:
    """Eight answers a woman, standardised by the training split.

    A third of the rows repeat another row's answers, so splits are drawn over distinct rows.
    """
    from statsmodels.datasets import fair  # late: every stage loads this file for its network, few need the data

    data = fair.load_pandas().data
    raw = data[list(COLUMNS)].to_numpy(np.float64)
    label = (data["affairs"].to_numpy() > 0).astype(np.int64)
    _, group = np.unique(raw, axis=0, return_inverse=True)
    chosen, split, supervised = assign_splits(
        group.reshape(-1),
        {"train": settings.train, "validation": settings.validation, "test": settings.test},
        settings.supervised,
        numpy_generator(seed, "affairs_mlp", "split"),
    )
    raw = raw[chosen]
    # Rounded first, so that the frozen numbers, applied to a raw row, give exactly the input the model saw.
    mean = rounded(raw[split == "train"].mean(0).tolist())
    std = rounded(raw[split == "train"].std(0).tolist())
    return Samples(
        x=torch.from_numpy(((raw - np.array(mean)) / np.array(std)).astype(np.float32)),
        label=torch.from_numpy(label[chosen]),
        split=split,
        supervised=supervised,
        features=column_features(len(COLUMNS)),
        class_names=("no affair", "affair"),
        feature_names=COLUMNS,
        preprocessing={"mean": mean, "std": std},
        source="statsmodels dataset fair (Fair 1978), included in statsmodels with permission of the author",
    )


def build_target(settings: TargetSettings, samples: Samples) -> nn.Module:
    """A small perceptron."""
    return MLP(samples.features.n, len(samples.class_names), width=settings.width, depth=settings.depth, dropout=settings.dropout)
