"""Table, 30 columns: is a breast tumour benign? Too many columns to enumerate, so its bank is sampled.

Data: scikit-learn `breast_cancer` (Wisconsin diagnostic, 569 tumours; UCI, CC BY 4.0).
"""

import numpy as np
from torch import nn

from faithline.config import DatasetSettings, TargetSettings
from faithline.dataset import Samples
from faithline.tables import standardised_samples
from faithline.targets import MLP

MODALITY = "table"


def load_samples(settings: DatasetSettings, seed: int) -> Samples:
    """Thirty measurements of cell nuclei a tumour, standardised by the training split."""
    from sklearn.datasets import load_breast_cancer  # late: every stage loads this file for its network, few need the data

    data = load_breast_cancer()
    return standardised_samples(
        settings,
        seed,
        name="breast_cancer_mlp",
        raw=data.data,
        label=data.target,
        group=np.arange(len(data.data)),
        feature_names=[str(name) for name in data.feature_names],
        class_names=[str(name) for name in data.target_names],
        source="scikit-learn dataset breast_cancer (Wisconsin diagnostic, UCI), CC BY 4.0",
    )


def build_target(settings: TargetSettings, samples: Samples) -> nn.Module:
    """A small perceptron."""
    return MLP(samples.features.n, len(samples.class_names), width=settings.width, depth=settings.depth, dropout=settings.dropout)
