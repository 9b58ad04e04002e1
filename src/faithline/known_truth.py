"""Known truth: which pixels a class depends on, maps that are right and wrong about it, and a field whose curves are exact.

The field is Gaussian and its logit linear, so that the logit given any kept pixels is Gaussian, and the confidence that an ideal
in-distribution removal reaches is an integral in one dimension. No sampler can rank maps better than these numbers do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from faithline.diffusion.removal import nested_keep
from faithline.seeding import torch_generator

SIDE = 12
CENTRE, WRONG_CENTRE = (3, 3), (9, 9)
"""Middle of the 3 x 3 patch that the logit reads, and of the blob that is wrong: row and column."""
LOGIT_STD, LEAST_LOGIT = 4.0, 1.0
NUGGET = 1e-4
FRACTIONS = tuple(i / 10 for i in range(1, 10))

_NODES, _TAIL = 129, 8.0
_CHUNK = 1024  # integrals computed at once: they fit in the cache


@dataclass(frozen=True)
class Cell:
    """One number of the table of the field.

    Attributes:
        ordering: Name of the map, see `known_maps`.
        length: Correlation length of the field, pixels.
        scale: Strength s of the anti-class term.
        score: Mean confidence over fields and kept fractions.
        error: Standard error of the score over fields.
    """

    ordering: str
    length: float
    scale: float
    score: float
    error: float


@dataclass(frozen=True)
class Field:
    """A Gaussian field of `SIDE` x `SIDE` pixels with a linear logit.

    Attributes:
        covariance: float64 (SIDE^2, SIDE^2); the mean is 0.
        weights: The logit is their product with the pixels, float64 (SIDE^2,).
        patch: Pixels that the logit reads, bool (SIDE, SIDE).
    """

    covariance: Tensor
    weights: Tensor
    patch: Tensor

    def logits(self, pixels: Tensor) -> Tensor:
        """Logits (B, 2) of fields (B, ...): 0 and the linear logit; the class explained is 1. Differentiable."""
        logit = (pixels.flatten(1).double() @ self.weights).to(pixels)
        return torch.stack([torch.zeros_like(logit), logit], 1)


def stationary_covariance(side: int, length: float) -> Tensor:
    """`exp(-d^2 / (2 length^2))` between the pixels of a square image at distance d, float64 (side^2, side^2).

    Raises:
        ValueError: If the length is not positive.
    """
    if not 0 < length < math.inf:
        raise ValueError(f"length is {length}: a positive correlation length expected")
    at = _pixels(side)
    return torch.exp(-torch.cdist(at, at).square() / (2 * length**2))


def gaussian_field(length: float) -> Field:
    """The field of the spec: covariance `exp(-d^2 / (2 length^2)) + 1e-4 I`, a logit of standard deviation 4."""
    covariance = stationary_covariance(SIDE, length) + NUGGET * torch.eye(SIDE**2, dtype=torch.float64)
    patch = (_pixels(SIDE) - _pixels(SIDE).new_tensor(CENTRE)).abs().max(1).values <= 1
    weights = patch.double()
    weights *= LOGIT_STD / (weights @ covariance @ weights).sqrt()
    return Field(covariance, weights, patch.reshape(SIDE, SIDE))


def sample_fields(field: Field, count: int, seed: int) -> Tensor:
    """Fields whose logit is above `LEAST_LOGIT`, float64 (count, SIDE^2).

    The logit is drawn from its truncated normal, and a field without condition is moved to it along their covariance: given its
    logit, that is a field of the distribution.
    """
    draw = torch_generator(seed, "field")
    root = torch.linalg.cholesky(field.covariance)
    free = torch.randn(count, len(root), generator=draw, dtype=torch.float64) @ root.T
    floor = torch.special.ndtr(torch.tensor(LEAST_LOGIT / LOGIT_STD, dtype=torch.float64))
    share = floor + (1 - floor) * torch.rand(count, generator=draw, dtype=torch.float64)
    logit = LOGIT_STD * torch.special.ndtri(share)
    along = field.covariance @ field.weights / LOGIT_STD**2
    return free + (logit - free @ field.weights)[:, None] * along


def random_maps(image_ids: Sequence[int], side: int, seed: int) -> Tensor:
    """A map of independent random numbers for each image, float32 (I, side, side); an id and the seed name its numbers."""
    return torch.stack([torch.rand(side, side, generator=torch_generator(seed, "random map", i)) for i in image_ids])


def known_maps(patch: Tensor, wrong_centre: Tensor, noise: Tensor) -> dict[str, Tensor]:
    """Maps that are right and wrong about where the truth is.

    Args:
        patch: The pixels on which the class depends, bool (I, side, side).
        wrong_centre: Row and column of a place that has nothing to do with it, (I, 2).
        noise: Numbers in [0, 1) from `random_maps`, (I, side, side). They also order pixels at the same distance.

    Returns:
        float32 (I, side, side) each, higher = more important. `truth` and `wrong_blob`: nearest to the middle of the patch, or to
        the wrong place, first. `random`: in the order of the noise. `truth_last`: the patch is removed before all else, the rest
        in the order of the noise.
    """
    at = _pixels(patch.shape[-1])
    inside = patch.flatten(1).double()
    centre = inside @ at / inside.sum(1, keepdim=True)
    ties = noise.flatten(1) / 100  # distances that differ do so by more
    maps = {
        "truth": ties - torch.cdist(centre, at),
        "random": noise,
        "wrong_blob": ties - torch.cdist(wrong_centre.double(), at),
        "truth_last": noise - patch.float(),
    }
    return {name: values.float().reshape(patch.shape) for name, values in maps.items()}


def field_maps(field: Field, noise: Tensor) -> dict[str, Tensor]:
    """The four maps of `known_maps` for fields of `sample_fields`, as many as the noise has maps."""
    count = len(noise)
    return known_maps(field.patch.expand(count, -1, -1), torch.tensor([WRONG_CENTRE]).expand(count, 2), noise)


def logit_moments(field: Field, fields: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the logit given the kept pixels, exact, float64 (I, F) each.

    Args:
        field: The distribution.
        fields: Fields, (I, SIDE^2).
        keep: Kept pixels, nested in the level, at least one at each, bool (I, F, SIDE^2).

    Raises:
        ValueError: If the masks of a field are not nested.
    """
    counts = keep.sum(2)
    order = keep.sum(1).argsort(dim=1, descending=True, stable=True)
    if not torch.equal(order.argsort(1)[:, None] < counts[:, :, None], keep):
        raise ValueError("keep: the masks of an image are not nested")
    across = field.covariance @ field.weights
    explained, variance = torch.empty(2, len(fields), len(across), dtype=torch.float64)
    orders, which = order.unique(dim=0, return_inverse=True)
    for i, row in enumerate(orders):
        # With pixels in the order in which they are kept, the leading blocks of one Cholesky factor are the factors of the
        # covariances of all levels.
        own = which == i
        factor = torch.linalg.cholesky(field.covariance[row][:, row])
        both = torch.cat([across[None], fields[own].double()])[:, row].T
        solved = torch.linalg.solve_triangular(factor, both, upper=False)
        explained[own] = (solved[:, :1] * solved[:, 1:]).cumsum(0).T
        variance[own] = LOGIT_STD**2 - solved[:, 0].square().cumsum(0)
    return explained.gather(1, counts - 1), variance.gather(1, counts - 1).clamp(min=0)


def tilted_confidence(mean: Tensor, variance: Tensor, scale: float) -> Tensor:
    """Mean of `p = sigmoid(l)` where l has density proportional to `N(l; mean, variance) p^-s`, by quadrature.

    The trapezoid rule on an even grid converges faster than any power for such integrands. `p^-s` grows at most like `exp(-s l)`,
    which moves the mass down by at most `s * variance`: the grid reaches that far.

    Args:
        mean: float64, any shape.
        variance: Of the same shape.
        scale: Strength s, at least 0.

    Raises:
        ValueError: If the scale is negative.
    """
    if scale < 0:
        raise ValueError(f"scale is {scale}: at least 0 expected")
    found = []
    for middle, std in zip(mean.flatten().split(_CHUNK), variance.sqrt().flatten().split(_CHUNK), strict=True):
        low = -_TAIL - scale * std[:, None]
        nodes = low + (_TAIL - low) * torch.linspace(0, 1, _NODES, dtype=torch.float64)
        log_p = functional.logsigmoid(middle[:, None] + std[:, None] * nodes)
        found.append(((-nodes.square() / 2 - scale * log_p).softmax(1) * log_p.exp()).sum(1))
    return torch.cat(found).reshape(mean.shape)


def exact_table(lengths: Sequence[float], scales: Sequence[float], count: int, seed: int, order_seed: int | None) -> list[Cell]:
    """Scores of the four maps under an ideal removal, for each correlation length and strength of the anti-class term.

    Args:
        lengths: Correlation lengths, pixels.
        scales: Strengths s.
        count: Fields of each length.
        seed: Root seed.
        order_seed: Seed of the one random order that serves all fields; None for an order of its own for each. With one order the
            scores of `random` and `truth_last` are those of that order, and `error` does not say how much they depend on it.

    Source:
        FUD spec, section 7.2.
    """
    cells = []
    ids = tuple(range(count))
    noise = random_maps(ids, SIDE, seed) if order_seed is None else random_maps([0], SIDE, order_seed).expand(count, -1, -1)
    for length in lengths:
        field = gaussian_field(length)
        fields = sample_fields(field, count, seed)
        for name, maps in field_maps(field, noise).items():
            keep = nested_keep(maps, ids, (SIDE, SIDE), FRACTIONS, "pixel", "sum", seed=seed).flatten(2)
            mean, variance = logit_moments(field, fields, keep)
            for scale in scales:
                scores = tilted_confidence(mean, variance, scale).mean(1)
                cells.append(Cell(name, length, scale, float(scores.mean()), float(scores.std()) / count**0.5))
    return cells


def _pixels(side: int) -> Tensor:
    """Row and column of each pixel, float64 (side^2, 2)."""
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.stack([row.flatten(), column.flatten()], 1).double()
