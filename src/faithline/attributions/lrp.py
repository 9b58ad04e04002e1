"""Layer-wise relevance propagation (captum)."""

import operator
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from captum.attr import LRP
from captum.attr._core.lrp import SUPPORTED_LAYERS_WITH_RULES, SUPPORTED_NON_LINEAR_LAYERS
from captum.attr._utils.lrp_rules import EpsilonRule, GammaRule, PropagationRule
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from faithline.attributions.gradients import chunks, fold
from faithline.attributions.query import DoesNotFit, Query
from faithline.config import LrpSettings

MODALITIES: tuple[str, ...] = ("image", "table")
MASKS: tuple[str, str] | None = None

RESHAPING = (nn.Flatten, nn.Identity)
"""Layers that captum has no rule for and that only hand their input on."""
RESHAPING_FUNCTIONS = {torch.flatten, "flatten", "view", "reshape", "size", getattr, operator.getitem}
"""The same as functions and methods, and what such a line of code asks of its tensor."""


def attribute(query: Query, settings: LrpSettings) -> Tensor:
    """Relevance of the logit, handed back layer by layer in proportion to what each input gave.

    The first and the last layer with weights follow the epsilon rule, those between them the gamma rule, which favours positive
    contributions; with `gamma: 0` and a small epsilon a ReLU network's map is input x gradient. Pooling and reshaping follow the
    epsilon rule. Batch normalisation is first folded into the convolution before it: as a layer of its own its shift would take
    part of the relevance, and give some with the wrong sign. Biases keep their share, so that a map sums to the logit only
    without them.

    captum hooks modules, so all that the model does must be modules: its graph (`torch.fx`) must be a chain of layers with a
    rule, each used once. A skip connection, an attention or any other function between layers does not fit.

    Args:
        query: The game, inputs and classes; the baseline plays no part.
        settings: `epsilon`, by which the epsilon rule enlarges what it divides by; `gamma`, the extra weight of what is
            positive.

    Returns:
        Maps (B, *map_shape), float32: higher = more support for the class.

    Raises:
        DoesNotFit: If a layer has no rule, or the model is more than a chain of layers.

    Source:
        Bach et al., PLoS ONE 2015; Montavon et al., Layer-Wise Relevance Propagation: An Overview, 2019, section 10.2;
        captum.attr.LRP.
    """
    model = query.game.model
    layers = chain(model)
    maps = []
    for part, view, classes in chunks(query, "logit", 1):
        with _folded(layers), _rules(model, layers, settings):
            relevance = LRP(model).attribute(view.inputs, classes)
        maps.append(fold(query.game, part, relevance))
    return torch.cat(maps)


def chain(model: nn.Module) -> list[nn.Module]:
    """The layers of a model in the order in which they act.

    Raises:
        DoesNotFit: If a layer has no rule or is used twice, or there is more between them than reshaping.
    """
    name = type(model).__name__
    known = (*SUPPORTED_LAYERS_WITH_RULES, *SUPPORTED_NON_LINEAR_LAYERS, *RESHAPING)
    if unknown := sorted({type(layer).__name__ for layer in _leaves(model) if type(layer) not in known}):
        raise DoesNotFit(f"no propagation rule for {', '.join(unknown)} of {name}")
    try:
        graph = fx.Tracer().trace(model)
    except (RuntimeError, TypeError, ValueError) as error:  # what the tracer says of code that it cannot follow
        raise DoesNotFit(f"{name} cannot be traced as a graph of layers ({error})") from error
    for node in graph.nodes:
        if node.op == "get_attr" or (node.op in ("call_function", "call_method") and node.target not in RESHAPING_FUNCTIONS):
            used = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
            raise DoesNotFit(f"{name} uses {used!r} between its layers, for which there is no propagation rule")
    uses = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    if twice := sorted(layer for layer, count in uses.items() if count > 1):
        raise DoesNotFit(f"{name} uses {', '.join(twice)} more than once")
    return [model.get_submodule(layer) for layer in uses]


def _leaves(model: nn.Module) -> list[nn.Module]:
    """Modules without children, used or not; captum takes them for the model's layers."""
    return [module for module in model.modules() if module is not model and not list(module.children())]


@contextmanager
def _folded(layers: list[nn.Module]) -> Iterator[None]:
    """Fold each batch normalisation into the convolution right before it for the time of a block; it then does nothing."""
    saved: list[tuple[nn.Module, str, Tensor | None]] = []
    try:
        for convolution, norm in pairwise(layers):
            if not isinstance(convolution, nn.Conv2d) or not isinstance(norm, nn.BatchNorm2d):
                continue
            mean, variance = norm.running_mean, norm.running_var
            if mean is None or variance is None:  # it normalises by the batch
                continue
            saved += [(convolution, name, getattr(convolution, name)) for name in ("weight", "bias")]
            saved += [(norm, name, getattr(norm, name)) for name in ("weight", "bias", "running_mean", "running_var")]
            convolution.weight, convolution.bias = fuse_conv_bn_weights(
                convolution.weight, convolution.bias, mean, variance, norm.eps, norm.weight, norm.bias
            )
            convolution.requires_grad_(False)
            norm.weight, norm.bias = None, None  # type: ignore[assignment]
            norm.running_mean, norm.running_var = torch.zeros_like(mean), torch.ones_like(variance) - norm.eps
        yield
    finally:
        for module, name, value in saved:
            setattr(module, name, value)


@contextmanager
def _rules(model: nn.Module, layers: list[nn.Module], settings: LrpSettings) -> Iterator[None]:
    """Give every layer its rule for the time of a block, and take off it what captum leaves behind."""
    weighted = [layer for layer in layers if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in _leaves(model):
        if type(layer) not in SUPPORTED_NON_LINEAR_LAYERS:
            rule: PropagationRule = EpsilonRule(settings.epsilon)
            if layer in weighted[1:-1]:
                rule = GammaRule(settings.gamma)
            layer.rule = rule  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer in _leaves(model):
            for name in ("rule", "activations"):
                if name in vars(layer):
                    delattr(layer, name)
