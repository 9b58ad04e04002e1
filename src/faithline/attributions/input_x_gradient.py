"""Input x gradient (captum)."""

import torch
from captum.attr import InputXGradient
from torch import Tensor

from faithline.attributions.gradients import chunks, fold
from faithline.bank import Masks
from faithline.config import GradientSettings
from faithline.masking import MaskedModel

MODALITIES: tuple[str, ...] = ("image", "text", "table")
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
    """Input times gradient, summed over channels or embedding dimensions; one forward and backward pass a sample.

    It measures against an input of zeros (of the normalised input, or of the embedding), whatever the game's baseline is.

    Args:
        game: The game.
        x: Inputs (B, ...).
        target: Explained classes, int64 (B,).
        settings: `output` that is differentiated.
        masks: Not used.
        background: Not used.
        seeds: Not used.

    Returns:
        Maps (B, *map_shape), float32: higher = more support for the class.

    Source:
        Shrikumar et al., Not Just a Black Box, 2016; captum.attr.InputXGradient.
    """
    maps = []
    for part, view, classes in chunks(game, x, target, settings.output, 1):
        product = InputXGradient(view.module).attribute(view.inputs, classes, additional_forward_args=view.extra or None)
        maps.append(fold(game, part, product))
    return torch.cat(maps)
