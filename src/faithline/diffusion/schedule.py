"""The noise schedule of a variance-preserving diffusion: how much of the data is left at each time step."""

from dataclasses import dataclass

import torch
from torch import Tensor

DATA = -1
"""The time step of data without noise: one below the first of the schedule."""


@dataclass(frozen=True)
class Schedule:
    """Noise levels `x_t = sqrt(abar_t) x + sqrt(1 - abar_t) noise`.

    Attributes:
        abar: Share of the data's variance that is left, float64 (T,), falling with t.
    """

    abar: Tensor

    def __len__(self) -> int:
        return len(self.abar)

    def kept(self, t: int) -> float:
        """`abar_t`; 1 at `DATA`.

        Raises:
            IndexError: If the schedule has no such time step.
        """
        if not DATA <= t < len(self):
            raise IndexError(f"time step {t}: the schedule has 0 to {len(self) - 1}, and {DATA} for data without noise")
        return 1.0 if t == DATA else float(self.abar[t])

    def sigma(self, t: int) -> float:
        """Standard deviation of the noise at t in units of the data: `sqrt((1 - abar) / abar)`."""
        kept = self.kept(t)
        return ((1 - kept) / kept) ** 0.5

    def respaced(self, steps: int) -> tuple[int, ...]:
        """Time steps evenly spread over the schedule, both ends included, falling: the rounded `i (T - 1) / (steps - 1)`.

        Raises:
            ValueError: If there are fewer than two, or more than the schedule has.

        Source:
            guided-diffusion's respacing; `timestep_spacing="linspace"` of diffusers.
        """
        if not 2 <= steps <= len(self):
            raise ValueError(f"{steps} steps: between 2 and {len(self)} expected")
        return tuple(round(i * (len(self) - 1) / (steps - 1)) for i in reversed(range(steps)))


def linear_schedule(steps: int, first: float, last: float) -> Schedule:
    """The schedule of DDPM: `abar_t = prod (1 - beta)` with beta rising linearly from `first` to `last`.

    Computed in double precision: `1 - abar` of the first steps would lose three digits in single.

    Raises:
        ValueError: If the betas are not 0 < first <= last < 1.

    Source:
        Ho et al., 2020: 1000 steps, 1e-4 to 0.02.
    """
    if not 0 < first <= last < 1:
        raise ValueError(f"betas from {first} to {last}: 0 < first <= last < 1 expected")
    return Schedule((1 - torch.linspace(first, last, steps, dtype=torch.float64)).cumprod(0))
