"""Faithfulness under the distribution: keep the most important features, regenerate the rest, watch the confidence fall.

The least important features go first. At the same kept fraction, a better attribution keeps the confidence higher: the score of a
map is the mean confidence over the kept fractions, and says nothing without that of a random order beside it.

Source:
    Zhu et al., Faithfulness Under the Distribution: A New Look at Attribution Evaluation, ICLR 2026.
"""

from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from faithline.diffusion.guidance import Evidence
from faithline.diffusion.presets import Preset
from faithline.diffusion.sampler import Items, Reconstructions, Watch, reconstruct
from faithline.diffusion.schedule import Schedule
from faithline.diffusion.score import ScoreModel
from faithline.seeding import torch_generator


@dataclass(frozen=True)
class Scene:
    """Images whose features are removed, and what removing them takes.

    Attributes:
        pixels: Clean images on the score model's grid, in [0, 1], float32 (I, C, S, S).
        image_ids: Their ids; they name the noise, so that candidates, levels and runs share it.
        targets: Class whose evidence is removed and whose confidence is recorded, int64 (I,).
        model: The score model.
        schedule: Its noise levels.
        evidence: The classifier as the anti-class term sees it; None if no sampler has one.
        seed: Root seed.
        max_batch: Images in the score model at once.
    """

    pixels: Tensor
    image_ids: tuple[int, ...]
    targets: Tensor
    model: ScoreModel
    schedule: Schedule
    evidence: Evidence | None
    seed: int
    max_batch: int

    def __post_init__(self) -> None:
        """Refuse what is no set of images in [0, 1].

        Raises:
            ValueError: If pixels lie outside [0, 1] or are not finite.
        """
        if not bool(((self.pixels >= 0) & (self.pixels <= 1)).all()):
            low, high = float(self.pixels.min()), float(self.pixels.max())
            raise ValueError(f"images have values from {low:.3g} to {high:.3g}: pixels in [0, 1] expected")


@dataclass(frozen=True)
class Regenerated:
    """Images whose removed features are regenerated.

    Attributes:
        pixels: In [0, 1], float32 (I, F, R, C, S, S) for F masks and R draws; kept pixels of a hard mask are those of the image,
            bit by bit.
        calls: Of the score model, (I, F, R).
        gradients: Of the classifier, (I, F, R).
        dose: See `sampler.Reconstructions`, (I, F, R).
        gradient_norm: The same.
    """

    pixels: Tensor
    calls: Tensor
    gradients: Tensor
    dose: Tensor
    gradient_norm: Tensor


def regenerate(scene: Scene, keep: Tensor, preset: Preset, draws: int, watch: Watch | None = None) -> Regenerated:
    """Regenerate what F masks an image remove, R times each.

    Args:
        scene: The images.
        keep: Features that stay, bool (I, F, 1 or C, S, S).
        preset: How to sample.
        draws: Number R of draws.
        watch: Sees the chain; its rows are positions in (image, mask, draw) order.

    Raises:
        ValueError: See `sampler.reconstruct`.
    """
    images, masks = keep.shape[:2]
    rows = torch.arange(images).repeat_interleave(masks * draws)
    spread = keep[:, :, None].expand(-1, -1, draws, -1, -1, -1).flatten(0, 2)
    items = Items(
        images=2 * scene.pixels - 1,
        image_ids=scene.image_ids,
        targets=scene.targets,
        rows=rows.to(scene.pixels.device),
        draws=torch.arange(draws).repeat(images * masks).to(scene.pixels.device),
        keep=spread,
    )
    made: Reconstructions = reconstruct(
        scene.model, scene.schedule, preset, items, scene.evidence, seed=scene.seed, max_batch=scene.max_batch, watch=watch
    )
    pixels = ((made.images + 1) / 2).clamp(0, 1)
    if preset.hard:  # the way to [-1, 1] and back rounds
        pixels = torch.where(spread, scene.pixels[items.rows], pixels)
    shape = (images, masks, draws)
    return Regenerated(
        pixels.reshape(*shape, *pixels.shape[1:]),
        *(value.cpu().reshape(shape) for value in (made.calls, made.gradients, made.dose, made.gradient_norm)),
    )


def confidence(logits: Tensor, target: Tensor) -> Tensor:
    """Softmax probability of each row's class: logits (N, classes), target (N,) -> (N,)."""
    return logits.float().softmax(1).gather(1, target[:, None])[:, 0]


def score(confidences: Tensor) -> Tensor:
    """Mean confidence over levels and draws of each image, higher = more faithful: (I, F, R) -> (I,)."""
    return confidences.flatten(1).mean(1)


def area(confidences: Tensor, levels: list[float], empty: Tensor, full: Tensor) -> Tensor:
    """Area under confidence against kept fraction, both end points included: (I,).

    Args:
        confidences: Mean over draws, (I, F).
        levels: Kept fraction of each column.
        empty: Confidence with nothing kept, (I,).
        full: Confidence of the clean image, (I,).
    """
    order = torch.tensor(levels).argsort()
    x = torch.tensor([0.0, *sorted(levels), 1.0], dtype=confidences.dtype)
    return torch.trapezoid(torch.cat([empty[:, None], confidences[:, order], full[:, None]], 1), x, dim=1)


def smoothness(confidences: Tensor, levels: list[float]) -> Tensor:
    """Kendall's tau-b of kept fraction and confidence of each image, (I, F) -> (I,): 1 if confidence falls with every removal.

    NaN where the confidence is constant.
    """
    taus = [stats.kendalltau(levels, row).statistic for row in confidences.double().tolist()]
    return torch.tensor(taus, dtype=torch.float64)


def rises(confidences: Tensor, levels: list[float], full: Tensor) -> Tensor:
    """Share of removals after which the confidence is higher than before, of each image; from the clean image on: (I,)."""
    order = torch.tensor(levels).argsort(descending=True)
    curve = torch.cat([full[:, None], confidences[:, order]], 1)
    return (curve.diff(dim=1) > 0).to(confidences.dtype).mean(1)


# ---------------------------------------------------------------------------------------------------------------- controls


def matched_random(maps: Tensor, image_ids: tuple[int, ...], seed: int) -> Tensor:
    """Random maps as smooth as given ones: the same power spectrum, hence the same (cyclic) autocorrelation, random phases.

    Args:
        maps: (I, h, w) or (I, C, h, w).
        image_ids: They seed the phases, so that maps of two candidates of one image get the same ones.
        seed: Root seed.

    Source:
        Theiler et al., 1992, surrogate data by phase randomisation.
    """
    side = tuple(maps.shape[-2:])
    found = []
    for own, image_id in zip(maps.float(), image_ids, strict=True):  # one by one: an FFT of many rounds otherwise than of one
        phase = torch.fft.rfft2(torch.randn(side, generator=torch_generator(seed, "matched random", image_id)))
        phase = phase / phase.abs().clamp_min(torch.finfo(torch.float32).tiny)
        found.append(torch.fft.irfft2(torch.fft.rfft2(own).abs() * phase, s=side))
    return torch.stack(found)
