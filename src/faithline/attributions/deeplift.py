"""DeepLIFT with the Rescale rule from the game's baseline (captum)."""

import torch
from torch import Tensor

from faithline.attributions.gradients import chunks, fold
from faithline.attributions.query import Query
from faithline.attributions.rescale import contributions
from faithline.config import GradientSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: GradientSettings) -> Tensor:
    """Contributions of the differences from the removed input, by the Rescale rule; two forward passes and a backward one.

    Activations that are modules (ReLU, Sigmoid, Tanh, ...) follow the Rescale rule; functional ones, products and attention fall
    back to their gradient, as in captum. On a network of linear layers and such modules a map sums to value(x) - value(baseline).
    With `output: prob` a map is that of the logit less the mean logit (DeepLIFT paper, 3.6), scaled to keep this sum.

    Args:
        query: The game, inputs and classes.
        settings: `output` that is explained.

    Returns:
        Maps (B, *map_shape), float32: higher = more support for the class.

    Raises:
        RuntimeError: If the model uses one activation module twice (captum's limit).

    Source:
        Shrikumar et al., Learning Important Features Through Propagating Activation Differences, ICML 2017; captum.attr.DeepLift.
    """
    maps = []
    for part, view, classes in chunks(query, settings.output, 2):
        attribution = contributions(view, view.baseline, classes, settings.output)
        maps.append(fold(query.game, part, attribution))
    return torch.cat(maps)
