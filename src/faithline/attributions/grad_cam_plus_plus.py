"""Grad-CAM++ on the last layer that is laid out over the image."""

from torch import Tensor

from faithline.attributions.query import Query
from faithline.attributions.spatial import weighted_channels
from faithline.config import GradientSettings

MODALITIES: tuple[str, ...] = ("image",)
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: GradientSettings) -> Tensor:
    """Activations of the last grid, each channel weighted by its positive gradients, enlarged bilinearly.

    A channel weighs w = sum_ij a_ij relu(g_ij), with a_ij = g_ij^2 / (2 g_ij^2 + A g_ij^3) = 1 / (2 + A g_ij), where g is the
    gradient of the class value and A the sum of the channel's activations. The paper's closed form takes the exponential of the
    class value; its factor is the same for all of a sample's cells and is left out. Behind a ReLU the denominator is >= 2
    wherever it counts; activations that are not rectified could bring it to 0, so it is taken as at least 1.

    Negative gradients do not count, so behind a ReLU a map has no negative cell. The paper's final ReLU is left out, as in
    `grad_cam`. One forward and backward pass a sample, and one forward pass a call that finds the layer.

    Args:
        query: The game, inputs and classes.
        settings: `output` that is differentiated.

    Returns:
        Maps (B, H, W), float32: higher = more support for the class.

    Raises:
        DoesNotFit: If no layer of the model is laid out over the image (`spatial.last_grid`).

    Source:
        Chattopadhay et al., Grad-CAM++, WACV 2018, equations 5 and 19, without the ReLU of the map.
    """
    return weighted_channels(query, settings.output, _weights)


def _weights(activation: Tensor, gradient: Tensor) -> Tensor:
    """Weight of each channel, (B, C, 1, 1)."""
    share = 1 / (2 + activation.sum((2, 3), keepdim=True) * gradient).clamp(min=1)
    return (share * gradient.relu()).sum((2, 3), keepdim=True)
