"""Images whose distribution is known: a Gaussian texture with a class glyph at a random place.

The density is a mixture of Gaussians over (class, place) with one covariance. Its score, the conditional of removed pixels given
kept ones, and the best possible classifier are known in closed form, and so is the confidence that an ideal in-distribution
removal reaches without anti-class term: the mean of `p(y | all pixels)` over the conditional is `p(y | kept pixels)`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from faithline.diffusion.guidance import Evidence, log_probabilities
from faithline.diffusion.schedule import Schedule
from faithline.diffusion.score import ScoreModel
from faithline.known_truth import known_maps, random_maps, stationary_covariance
from faithline.seeding import torch_generator
from faithline.tilting import choose, tilted_weights

GLYPHS = torch.tensor(
    [
        [[0, 1, 0], [1, 1, 1], [0, 1, 0]],
        [[1, 0, 1], [0, 1, 0], [1, 0, 1]],
        [[1, 1, 1], [1, 0, 1], [1, 1, 1]],
    ]
)
"""A plus, a cross and a ring, (3, 3, 3)."""


@dataclass(frozen=True)
class GlyphTask:
    """The distribution, in the units of a score model: pixels from -1 to 1. Components are ordered by class, then by place.

    Attributes:
        side: Side of an image in pixels.
        covariance: Of the texture, float64 (d, d) with d = side^2.
        means: Of each component: its glyph on a background of 0, float64 (K, d).
        component_class: int64 (K,).
        patch: The square in which the glyph of a component lies, bool (K, side, side).
        middle: Row and column of the middle of that square, int64 (K, 2).
    """

    side: int
    covariance: Tensor
    means: Tensor
    component_class: Tensor
    patch: Tensor
    middle: Tensor

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.component_class.max()) + 1


@dataclass(frozen=True)
class GlyphImages:
    """Images with their truth.

    Attributes:
        pixels: float32 (I, 1, side, side), in [0, 1] but for a texture many deviations from its mean.
        label: int64 (I,).
        component: Component of the mixture, int64 (I,).
        truth: The square of the glyph: the pixels that carry the class, bool (I, side, side).
    """

    pixels: Tensor
    label: Tensor
    component: Tensor
    truth: Tensor


@dataclass(frozen=True)
class ExactFill:
    """Draws from the exact conditional, tilted.

    Attributes:
        pixels: float32 (I, F, D, 1, side, side): kept pixels are bit-equal to the image's.
        confidence: Mean `p_y` of the tilted conditional, estimated from all candidates of a draw, float64 (I, F, D): less noisy
            than the confidence of the one candidate that was chosen.
        effective: Effective sample size of the candidates, float64 (I, F, D).
    """

    pixels: Tensor
    confidence: Tensor
    effective: Tensor


def glyph_task(side: int, length: float, texture: float, grain: float, contrast: float, glyphs: Tensor = GLYPHS) -> GlyphTask:
    """Set up the task.

    Args:
        side: Side of an image in pixels.
        length: Correlation length of the texture in pixels.
        texture: Standard deviation of the texture.
        grain: Standard deviation of independent noise on it. Without it a glyph, which is rough, would stand out of any smooth
            texture whatever its contrast.
        contrast: Brightness of a glyph. All in units of pixels from -1 to 1.
        glyphs: One pattern a class, (classes, g, g).

    Raises:
        ValueError: If there are fewer than two classes, a glyph does not fit into the image or a size is not positive.
    """
    size = glyphs.shape[-1]
    if len(glyphs) < 2 or glyphs.shape[1] != size or side < 3 * size - 1:
        # Smaller, and a glyph in the middle would leave no room for a wrong place.
        raise ValueError(f"glyphs {tuple(glyphs.shape)}: two or more squares expected, of at most a third of {side} + 1")
    if min(texture, grain, contrast) <= 0:
        raise ValueError(f"texture {texture}, grain {grain} and contrast {contrast} must be positive")
    covariance = texture**2 * stationary_covariance(side, length) + grain**2 * torch.eye(side**2, dtype=torch.float64)
    room = side - size + 1
    corner = torch.cartesian_prod(torch.arange(room), torch.arange(room))
    means = torch.zeros(len(glyphs), len(corner), side, side, dtype=torch.float64)
    patch = torch.zeros(len(glyphs), len(corner), side, side, dtype=torch.bool)
    for i, (row, column) in enumerate(corner.tolist()):
        means[:, i, row : row + size, column : column + size] = contrast * glyphs.double()
        patch[:, i, row : row + size, column : column + size] = True
    return GlyphTask(
        side,
        covariance,
        means.reshape(-1, side**2),
        torch.arange(len(glyphs)).repeat_interleave(len(corner)),
        patch.flatten(0, 1),
        corner.repeat(len(glyphs), 1) + size // 2,
    )


def sample_glyphs(task: GlyphTask, image_ids: Sequence[int], seed: int) -> GlyphImages:
    """Draw one image an id; an id and the seed name its random numbers."""
    root = torch.linalg.cholesky(task.covariance)
    draws = [torch_generator(seed, "glyph image", i) for i in image_ids]
    component = torch.cat([torch.randint(len(task.means), (1,), generator=draw) for draw in draws])
    noise = torch.stack([torch.randn(task.side**2, generator=draw, dtype=torch.float64) for draw in draws])
    pixels = (task.means[component] + noise @ root.T + 1) / 2
    shape = (len(draws), 1, task.side, task.side)
    return GlyphImages(pixels.float().reshape(shape), task.component_class[component], component, task.patch[component])


def glyph_maps(task: GlyphTask, images: GlyphImages, image_ids: Sequence[int], seed: int) -> dict[str, Tensor]:
    """The four maps of `known_maps` for each image, float32 (I, side, side).

    The wrong place is a random one of those whose square has no pixel in common with the glyph's.

    Args:
        task: The distribution.
        images: Images of it.
        image_ids: Their ids (I), which name their random numbers.
        seed: Root seed.
    """
    size = int(task.patch[0].any(1).sum())
    apart = (task.middle[images.component][:, None] - task.middle).abs().max(2).values >= size
    draws = [torch_generator(seed, "wrong place", i) for i in image_ids]
    wrong = [torch.multinomial(row.double(), 1, generator=draw) for row, draw in zip(apart, draws, strict=True)]
    return known_maps(images.truth, task.middle[torch.cat(wrong)], random_maps(image_ids, task.side, seed))


def bayes_logits(task: GlyphTask, pixels: Tensor) -> Tensor:
    """Logits of the best possible classifier: log density of each class over that of the bare texture.

    Args:
        task: The distribution.
        pixels: Images in [0, 1], (B, 1, side, side).

    Returns:
        float32 (B, classes), differentiable; their softmax is the posterior of the classes, which are equally frequent.
    """
    ratio = _log_ratios(task.means, task.covariance, 2 * pixels.flatten(1).double() - 1)
    return ratio.reshape(len(pixels), task.classes, -1).logsumexp(2).float()


def bayes_evidence(task: GlyphTask) -> Evidence:
    """The best classifier for the anti-class term of the sampler: pixels from -1 to 1."""
    return lambda x, target: log_probabilities(bayes_logits(task, (x + 1) / 2), target)


def kept_posterior(task: GlyphTask, pixels: Tensor, keep: Tensor) -> Tensor:
    """Probability of each class given the kept pixels alone, exact, float64 (I, F, classes).

    It is the mean of the best classifier's confidence over the exact conditional of the removed pixels.

    Args:
        task: The distribution.
        pixels: Images in [0, 1], (I, 1, side, side).
        keep: bool (I, F, 1, side, side).
    """
    x = 2 * pixels.flatten(1).double() - 1
    rows = []
    for own, masks in zip(x, keep.flatten(2), strict=True):
        for kept in masks:
            ratio = _log_ratios(task.means[:, kept], task.covariance[kept][:, kept], own[None, kept])
            rows.append(ratio[0].softmax(0).reshape(task.classes, -1).sum(1))
    return torch.stack(rows).reshape(*keep.shape[:2], -1)


def exact_fill(
    task: GlyphTask,
    pixels: Tensor,
    image_ids: Sequence[int],
    keep: Tensor,
    targets: Tensor,
    *,
    draws: int,
    scale: float,
    candidates: int,
    seed: int,
) -> ExactFill:
    """Regenerate removed pixels from the exact conditional, tilted by `p_y^-s`.

    Each draw has candidates from the conditional: a component by its posterior given the kept pixels, then the texture given
    them; one candidate is chosen with weight `p^-s`. As candidates grow this is the tilted conditional; with few, or where
    `effective` is small, it is less tilted. An image id and a draw name all random numbers, whatever mask or batch.

    Args:
        task: The distribution.
        pixels: Images in [0, 1], float32 (I, 1, side, side).
        image_ids: Their ids (I).
        keep: Kept pixels, bool (I, F, 1, side, side).
        targets: Class whose evidence is removed, int64 (I,).
        draws: Draws D of each image and level.
        scale: Strength s of the tilt.
        candidates: Candidates M of each draw.
        seed: Root seed.

    Raises:
        ValueError: If shapes disagree, or there is nothing to choose from although a tilt is asked for.
    """
    if keep.dtype != torch.bool or keep.shape != (len(pixels), keep.shape[1], *pixels.shape[1:]):
        raise ValueError(
            f"keep is {keep.dtype} {tuple(keep.shape)}: bool (I, F, 1, side, side) expected for {tuple(pixels.shape)}"
        )
    if draws < 1 or candidates < 1 or (scale != 0 and candidates == 1):
        raise ValueError(f"{draws} draws of {candidates} candidates: at least 1 each, and 2 candidates for a tilt of {scale}")
    root = torch.linalg.cholesky(task.covariance)
    count, levels = keep.shape[:2]
    filled = torch.empty(count, levels, draws, *pixels.shape[1:])
    confidence, effective = torch.empty(2, count, levels, draws, dtype=torch.float64)
    for i, (image_id, target) in enumerate(zip(image_ids, targets.tolist(), strict=True)):
        own = [torch_generator(seed, "exact fill", image_id, draw) for draw in range(draws)]
        texture = torch.cat([torch.randn(candidates, len(root), generator=g, dtype=torch.float64) for g in own]) @ root.T
        share = torch.cat([torch.rand(candidates, generator=g, dtype=torch.float64) for g in own])
        pick = torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in own])
        clean = 2 * pixels[i].flatten().double() - 1
        for level in range(levels):
            kept = keep[i, level].flatten()
            found = (_conditional(task, clean, kept, texture, share) + 1) / 2
            images = torch.where(kept, pixels[i].flatten(), found.float()).reshape(draws, candidates, *pixels.shape[1:])
            log_p = bayes_logits(task, images.flatten(0, 1)).log_softmax(1)[:, target].reshape(draws, candidates)
            weights, effective[i, level] = tilted_weights(log_p, scale)
            confidence[i, level] = (weights * log_p.double().exp()).sum(1)
            filled[i, level] = images[torch.arange(draws), choose(weights, pick)]
    return ExactFill(filled, confidence, effective)


def glyph_score(task: GlyphTask, schedule: Schedule) -> ScoreModel:
    """The exact score model of the task: what `MixtureScore` computes, for one shared covariance and many components.

    In the axes of the covariance all is elementwise but two products with the means, which do not grow with d^2 K.
    """
    values, axes = torch.linalg.eigh(task.covariance)
    means = task.means @ axes

    def epsilon(x: Tensor, t: Tensor) -> Tensor:
        kept = schedule.abar[t][:, None]
        along = x.flatten(1).double() @ axes
        variance = kept * values + (1 - kept)
        scaled = means.square() @ (kept / variance).T
        log_weights = kept.sqrt() * ((along / variance) @ means.T) - scaled.T / 2
        centred = along - kept.sqrt() * (log_weights.softmax(1) @ means)
        return ((1 - kept).sqrt() * (centred / variance) @ axes.T).to(x).reshape(x.shape)

    return epsilon


def _log_ratios(means: Tensor, covariance: Tensor, x: Tensor) -> Tensor:
    """Log density of each component over that of mean 0: means (K, k), covariance (k, k), x (B, k) -> (B, K)."""
    if not means.shape[1]:
        return x.new_zeros(len(x), len(means))
    whitened = torch.cholesky_solve(means.T, torch.linalg.cholesky(covariance))
    return x @ whitened - (means.T * whitened).sum(0) / 2


def _conditional(task: GlyphTask, clean: Tensor, kept: Tensor, texture: Tensor, share: Tensor) -> Tensor:
    """Draws of whole images given the kept pixels of one, (Q, d): textures without condition (Q, d), shares in [0, 1) (Q,)."""
    ratio = _log_ratios(task.means[:, kept], task.covariance[kept][:, kept], clean[None, kept])
    component = choose(ratio[0].softmax(0).expand(len(share), -1), share)
    free = task.means[component] + texture
    if not kept.any():
        return free
    # A draw without condition, moved by what its kept pixels are off, is a draw from the conditional.
    factor = torch.linalg.cholesky(task.covariance[kept][:, kept])
    off = torch.cholesky_solve((clean - free)[:, kept].T, factor)
    return free + (task.covariance[:, kept] @ off).T
