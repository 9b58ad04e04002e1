"""Table, 7 columns: is a customer of a wholesaler a hotel, restaurant or café, or a retailer?

Data: UCI Wholesale customers (Cardoso, 2013; CC BY 4.0), 440 rows, the CSV file as it is published; the user brings it.
"""

from torch import nn

from faithline.config import CheckpointTargetSettings, TableFileSettings
from faithline.dataset import Samples
from faithline.tables import table_samples
from faithline.targets import MLP

MODALITY = "table"
DATASET_SETTINGS = TableFileSettings
TARGET_SETTINGS = CheckpointTargetSettings
COLUMNS = ("Region", "Fresh", "Milk", "Grocery", "Frozen", "Detergents_Paper", "Delicassen")


def load_samples(settings: TableFileSettings, seed: int) -> Samples:
    """Region and yearly spending by kind of goods."""
    return table_samples(
        settings,
        seed,
        name="Wholesale customers",
        columns=COLUMNS,
        label="Channel",
        classes={"1": "hotel, restaurant or café", "2": "retail"},
        source="UCI Wholesale customers (Cardoso, 2013), CC BY 4.0",
    )


def build_target(settings: CheckpointTargetSettings, samples: Samples) -> nn.Module:
    """A perceptron."""
    return MLP(samples.features.n, len(samples.class_names), width=settings.width, depth=settings.depth, dropout=settings.dropout)
