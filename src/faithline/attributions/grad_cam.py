"""Grad-CAM on the last layer that still has a spatial grid (captum)."""

import torch
from captum.attr import LayerGradCam
from torch import Tensor, nn

from faithline.attributions.gradients import chunks
from faithline.attributions.query import Query
from faithline.attributions.spatial import enlarge, last_spatial_layer
from faithline.config import GradientSettings

MODALITIES: tuple[str, ...] = ("image",)
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: GradientSettings) -> Tensor:
    """Activations of the last spatial layer weighted by their mean gradient, summed over channels, enlarged bilinearly.

    The sign is kept (the paper's final ReLU is left out): evidence against the class is negative, as in every other map here. One
    forward and backward pass a sample, and one forward pass a call that finds the layer.

    Args:
        query: The game, inputs and classes.
        settings: `output` that is differentiated.

    Returns:
        Maps (B, H, W), float32: higher = more support for the class.

    Raises:
        DoesNotFit: If no module of the model gives an output (B, C, H, W) with H * W > 1.

    Source:
        Selvaraju et al., Grad-CAM, ICCV 2017, equations 1 and 2 without the ReLU; captum.attr.LayerGradCam.
    """
    maps = []
    layer: nn.Module | None = None
    for _, view, classes in chunks(query, settings.output, 1):
        if layer is None:
            layer = last_spatial_layer(query.game.model, view.inputs[:1].detach())
        coarse = LayerGradCam(view.module, layer).attribute(view.inputs, classes, relu_attributions=False)
        maps.append(enlarge(coarse.detach().float(), query.game.features.map_shape)[:, 0].cpu())
    return torch.cat(maps)
