"""Expected gradients (GradientShap): integrated gradients from random real inputs, one random point of each path."""

import torch
from torch import Tensor

from faithline.attributions.gradients import fold, gradient_at, references, repeated
from faithline.attributions.query import Query
from faithline.config import ExpectedGradientsSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: ExpectedGradientsSettings) -> Tensor:
    """Mean over draws of (x - r) * gradient at r + a (x - r), with r a random row of `background` and a uniform in [0, 1].

    captum's GradientShap draws from global generators, so that a map depends on its batch mates; here every sample draws from
    its own seed. The mean of the map's sum over draws is value(x) - mean value(background). Texts are aligned by position: where
    the background text has ended, its embedding is that of the game's removing token; padding of x stays as it is.

    Args:
        query: The game, inputs, classes, seeds, and a background of inputs of the same kind.
        settings: `samples` draws, each one forward and backward pass; `output` that is differentiated.

    Returns:
        Maps (B, *map_shape), float32: higher = more support for the class.

    Raises:
        ValueError: If there is no background.

    Source:
        Erion et al., Improving performance of deep learning models with axiomatic attribution priors, 2021, equation 3.
    """
    game, background, draws = query.game, query.given_background(), settings.samples
    choice = torch.empty(len(query.x), draws, dtype=torch.long)
    position = torch.empty(len(query.x), draws)
    for i, seed in enumerate(query.seeds.tolist()):
        generator = torch.Generator().manual_seed(seed)
        choice[i] = torch.randint(len(background), (draws,), generator=generator)
        position[i] = torch.rand(draws, generator=generator)
    total = torch.zeros(len(query.x), *game.features.map_shape)
    for part, draw, view, classes in repeated(query, settings.output, draws, game.max_batch):
        inputs = query.x[part].clone()
        difference = view.inputs - references(game, inputs, background[choice[part, draw]], view)
        ahead = 1 - position[part, draw].to(view.inputs.device).reshape(-1, *[1] * (view.inputs.ndim - 1))
        gradient = gradient_at(view, view.inputs - ahead * difference, classes)
        total.index_add_(0, part, fold(game, inputs, difference * gradient))
    return total / draws
