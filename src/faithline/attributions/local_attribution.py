"""Local attribution: the class's gradient summed along attacks that stay within a share of each input value."""

import torch
from torch import Tensor

from faithline.attributions.gradients import chunks, fold, repeated
from faithline.attributions.query import Query
from faithline.attributions.walks import clipped, false_classes, look, mobile, refuse_outside, targeted_sum
from faithline.config import LocalAttributionSettings
from faithline.masking import GradientView

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: LocalAttributionSettings) -> Tensor:
    """Sum over steps of - gradient of the class at x_t * (x_{t+1} - x), of walks to other classes and of one away from the class.

    x_{t+1} = clip(x + |x| / spatial_range * sign(direction at x_t)), where the direction is the gradient of the other class, or
    minus that of the class itself on the walk that has no target. Every walk takes all its steps. A value of 0 has no room, and
    gets attribution 0.

    Args:
        query: The game, inputs, classes and seeds, which draw the other classes.
        settings: `spatial_range`; `steps`, each a forward and two backward passes on a walk to a class, and a forward and a
            backward one on the other walk; `classes`, how many others (all where there are fewer); `clip`; `output` that is
            differentiated. One forward pass a call more tells the number of classes.

    Returns:
        Maps (B, *map_shape), float32: higher = more support for the class.

    Raises:
        DoesNotFit: If the model has one class.
        ValueError: If inputs lie outside of `clip`.

    Source:
        Local Attribution, ACM MM 2024.
    """
    game, rivals = query.game, false_classes(query, settings.classes)
    total, away = torch.zeros(len(query.x), *game.features.map_shape), []
    for part, number, view, classes in repeated(query, "logit", rivals.shape[1], game.max_batch):
        refuse_outside(view.inputs, settings.clip)
        inputs = query.x[part].clone()
        rival = rivals[part, number].to(classes.device)
        radius = _radius(query, inputs, view, settings)
        summed = targeted_sum(view, settings.output, classes, rival, radius, settings.steps, settings.clip, stop=False)
        total.index_add_(0, part, fold(game, inputs, summed))
    for part, view, classes in chunks(query, "logit", 1):
        start = point = view.inputs.detach()
        radius, summed = _radius(query, part, view, settings), torch.zeros_like(start)
        for _ in range(settings.steps):
            _, (gradient,) = look(view, point, settings.output, classes)
            point = clipped(start - radius * gradient.sign(), settings.clip)
            summed = summed - gradient * (point - start)
        away.append(fold(game, part, summed))
    return total + torch.cat(away)


def _radius(query: Query, x: Tensor, view: GradientView, settings: LocalAttributionSettings) -> Tensor:
    """How far each entry may go, of the shape of `view.inputs`."""
    return view.inputs.detach().abs() / settings.spatial_range * mobile(query.game, x, view)
