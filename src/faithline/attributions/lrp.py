"""Layer-wise relevance propagation (captum)."""

import operator
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from captum.attr import LRP
from captum.attr._core.lrp import SUPPORTED_LAYERS_WITH_RULES, SUPPORTED_NON_LINEAR_LAYERS
from captum.attr._utils.lrp_rules import EpsilonRule, GammaRule, PropagationRule
from torch import Tensor, fx, nn

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
    contributions; with `gamma: 0` and a small epsilon a ReLU network's map is input x gradient. Batch normalisation, pooling
    and reshaping follow the epsilon rule. Biases keep their share, so that a map sums to the logit only without them.

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
    if (reason := misfit(model)) is not None:
        raise DoesNotFit(reason)
    maps = []
    for part, view, classes in chunks(query, "logit", 1):
        with _rules(model, settings):
            relevance = LRP(model).attribute(view.inputs, classes)
        maps.append(fold(query.game, part, relevance))
    return torch.cat(maps)


def misfit(model: nn.Module) -> str | None:
    """Why a model is no chain of layers with a rule, or None if it is one."""
    known = (*SUPPORTED_LAYERS_WITH_RULES, *SUPPORTED_NON_LINEAR_LAYERS, *RESHAPING)
    unknown = sorted({type(layer).__name__ for layer in _layers(model) if type(layer) not in known})
    if unknown:
        return f"no propagation rule for {', '.join(unknown)} of {type(model).__name__}"
    try:
        graph = fx.Tracer().trace(model)
    except (RuntimeError, TypeError, ValueError) as error:  # what the tracer says of code that it cannot follow
        return f"{type(model).__name__} cannot be traced as a graph of layers ({error})"
    for node in graph.nodes:
        if node.op == "get_attr" or (node.op in ("call_function", "call_method") and node.target not in RESHAPING_FUNCTIONS):
            name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
            return f"{type(model).__name__} uses {name!r} between its layers, for which there is no propagation rule"
    uses = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    twice = sorted(name for name, count in uses.items() if count > 1)
    return f"{type(model).__name__} uses {', '.join(twice)} more than once" if twice else None


def _layers(model: nn.Module) -> list[nn.Module]:
    """Modules without children, in order; captum takes them for the model's layers."""
    return [module for module in model.modules() if module is not model and not list(module.children())]


@contextmanager
def _rules(model: nn.Module, settings: LrpSettings) -> Iterator[None]:
    """Give every layer its rule for the time of a block, and take off it what captum leaves behind."""
    layers = _layers(model)
    weighted = [layer for layer in layers if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers:
        if type(layer) not in SUPPORTED_NON_LINEAR_LAYERS:
            rule: PropagationRule = EpsilonRule(settings.epsilon)
            if layer in weighted[1:-1]:
                rule = GammaRule(settings.gamma)
            layer.rule = rule  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer in layers:
            for name in ("rule", "activations"):
                if name in vars(layer):
                    delattr(layer, name)
