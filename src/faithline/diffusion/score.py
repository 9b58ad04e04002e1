"""Score models: networks, and distributions whose score is known exactly, behind one call.

A score model is called as `model(x_t, t)` with x_t float32 (B, C, ...) and t int64 (B,), and returns the noise it sees in x_t:
`epsilon = -sqrt(1 - abar_t) * grad log p_t(x_t)`, (B, C, ...). A network with a learned variance returns (B, 2C, ...): epsilon,
then where the log variance lies between its bounds, from -1 to 1.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from faithline.diffusion.schedule import Schedule

ScoreModel = Callable[[Tensor, Tensor], Tensor]


class NetworkScore:
    """A `diffusers.UNet2DModel`, or any network of the same call, as a score model.

    Attributes:
        network: The network, in eval mode with frozen weights; it lies where x_t lies.
    """

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        """Wrap a network.

        Args:
            network: Called as `network(x, t, return_dict=False)`; the first element of what it returns counts.
            dtype: Precision of the network; everything around it stays float32.
        """
        network = network.eval().requires_grad_(False)
        # Only where it changes something: diffusers warns of every cast.
        self.network = network if all(p.dtype == dtype for p in network.parameters()) else network.to(dtype)
        self._dtype = dtype

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        """Epsilon, and the learned variance where the network has it, float32."""
        return self.network(x.to(self._dtype), t, return_dict=False)[0].float()


class MixtureScore:
    """The exact score of a mixture of Gaussians, computed in double precision."""

    def __init__(self, schedule: Schedule, weights: Sequence[float], means: Tensor, covariances: Tensor) -> None:
        """Set up a mixture of K Gaussians over d values.

        Args:
            schedule: The noise levels.
            weights: Probability of each component, K of them.
            means: (K, d).
            covariances: Symmetric and positive semidefinite, (K, d, d).

        Raises:
            ValueError: If shapes disagree, weights are no probabilities, or a covariance has a negative eigenvalue.
        """
        count, d = means.shape
        if len(weights) != count or covariances.shape != (count, d, d):
            raise ValueError(
                f"{len(weights)} weights, means {tuple(means.shape)} and covariances {tuple(covariances.shape)} do not match"
            )
        if min(weights) <= 0 or abs(sum(weights) - 1) > 1e-9:
            raise ValueError("weights of a mixture are positive and sum to 1")
        values, self._axes = torch.linalg.eigh(covariances.double())
        if values.min() < -1e-9 * values.max():
            raise ValueError("a covariance has a negative eigenvalue")
        self._values = values.clamp(min=0)
        self._means = means.double()
        self._log_weights = torch.tensor(weights, dtype=torch.float64).log()
        self._abar = schedule.abar

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        """Epsilon of x_t (B, ...) with d values a row, of the shape and precision of x."""
        kept = self._abar[t][:, None, None]
        centred = x.flatten(1).double()[:, None] - kept.sqrt() * self._means
        along = torch.einsum("bkd,kde->bke", centred, self._axes)
        variance = kept * self._values + (1 - kept)
        scores = -torch.einsum("bke,kde->bkd", along / variance, self._axes)
        log_density = self._log_weights - (along.square() / variance + variance.log()).sum(2) / 2
        score = (log_density.softmax(1)[:, :, None] * scores).sum(1)
        return (-(1 - kept[:, 0]).sqrt() * score).to(x).reshape(x.shape)


def gaussian_score(schedule: Schedule, mean: Tensor, covariance: Tensor) -> MixtureScore:
    """The exact score of one Gaussian: mean (d,), covariance (d, d)."""
    return MixtureScore(schedule, [1.0], mean[None], covariance[None])
