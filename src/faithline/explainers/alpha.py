"""The dynamic weight between imitating prior maps and being faithful (DeepFaith, Algorithm 1)."""

import math
from collections import deque
from typing import Any

from faithline.config import AlphaSettings


class AlphaController:
    """Weight `alpha` of the pattern loss; `1 - alpha` goes to the local-correlation loss. Plain float64, one update an epoch.

    Each update appends the epoch's mean pattern loss and, in this order (t counts updates from 1, C is split in two):

    1. if not converged and the variance of the last `window` losses is below `epsilon`: converged, t0 = t;
    2. if that variance exceeds `reset_factor * epsilon`: not converged, alpha = 1;
    3. if converged: alpha = 1 - 1 / (1 + exp(-(t - t0) / tau_decay)), which jumps to 0.5 at t0 and decays to exactly 0.

    The pattern loss must be fed also when alpha is 0; otherwise the reset rule is blind. Fewer than `window` losses have no
    variance. The variance is that of the population (divided by `window`).

    Attributes:
        alpha: Current weight in [0, 1]; starts at 1.

    Source:
        Guo et al., Learning for Highly Faithful Explainability, Algorithm 1; the split of C and the unit are ours.
    """

    def __init__(self, settings: AlphaSettings) -> None:
        self.settings = settings
        self.alpha = 1.0
        self._updates = 0
        self._converged_at: int | None = None
        self._recent: deque[float] = deque(maxlen=settings.window)

    @property
    def converged(self) -> bool:
        """Whether the pattern loss has settled (CF of Algorithm 1)."""
        return self._converged_at is not None

    def update(self, pattern: float) -> float:
        """Take in the mean pattern loss of the epoch that has just ended.

        Args:
            pattern: Mean pattern loss, in [0, 1].

        Returns:
            Weight of the pattern loss in the next epoch.

        Raises:
            ValueError: If the loss is not finite.
        """
        if not math.isfinite(pattern):
            raise ValueError(f"the pattern loss is {pattern}; the weight alpha needs a finite one")
        self._updates += 1
        self._recent.append(pattern)
        if len(self._recent) < self.settings.window:
            return self.alpha
        mean = math.fsum(self._recent) / self.settings.window
        variance = math.fsum((value - mean) ** 2 for value in self._recent) / self.settings.window
        if self._converged_at is None and variance < self.settings.epsilon:
            self._converged_at = self._updates
        if variance > self.settings.reset_factor * self.settings.epsilon:
            self._converged_at = None
            self.alpha = 1.0
        if self._converged_at is not None:
            elapsed = self._updates - self._converged_at
            self.alpha = 1 - 1 / (1 + math.exp(-elapsed / self.settings.tau_decay))
        return self.alpha

    def state_dict(self) -> dict[str, Any]:
        """All that changes, for a checkpoint."""
        return {
            "alpha": self.alpha,
            "updates": self._updates,
            "converged_at": self._converged_at,
            "recent": list(self._recent),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.alpha = state["alpha"]
        self._updates = state["updates"]
        self._converged_at = state["converged_at"]
        self._recent = deque(state["recent"], maxlen=self.settings.window)
