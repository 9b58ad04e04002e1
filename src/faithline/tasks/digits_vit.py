"""Image, 28x28 grey, 10 classes: handwritten digits and a small vision transformer; one token is one feature."""

import torch
from torch import Tensor, nn

from faithline.config import DatasetSettings, TargetSettings
from faithline.dataset import Samples
from faithline.networks import explainable
from faithline.tasks import digits_cnn

MODALITY = "image"
HEADS = 4
SHIFT = 2
"""Largest shift of a training batch in pixels; the little that leaves on one side comes in on the other."""
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
        class_token=False,
        global_pool="avg",
        weight_init="jax",
    )
    assert model.pos_embed is not None  # this model learns its positions
    nn.init.normal_(model.pos_embed, std=POSITION_STD)
    model.register_forward_pre_hook(_shift)
    return explainable(model)


def _shift(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """In training, move a batch by some pixels: a transformer does not know by itself that place means little."""
    if not model.training:
        return inputs
    down, right = torch.randint(-SHIFT, SHIFT + 1, (2,)).tolist()
    return tuple(x.roll((down, right), (2, 3)) for x in inputs)
