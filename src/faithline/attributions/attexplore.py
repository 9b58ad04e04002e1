"""AttExplore: gradients of frequency-perturbed, resized copies integrated along the path of the attack that they drive."""

import numpy as np
import scipy.fft
import torch
from torch import Tensor

from faithline.attributions.gradients import fold, repeated
from faithline.attributions.query import Query
from faithline.attributions.walks import Draws, broadcast, clipped, look, refuse_outside
from faithline.config import AttExploreSettings
from faithline.masking import GradientView

MODALITIES: tuple[str, ...] = ("image",)
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: AttExploreSettings) -> Tensor:
    """- sum over steps of (x_{t+1} - x_t) * mean gradient of random copies of x_t.

    A copy is x_t plus Gaussian noise, whose cosine transform is multiplied by random numbers in [1 - rho, 1 + rho]. It is seen
    resized: shrunk by a random factor of at most `resize` and put at a random place of a black (0) frame of the old size. The
    mean of the copies' gradients is smoothed, divided by its mean size and added to `momentum` times the sum so far; x_{t+1} is
    eps / steps away from x_t against the sign of that sum, so that the class falls. The smoothing chooses the way only: what is
    summed is the plain mean. Images only: columns have no frequencies, and a text's positions have no common scale with pixels.
    The map says how much the class hangs on a pixel; it is negative only where smoothing and momentum lead uphill.

    Args:
        query: The game, inputs, classes and seeds.
        settings: `eps`, `steps`, `samples` copies a step, each one forward and backward pass; `rho`; `noise` (standard deviation)
            and `eps` in the units of the input; `resize` >= 1; `smoothing`, width in pixels of a Gaussian that ends at three
            standard deviations, 1 for none; `momentum`; `clip`; `output` that is differentiated.

    Returns:
        Maps (B, H, W), float32: higher = the class hangs more on the pixel.

    Raises:
        ValueError: If inputs lie outside of `clip`.

    Source:
        AttExplore, ICLR 2024; the ranges of `resize` and the shape of the smoothing are ours.
    """
    game, draws = query.game, Draws(query.seeds)
    point = game.gradient_view(query.x.clone(), "logit").inputs
    refuse_outside(point, settings.clip)
    height, width = point.shape[2:]
    kernels = _smoothing(height, settings.smoothing).to(point), _smoothing(width, settings.smoothing).to(point)
    total, momentum = torch.zeros_like(point), torch.zeros_like(point)
    for _ in range(settings.steps):
        gradient = torch.zeros_like(point)
        for part, _copy, view, classes in repeated(query, "logit", settings.samples, game.max_batch):
            rows = part.to(point.device)
            gradient.index_add_(0, rows, _copys_gradient(view, point[rows], classes, draws, part, settings))
        gradient = gradient / settings.samples
        push = kernels[0] @ gradient @ kernels[1].mT
        size = push.abs().flatten(1).mean(1)
        momentum = settings.momentum * momentum + push / broadcast(torch.where(size == 0, 1.0, size), push)
        moved = clipped(point - settings.eps / settings.steps * momentum.sign(), settings.clip)
        total = total - (moved - point) * gradient
        point = moved
    return fold(game, query.x, total)


def _copys_gradient(
    view: GradientView, point: Tensor, classes: Tensor, draws: Draws, samples: Tensor, settings: AttExploreSettings
) -> Tensor:
    """Gradient with respect to one random copy of each row, before it is resized: (rows, C, H, W)."""
    height, width = point.shape[2:]
    shape = point.shape[1:]
    drawn = [
        (torch.randn(shape, generator=stream), torch.rand(shape, generator=stream), torch.rand(3, generator=stream))
        for stream in draws.of(samples)
    ]
    noise, uniform, places = (torch.stack(numbers) for numbers in zip(*drawn, strict=True))
    noise, weight = noise.to(point), 1 + settings.rho * (2 * uniform.to(point) - 1)
    size, top, left = places.unbind(1)
    share = 1 / settings.resize + (1 - 1 / settings.resize) * size  # of the frame
    down = frame(height, share, top).to(point)[:, None]
    across = frame(width, share, left).to(point)[:, None]
    rows, columns = cosines(height).to(point), cosines(width).to(point)
    copy = rows.mT @ (weight * (rows @ (point + settings.noise * noise) @ columns.mT)) @ columns
    # Resizing is linear, so that its transpose carries the gradient back.
    _, (gradient,) = look(view, down @ copy @ across.mT, settings.output, classes)
    return down.mT @ gradient @ across


def cosines(size: int) -> Tensor:
    """Matrix of the orthonormal cosine transform (type II), (size, size): frequencies by places."""
    return torch.from_numpy(scipy.fft.dct(np.eye(size), axis=0, norm="ortho"))


def frame(size: int, share: Tensor, place: Tensor) -> Tensor:
    """Matrices that shrink a line of pixels to a share of itself and put it somewhere in the old length, by linear interpolation.

    Args:
        size: Pixels.
        share: Of the line's length, (B,), in (0, 1].
        place: Where the free space goes: 0 puts all behind, 1 all before, (B,).

    Returns:
        (B, size, size): new pixels by old ones; rows of new pixels outside of the old line are 0.
    """
    pixels = torch.arange(size)
    seen = (pixels + 0.5 - ((1 - share) * place * size)[:, None]) / share[:, None] - 0.5
    return (1 - (seen[:, :, None] - pixels).abs()).clamp(min=0)


def _smoothing(size: int, width: int) -> Tensor:
    """Matrix that smoothes a line of pixels with a Gaussian of `width` pixels, zeros beyond the ends: (size, size)."""
    reach = width // 2
    weight = torch.exp(-((3 * torch.arange(-reach, reach + 1) / max(reach, 1)) ** 2) / 2)
    offset = torch.arange(size)[:, None] - torch.arange(size)
    return torch.where(offset.abs() <= reach, (weight / weight.sum())[offset.clamp(-reach, reach) + reach], 0.0)
