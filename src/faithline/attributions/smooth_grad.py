"""SmoothGrad: the gradient averaged over noisy copies of the input."""

import torch
from torch import Tensor

from faithline.attributions.gradients import fold, gradient_at, repeated
from faithline.attributions.query import Query
from faithline.config import SmoothGradSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: SmoothGradSettings) -> Tensor:
    """Mean over draws of the gradient at x + noise, summed over channels or embedding dimensions.

    The noise is Gaussian; its standard deviation is a share of the sample's own range (largest minus smallest entry), as in the
    paper. Texts are disturbed in the space of their embeddings, where only real tokens have a range and get noise. captum's
    NoiseTunnel draws from the global generator, so that a map depends on its batch mates; here every sample has its own.

    Args:
        query: The game, inputs, classes and seeds.
        settings: `samples` draws, each one forward and backward pass; `std`, the share; `output` that is differentiated.

    Returns:
        Maps (B, *map_shape), float32: higher = a small increase of the input raises the class more, on the mean around x.

    Source:
        Smilkov et al., SmoothGrad: removing noise by adding noise, 2017; captum.attr.NoiseTunnel of type `smoothgrad`.
    """
    game = query.game
    total = torch.zeros(len(query.x), *game.features.map_shape)
    for part, draw, view, classes in repeated(query, settings.output, settings.samples, game.max_batch):
        inputs = query.x[part].clone()
        noise = _noise(query.seeds[part].tolist(), draw.tolist(), settings.samples, view.inputs.shape[1:]).to(view.inputs.device)
        exists = torch.ones_like(view.inputs, dtype=torch.bool)
        if game.features.kind == "text":
            exists = game.features.valid(inputs).to(view.inputs.device)[:, :, None].expand_as(view.inputs)
        highest = view.inputs.masked_fill(~exists, -torch.inf).flatten(1).amax(1)
        lowest = view.inputs.masked_fill(~exists, torch.inf).flatten(1).amin(1)
        std = settings.std * (highest - lowest).clamp(min=0).reshape(-1, *[1] * (view.inputs.ndim - 1))
        point = torch.where(exists, view.inputs + std * noise, view.inputs)
        total.index_add_(0, part, fold(game, inputs, gradient_at(view, point, classes)))
    return total / settings.samples


def _noise(seeds: list[int], draws: list[int], samples: int, shape: torch.Size) -> Tensor:
    """Standard normal numbers, (len(seeds), *shape): row i is draw `draws[i]` of the `samples` that its seed gives."""
    drawn: dict[int, Tensor] = {}
    rows = []
    for seed, draw in zip(seeds, draws, strict=True):
        if seed not in drawn:  # rows of a sample follow one another: keep the last sample's numbers only
            drawn = {seed: torch.randn(samples, *shape, generator=torch.Generator().manual_seed(seed))}
        rows.append(drawn[seed][draw])
    return torch.stack(rows)
