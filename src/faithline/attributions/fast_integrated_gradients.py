"""Fast integrated gradients: the gradient at the input times the input, which needs no path where the network has no bias."""

import torch
from captum.attr import InputXGradient
from torch import Tensor

from faithline.attributions.gradients import chunks, fold
from faithline.attributions.query import Query
from faithline.config import GradientSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: GradientSettings) -> Tensor:
    """Gradient times input, summed over channels or embedding dimensions; one forward and backward pass a sample.

    For the logit of a network that is non-negatively homogeneous (linear layers without biases, ReLU, max pooling) this is
    integrated gradients from a baseline of zeros, exactly: the gradient is the same all along the path. For any other network
    it is `input_x_gradient`, and its map is that of `input_x_gradient` always.

    Args:
        query: The game, inputs and classes.
        settings: `output` that is differentiated; the identity holds for `logit`.

    Returns:
        Maps (B, *map_shape), float32: higher = more support for the class.

    Source:
        Hesse et al., Fast axiomatic attribution for neural networks, 2021.
    """
    maps = []
    for part, view, classes in chunks(query, settings.output, 1):
        attribution = InputXGradient(view.module).attribute(view.inputs, classes, additional_forward_args=view.extra or None)
        maps.append(fold(query.game, part, attribution))
    return torch.cat(maps)
