"""Test-time refinement on games whose best linear fit is known."""

import torch
from torch import Tensor

from faithline.bank import Masks
from faithline.refinement import refine


def _masks(weights: Tensor, count: int, noise: float = 0.0, valid: Tensor | None = None) -> Masks:
    """Fair-coin masks of additive games with these weights (B, n), whose values carry noise."""
    generator = torch.Generator().manual_seed(1)
    batch, n = weights.shape
    valid = torch.ones(batch, n, dtype=torch.bool) if valid is None else valid
    keep = (torch.rand(batch, count, n, generator=generator) < 0.5) | ~valid[:, None]
    values = torch.einsum("bsn,bn->bs", keep.float(), weights) + noise * torch.randn(batch, count, generator=generator)
    return Masks(keep, values, weights.sum(1), torch.zeros(batch), valid)


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def test_enough_masks_without_noise_give_the_weights_whatever_the_start() -> None:
    torch.manual_seed(0)
    weights = torch.randn(80, 12)  # more samples than one block
    for start in (torch.randn(80, 12), torch.zeros(80, 12), -weights):
        torch.testing.assert_close(refine(start, _masks(weights, 64)), weights, atol=2e-3, rtol=0)


def test_a_perfect_map_stays_and_gets_the_scale_of_the_effects() -> None:
    torch.manual_seed(0)
    weights = torch.randn(8, 30)
    masks = _masks(weights, 10)  # far fewer masks than features: nothing else could give 30 numbers
    torch.testing.assert_close(refine(7 * weights, masks), weights, atol=1e-5, rtol=0)


def test_a_good_map_is_improved_by_few_noisy_masks() -> None:
    """Better than the map alone, and better than the masks alone."""
    torch.manual_seed(0)
    weights = torch.randn(200, 40)
    start = weights + 0.6 * torch.randn(200, 40)
    masks = _masks(weights, 40, noise=1.0)
    refined, alone = refine(start, masks), refine(torch.zeros(200, 40), masks)
    found = [float(_correlation(maps, weights).mean()) for maps in (start, alone, refined)]
    assert found[2] > found[0] + 0.02
    assert found[2] > found[1] + 0.02


def test_padding_stays_zero_and_a_broken_map_stays_broken() -> None:
    torch.manual_seed(0)
    valid = torch.tensor([[True] * 5 + [False] * 3, [True] * 8])
    weights = torch.randn(2, 8) * valid
    start = torch.randn(2, 8) * valid
    start[1, 0] = torch.nan
    refined = refine(start, _masks(weights, 32, valid=valid))
    assert refined[0, 5:].tolist() == [0.0, 0.0, 0.0]
    torch.testing.assert_close(refined[0], weights[0], atol=2e-3, rtol=0)
    assert refined[1].isnan().sum() == 1


def test_a_sample_does_not_depend_on_its_batch() -> None:
    torch.manual_seed(0)
    weights, start = torch.randn(70, 10), torch.randn(70, 10)
    masks = _masks(weights, 12, noise=0.3)
    whole = refine(start, masks)
    for row in (0, 63, 64, 69):
        torch.testing.assert_close(refine(start[[row]], masks.take(torch.tensor([row]))), whole[[row]])


def test_no_effect_at_all_gives_zeros() -> None:
    masks = _masks(torch.zeros(1, 6), 9)
    assert refine(torch.randn(1, 6), masks).abs().max() < 1e-6
