"""Grad-CAM on the last layer that is laid out over the image."""

from torch import Tensor

from faithline.attributions.query import Query
from faithline.attributions.spatial import weighted_channels
from faithline.config import GradientSettings

MODALITIES: tuple[str, ...] = ("image",)
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: GradientSettings) -> Tensor:
    """Activations of the last grid weighted by their mean gradient, summed over channels, enlarged bilinearly.

    The sign is kept (the paper's final ReLU is left out): evidence against the class is negative, as in every other map here. One
    forward and backward pass a sample, and one forward pass a call that finds the layer.

    Args:
        query: The game, inputs and classes.
        settings: `output` that is differentiated.

    Returns:
        Maps (B, H, W), float32: higher = more support for the class.

    Raises:
        DoesNotFit: If no layer of the model is laid out over the image (`spatial.last_grid`).

    Source:
        Selvaraju et al., Grad-CAM, ICCV 2017, equations 1 and 2 without the ReLU; captum.attr.LayerGradCam.
    """
    return weighted_channels(query, settings.output, lambda _, gradient: gradient.mean((2, 3), keepdim=True))
