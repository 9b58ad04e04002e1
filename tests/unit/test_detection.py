"""In-distribution scores and how they tell sets apart: spec fud.md, check 14."""

import math

import pytest
import torch
from torch import Tensor

from faithline.detection import auroc, energy, energy_score, fpr95, neighbour_score


def draws(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_energy_by_hand_and_under_a_constant_shift() -> None:
    assert energy(torch.tensor([[math.log(2.0), math.log(6.0)]])).item() == pytest.approx(-math.log(8))
    # T = 2: -2 log(sqrt(4) + sqrt(9))
    assert energy(torch.tensor([[math.log(4.0), math.log(9.0)]]), 2.0).item() == pytest.approx(-2 * math.log(5))
    logits = draws(6, 10)
    for temperature in (0.5, 1.0, 3.0):
        torch.testing.assert_close(energy(logits + 4, temperature), energy(logits, temperature) - 4, rtol=0, atol=1e-6)


def test_confident_images_score_higher() -> None:
    logits = draws(5, 10)
    assert (energy_score(10 * logits) > energy_score(logits)).all()
    torch.testing.assert_close(energy_score(logits), -energy(logits))
    assert auroc(energy_score(10 * logits), energy_score(logits)) > 0.9


def test_neighbours_by_hand() -> None:
    reference = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])
    features = torch.tensor([[5.0, 0.0], [0.0, 0.1]])
    torch.testing.assert_close(neighbour_score(features, reference, 1), torch.zeros(2).double())
    found = neighbour_score(features, reference, 2)
    torch.testing.assert_close(found, -torch.tensor([2.0, 2.0]).double().sqrt())
    assert neighbour_score(features, reference, 3)[0].item() == pytest.approx(-2)


def test_neighbours_see_direction_only_and_tell_far_from_near() -> None:
    reference, clean = (torch.ones(128, 8) + 0.1 * draws(128, 8)).split(64)
    far = draws(64, 8)
    near, away = (neighbour_score(rows, reference, 5) for rows in (clean, far))
    assert auroc(near, away) > 0.95
    torch.testing.assert_close(neighbour_score(7 * clean, 3 * reference, 5), near, rtol=0, atol=1e-6)
    torch.testing.assert_close(neighbour_score(clean[3:4], reference, 5), near[3:4])


def test_auroc_of_identical_separated_and_tied_sets() -> None:
    scores = draws(50)
    assert auroc(scores, scores) == 0.5
    assert auroc(scores.abs() + 1, -scores.abs()) == 1
    assert auroc(-scores.abs() - 1, scores.abs()) == 0  # the clean images are the positive class
    # pairs: (1, 0) won, (1, 1) tied, (2, 0) won, (2, 1) won
    assert auroc(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0])) == pytest.approx(3.5 / 4)


def test_fpr95_by_hand() -> None:
    clean = torch.arange(1.0, 21.0)  # 19 of 20 are accepted at the threshold 2
    assert fpr95(clean, torch.tensor([1.0, 1.9, 2.0, 2.1])) == 0.5
    assert fpr95(clean, clean) == 0.95
    assert fpr95(torch.arange(1.0, 11.0), torch.tensor([0.5, 1.0, 1.5])) == pytest.approx(2 / 3)  # 9 of 10 would be too few
    assert fpr95(clean, torch.full((3,), -5.0)) == 0  # scores of strangers are low
    assert fpr95(clean, torch.full((3,), 50.0)) == 1


def test_fpr95_accepts_at_least_95_percent_whatever_the_number() -> None:
    for n in range(1, 400):
        accepted = fpr95(torch.arange(n).float(), torch.arange(n).float())
        assert 0.95 - 1e-12 <= accepted < 0.95 + 1 / n


def test_bad_scores_are_refused() -> None:
    scores = draws(4)
    broken = torch.tensor([1.0, math.nan])
    for function in (auroc, fpr95):
        with pytest.raises(ValueError, match="other: 1 of 2 rows are not finite, row 1 first"):
            function(scores, broken)
        with pytest.raises(ValueError, match=r"clean has shape \(0,\)"):
            function(scores[:0], scores)
    with pytest.raises(ValueError, match="logits: 1 of 1 rows"):
        energy(broken[None])
    with pytest.raises(ValueError, match="temperature is 0"):
        energy(draws(2, 3), 0.0)
    with pytest.raises(ValueError, match=r"neighbours is 5: 1 \.\.\. 4"):
        neighbour_score(draws(2, 3), draws(4, 3), 5)
    with pytest.raises(ValueError, match="features: row 0 is all zero"):
        neighbour_score(torch.zeros(1, 3), draws(4, 3), 1)
    with pytest.raises(ValueError, match="features have 2 values an image, reference has 3"):
        neighbour_score(draws(2, 2), draws(4, 3), 1)
