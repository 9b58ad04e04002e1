"""Saliency: the gradient of the explained class (captum)."""

import torch
from captum.attr import Saliency
from torch import Tensor

from faithline.attributions.gradients import chunks, fold
from faithline.bank import Masks
from faithline.config import SaliencySettings
from faithline.masking import MaskedModel

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(
    game: MaskedModel,
    x: Tensor,
    target: Tensor,
    settings: SaliencySettings,
    *,
    masks: Masks | None,  # noqa: ARG001
    background: Tensor | None,  # noqa: ARG001
    seeds: Tensor,  # noqa: ARG001
) -> Tensor:
    """Gradient of the class value, summed over channels or embedding dimensions; one forward and backward pass a sample.

    Args:
        game: The game.
        x: Inputs (B, ...).
        target: Explained classes, int64 (B,).
        settings: `output` that is differentiated; `absolute` takes |gradient| before the sum (the map is then >= 0).
        masks: Not used.
        background: Not used.
        seeds: Not used.

    Returns:
        Maps (B, *map_shape), float32: higher = a small increase of the input raises the class more.

    Source:
        Simonyan et al., Deep Inside Convolutional Networks, 2014; captum.attr.Saliency.
    """
    maps = []
    for part, view, classes in chunks(game, x, target, settings.output, 1):
        gradient = Saliency(view.module).attribute(
            view.inputs, classes, abs=settings.absolute, additional_forward_args=view.extra or None
        )
        maps.append(fold(game, part, gradient))
    return torch.cat(maps)
