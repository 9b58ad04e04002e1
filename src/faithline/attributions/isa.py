"""ISA: input values leave in blocks, the least important first; the later a block leaves, the higher it ranks."""

import math

import torch
from torch import Tensor

from faithline.attributions.gradients import chunks, fold
from faithline.attributions.query import Query
from faithline.attributions.walks import Draws, clipped, look, mobile, refuse_outside
from faithline.config import IsaSettings
from faithline.masking import GradientView

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None

LARGEST_LOGARITHM = 80.0
"""Of factor^rounds; float32 ends at 88."""


def attribute(query: Query, settings: IsaSettings) -> Tensor:
    """Each round scores the values that are left, freezes the `block` lowest at the input, and ranks them above all before.

    A round walks from the input twice, `steps` steps of `alpha * sign(gradient)` in which only what is left moves: once the class
    falls, once it rises. The gradient is taken at the point plus Gaussian noise of standard deviation `noise`. A score is the sum
    of |step * gradient| of both walks. Values of round r have attribution factor^r * (1 + (factor - 1) / 2 * s), with s their
    score stretched to [0, 1] within the block, so that the next block starts above this one; a score of 0 means attribution 0.
    The last block holds what is left, however few. The map is >= 0: it says how much the class hangs on a value, not in which
    sense. How blocks are joined is ours: the paper asks that later ones are more important.

    Args:
        query: The game, inputs, classes and seeds.
        settings: `block`, values frozen a round; `steps` of each walk; `alpha` and `noise` in the units of the input; `factor`;
            `clip`; `output` that is differentiated. With N values an input (channels, embedding dimensions and padding counted)
            a sample costs 2 * steps * ceil(N / block) forward and backward passes.

    Returns:
        Maps (B, *map_shape), float32, >= 0: higher = leaves later.

    Raises:
        ValueError: If inputs lie outside of `clip`, or if there are so many rounds that factor^rounds is no float32.

    Source:
        ISA (Iterative Search Attribution), ICML 2024.
    """
    draws, maps, first = Draws(query.seeds), [], 0
    for part, view, classes in chunks(query, "logit", 1):
        refuse_outside(view.inputs, settings.clip)
        rounds = math.ceil(view.inputs[0].numel() / settings.block)
        if rounds * math.log(settings.factor) > LARGEST_LOGARITHM:
            raise ValueError(
                f"isa.block = {settings.block}: makes {rounds} rounds; isa.factor = {settings.factor} to that power is no float32"
            )
        samples = torch.arange(first, first + len(part))
        left = mobile(query.game, part, view)
        total = torch.zeros_like(view.inputs.detach())
        for number in range(rounds):
            score = _score(view, classes, left, draws, samples, settings)
            leaving = _lowest(score, left, settings.block)
            size = settings.factor**number * (1 + (settings.factor - 1) / 2 * _stretched(score, leaving))
            total = torch.where(leaving, torch.where(score == 0, 0.0, size), total)
            left = left & ~leaving
        maps.append(fold(query.game, part, total))
        first += len(part)
    return torch.cat(maps)


def _score(view: GradientView, classes: Tensor, left: Tensor, draws: Draws, samples: Tensor, settings: IsaSettings) -> Tensor:
    """What the values that are left do on a walk down and on a walk up, of the shape of `view.inputs`."""
    start = view.inputs.detach()
    score = torch.zeros_like(start)
    for sense in (-1, 1):
        point = start
        for _ in range(settings.steps):
            noise = settings.noise * draws.normal(samples, start.shape[1:]).to(start.device)
            _, (gradient,) = look(view, point + noise * left, settings.output, classes)
            gradient = gradient * left
            moved = clipped(point + sense * settings.alpha * gradient.sign(), settings.clip)
            score = score + sense * (moved - point) * gradient
            point = moved
    return score


def _lowest(score: Tensor, left: Tensor, block: int) -> Tensor:
    """The `block` lowest scores of those that are left, or all of them; the first of equals. Bool, of the shape of `score`."""
    order = torch.where(left, score.nan_to_num(), torch.inf).flatten(1).argsort(dim=1, stable=True)[:, :block]
    lowest = torch.zeros_like(left.flatten(1)).scatter(1, order, True)
    return lowest.reshape(left.shape) & left


def _stretched(score: Tensor, leaving: Tensor) -> Tensor:
    """Scores stretched to [0, 1] within the block; 0 where all are the same."""
    axes = tuple(range(1, score.ndim))
    low = score.masked_fill(~leaving, torch.inf).amin(axes, keepdim=True)
    high = score.masked_fill(~leaving, -torch.inf).amax(axes, keepdim=True)
    return (score - low) / torch.where(high == low, 1.0, high - low)
