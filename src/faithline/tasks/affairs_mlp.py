"""Table, 8 columns: does a woman report an affair? Small enough for all 2^8 keep sets.

Data: statsmodels `fair` (Fair, 1978; Redbook survey of 6,366 women), shipped "with permission of the author".
"""

import numpy as np
from torch import nn

from faithline.config import DatasetSettings, TargetSettings
from faithline.dataset import Samples
from faithline.tables import distinct_rows, standardised_samples
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
    return standardised_samples(
        settings,
        seed,
        name="affairs_mlp",
        raw=raw,
        label=data["affairs"].to_numpy() > 0,
        group=distinct_rows(raw),
        feature_names=COLUMNS,
        class_names=("no affair", "affair"),
        source="statsmodels dataset fair (Fair 1978), included in statsmodels with permission of the author",
    )


def build_target(settings: TargetSettings, samples: Samples) -> nn.Module:
    """A small perceptron."""
    return MLP(samples.features.n, len(samples.class_names), width=settings.width, depth=settings.depth, dropout=settings.dropout)
