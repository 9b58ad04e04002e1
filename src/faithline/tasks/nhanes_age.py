"""Table, 7 columns: is a person who was examined an adult or a senior (65 and older)?

Data: the NHANES 2013-2014 age prediction subset (UCI 887; CC BY 4.0), 2,278 rows, the CSV file as it is published; the user
brings it. It also holds a respondent's number (SEQN) and the age itself (RIDAGEYR), which is the label: neither is an input.
"""

from torch import nn

from faithline.config import CheckpointTargetSettings, TableFileSettings
from faithline.dataset import Samples
from faithline.tables import table_samples
from faithline.targets import MLP

MODALITY = "table"
DATASET_SETTINGS = TableFileSettings
TARGET_SETTINGS = CheckpointTargetSettings
COLUMNS = ("RIAGENDR", "PAQ605", "BMXBMI", "LBXGLU", "DIQ010", "LBXGLT", "LBXIN")


def load_samples(settings: TableFileSettings, seed: int) -> Samples:
    """Sex, exercise, body mass index, glucose, diabetes, glucose after an oral test, insulin."""
    return table_samples(
        settings,
        seed,
        name="NHANES age prediction",
        columns=COLUMNS,
        label="age_group",
        classes={"Adult": "adult", "Senior": "senior"},
        source="NHANES 2013-2014 age prediction subset (UCI 887), CC BY 4.0",
    )


def build_target(settings: CheckpointTargetSettings, samples: Samples) -> nn.Module:
    """A perceptron."""
    return MLP(samples.features.n, len(samples.class_names), width=settings.width, depth=settings.depth, dropout=settings.dropout)
