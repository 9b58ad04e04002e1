"""Input x gradient (captum)."""

import torch
from captum.attr import InputXGradient
from torch import Tensor

from faithline.attributions.gradients import chunks, fold
from faithline.attributions.query import Query
from faithline.config import GradientSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: GradientSettings) -> Tensor:
    """Input times gradient, summed over channels or embedding dimensions; one forward and backward pass a sample.

    It measures against an input of zeros (of the normalised input, or of the embedding), whatever the game's baseline is.

    Args:
        query: The game, inputs and classes.
        settings: `output` that is differentiated.

    Returns:
        Maps (B, *map_shape), float32: higher = more support for the class.

    Source:
        Shrikumar et al., Not Just a Black Box, 2016; captum.attr.InputXGradient.
    """
    maps = []
    for part, view, classes in chunks(query, settings.output, 1):
        product = InputXGradient(view.module).attribute(view.inputs, classes, additional_forward_args=view.extra or None)
        maps.append(fold(query.game, part, product))
    return torch.cat(maps)
