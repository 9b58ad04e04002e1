"""What the gradient methods share: bounded chunks of samples as captum wants them, and folding a gradient into a stored map."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from faithline.attributions.query import Query
from faithline.masking import GradientView, MaskedModel

Output = Literal["prob", "logit"]


def chunks(query: Query, output: Output, rows_per_sample: int) -> Iterator[tuple[Tensor, GradientView, Tensor]]:
    """Cut a batch so that no model call has more than `game.max_batch` rows (a single sample may exceed it).

    Args:
        query: The game, inputs and classes.
        output: What is differentiated.
        rows_per_sample: Model rows that the method needs at once for one sample.

    Yields:
        The inputs of the chunk, its gradient view whose `inputs` require a gradient, and its classes on the same device.
    """
    size = max(1, query.game.max_batch // rows_per_sample)
    # Clones: autograd refuses tensors that were made in inference mode, and the explained classes usually were.
    for part, part_target in zip(query.x.split(size), query.target.split(size), strict=True):
        view = query.game.gradient_view(part.clone(), output)
        yield part, replace(view, inputs=view.inputs.clone().requires_grad_()), part_target.clone().to(view.inputs.device)


def repeated(query: Query, output: Output, times: int, size: int) -> Iterator[tuple[Tensor, Tensor, GradientView, Tensor]]:
    """Take every input `times` times, one after the other, in one stream of chunks.

    Args:
        query: The game, inputs and classes.
        output: What is differentiated.
        times: Repetitions of each input.
        size: Rows of a chunk; one sample may spread over many.

    Yields:
        Position of each row's input in the batch, the number of its repetition, the gradient view and classes of the rows.
    """
    rows = torch.arange(len(query.x)).repeat_interleave(times)
    number = torch.arange(times).repeat(len(query.x))
    for part, part_number in zip(rows.split(size), number.split(size), strict=True):
        view = query.game.gradient_view(query.x[part].clone(), output)
        yield part, part_number, view, query.target[part].clone().to(view.inputs.device)


def gradient_at(view: GradientView, point: Tensor, classes: Tensor) -> Tensor:
    """Gradient of each row's class value at `point`, of the shape of `view.inputs`."""
    point = point.detach().requires_grad_()
    with torch.enable_grad():
        value = view.module(point, *view.extra).gather(1, classes[:, None]).sum()
        (gradient,) = torch.autograd.grad(value, point)
    return gradient


def references(game: MaskedModel, x: Tensor, rows: Tensor, view: GradientView) -> Tensor:
    """Background rows in the space of `view.inputs`, one for each row of x.

    Texts are aligned by position: where the background text has ended, its embedding is that of the game's removing token;
    padding of x stays as it is.
    """
    if game.features.kind != "text":
        return rows.to(view.inputs)
    x, rows = x.to(view.inputs.device), rows.to(view.inputs.device)
    ids = torch.where(game.features.valid(rows), rows, game.baseline.replacement(rows)[:, 0])
    return game.embedding()(torch.where(game.features.valid(x), ids, x)).detach()


def fold(game: MaskedModel, x: Tensor, attribution: Tensor) -> Tensor:
    """Fold an attribution of `GradientView.inputs` into a map: (B, *map_shape), float32, on the CPU; 0 where a text is padded."""
    folded = game.reduce(attribution.detach()).float().cpu()
    return folded.masked_fill(~game.features.valid(x).cpu(), 0.0) if game.features.kind == "text" else folded
