"""What guided backpropagation and deconvolution share: a backward pass that treats each ReLU in its own way (captum)."""

import warnings

import torch
from captum.attr import Deconvolution, GuidedBackprop
from torch import Tensor, nn

from faithline.attributions.gradients import Output, chunks, fold
from faithline.attributions.query import DoesNotFit, Query


def rectified_gradient(query: Query, output: Output, method: type[GuidedBackprop] | type[Deconvolution]) -> Tensor:
    """Maps (B, *map_shape), float32, by captum's class; one forward and backward pass a sample.

    Raises:
        DoesNotFit: If the model has no ReLU module: the map would be that of `saliency`.
    """
    model = query.game.model
    if not any(isinstance(module, nn.ReLU) for module in model.modules()):
        raise DoesNotFit(f"{type(model).__name__} has no ReLU module, so that the map would be its plain gradient (saliency)")
    maps = []
    for part, view, classes in chunks(query, output, 1):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Setting backward hooks on ReLU activations")
            gradient = method(view.module).attribute(view.inputs, classes, additional_forward_args=view.extra or None)
        maps.append(fold(query.game, part, gradient))
    return torch.cat(maps)
