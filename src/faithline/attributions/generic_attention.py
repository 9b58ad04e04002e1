"""Generic attention explainability: attention weighted by its gradient, followed through the layers of a Transformer."""

import torch
from torch import Tensor

from faithline.attributions import attention
from faithline.attributions.gradients import chunks
from faithline.attributions.query import Query
from faithline.config import GradientSettings

MODALITIES: tuple[str, ...] = ("image", "text")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: GradientSettings) -> Tensor:
    """R <- R + mean over heads of (gradient x attention)+ times R, layer by layer from R = identity; read where the model pools.

    The identity is taken out at the end: a token's own presence is no evidence, and a class that the model does not tell from
    others explains nothing. Negative products are erased, so a map is >= 0. One forward and backward pass a sample.

    Args:
        query: The game, inputs and classes.
        settings: `output` that is differentiated.

    Returns:
        Maps (B, *map_shape), float32, >= 0: higher = more support for the class; 0 where a text is padded.

    Raises:
        DoesNotFit: If the model has no attention layer that can be read, or does not say how it pools its tokens.

    Source:
        Chefer et al., Generic Attention-model Explainability, ICCV 2021, equations 5 and 6 (self-attention).
    """
    game = query.game
    maps = []
    for part, view, classes in chunks(query, settings.output, 1):
        placed = attention.tokens(game.model, game.features, part.to(view.inputs.device))
        with attention.recorded(game.model) as weights, torch.enable_grad():
            value = view.module(view.inputs, *view.extra).gather(1, classes[:, None]).sum()
            gradients = torch.autograd.grad(value, weights)
        # The pooled rows of R alone: (pooled (I + A_L) ... (I + A_1)), from the last layer to the first.
        relevance = placed.pooled[:, None]
        for layer, gradient in zip(reversed(weights), reversed(gradients), strict=True):
            relevance = relevance + relevance @ (gradient * layer.detach()).float().relu().mean(1)
        found = placed.to_map((relevance[:, 0] - placed.pooled), game.features).cpu()
        maps.append(found.masked_fill(~game.features.valid(part).cpu(), 0.0) if game.features.kind == "text" else found)
    return torch.cat(maps)
