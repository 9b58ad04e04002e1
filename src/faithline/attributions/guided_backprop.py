"""Guided backpropagation (captum)."""

from captum.attr import GuidedBackprop
from torch import Tensor

from faithline.attributions.query import Query
from faithline.attributions.rectified import rectified_gradient
from faithline.config import GradientSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: GradientSettings) -> Tensor:
    """Gradient of which each ReLU passes on what is positive and comes from where the ReLU is active.

    Evidence that reaches a ReLU as a negative gradient is erased, not counted against the class. ReLUs that are functions and
    not modules keep their own gradient, and so do other activations.

    Args:
        query: The game, inputs and classes.
        settings: `output` that is differentiated.

    Returns:
        Maps (B, *map_shape), float32: higher = a small increase of the input raises the class more, along positive paths.

    Raises:
        DoesNotFit: If the model has no ReLU module.

    Source:
        Springenberg et al., Striving for Simplicity: The All Convolutional Net, 2015, section 3.4; captum.attr.GuidedBackprop.
    """
    return rectified_gradient(query, settings.output, GuidedBackprop)
