"""MFABA: the class's gradient integrated along the path of an attack that walks away from the class."""

import torch
from torch import Tensor

from faithline.attributions.gradients import chunks, fold
from faithline.attributions.query import Query
from faithline.attributions.walks import broadcast, clipped, look, mobile, overtaken, refuse_outside
from faithline.config import MfabaSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: MfabaSettings) -> Tensor:
    """- sum over steps of (x_{t+1} - x_t) * gradient at x_t, until another class has more than the explained one.

    x_{t+1} = clip(x_t - alpha * direction), where the direction is the sign of the gradient (`smooth`) or the gradient divided
    by its L2 norm (`sharp`). Every term is >= 0: the map says how much the class hangs on a feature, not in which sense. Without
    clip a `smooth` map is alpha * sum |gradient|. A sample that has lost its class adds nothing, and costs its passes all the
    same; one that never had it gets 0.

    Args:
        query: The game, inputs and classes.
        settings: `alpha` in the units of the input; `steps` at most, each one forward and backward pass; `path`; `clip`; `output`
            that is differentiated.

    Returns:
        Maps (B, *map_shape), float32, >= 0: higher = the class hangs more on the feature.

    Raises:
        ValueError: If inputs lie outside of `clip`.

    Source:
        MFABA, AAAI 2024.
    """
    maps = []
    for part, view, classes in chunks(query, "logit", 1):
        refuse_outside(view.inputs, settings.clip)
        free = mobile(query.game, part, view)
        point = view.inputs.detach()
        total = torch.zeros_like(point)
        walking = torch.ones_like(classes, dtype=torch.bool)
        for _ in range(settings.steps):
            logits, (gradient,) = look(view, point, settings.output, classes)
            walking = walking & ~overtaken(logits, classes)
            here = broadcast(walking, point)
            gradient = gradient * free
            moved = torch.where(here, clipped(point - settings.alpha * _direction(gradient, settings.path), settings.clip), point)
            total = total - torch.where(here, (moved - point) * gradient, 0.0)
            point = moved
        maps.append(fold(query.game, part, total))
    return torch.cat(maps)


def _direction(gradient: Tensor, path: str) -> Tensor:
    """Sign of the gradient, or the gradient of L2 norm 1; 0 where it is 0."""
    if path == "smooth":
        return gradient.sign()
    norm = gradient.flatten(1).norm(dim=1)
    return gradient / broadcast(torch.where(norm == 0, 1.0, norm), gradient)
