"""Saliency: the gradient of the explained class (captum)."""

import torch
from captum.attr import Saliency
from torch import Tensor

from faithline.attributions.gradients import chunks, fold
from faithline.attributions.query import Query
from faithline.config import SaliencySettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: SaliencySettings) -> Tensor:
    """Gradient of the class value, summed over channels or embedding dimensions; one forward and backward pass a sample.

    Args:
        query: The game, inputs and classes.
        settings: `output` that is differentiated; `absolute` takes |gradient| before the sum (the map is then >= 0).

    Returns:
        Maps (B, *map_shape), float32: higher = a small increase of the input raises the class more.

    Source:
        Simonyan et al., Deep Inside Convolutional Networks, 2014; captum.attr.Saliency.
    """
    maps = []
    for part, view, classes in chunks(query, settings.output, 1):
        gradient = Saliency(view.module).attribute(
            view.inputs, classes, abs=settings.absolute, additional_forward_args=view.extra or None
        )
        maps.append(fold(query.game, part, gradient))
    return torch.cat(maps)
