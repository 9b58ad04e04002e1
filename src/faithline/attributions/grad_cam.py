"""Grad-CAM on the last layer that still has a spatial grid (captum)."""

import torch
import torch.nn.functional as F
from captum.attr import LayerGradCam
from torch import Tensor, nn

from faithline.attributions.gradients import chunks
from faithline.bank import Masks
from faithline.config import GradientSettings
from faithline.masking import MaskedModel

MODALITIES: tuple[str, ...] = ("image",)
MASKS: tuple[str, str] | None = None


def attribute(
    game: MaskedModel,
    x: Tensor,
    target: Tensor,
    settings: GradientSettings,
    *,
    masks: Masks | None,  # noqa: ARG001
    background: Tensor | None,  # noqa: ARG001
    seeds: Tensor,  # noqa: ARG001
) -> Tensor:
    """Activations of the last spatial layer weighted by their mean gradient, summed over channels, enlarged bilinearly.

    The sign is kept (the paper's final ReLU is left out): evidence against the class is negative, as in every other map here. One
    forward and backward pass a sample, and one forward pass a call that finds the layer.

    Args:
        game: The game.
        x: Images (B, C, H, W).
        target: Explained classes, int64 (B,).
        settings: `output` that is differentiated.
        masks: Not used.
        background: Not used.
        seeds: Not used.

    Returns:
        Maps (B, H, W), float32: higher = more support for the class.

    Raises:
        ValueError: If no module of the model gives an output (B, C, H, W) with H * W > 1.

    Source:
        Selvaraju et al., Grad-CAM, ICCV 2017, equations 1 and 2 without the ReLU; captum.attr.LayerGradCam.
    """
    maps = []
    layer: nn.Module | None = None
    for _, view, classes in chunks(game, x, target, settings.output, 1):
        if layer is None:
            layer = last_spatial_layer(game.model, view.inputs[:1].detach())
        coarse = LayerGradCam(view.module, layer).attribute(view.inputs, classes, relu_attributions=False)
        fine = F.interpolate(coarse.detach().float(), size=game.features.map_shape, mode="bilinear", align_corners=False)
        maps.append(fine[:, 0].cpu())
    return torch.cat(maps)


@torch.no_grad()
def last_spatial_layer(model: nn.Module, image: Tensor) -> nn.Module:
    """The module that finishes last among those whose output is (B, C, H, W) with H * W > 1; found on one forward pass.

    Raises:
        ValueError: If there is none.
    """
    found: list[nn.Module] = []

    def note(module: nn.Module, _args: object, output: object) -> None:
        if isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] * output.shape[3] > 1:
            found.append(module)

    handles = [module.register_forward_hook(note) for module in model.modules() if module is not model]
    try:
        model(image)
    finally:
        for handle in handles:
            handle.remove()
    if not found:
        raise ValueError(f"grad_cam: no module of {type(model).__name__} gives an output (B, C, H, W) with more than one cell")
    return found[-1]
