"""Correlations against scipy, at any scale, and undefined where a side is constant."""

import numpy as np
import pytest
import torch
from scipy import stats

from faithline.metrics.correlation import average_ranks, pearson, spearman


def _rows(seed: int, ties: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, 6, 40, generator=generator, dtype=torch.float64)
    b = b + 0.5 * a
    return ((a * 2).round(), (b * 2).round()) if ties else (a, b)


@pytest.mark.parametrize("ties", [False, True])
def test_agrees_with_scipy(ties: bool) -> None:
    a, b = _rows(0, ties)
    for ours, theirs in ((pearson, stats.pearsonr), (spearman, stats.spearmanr)):
        expected = [theirs(x, y)[0] for x, y in zip(a.numpy(), b.numpy(), strict=True)]
        assert np.allclose(ours(a, b), expected, atol=1e-12)


def test_average_ranks_agree_with_scipy_and_leave_out_masked_entries() -> None:
    a, _ = _rows(1, ties=True)
    assert np.array_equal(average_ranks(a), stats.rankdata(a.numpy(), axis=1))
    mask = torch.rand(a.shape, generator=torch.Generator().manual_seed(0)) < 0.6
    ranks = average_ranks(a, mask)
    for row in range(len(a)):
        assert np.array_equal(ranks[row][mask[row]], stats.rankdata(a[row][mask[row]].numpy()))
    assert bool(ranks[~mask].isnan().all())


def test_mask_equals_leaving_entries_out() -> None:
    a, b = _rows(2)
    mask = torch.ones(40, dtype=torch.bool)
    mask[25:] = False
    a[:, 25:], b[:, 25:] = torch.nan, 1e9
    for correlate in (pearson, spearman):
        masked = correlate(a, b, mask.expand_as(a))
        assert torch.allclose(masked, correlate(a[:, :25], b[:, :25]), atol=1e-12)


def test_check_13_scale_does_not_matter() -> None:
    a, b = _rows(3)
    for scale in (1e-300, 1e-6, 1e6, 1e300):
        assert torch.allclose(pearson(a * scale, b), pearson(a, b), atol=1e-12)
        assert torch.allclose(spearman(a * scale, b * scale), spearman(a, b), atol=1e-12)


@pytest.mark.parametrize("correlate", [pearson, spearman])
def test_check_17_constant_is_undefined(correlate: object) -> None:
    a, _ = _rows(4)
    assert callable(correlate)
    for value in (0.0, 0.1, 1e-8, 12345.678):
        assert bool(correlate(torch.full_like(a, value), a).isnan().all())
        assert bool(correlate(a, torch.full_like(a, value)).isnan().all())


def test_check_17_rounding_errors_are_no_variance() -> None:
    noisy = torch.tensor([[0.1 + 0.2, 0.3, 0.6 / 2, 0.1 * 3]], dtype=torch.float64)
    assert noisy.unique().numel() > 1
    other = torch.tensor([[1.0, 2.0, 4.0, 3.0]])
    assert bool(pearson(noisy, other).isnan())
    assert not bool(pearson(noisy + torch.tensor([[0, 0, 0, 1e-6]]), other).isnan())


def test_fewer_than_two_entries_or_a_nan_is_undefined() -> None:
    a, b = _rows(5)
    one = torch.zeros_like(a, dtype=torch.bool)
    one[:, 3] = True
    assert bool(pearson(a, b, one).isnan().all())
    assert bool(pearson(a, b, torch.zeros_like(one)).isnan().all())
    a[0, 7] = torch.nan
    assert pearson(a, b).isnan().tolist() == [True] + [False] * 5
    assert spearman(a, b).isnan().tolist() == [True] + [False] * 5
