"""What the class activation maps share: the layer they look at, what it says, and how a coarse map becomes one of pixels."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faithline.attributions.attention import timm_attention, token_grid
from faithline.attributions.gradients import Output, chunks
from faithline.attributions.query import DoesNotFit, Query
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


def weighted_channels(query: Query, output: Output, weigh: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Activations of the last grid times a weight of each channel, summed over channels and enlarged.

    One forward and backward pass a sample, and one forward pass that finds the layer.

    Args:
        query: The game, inputs and classes.
        output: What is differentiated.
        weigh: Activations and gradients, (B, C, h, w) each -> weights (B, C, 1, 1).

    Returns:
        Maps (B, H, W), float32, on the CPU.

    Raises:
        DoesNotFit: If no layer of the model is laid out over the image.
    """
    maps = []
    grid: Grid | None = None
    for _, view, classes in chunks(query, output, 1):
        if grid is None:
            grid = last_grid(query.game.model, view.inputs[:1].detach())
        activation, gradient = activations_and_gradients(view, grid, classes)
        coarse = (weigh(activation, gradient) * activation).sum(1, keepdim=True)
        maps.append(enlarge(coarse, query.game.features.map_shape)[:, 0].cpu())
    return torch.cat(maps)


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
