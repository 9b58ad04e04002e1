"""The steps of a sampler, listed before the first of them is taken: what is done at which noise level, and what it costs."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from faithline.diffusion.presets import Preset
from faithline.diffusion.schedule import Schedule


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        kind: `denoise` and `langevin` call the score model once; `renoise` goes back up and calls nothing.
        t: Time step at which the sample is.
        after: Time step at which it is afterwards; a Langevin step stays where it is.
        guided: Whether the anti-class term acts.
    """

    kind: Literal["denoise", "renoise", "langevin"]
    t: int
    after: int
    guided: bool


@dataclass(frozen=True)
class Cost:
    """Model evaluations of one item: calls of the score model, and gradients of the classifier."""

    calls: int
    gradients: int


def plan(preset: Preset, schedule: Schedule) -> tuple[Step, ...]:
    """List the steps of a preset on a schedule.

    Raises:
        ValueError: If the preset has time steps that the schedule lacks, or soft kept features that Langevin steps of this size
            would let run away.
    """
    highest = max([preset.switch, *preset.langevin_levels])
    if highest >= len(schedule):
        raise ValueError(f"sampler preset: time step {highest}, the schedule ends at {len(schedule) - 1}")
    return (*_denoising(preset, schedule), *_langevin(preset, schedule))


def cost(steps: tuple[Step, ...]) -> Cost:
    """What the steps of one item cost."""
    return Cost(sum(step.kind != "renoise" for step in steps), sum(step.guided for step in steps))


def langevin_size(preset: Preset, schedule: Schedule, t: int) -> float:
    """Size c of a Langevin step at level t, in squared units of the data."""
    return preset.langevin_step * schedule.sigma(t) ** 2


def _guided(preset: Preset, window: tuple[float, float], remaining: int, total: int) -> bool:
    low, high = (edge * total for edge in window)
    return preset.scale != 0 and low + 1e-9 < remaining <= high + 1e-9  # 0.05 * 20 is not quite 1


def _denoising(preset: Preset, schedule: Schedule) -> list[Step]:
    if not preset.denoising_steps:
        return []
    levels = [t for t in schedule.respaced(preset.denoising_steps) if t > preset.switch] + [preset.switch]
    total = len(levels) - 1
    down = [
        Step("denoise", t, after, _guided(preset, preset.denoising_window, total - i, total))
        for i, (t, after) in enumerate(pairwise(levels))
    ]
    steps: list[Step] = []
    for i, step in enumerate(down):
        steps.append(step)
        left = total - i - 2  # steps to the last noisy level, from where this one ends
        if preset.jump and left >= 0 and left % preset.jump == 0 and i + 1 > preset.jump:
            back = down[i + 1 - preset.jump : i + 1]
            for _ in range(preset.resamples - 1):
                steps += [Step("renoise", step.after, back[0].t, False), *back]
    return steps


def _langevin(preset: Preset, schedule: Schedule) -> list[Step]:
    levels = [t for t in preset.langevin_levels for _ in range(preset.langevin_steps)]
    if levels and not preset.hard:
        size = langevin_size(preset, schedule, max(levels))
        if size >= 2 * preset.soft_sigma**2:
            raise ValueError(
                f"sampler preset: a Langevin step of {size:.3g} at t = {max(levels)} lets soft kept features run away; "
                f"it must be below 2 soft_sigma^2 = {2 * preset.soft_sigma**2:.3g}"
            )
    return [
        Step("langevin", t, t, _guided(preset, preset.langevin_window, len(levels) - i, len(levels)))
        for i, t in enumerate(levels)
    ]
