"""Image, 28x28 grey, 10 classes: handwritten digits and a small vision transformer; one token is one feature."""

from torch import nn

from faithline.config import DatasetSettings, TargetSettings
from faithline.dataset import Samples
from faithline.networks import explainable
from faithline.tasks import digits_cnn

MODALITY = "image"
HEADS = 4
PATCH_DROPOUT = 0.1
"""Share of the tokens that a training step leaves out: it regularises, and it teaches the model digits with holes."""
POSITION_STD = 0.5
"""Size of the first position vectors; with the 0.02 of timm all patches look alike for many epochs."""


def load_samples(settings: DatasetSettings, seed: int) -> Samples:
    """Samples and splits of `digits_cnn`, so that the two targets can be compared."""
    return digits_cnn.load_samples(settings, seed)


def build_target(settings: TargetSettings, samples: Samples) -> nn.Module:
    """A vision transformer of timm that averages its tokens, trained from scratch."""
    from timm.models.vision_transformer import VisionTransformer  # late: slow to import

    channels, size, _ = samples.features.shape
    model = VisionTransformer(
        img_size=size,
        patch_size=digits_cnn.PATCH,
        in_chans=channels,
        num_classes=len(samples.class_names),
        embed_dim=settings.width,
        depth=settings.depth,
        num_heads=HEADS,
        mlp_ratio=2.0,
        drop_rate=settings.dropout,
        patch_drop_rate=PATCH_DROPOUT,
        class_token=False,
        global_pool="avg",
        weight_init="jax",
    )
    nn.init.normal_(model.pos_embed, std=POSITION_STD)
    return explainable(model)
