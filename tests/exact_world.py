"""A Gaussian whose conditionals are known in closed form, for tests of the sampler: 16 values, AR(1), as images (1, 1, 16)."""

from dataclasses import replace

import torch
from torch import Tensor

from faithline.diffusion.presets import PAPER, Preset
from faithline.diffusion.sampler import Items
from faithline.diffusion.schedule import Schedule, linear_schedule
from faithline.diffusion.score import MixtureScore, gaussian_score

D = 16
SHAPE = (1, 1, D)

EXACT = replace(PAPER, variance="fixed_small", clip=None, scale=0.0)
"""The paper's preset as an unbounded distribution with a score alone allows it, without anti-class term."""


def schedule() -> Schedule:
    return linear_schedule(1000, 1e-4, 0.02)


def covariance() -> Tensor:
    """AR(1) with rho 0.9 and standard deviation 0.5, (16, 16)."""
    at = torch.arange(D, dtype=torch.float64)
    return 0.25 * 0.9 ** (at[:, None] - at).abs()


def model() -> MixtureScore:
    return gaussian_score(schedule(), torch.zeros(D), covariance())


def scattered() -> Tensor:
    """Every third value is kept, bool (16,)."""
    return torch.arange(D) % 3 == 0


def contiguous() -> Tensor:
    """The first third is kept, bool (16,)."""
    return torch.arange(D) < 5


def image(seed: int = 0) -> Tensor:
    """One sample of the distribution, (1, *SHAPE)."""
    noise = torch.randn(1, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (noise @ torch.linalg.cholesky(covariance()).T).float().reshape(1, *SHAPE)


def chains(keep: Tensor, count: int, x: Tensor | None = None) -> Items:
    """Many draws of one image under one mask."""
    return Items(
        images=image() if x is None else x,
        image_ids=(7,),
        targets=torch.tensor([0]),
        rows=torch.zeros(count, dtype=torch.int64),
        draws=torch.arange(count),
        keep=keep.reshape(1, *SHAPE).expand(count, *SHAPE),
    )


def conditional(keep: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Exact mean and covariance of the values that are not kept, given those that are."""
    full, known = covariance(), x.double().flatten()[keep]
    across = full[~keep][:, keep] @ full[keep][:, keep].inverse()
    return across @ known, full[~keep][:, ~keep] - across @ full[keep][:, ~keep]


def divergence(samples: Tensor, mean: Tensor, cov: Tensor) -> float:
    """KL of the Gaussian fitted to samples (N, d) from the exact one."""
    samples = samples.double()
    own, shift, inverse = samples.T.cov(), samples.mean(0) - mean, cov.inverse()
    logs = torch.logdet(cov) - torch.logdet(own)
    return float(((inverse @ own).trace() + shift @ inverse @ shift - len(mean) + logs) / 2)


def bias(preset: Preset, keep: Tensor, count: int) -> float:
    """KL of what a preset samples from the exact conditional."""
    from faithline.diffusion.sampler import reconstruct

    items = chains(keep, count)
    done = reconstruct(model(), schedule(), preset, items, None, seed=1, max_batch=count)
    return divergence(done.images.flatten(1)[:, ~keep], *conditional(keep, items.images))
