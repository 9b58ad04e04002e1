"""Expected gradients (GradientShap): integrated gradients from random real inputs, one random point of each path."""

import torch
from torch import Tensor

from faithline.attributions.gradients import fold
from faithline.bank import Masks
from faithline.config import ExpectedGradientsSettings
from faithline.masking import GradientView, MaskedModel

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(
    game: MaskedModel,
    x: Tensor,
    target: Tensor,
    settings: ExpectedGradientsSettings,
    *,
    masks: Masks | None,  # noqa: ARG001
    background: Tensor | None,
    seeds: Tensor,
) -> Tensor:
    """Mean over draws of (x - r) * gradient at r + a (x - r), with r a random row of `background` and a uniform in [0, 1].

    captum's GradientShap draws from global generators, so that a map depends on its batch mates; here every sample draws from
    its own seed. The mean of the map's sum over draws is value(x) - mean value(background). Texts are aligned by position: where
    the background text has ended, its embedding is that of the game's removing token; padding of x stays as it is.

    Args:
        game: The game.
        x: Inputs (B, ...).
        target: Explained classes, int64 (B,).
        settings: `samples` draws, each one forward and backward pass; `output` that is differentiated.
        masks: Not used.
        background: Real inputs (R, ...), of x's kind.
        seeds: One a sample, int64 (B,).

    Returns:
        Maps (B, *map_shape), float32: higher = more support for the class.

    Raises:
        ValueError: If there is no background.

    Source:
        Erion et al., Improving performance of deep learning models with axiomatic attribution priors, 2021, equation 3.
    """
    if background is None or not len(background):
        raise ValueError("expected_gradients needs background inputs, and got none")
    draws = settings.samples
    choice = torch.empty(len(x), draws, dtype=torch.long)
    position = torch.empty(len(x), draws)
    for i, seed in enumerate(seeds.tolist()):
        generator = torch.Generator().manual_seed(seed)
        choice[i] = torch.randint(len(background), (draws,), generator=generator)
        position[i] = torch.rand(draws, generator=generator)
    total = torch.zeros(len(x), *game.features.map_shape)
    rows = torch.arange(len(x)).repeat_interleave(draws)
    for part, chosen, at in zip(
        rows.split(game.max_batch), choice.flatten().split(game.max_batch), position.flatten().split(game.max_batch), strict=True
    ):
        inputs = x[part].clone()
        view = game.gradient_view(inputs, settings.output)
        difference = view.inputs - _references(game, inputs, background[chosen], view)
        ahead = 1 - at.to(view.inputs.device).reshape(-1, *[1] * (view.inputs.ndim - 1))
        point = (view.inputs - ahead * difference).requires_grad_()
        with torch.enable_grad():
            value = view.module(point, *view.extra).gather(1, target[part].clone().to(point.device)[:, None]).sum()
            (gradient,) = torch.autograd.grad(value, point)
        total.index_add_(0, part, fold(game, inputs, difference * gradient))
    return total / draws


def _references(game: MaskedModel, x: Tensor, rows: Tensor, view: GradientView) -> Tensor:
    """Background rows in the space of `view.inputs`."""
    if game.features.kind != "text":
        return rows.to(view.inputs)
    x, rows = x.to(view.inputs.device), rows.to(view.inputs.device)
    ids = torch.where(game.features.valid(rows), rows, game.baseline.replacement(rows)[:, 0])
    return game.embedding()(torch.where(game.features.valid(x), ids, x)).detach()
