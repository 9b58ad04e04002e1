"""What the class activation maps share: the layer they look at, what it says, and how a coarse map becomes one of pixels."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faithline.attributions.query import DoesNotFit
from faithline.masking import GradientView


@torch.no_grad()
def last_spatial_layer(model: nn.Module, image: Tensor) -> nn.Module:
    """The module that finishes last among those whose output is a grid over the image; found on one forward pass.

    A grid is an output (B, C, H, W) of more than one cell, no finer than the image and stretched as it is, within a third: the
    heads of an attention, (B, heads, tokens, width), are none.

    Raises:
        DoesNotFit: If there is none.
    """
    found: list[nn.Module] = []

    def note(module: nn.Module, _args: object, output: object) -> None:
        if isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] * output.shape[3] > 1:
            down, across = image.shape[2] / output.shape[2], image.shape[3] / output.shape[3]
            if min(down, across) >= 1 and max(down, across) <= min(down, across) * 4 / 3:
                found.append(module)

    handles = [module.register_forward_hook(note) for module in model.modules() if module is not model]
    try:
        model(image)
    finally:
        for handle in handles:
            handle.remove()
    if not found:
        raise DoesNotFit(f"no module of {type(model).__name__} gives an output (B, C, H, W) with more than one cell")
    return found[-1]


def activations_and_gradients(view: GradientView, layer: nn.Module, classes: Tensor) -> tuple[Tensor, Tensor]:
    """What a layer gives, and the gradient of each row's class value with respect to it: (B, C, H, W) twice, float32.

    One forward and backward pass a row. `view.inputs` must require a gradient.
    """
    recorded: list[Tensor] = []
    handle = layer.register_forward_hook(lambda _module, _args, output: recorded.append(output))
    try:
        with torch.enable_grad():
            value = view.module(view.inputs, *view.extra).gather(1, classes[:, None]).sum()
            (gradient,) = torch.autograd.grad(value, recorded[-1])
    finally:
        handle.remove()
    return recorded[-1].detach().float(), gradient.float()


def enlarge(coarse: Tensor, size: tuple[int, ...]) -> Tensor:
    """Maps (B, C, h, w) at the size of the image, bilinear."""
    return F.interpolate(coarse, size=size, mode="bilinear", align_corners=False)
