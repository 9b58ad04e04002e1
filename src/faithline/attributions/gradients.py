"""What the gradient methods share: bounded chunks of samples as captum wants them, and folding a gradient into a stored map."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from torch import Tensor

from faithline.masking import GradientView, MaskedModel


def chunks(
    game: MaskedModel, x: Tensor, target: Tensor, output: Literal["prob", "logit"], rows_per_sample: int
) -> Iterator[tuple[Tensor, GradientView, Tensor]]:
    """Cut a batch so that no model call has more than `game.max_batch` rows (a single sample may exceed it).

    Args:
        game: The game.
        x: Inputs (B, ...).
        target: Explained classes, int64 (B,).
        output: What is differentiated.
        rows_per_sample: Model rows that the method needs at once for one sample.

    Yields:
        The inputs of the chunk, its gradient view whose `inputs` require a gradient, and its classes on the same device.
    """
    size = max(1, game.max_batch // rows_per_sample)
    # Clones: autograd refuses tensors that were made in inference mode, and the explained classes usually were.
    for part, part_target in zip(x.split(size), target.split(size), strict=True):
        view = game.gradient_view(part.clone(), output)
        yield part, replace(view, inputs=view.inputs.clone().requires_grad_()), part_target.clone().to(view.inputs.device)


def fold(game: MaskedModel, x: Tensor, attribution: Tensor) -> Tensor:
    """Fold an attribution of `GradientView.inputs` into a map: (B, *map_shape), float32, on the CPU; 0 where a text is padded."""
    folded = game.reduce(attribution.detach()).float().cpu()
    return folded.masked_fill(~game.features.valid(x).cpu(), 0.0) if game.features.kind == "text" else folded
