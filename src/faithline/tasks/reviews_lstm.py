"""Text, 2 classes: is a snippet of a film review fresh or rotten? A bidirectional LSTM reads it."""

from torch import nn

from faithline.config import DatasetSettings, TargetSettings
from faithline.dataset import Samples
from faithline.networks import TextLSTM
from faithline.tasks import reviews_transformer

MODALITY = "text"


def load_samples(settings: DatasetSettings, seed: int) -> Samples:
    """Samples and splits of `reviews_transformer`, so that the two targets can be compared."""
    return reviews_transformer.load_samples(settings, seed)


def build_target(settings: TargetSettings, samples: Samples) -> nn.Module:
    """A small LSTM trained from scratch."""
    return TextLSTM(
        len(samples.preprocessing["vocabulary"]),
        len(samples.class_names),
        width=settings.width,
        depth=settings.depth,
        dropout=settings.dropout,
        token_dropout=reviews_transformer.TOKEN_DROPOUT,
        pad_id=samples.features.pad_id,
    )
