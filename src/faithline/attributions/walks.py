"""What the methods share that walk away from an input along gradients: one look at a point, bounds, other classes, and draws."""

import torch
from torch import Tensor

from faithline.attributions.query import DoesNotFit, Query
from faithline.masking import GradientView, MaskedModel, Output, class_value


def look(view: GradientView, point: Tensor, output: Output, *classes: Tensor) -> tuple[Tensor, list[Tensor]]:
    """One forward pass at `point`, and one backward pass for each of the given classes.

    The gradient of a probability p is that of its log-odds times p (1 - p): where p rounds to 1, the softmax returns rounding
    noise, of which a walk along signs would make whole steps.

    Args:
        view: The game as logits.
        point: Where to look, of the shape of `view.inputs`.
        output: What is differentiated.
        classes: Classes of the rows, int64 (B,), any number of times.

    Returns:
        Logits (B, K), and the gradient of each row's own entry of `classes`, each of the shape of `point`.
    """
    point = point.detach().requires_grad_()
    with torch.enable_grad():
        logits = view.module(point, *view.extra)
        gradients = []
        for i, chosen in enumerate(classes):
            # One entry a row: no row sees another's class.
            value = class_value(logits, chosen, "logit" if output == "logit" else "logodds")
            (gradient,) = torch.autograd.grad(value.sum(), point, retain_graph=i < len(classes) - 1)
            if output == "prob":
                gradient = gradient * broadcast((value.sigmoid() * (-value).sigmoid()).detach(), gradient)
            gradients.append(gradient)
    return logits.detach(), gradients


def overtaken(logits: Tensor, classes: Tensor) -> Tensor:
    """Whether another class has more than the given one, bool (B,); never where a logit is NaN."""
    return (logits > logits.gather(1, classes[:, None])).any(1)


def broadcast(numbers: Tensor, like: Tensor) -> Tensor:
    """One number a row, (B,), with the axes that let it meet `like` (B, ...)."""
    return numbers.reshape(-1, *[1] * (like.ndim - 1))


def mobile(game: MaskedModel, x: Tensor, view: GradientView) -> Tensor:
    """Which entries of `view.inputs` belong to a feature, bool of its shape: all but the padding of a text, which stays put."""
    if game.features.kind != "text":
        return torch.ones_like(view.inputs, dtype=torch.bool)
    return game.features.valid(x).to(view.inputs.device)[:, :, None].expand_as(view.inputs)


def refuse_outside(inputs: Tensor, clip: tuple[float, float] | None) -> None:
    """Refuse a range that the inputs do not keep: the first clip would move them, whatever the gradient.

    Raises:
        ValueError: If an input lies outside of `clip`.
    """
    if clip is not None and ((inputs < clip[0]) | (inputs > clip[1])).any():
        known = inputs[~inputs.isnan()]
        raise ValueError(
            f"clip = {list(clip)}: inputs reach from {known.min():.4g} to {known.max():.4g}; give their range, or null"
        )


def clipped(point: Tensor, clip: tuple[float, float] | None) -> Tensor:
    """The point within the range of valid inputs, where there is one."""
    return point if clip is None else point.clamp(*clip)


def false_classes(query: Query, count: int) -> Tensor:
    """`count` classes of each sample that are not the explained one, from its seed: int64 (B, min(count, K - 1)).

    One forward pass of the first input tells the number K of classes.

    Raises:
        DoesNotFit: If the model has one class only.
    """
    view = query.game.gradient_view(query.x[:1].clone(), "logit")
    with torch.no_grad():
        others = view.module(view.inputs, *view.extra).shape[1] - 1
    if not others:
        raise DoesNotFit("the model has one class, so that there is no other to walk to")
    drawn = [
        torch.randperm(others, generator=torch.Generator().manual_seed(seed))[: min(count, others)]
        for seed in query.seeds.tolist()
    ]
    chosen = torch.stack(drawn)
    return chosen + (chosen >= query.target.cpu()[:, None])  # the explained class is passed over


def targeted_sum(
    view: GradientView,
    output: Output,
    classes: Tensor,
    rivals: Tensor,
    radius: Tensor,
    steps: int,
    clip: tuple[float, float] | None,
    *,
    stop: bool,
) -> Tensor:
    """Sum over steps of - gradient of the explained class * displacement of the next point from the input.

    The next point is `input + radius * sign(gradient of the rival class)`, clipped: measured from the input at each step, not
    from the point before.

    Args:
        view: The game as logits.
        output: What is differentiated.
        classes: Explained classes (B,).
        rivals: Classes walked to (B,).
        radius: Size of the displacement, of the shape of `view.inputs`.
        steps: Points looked at, each a forward and two backward passes, also of rows that have arrived.
        clip: Range of valid inputs, or None.
        stop: Whether a row that has reached its rival adds nothing any more.

    Returns:
        The sums, of the shape of `view.inputs`.
    """
    start = view.inputs.detach()
    point, total = start, torch.zeros_like(start)
    walking = torch.ones_like(classes, dtype=torch.bool)
    for _ in range(steps):
        logits, (own, rival) = look(view, point, output, classes, rivals)
        if stop:
            walking = walking & (overtaken(logits, rivals) | logits.isnan().any(1))
        here = broadcast(walking, start)
        point = torch.where(here, clipped(start + radius * rival.sign(), clip), point)
        total = total - torch.where(here, own * (point - start), 0.0)
    return total


class Draws:
    """One stream of random numbers a sample, of its own seed: what a sample draws depends on no batch mate and on no chunk."""

    def __init__(self, seeds: Tensor) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds.tolist()]

    def of(self, samples: Tensor) -> list[torch.Generator]:
        """The streams of some samples; rows of one sample share one, and must draw all that is theirs one after the other."""
        return [self._generators[i] for i in samples.tolist()]

    def normal(self, samples: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The next standard normal numbers of some samples: (len(samples), *shape)."""
        return torch.stack([torch.randn(shape, generator=stream) for stream in self.of(samples)])
