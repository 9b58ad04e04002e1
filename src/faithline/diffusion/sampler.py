"""Regenerate what masks remove: one stream of (image, mask, draw) through a score model, in batches of one fixed size."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from faithline.diffusion.guidance import Evidence, anti_class_score
from faithline.diffusion.noise import ItemNoise
from faithline.diffusion.plan import Cost, Step, cost, langevin_size, plan
from faithline.diffusion.presets import Preset, Variance
from faithline.diffusion.schedule import DATA, Schedule
from faithline.diffusion.score import ScoreModel

_LEAST_VARIANCE = 1e-20
"""Floor of the posterior variance, which is 0 in the last step: a learned variance is a mean of logarithms."""


@dataclass(frozen=True)
class Items:
    """What is to be regenerated: N pairs of an image and a mask.

    Attributes:
        images: Clean images in the units of the score model, float32 (I, ...).
        image_ids: Their ids, I of them: they name the noise.
        targets: Class whose evidence is removed, of each image, int64 (I,).
        rows: Image of each item, int64 (N,).
        draws: Number of each item's draw, int64 (N,). Items of one image and draw share their noise, whatever the mask.
        keep: Features that stay, bool (N, ...), of the shape of an image or with dimensions of size 1.
    """

    images: Tensor
    image_ids: tuple[int, ...]
    targets: Tensor
    rows: Tensor
    draws: Tensor
    keep: Tensor

    def __post_init__(self) -> None:
        """Refuse what does not fit together.

        Raises:
            ValueError: If types, lengths or shapes disagree, ids repeat or a pixel is not finite.
        """
        if self.images.dtype != torch.float32 or self.keep.dtype != torch.bool:
            raise ValueError(f"images are float32 and keep is bool, not {self.images.dtype} and {self.keep.dtype}")
        if not len(self.images) == len(self.image_ids) == len(set(self.image_ids)) == len(self.targets):
            raise ValueError(
                f"{len(self.images)} images, {len(set(self.image_ids))} different ids, {len(self.targets)} targets: they differ"
            )
        if not len(self.rows) == len(self.draws) == len(self.keep):
            raise ValueError(f"{len(self.rows)} rows, {len(self.draws)} draws, {len(self.keep)} masks: one an item expected")
        sizes = tuple(zip(self.keep.shape[1:], self.images.shape[1:], strict=False))
        if self.keep.ndim != self.images.ndim or any(size not in (1, full) for size, full in sizes):
            raise ValueError(f"masks {tuple(self.keep.shape[1:])} do not fit images {tuple(self.images.shape[1:])}")
        if len(self.rows) and not 0 <= int(self.rows.min()) <= int(self.rows.max()) < len(self.images):
            raise ValueError(f"rows name an image outside 0 to {len(self.images) - 1}")
        if not self.images.isfinite().all():
            raise ValueError("an image has a pixel that is not finite")


@dataclass(frozen=True)
class Reconstructions:
    """What came out, in the order of the items.

    Attributes:
        images: Float32 (N, ...); kept features are bit-equal to the clean image unless the preset is soft.
        calls: Evaluations of the score model, int64 (N,); 0 where a hard mask keeps everything.
        gradients: Gradients of the classifier, int64 (N,).
        dose: Scale of the anti-class term times the variances it was multiplied with, summed over the steps in which it acted and
            averaged over removed features, float32 (N,): comparable between windows and presets.
        gradient_norm: L2 norm of the term's score over removed features, mean over those steps, float32 (N,); 0 without any.
    """

    images: Tensor
    calls: Tensor
    gradients: Tensor
    dose: Tensor
    gradient_norm: Tensor


def denoising_moments(
    output: Tensor, x: Tensor, t: int, after: int, schedule: Schedule, variance: Variance, clip: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of one ancestral step, and the clean image it aims at.

    Args:
        output: What the score model returned for x at t: epsilon, with the variance behind it or without.
        x: Samples at t, (B, C, ...).
        t: Time step of x.
        after: Time step to go to; `DATA` for none.
        schedule: The noise levels.
        variance: How the variance is set.
        clip: Bound of the predicted clean image.

    Returns:
        Mean and clean image, (B, C, ...); the variance is of their shape if it is learned, else a single number.

    Raises:
        ValueError: If a learned variance is asked of an output without one.

    Source:
        Ho et al., 2020, eq. 7; Nichol and Dhariwal, 2021, eq. 15 for the learned variance.
    """
    channels = x.shape[1]
    if variance == "learned_range" and output.shape[1] != 2 * channels:
        raise ValueError(
            f"variance learned_range: the score model returns {output.shape[1]} channels for {channels}, {2 * channels} expected"
        )
    kept, kept_after = schedule.kept(t), schedule.kept(after)
    beta = 1 - kept / kept_after
    clean = _clean(output[:, :channels], x, kept, clip)
    mean = (kept_after**0.5 * beta * clean + (1 - beta) ** 0.5 * (1 - kept_after) * x) / (1 - kept)
    least = x.new_tensor(max((1 - kept_after) / (1 - kept) * beta, _LEAST_VARIANCE))
    most = x.new_tensor(beta)
    if variance == "learned_range":
        share = (output[:, channels:] + 1) / 2
        return mean, (share * most.log() + (1 - share) * least.log()).exp(), clean
    return mean, least if variance == "fixed_small" else most, clean


Watch = Callable[[Tensor, int, Tensor, Tensor], None]
"""`watch(rows, t, x_t, clean)`: called before each denoising step with the items of a batch (some repeated as padding), their
samples in the scaling of the schedule, and the clean images that the score model predicts from them."""


def reconstruct(
    model: ScoreModel,
    schedule: Schedule,
    preset: Preset,
    items: Items,
    evidence: Evidence | None,
    *,
    seed: int,
    max_batch: int,
    watch: Watch | None = None,
) -> Reconstructions:
    """Regenerate the removed features of every item.

    Every batch that reaches the score model has exactly `max_batch` rows (the last is padded), and every item has its own noise:
    what comes out does not depend on batch mates or order.

    Args:
        model: The score model.
        schedule: Its noise levels.
        preset: How to sample.
        items: Images and masks.
        evidence: The classifier, for the anti-class term; may be None if `preset.scale` is 0.
        seed: Root seed of all noise.
        max_batch: Rows of a batch: the one knob that bounds memory.
        watch: Sees the chain on its way.

    Raises:
        ValueError: If preset, schedule, model and evidence do not fit together, or the sampler diverged.
    """
    steps = plan(preset, schedule)
    planned = cost(steps)
    if planned.gradients and evidence is None:
        raise ValueError(f"sampler preset: the anti-class term has scale {preset.scale}, and there is no classifier for it")
    if max_batch < 1:
        raise ValueError(f"max_batch is {max_batch}, at least 1 expected")
    images = items.images[items.rows].clone()
    calls, gradients = torch.zeros(len(images), dtype=torch.int64), torch.zeros(len(images), dtype=torch.int64)
    dose, norm = torch.zeros(len(images)), torch.zeros(len(images))
    # A hard mask that keeps everything leaves nothing to do.
    whole = items.keep.flatten(1).all(1) if preset.hard else torch.zeros(len(images), dtype=torch.bool)
    todo = (~whole).nonzero()[:, 0].cpu()
    for rows in todo.split(max_batch) if len(todo) else ():
        padded = torch.cat([rows, rows[:1].expand(max_batch - len(rows))])
        run = _Run(model, schedule, preset, items, evidence, padded, seed, watch)
        for step in steps:
            run.take(step)
        if run.spent != planned:
            raise AssertionError(f"{run.spent} was spent, {planned} was planned")
        images[rows] = run.finish()[: len(rows)]
        calls[rows], gradients[rows] = run.spent.calls, run.spent.gradients
        dose[rows] = run.dose[: len(rows)].cpu()
        norm[rows] = run.norm[: len(rows)].cpu() / max(1, run.spent.gradients)
    return Reconstructions(images, calls, gradients, dose, norm)


def _clean(epsilon: Tensor, x: Tensor, kept: float, clip: float | None) -> Tensor:
    clean = (x - (1 - kept) ** 0.5 * epsilon) / kept**0.5
    return clean if clip is None else clean.clamp(-clip, clip)


class _Run:
    """One batch on its way through the steps.

    Kept features are set at the start of every step, at the noise level of that step, and once more at the end.
    """

    def __init__(
        self,
        model: ScoreModel,
        schedule: Schedule,
        preset: Preset,
        items: Items,
        evidence: Evidence | None,
        rows: Tensor,
        seed: int,
        watch: Watch | None,
    ) -> None:
        self._rows, self._watch = rows, watch
        images = items.rows[rows]
        self._model, self._schedule, self._preset, self._evidence = model, schedule, preset, evidence
        self._known = items.images[images]
        self._targets = items.targets[images]
        self._keep = items.keep[rows].expand(self._known.shape)
        ids = [items.image_ids[i] for i in images.tolist()]
        self._noise = ItemNoise(seed, ids, items.draws[rows].tolist(), self._known.shape[1:], self._known.device)
        self._x = torch.where(self._keep, self._known, self._noise.next())
        self._level: int | None = None  # noise level of x in the scaling of the schedule; None: x is in units of the data
        self._removed = (~self._keep).flatten(1).sum(1).clamp(min=1)
        self.spent = Cost(0, 0)
        self.dose = torch.zeros(len(rows), device=self._known.device)
        self.norm = torch.zeros(len(rows), device=self._known.device)

    @torch.no_grad()
    def take(self, step: Step) -> None:
        """Take one step."""
        if step.kind == "denoise":
            self._denoise(step)
        elif step.kind == "renoise":
            self._renoise(step)
        else:
            self._langevin(step)

    def finish(self) -> Tensor:
        """The batch as it came out, in units of the data."""
        if not self._x.isfinite().all():
            raise ValueError("sampler preset: the sampler diverged; its steps are too large for this score model")
        clip = self._preset.clip
        x = self._x if clip is None else self._x.clamp(-clip, clip)
        return torch.where(self._keep, self._known, x) if self._preset.hard else x

    def _denoise(self, step: Step) -> None:
        preset, kept = self._preset, self._schedule.kept(step.t)
        if preset.kept == "noised":
            known = kept**0.5 * self._known + (1 - kept) ** 0.5 * self._noise.next()
            self._x = torch.where(self._keep, known, self._x)
        elif preset.kept == "clean":
            self._x = torch.where(self._keep, self._known, self._x)
        output = self._call(self._x, step.t)
        mean, variance, clean = denoising_moments(
            output, self._x, step.t, step.after, self._schedule, preset.variance, preset.clip
        )
        if self._watch is not None:
            self._watch(self._rows, step.t, self._x, clean)
        if step.guided:
            at, chain = (self._x, 1.0) if preset.at == "x_t" else (clean, kept**-0.5)
            mean = mean + self._push(at, chain, variance.expand_as(mean))
        if preset.kept == "soft":
            mean = mean + self._keep * preset.soft_step * (self._known - self._x)
        self._x = mean if step.after == DATA else mean + variance.sqrt() * self._noise.next()
        self._level = step.after

    def _renoise(self, step: Step) -> None:
        share = self._schedule.kept(step.after) / self._schedule.kept(step.t)
        self._x = share**0.5 * self._x + (1 - share) ** 0.5 * self._noise.next()
        self._level = step.after

    def _langevin(self, step: Step) -> None:
        preset, schedule = self._preset, self._schedule
        if self._level is not None:
            self._x, self._level = self._x / schedule.kept(self._level) ** 0.5, None
        if preset.hard:
            self._x = torch.where(self._keep, self._known, self._x)
        sigma, size = schedule.sigma(step.t), langevin_size(preset, schedule, step.t)
        epsilon = self._call(schedule.kept(step.t) ** 0.5 * self._x, step.t)[:, : self._x.shape[1]]
        drift = -size / sigma * epsilon
        if step.guided:
            clean = self._x - sigma * epsilon
            at = self._x if preset.at == "x_t" else clean if preset.clip is None else clean.clamp(-preset.clip, preset.clip)
            drift = drift + self._push(at, 1.0, torch.full_like(drift, size))
        if preset.kept == "soft":
            drift = drift + size / preset.soft_sigma**2 * self._keep * (self._known - self._x)
        self._x = self._x + drift + (2 * size) ** 0.5 * self._noise.next()

    def _call(self, x: Tensor, t: int) -> Tensor:
        self.spent = Cost(self.spent.calls + 1, self.spent.gradients)
        output = self._model(x, torch.full((len(x),), t, device=x.device))
        if output.shape[1] not in (x.shape[1], 2 * x.shape[1]) or output.shape[2:] != x.shape[2:]:
            raise ValueError(f"the score model returns {tuple(output.shape)} for {tuple(x.shape)}")
        return output

    def _push(self, at: Tensor, chain: float, variance: Tensor) -> Tensor:
        """What the anti-class term adds to a mean; nothing on kept features. Records dose and norm."""
        if self._evidence is None:
            raise AssertionError("a guided step was planned without a classifier")
        self.spent = Cost(self.spent.calls, self.spent.gradients + 1)
        score = chain * anti_class_score(self._evidence, at, self._targets, self._preset.term)
        score = torch.where(self._keep, 0.0, score)
        variance = torch.where(self._keep, 0.0, variance)
        self.dose += self._preset.scale * variance.flatten(1).sum(1) / self._removed
        self.norm += score.flatten(1).norm(dim=1)
        return self._preset.scale * variance * score
