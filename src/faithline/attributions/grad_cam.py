"""Grad-CAM on the last layer that is laid out over the image."""

import torch
from torch import Tensor

from faithline.attributions.gradients import chunks
from faithline.attributions.query import Query
from faithline.attributions.spatial import Grid, activations_and_gradients, enlarge, last_grid
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
    maps = []
    grid: Grid | None = None
    for _, view, classes in chunks(query, settings.output, 1):
        if grid is None:
            grid = last_grid(query.game.model, view.inputs[:1].detach())
        activation, gradient = activations_and_gradients(view, grid, classes)
        coarse = (gradient.mean((2, 3), keepdim=True) * activation).sum(1, keepdim=True)
        maps.append(enlarge(coarse, query.game.features.map_shape)[:, 0].cpu())
    return torch.cat(maps)
