"""Guided integrated gradients: a path from the baseline on which features of small gradient go first."""

import math

import torch
from torch import Tensor

from faithline.attributions.gradients import chunks, fold, gradient_at
from faithline.attributions.query import Query
from faithline.config import GuidedIntegratedGradientsSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: GuidedIntegratedGradientsSettings) -> Tensor:
    """Sum over the steps of a path of gradient * step; the path goes where the gradient is small, within a band.

    A step takes the L1 distance to the input down by 1 / `steps` of the whole. It first pulls into the band what has fallen
    behind it, then moves the `fraction` of features with the smallest |gradient| of those that the band lets move, and again
    the next ones until the distance is reached. The band at share a of the path lies between the points a - max_dist and
    a + max_dist of the straight line. All samples take their steps at once. A feature is an entry of the input: a pixel's
    channel, a dimension of an embedding, a column. The sum of a map is, up to the length of a step, value(x) - value(baseline),
    where the gradient is continuous. Along a kink of a ReLU network, which such a path may follow, shorter steps need not help.

    Args:
        query: The game, inputs and classes.
        settings: `steps` of the path, each one forward and backward pass; `fraction`, `max_dist`; `output` that is
            differentiated.

    Returns:
        Maps (B, *map_shape), float32: higher = more support for the class.

    Source:
        Kapishnikov et al., Guided Integrated Gradients: an adaptive path method for removing noise, CVPR 2021, algorithm 1.
    """
    maps = []
    for part, view, classes in chunks(query, settings.output, 1):
        start, end = view.baseline.flatten(1), view.inputs.detach().flatten(1)
        whole = (end - start).abs().sum(1)
        point, total = start, torch.zeros_like(end)
        for step in range(1, settings.steps + 1):
            gradient = gradient_at(view, point.reshape(view.inputs.shape), classes).flatten(1)
            share = step / settings.steps
            slowest = torch.lerp(start, end, max(share - settings.max_dist, 0.0))
            fastest = torch.lerp(start, end, min(share + settings.max_dist, 1.0))
            behind = (point - start).abs() < (slowest - start).abs()
            moved = torch.where(behind, slowest, point)
            moved = _advance(moved, fastest, end, whole * (1 - share), gradient.abs(), settings.fraction)
            total = total + (moved - point) * gradient
            point = moved
        maps.append(fold(query.game, part, total.reshape(view.inputs.shape)))
    return torch.cat(maps)


def _advance(point: Tensor, fastest: Tensor, end: Tensor, target: Tensor, size: Tensor, fraction: float) -> Tensor:
    """Move features towards `fastest`, those of small |gradient| first, until the L1 distance to `end` is `target`.

    Args:
        point: Where the path is (B, n).
        fastest: How far the band lets each feature go (B, n).
        end: The input (B, n).
        target: Distance to come to (B,).
        size: |gradient| (B, n).
        fraction: Share of the features that move together.
    """
    together = math.ceil(fraction * point.shape[1])
    for _ in range(math.ceil(1 / fraction)):  # after so many turns no feature is left to move
        room = (fastest - point).abs()
        movable = room > 0
        order = size.masked_fill(~movable, torch.inf)
        # Equals move together, so that nothing depends on the order in which features are stored.
        chosen = movable & (order <= order.kthvalue(together, dim=1, keepdim=True).values)
        left, reach = (end - point).abs().sum(1) - target, (room * chosen).sum(1)
        share = torch.where(reach == 0, 0.0, left / torch.where(reach == 0, 1.0, reach)).clamp(0, 1)[:, None]
        point = torch.where(chosen, torch.where(share == 1, fastest, torch.lerp(point, fastest, share)), point)
    return point
