"""Integrated gradients from the game's baseline (captum)."""

import torch
from captum.attr import IntegratedGradients
from torch import Tensor

from faithline.attributions.gradients import chunks, fold
from faithline.attributions.query import Query
from faithline.config import IntegratedGradientsSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: IntegratedGradientsSettings) -> Tensor:
    """Gradient averaged along the straight line from the removed to the clean input (Gauss-Legendre), times their difference.

    The sum of a map is, up to quadrature, value(x) - value(baseline): for images and tables that is v(all) - v(none). For texts
    the baseline is the embedding of the removing token at unchanged positions, so that a model which skips padding sees more than
    v(none) does. With a background baseline the path starts at its first row.

    Args:
        query: The game, inputs and classes.
        settings: `steps` of the path, each one forward and backward pass; `output` that is differentiated.

    Returns:
        Maps (B, *map_shape), float32: higher = more support for the class.

    Source:
        Sundararajan et al., Axiomatic Attribution for Deep Networks, ICML 2017; captum.attr.IntegratedGradients.
    """
    maps = []
    for part, view, classes in chunks(query, settings.output, settings.steps):
        # A chunk fits as a whole unless one sample alone has more steps than max_batch: then captum cuts its path.
        attribution = IntegratedGradients(view.module).attribute(
            view.inputs.detach(),
            view.baseline,
            classes,
            additional_forward_args=view.extra or None,
            n_steps=settings.steps,
            internal_batch_size=query.game.max_batch,
        )
        maps.append(fold(query.game, part, attribution))
    return torch.cat(maps)
