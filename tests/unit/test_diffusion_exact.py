"""The sampler against distributions known in closed form: spec fud.md, checks 6, 7 and 9."""

from dataclasses import replace

import pytest
import torch
from tests import exact_world as world
from torch import Tensor

from faithline.diffusion.presets import ANNEALED, LANGEVIN
from faithline.diffusion.sampler import Items, reconstruct
from faithline.diffusion.score import gaussian_score

pytestmark = pytest.mark.usefixtures("one_thread")

COLD = replace(ANNEALED, variance="fixed_small", clip=None, scale=0.0)


def test_without_mask_mean_and_covariance_are_those_of_the_gaussian() -> None:
    count = 1500
    what = world.chains(torch.zeros(world.D, dtype=torch.bool), count)
    done = reconstruct(world.model(), world.schedule(), world.EXACT, what, None, seed=1, max_batch=count)
    samples, cov = done.images.flatten(1).double(), world.covariance()
    assert (samples.mean(0).abs() < 4 * (cov.diagonal() / count).sqrt()).all()
    error = ((cov.square() + cov.diagonal()[:, None] * cov.diagonal()) / count).sqrt()
    assert ((samples.T.cov() - cov).abs() < 4 * error).all()


def test_hard_masks_annealed_langevin_is_near_the_exact_conditional() -> None:
    """Divergences depend on the image; a hole of eleven neighbours mixes slowly and needs the longer chain."""
    assert world.bias(COLD, world.scattered(), 1000) < 0.25
    assert world.bias(replace(COLD, langevin_steps=100), world.contiguous(), 1000) < 0.15


def test_hard_masks_langevin_at_fixed_noise_is_the_exact_conditional() -> None:
    preset = replace(LANGEVIN, clip=None, scale=0.0, langevin_step=2.5, langevin_steps=600)
    assert world.bias(preset, world.scattered(), 1000) < 0.05


@pytest.mark.parametrize("kept", ["clean", "noised"])
def test_hard_masks_one_pass_is_biased(kept: str) -> None:
    """What annealing is for; a sampler that passes here does something else."""
    preset = replace(world.EXACT, kept=kept)
    assert world.bias(preset, world.scattered(), 400) > 1
    assert world.bias(preset, world.contiguous(), 400) > 0.15


# ---------------------------------------------------------------------------------------------------- a field of known truth

SIDE, LENGTH = 8, 1.0
LEVELS = (0.3, 0.5, 0.7)


def _field() -> tuple[Tensor, Tensor, Tensor]:
    """Covariance of a field of `SIDE` x `SIDE` values, weights of a logit with deviation 4, distances to corners."""
    row, column = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    at = torch.stack([row.flatten(), column.flatten()], 1).double()
    covariance = torch.exp(-torch.cdist(at, at).square() / (2 * LENGTH**2)) + 1e-4 * torch.eye(SIDE**2, dtype=torch.float64)
    patch = ((at - 2).abs().max(1).values <= 1).double()
    weight = patch * 4 / (patch @ covariance @ patch).sqrt()
    return covariance, weight, torch.stack([torch.cdist(at, at.new_tensor([[c, c]]))[:, 0] for c in (2.0, 6.0)])


def test_a_field_of_known_truth_ranks_orderings_as_exact_conditionals_do() -> None:
    """Without anti-class term: the confidence of samples is that of exact conditionals, and truth > random > wrong blob."""
    covariance, weight, distances = _field()
    draw = torch.Generator().manual_seed(0)
    fields = torch.randn(400, SIDE**2, generator=draw, dtype=torch.float64) @ torch.linalg.cholesky(covariance).T
    fields = fields[fields @ weight > 1][:48]
    orders = {
        "truth": distances[0].expand(48, -1).argsort(1),
        "random": torch.rand(48, SIDE**2, generator=draw).argsort(1),
        "wrong": distances[1].expand(48, -1).argsort(1),
    }
    nodes = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(200) + 0.5) / 200).double()
    keep, exact = [], []
    for order in orders.values():
        for level in LEVELS:
            mask = order.argsort(1) < round(level * SIDE**2)
            keep.append(mask)
            for x, kept in zip(fields, mask, strict=True):
                across = covariance[~kept][:, kept] @ covariance[kept][:, kept].inverse()
                rest = covariance[~kept][:, ~kept] - across @ covariance[kept][:, ~kept]
                mean = weight[kept] @ x[kept] + weight[~kept] @ (across @ x[kept])
                spread = (weight[~kept] @ rest @ weight[~kept]).clamp(min=0).sqrt()
                exact.append(torch.sigmoid(mean + spread * nodes).mean())
    masks = torch.cat(keep)
    shape = (1, SIDE, SIDE)
    what = Items(
        images=fields.float().reshape(-1, *shape),
        image_ids=tuple(range(48)),
        targets=torch.zeros(48, dtype=torch.int64),
        rows=torch.arange(48).repeat(9),
        draws=torch.zeros(432, dtype=torch.int64),
        keep=masks.reshape(-1, *shape),
    )
    model = gaussian_score(world.schedule(), torch.zeros(SIDE**2), covariance)
    done = reconstruct(model, world.schedule(), COLD, what, None, seed=1, max_batch=432)
    found = torch.sigmoid(done.images.flatten(1).double() @ weight)
    gap = (found - torch.stack(exact)).reshape(3, len(LEVELS), 48)
    means = gap.mean(2)
    assert (means.abs() < 4 * gap.std(2) / 48**0.5 + 0.01).all(), means
    truth, at_random, wrong = found.reshape(3, -1).mean(1).tolist()
    assert truth > at_random > wrong
