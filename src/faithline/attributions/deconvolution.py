"""Deconvolution (captum)."""

from captum.attr import Deconvolution
from torch import Tensor

from faithline.attributions.query import Query
from faithline.attributions.rectified import rectified_gradient
from faithline.config import GradientSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: GradientSettings) -> Tensor:
    """Gradient of which each ReLU passes on what is positive, whether or not the ReLU is active.

    Evidence that reaches a ReLU as a negative gradient is erased, not counted against the class. ReLUs that are functions and
    not modules keep their own gradient, and so do other activations.

    Args:
        query: The game, inputs and classes.
        settings: `output` that is differentiated.

    Returns:
        Maps (B, *map_shape), float32: higher = more of what the class's positive paths look for.

    Raises:
        DoesNotFit: If the model has no ReLU module.

    Source:
        Zeiler and Fergus, Visualizing and Understanding Convolutional Networks, 2014, section 2.1; captum.attr.Deconvolution.
    """
    return rectified_gradient(query, settings.output, Deconvolution)
