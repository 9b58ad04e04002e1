"""What the class activation maps share: the layer they look at, what it says, and how a coarse map becomes one of pixels."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faithline.attributions.attention import timm_attention, token_grid
from faithline.attributions.query import DoesNotFit
from faithline.masking import GradientView


@dataclass(frozen=True)
class Grid:
    """The last layer of a model that is still laid out over the image.

    Attributes:
        layer: A module whose output is (B, C, H, W); or, of a vision Transformer, its last attention, whose input is meant: later
            tokens other than the class token no longer reach the output.
        tokens: None, or the tokens before the image's own and the rows and columns of these.
    """

    layer: nn.Module
    tokens: tuple[int, int, int] | None

    def unfold(self, seen: Tensor) -> Tensor:
        """What the layer gave, as (B, C, H, W)."""
        if self.tokens is None:
            return seen
        first, rows, columns = self.tokens
        return seen[:, first:].mT.unflatten(2, (rows, columns))


def last_grid(model: nn.Module, image: Tensor) -> Grid:
    """Find the last grid: of a vision Transformer by what it says of its tokens, else on one forward pass.

    There it is the module that finishes last among those whose output is (B, C, H, W) with H * W > 1.

    Raises:
        DoesNotFit: If there is none.
    """
    if attentions := timm_attention(model):
        first, rows, columns = token_grid(model)
        return Grid(attentions[-1], (first, rows, columns))
    found: list[nn.Module] = []

    def note(module: nn.Module, _args: object, output: object) -> None:
        if isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] * output.shape[3] > 1:
            found.append(module)

    handles = [module.register_forward_hook(note) for module in model.modules() if module is not model]
    try:
        with torch.no_grad():
            model(image)
    finally:
        for handle in handles:
            handle.remove()
    if not found:
        raise DoesNotFit(f"no module of {type(model).__name__} gives an output (B, C, H, W) with more than one cell")
    return Grid(found[-1], None)


def activations_and_gradients(view: GradientView, grid: Grid, classes: Tensor) -> tuple[Tensor, Tensor]:
    """What the grid holds, and the gradient of each row's class value with respect to it: (B, C, H, W) twice, float32.

    One forward and backward pass a row. `view.inputs` must require a gradient.
    """
    seen: list[Tensor] = []

    def note_input(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        seen.append(args[0].clone())  # apart from what skips the attention
        return (seen[-1], *args[1:])

    if grid.tokens is None:
        handle = grid.layer.register_forward_hook(lambda _module, _args, output: seen.append(output))
    else:
        handle = grid.layer.register_forward_pre_hook(note_input)
    try:
        with torch.enable_grad():
            value = view.module(view.inputs, *view.extra).gather(1, classes[:, None]).sum()
            (gradient,) = torch.autograd.grad(value, seen[-1])
    finally:
        handle.remove()
    return grid.unfold(seen[-1].detach().float()), grid.unfold(gradient.float())


def enlarge(coarse: Tensor, size: tuple[int, ...]) -> Tensor:
    """Maps (B, C, h, w) at the size of the image, bilinear."""
    return F.interpolate(coarse, size=size, mode="bilinear", align_corners=False)
