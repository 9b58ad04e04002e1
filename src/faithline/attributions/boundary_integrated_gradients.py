"""Boundary integrated gradients: integrated gradients from the nearest point where the model decides otherwise."""

from dataclasses import dataclass

import torch
from captum.attr import IntegratedGradients
from torch import Tensor

from faithline.attributions.gradients import chunks, fold
from faithline.attributions.query import Query
from faithline.attributions.walks import broadcast, clipped, look, mobile, overtaken, refuse_outside
from faithline.config import BoundaryIntegratedGradientsSettings
from faithline.masking import GradientView

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


@dataclass(frozen=True)
class Boundary:
    """What the attacks found.

    Attributes:
        point: The nearest point of another class, of the shape of the inputs; where there is none, the last of the widest attack.
        found: Whether there is one, bool (B,).
    """

    point: Tensor
    found: Tensor


def attribute(query: Query, settings: BoundaryIntegratedGradientsSettings) -> Tensor:
    """Integrated gradients (Gauss-Legendre) whose baseline is `nearest_boundary`.

    The sum of a map is, up to quadrature, value(x) - value(boundary). Where no attack succeeds the path starts at the last point
    of the widest one. An input whose explained class is not the model's first choice is on the other side already: its map is 0.

    Args:
        query: The game, inputs and classes.
        settings: `radii` (L2) of the attacks; `attack_steps` of each, one forward and backward pass, and one more forward pass
            at its end; `step` as a share of the radius; `steps` of the path, one forward and backward pass each; `clip`;
            `output` that is differentiated along the path.

    Returns:
        Maps (B, *map_shape), float32: higher = more support for the class.

    Raises:
        ValueError: If inputs lie outside of `clip`.

    Source:
        Wang et al., Robust models are more interpretable because attributions look normal, ICML 2022. Attacks by projected
        gradient descent only.
    """
    game, maps = query.game, []
    for part, view, classes in chunks(query, "logit", 1):
        refuse_outside(view.inputs, settings.clip)
        boundary = nearest_boundary(view, classes, mobile(game, part, view), settings)
        path = game.gradient_view(part.clone(), settings.output)
        attribution = IntegratedGradients(path.module).attribute(
            path.inputs,
            boundary.point,
            classes,
            additional_forward_args=path.extra or None,
            n_steps=settings.steps,
            internal_batch_size=game.max_batch,
        )
        maps.append(fold(game, part, attribution))
    return torch.cat(maps)


def nearest_boundary(
    view: GradientView, classes: Tensor, free: Tensor, settings: BoundaryIntegratedGradientsSettings
) -> Boundary:
    """The nearest point of another class that any attack passes through.

    Each radius has an attack of its own from the input: steps along the L2-normalised gradient of the cross-entropy, of
    `step * radius` each, projected onto the ball. The direction is that of falling log-odds, which is the same and does not
    vanish where a probability rounds to 1.

    Args:
        view: The game as logits.
        classes: Explained classes (B,).
        free: Which entries may move, bool of the shape of the inputs.
        settings: Of the method.
    """
    start = view.inputs.detach()
    point, nearest, best = start, start, torch.full(classes.shape, torch.inf, device=start.device)
    for radius in sorted(settings.radii):
        point = start
        for step in range(settings.attack_steps + 1):
            if step < settings.attack_steps:
                logits, (gradient,) = look(view, point, "logodds", classes)
            else:
                with torch.no_grad():
                    logits = view.module(point, *view.extra)
            distance = (point - start).flatten(1).norm(dim=1)
            closer = overtaken(logits, classes) & (distance < best)
            nearest = torch.where(broadcast(closer, start), point, nearest)
            best = torch.where(closer, distance, best)
            if step < settings.attack_steps:
                point = clipped(
                    start + _ball(point - start - settings.step * radius * _unit(gradient * free), radius), settings.clip
                )
    found = best.isfinite()
    return Boundary(torch.where(broadcast(found, start), nearest, point), found)


def _unit(gradient: Tensor) -> Tensor:
    """Each row divided by its L2 norm; 0 stays 0."""
    norm = gradient.flatten(1).norm(dim=1)
    return gradient / broadcast(torch.where(norm == 0, 1.0, norm), gradient)


def _ball(shift: Tensor, radius: float) -> Tensor:
    """Each row cut back to L2 norm `radius`."""
    norm = shift.flatten(1).norm(dim=1)
    return shift * broadcast(torch.where(norm > radius, radius / norm, 1.0), shift)
