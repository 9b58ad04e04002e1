"""Attention rollout: attention followed back through the layers of a Transformer, skip connections included."""

import torch
from torch import Tensor

from faithline.attributions import attention
from faithline.attributions.gradients import chunks
from faithline.attributions.query import Query
from faithline.config import MethodSettings

MODALITIES: tuple[str, ...] = ("image", "text")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: MethodSettings) -> Tensor:  # noqa: ARG001
    """Product over layers of (mean attention of the heads + identity) / 2, read where the classifier reads its tokens.

    It knows neither the class nor the sign of anything: a map is >= 0, and over all tokens it sums to 1. One forward pass a
    sample.

    Args:
        query: The game and inputs.
        settings: Not used.

    Returns:
        Maps (B, *map_shape), float32, >= 0: higher = more of the classifier's attention; 0 where a text is padded.

    Raises:
        DoesNotFit: If the model has no attention layer that can be read, or does not say how it pools its tokens.

    Source:
        Abnar and Zuidema, Quantifying Attention Flow in Transformers, ACL 2020, section 3.
    """
    game = query.game
    maps = []
    for part, view, _ in chunks(query, "logit", 1):
        inputs = part.to(view.inputs.device)
        placed = attention.tokens(game.model, game.features, inputs)
        with attention.recorded(game.model) as weights, torch.no_grad():
            view.module(view.inputs, *view.extra)
        relevance = placed.pooled[:, None]
        for layer in reversed(weights):
            relevance = (relevance @ layer.float().mean(1) + relevance) / 2
        found = placed.to_map(relevance[:, 0], game.features).cpu()
        maps.append(found.masked_fill(~game.features.valid(part).cpu(), 0.0) if game.features.kind == "text" else found)
    return torch.cat(maps)
