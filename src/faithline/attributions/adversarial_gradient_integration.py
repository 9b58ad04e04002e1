"""Adversarial gradient integration: the class's gradient summed along targeted attacks towards other classes."""

import torch
from torch import Tensor

from faithline.attributions.gradients import fold, repeated
from faithline.attributions.query import Query
from faithline.attributions.walks import false_classes, mobile, refuse_outside, targeted_sum
from faithline.config import AdversarialGradientIntegrationSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: AdversarialGradientIntegrationSettings) -> Tensor:
    """Sum over other classes l and steps t of - gradient of the class at x_t * (x_{t+1} - x), until the model says l.

    x_{t+1} = clip(x + eps * sign(gradient of l at x_t)): displacements are measured from the input at each step. There is no
    baseline. All samples and classes go through the model as one stream, each row with its own two classes; a row that has
    arrived adds nothing, and costs its passes all the same.

    Args:
        query: The game, inputs, classes and seeds, which draw the other classes.
        settings: `eps` in the units of the input (of the embeddings, for texts); `steps` at most, each a forward and two
            backward passes; `classes`, how many others (all where there are fewer); `clip`; `output` that is differentiated. One
            forward pass a call more tells the number of classes.

    Returns:
        Maps (B, *map_shape), float32: higher = more support for the class.

    Raises:
        DoesNotFit: If the model has one class.
        ValueError: If inputs lie outside of `clip`.

    Source:
        Pan et al., Explaining deep neural network models with adversarial gradient integration, IJCAI 2021.
    """
    game, rivals = query.game, false_classes(query, settings.classes)
    total = torch.zeros(len(query.x), *game.features.map_shape)
    for part, number, view, classes in repeated(query, "logit", rivals.shape[1], game.max_batch):
        refuse_outside(view.inputs, settings.clip)
        inputs = query.x[part].clone()
        rival = rivals[part, number].to(classes.device)
        radius = settings.eps * mobile(game, inputs, view)
        summed = targeted_sum(view, settings.output, classes, rival, radius, settings.steps, settings.clip, stop=True)
        total.index_add_(0, part, fold(game, inputs, summed))
    return total
