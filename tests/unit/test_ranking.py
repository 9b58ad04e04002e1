"""Ranks by hand, intervals that cover, and duplicates that are ranked once."""

import numpy as np
import pytest
import torch
from scipy import stats

from faithline.metrics.ranking import candidate_ranks, duplicates, family_rank, holm, interval, mean_rank, wilcoxon

NAN = float("nan")
TEN = ["fc", "fe", "mc", "inf", "rp", "ins", "del", "neg", "pos", "irof"]


def test_ranks_know_the_direction_and_share_ties() -> None:
    scores = torch.tensor([[[0.9, 0.9], [0.5, 0.1], [0.9, 0.4], [0.1, 0.4]]])
    ranks = candidate_ranks(scores, ["fc", "del"], range(4), [None] * 4)
    assert ranks.tolist() == [[[1.5, 4.0], [3.0, 1.0], [1.5, 2.5], [4.0, 2.5]]]


def test_ranks_agree_with_scipy() -> None:
    scores = torch.rand(300, 7, 3, generator=torch.Generator().manual_seed(0)).mul(5).round()
    ranks = candidate_ranks(scores, ["fc", "pos", "ins"], range(7), [None] * 7)
    oriented = scores.numpy() * np.array([-1, 1, -1])
    assert np.array_equal(ranks, stats.rankdata(oriented, axis=1))


def test_undefined_score_is_not_ranked_and_beats_nobody() -> None:
    scores = torch.tensor([[[0.9], [NAN], [0.5]]])
    ranks = candidate_ranks(scores, ["fc"], range(3), [None] * 3)
    assert ranks[0, [0, 2], 0].tolist() == [1.0, 2.0]
    assert bool(ranks[0, 1, 0].isnan())


def test_reference_outside_the_pool_gets_a_rank_and_moves_nobody() -> None:
    scores = torch.tensor([[[0.9], [0.5], [0.7], [0.5]]])
    inside = candidate_ranks(scores[:, :2], ["fc"], range(2), [None] * 2)
    ranks = candidate_ranks(scores, ["fc"], [0, 1], [None] * 4)
    assert torch.equal(ranks[:, :2], inside)
    assert ranks[0, 2:, 0].tolist() == [2.0, 2.5]


def test_duplicate_is_ranked_once_with_the_rank_of_the_first() -> None:
    scores = torch.tensor([[[0.7], [0.9], [0.95], [0.1]]])
    ranks = candidate_ranks(scores, ["fc"], range(4), [None, None, 0, None])
    assert ranks[0, :, 0].tolist() == [2.0, 1.0, 2.0, 3.0]


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(N, 3, 1\) expected"):
        candidate_ranks(torch.zeros(2, 4, 1), ["fc"], range(3), [None] * 3)


def test_mean_rank_and_family_rank_by_hand() -> None:
    ranks = torch.tensor([[[1.0, 2, 4, 3, 1, 1, 2, 3, 1, 4]]], dtype=torch.float64)
    assert mean_rank(ranks, TEN).item() == pytest.approx(2.2)
    assert mean_rank(ranks, TEN, without=("fe", "mc")).item() == pytest.approx(16 / 8)
    # {fc, inf} 2, {fe, mc} 3, {rp, del, pos, irof} 2, {ins, neg} 2
    assert family_rank(ranks, TEN).item() == pytest.approx(9 / 4)
    ranks[0, 0, 0] = NAN
    assert mean_rank(ranks, TEN).item() == pytest.approx(21 / 9)
    assert family_rank(ranks, TEN).item() == pytest.approx(10 / 4)


# ------------------------------------------------------------------------------------------------------------- duplicates


def test_duplicates_must_agree_on_every_sample() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 300, 12, generator=generator)
    almost = a * 7
    almost[299] = b[299]
    scaled = a * torch.rand(300, 1, generator=generator)
    maps = torch.stack([a, b, scaled, almost, -a, b + 1e-3 * a, scaled * 2], 1)
    assert duplicates(maps) == [None, None, 0, None, None, 1, 0]


def test_unusable_maps_do_not_make_or_break_a_pair_alone() -> None:
    a = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    both, one = a.clone(), a.clone()
    a[2], both[2] = 0, NAN
    one[1] = 0
    nothing = torch.zeros(4, 6)
    assert duplicates(torch.stack([a, both, one, nothing, nothing], 1)) == [None, 0, None, None, None]


# -------------------------------------------------------------------------------------------------------------- intervals


def test_interval_is_close_to_the_normal_one_and_counts_nulls() -> None:
    values = torch.randn(400, 3, generator=torch.Generator().manual_seed(0)) + torch.tensor([0.0, 5.0, 0.0])
    values[:100, 1] = NAN
    values[:, 2] = NAN
    found = interval(values, repeats=2000, confidence=0.95, seed=0)
    assert found.n.tolist() == [400, 300, 0]
    assert found.null.tolist() == [0, 100, 400]
    for column in (0, 1):
        defined = values[:, column][~values[:, column].isnan()].double()
        assert found.mean[column].item() == pytest.approx(defined.mean().item(), abs=1e-9)
        half = 1.96 * defined.std().item() / len(defined) ** 0.5
        assert found.low[column].item() == pytest.approx(defined.mean().item() - half, abs=0.1 * half)
        assert found.high[column].item() == pytest.approx(defined.mean().item() + half, abs=0.1 * half)
    rows = found.rows()
    assert rows[2] == {"mean": None, "low": None, "high": None, "n": 0, "null": 400}
    assert rows[0]["low"] < rows[0]["mean"] < rows[0]["high"]  # type: ignore[operator]


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    values = torch.rand(60, 1000, generator=torch.Generator().manual_seed(1))
    found = interval(values, repeats=400, confidence=0.9, seed=0)
    covered = ((found.low <= 0.5) & (found.high >= 0.5)).double().mean().item()
    assert 0.85 < covered < 0.93


def test_paired_interval_is_that_of_differences_and_seeded() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 1, generator=generator) * 10
    scores = noise + torch.tensor([[0.0, 0.1]]) + 0.05 * torch.randn(200, 2, generator=generator)
    paired = interval(scores - scores[:, [0]], repeats=500, confidence=0.95, seed=0)
    assert paired.low[1] > 0
    assert paired.low[0] == paired.high[0] == 0
    single = interval(scores, repeats=500, confidence=0.95, seed=0)
    assert single.low[1] < single.high[0]  # unpaired intervals overlap
    again = interval(scores - scores[:, [0]], repeats=500, confidence=0.95, seed=0)
    assert torch.equal(again.low, paired.low)
    other = interval(scores - scores[:, [0]], repeats=500, confidence=0.95, seed=1)
    assert not torch.equal(other.low, paired.low)


def test_wilcoxon_agrees_with_scipy_and_knows_equal_and_undefined() -> None:
    values = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) + torch.tensor([0.0, 1.0, 0.0, 0.0])
    values[:, 2] = 0
    values[:, 3] = NAN
    values[:5, 0] = NAN
    p = wilcoxon(values)
    assert p[0].item() == pytest.approx(stats.wilcoxon(values[5:, 0].double().numpy()).pvalue)
    assert p[1] < 1e-4
    assert p[2] == 1
    assert bool(p[3].isnan())


def test_holm_multiplies_by_what_is_left_and_never_falls() -> None:
    """By hand: .01 x 3, then .02 x 2, then max(.035 x 1, .04); an undefined one is no member of the family."""
    adjusted = holm(torch.tensor([0.02, torch.nan, 0.01, 0.035]))
    torch.testing.assert_close(adjusted, torch.tensor([0.04, torch.nan, 0.03, 0.04]).double(), equal_nan=True)
    assert holm(torch.tensor([0.5, 0.9])).tolist() == [1.0, 1.0]
    assert holm(torch.tensor([torch.nan])).isnan().all()
