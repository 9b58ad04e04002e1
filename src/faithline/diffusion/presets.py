"""How removed features are sampled: every reading of the paper that is open is a field, and no field has a default."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from faithline.diffusion.guidance import Term

Kept = Literal["clean", "noised", "soft"]
Variance = Literal["learned_range", "fixed_small", "fixed_large"]


@dataclass(frozen=True)
class Preset:
    """One sampler: denoising steps (DDPM) from pure noise, then Langevin steps at fixed noise levels; either may be absent.

    Attributes:
        denoising_steps: Steps that the whole schedule is respaced to; 0 for none.
        switch: Denoising ends at this time step, whose level the last step reaches; -1 is data without noise.
        variance: Variance of a denoising step; `learned_range` needs a score model that returns it.
        kept: What kept features are while the rest is denoised. `clean`: the data themselves; `noised`: the data with the noise
            of the step (RePaint); `soft`: drawn towards the data, free to deviate. Langevin steps keep them clean, or soft.
        jump: Denoising steps that a jump back undoes; 0 for no jumps.
        resamples: How often each stretch of `jump` steps is walked; 1 for no jumps.
        langevin_levels: Time steps of the Langevin levels, falling.
        langevin_steps: Steps at each level.
        langevin_step: Size c of a step, in units of the squared noise of its level.
        scale: Strength s of the anti-class term; 0 for none.
        term: See `guidance.anti_class_score`.
        at: The classifier sees the sample itself (`x_t`), or the clean image that the score model predicts from it (`x0`).
        denoising_window: The term acts while the share of denoising steps that remain is in this interval: above the first,
            at most the second.
        langevin_window: The same for Langevin steps.
        soft_sigma: Standard deviation that kept features are allowed in `soft`, in units of the data.
        soft_step: Pull on kept features in a denoising step, in units of `soft_sigma` squared.
        clip: Predicted clean images and generated features are clamped to [-clip, clip]; None for not at all.
    """

    denoising_steps: int
    switch: int
    variance: Variance
    kept: Kept
    jump: int
    resamples: int
    langevin_levels: tuple[int, ...]
    langevin_steps: int
    langevin_step: float
    scale: float
    term: Term
    at: Literal["x_t", "x0"]
    denoising_window: tuple[float, float]
    langevin_window: tuple[float, float]
    soft_sigma: float
    soft_step: float
    clip: float | None

    def __post_init__(self) -> None:
        """Refuse what no run could mean.

        Raises:
            ValueError: With all that is wrong, in one line.
        """
        falling = all(a > b for a, b in pairwise(self.langevin_levels))
        rules = {
            "neither denoising nor Langevin steps": self.denoising_steps > 0 or bool(self.langevin_levels),
            "denoising_steps is 0, or at least 2": self.denoising_steps == 0 or self.denoising_steps >= 2,
            "denoising must end at -1 (data) where no Langevin steps follow": bool(self.langevin_levels) or self.switch == -1,
            "switch is at least -1": self.switch >= -1,
            "jump and resamples: both or neither": self.jump >= 0
            and self.resamples >= 1
            and (self.jump > 0) == (self.resamples > 1),
            "langevin_levels fall and are at least 0": falling and all(level >= 0 for level in self.langevin_levels),
            "langevin_steps and langevin_step are positive": not self.langevin_levels
            or (self.langevin_steps > 0 and self.langevin_step > 0),
            "windows are 0 <= first <= second <= 1": all(
                0 <= low <= high <= 1 for low, high in (self.denoising_window, self.langevin_window)
            ),
            "soft_sigma is positive": self.soft_sigma > 0,
            "soft_step is in (0, 2): from 2 on the pull overshoots more each step": 0 < self.soft_step < 2,
            "clip is positive": self.clip is None or self.clip > 0,
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise ValueError(f"sampler preset: {'; '.join(broken)}")

    @property
    def hard(self) -> bool:
        """Whether kept features come out exactly as they went in."""
        return self.kept != "soft"


PAPER = Preset(
    denoising_steps=250,
    switch=-1,
    variance="learned_range",
    kept="clean",
    jump=0,
    resamples=1,
    langevin_levels=(),
    langevin_steps=0,
    langevin_step=0.3,
    scale=4.0,
    term="minus_log_p",
    at="x_t",
    denoising_window=(0.0, 0.05),
    langevin_window=(0.0, 1.0),
    soft_sigma=0.1,
    soft_step=1.0,
    clip=1.0,
)
"""The formulas of the paper as they stand: the likely configuration (spec, sections 2.2 and 3.2)."""

REPAINT = replace(PAPER, kept="noised", jump=10, resamples=10)
"""RePaint's: kept features carry the noise of the step, and each ten steps are walked ten times."""

ANNEALED = replace(
    PAPER,
    denoising_steps=50,
    switch=50,
    kept="noised",
    denoising_window=(0.0, 0.0),
    langevin_levels=(50, 25, 12, 5),
    langevin_steps=25,
)
"""Fifty denoising steps to t = 50, then Langevin steps with clean kept features: close to the true conditional."""

LANGEVIN = replace(
    PAPER, denoising_steps=0, langevin_levels=(2,), langevin_steps=3000, denoising_window=(0.0, 0.0), langevin_window=(0.0, 0.95)
)
"""One chain at a fixed small noise (0.019 on the linear schedule); the anti-class term waits for 5 % of it."""

SOFT = replace(PAPER, kept="soft")
"""The paper's ablation: kept features may deviate, and nothing is pasted at the end."""

PRESETS = {"paper": PAPER, "repaint": REPAINT, "annealed": ANNEALED, "langevin": LANGEVIN, "soft": SOFT}
