"""Bootstrap over images of numbers that pool many pictures of each."""

import numpy as np
import pytest
import torch

from faithline import clustered, detection

RNG = np.random.default_rng(5)
CLEAN = RNG.normal(1, 1, 20)
OWNERS = RNG.permutation(np.repeat(np.arange(20), 3))
OTHER = np.round(RNG.normal(0, 1, 60), 1)
ONCE = np.ones((1, 20))


def test_a_draw_of_every_image_once_gives_the_detector_s_own_numbers() -> None:
    clean, other = torch.from_numpy(CLEAN), torch.from_numpy(OTHER)
    assert clustered.auroc(CLEAN, OTHER, OWNERS, ONCE)[0] == pytest.approx(detection.auroc(clean, other))
    assert clustered.fpr95(CLEAN, OTHER, OWNERS, ONCE)[0] == pytest.approx(detection.fpr95(clean, other))
    assert clustered.mean(OTHER, OWNERS, ONCE)[0] == pytest.approx(OTHER.mean())


def test_a_draw_is_the_same_as_repeating_its_images_with_all_their_pictures() -> None:
    drawn = clustered.draws(20, 7, 0)
    assert (drawn.sum(1) == 20).all()
    for row, auroc, fpr95, mean in zip(
        drawn,
        clustered.auroc(CLEAN, OTHER, OWNERS, drawn),
        clustered.fpr95(CLEAN, OTHER, OWNERS, drawn),
        clustered.mean(OTHER, OWNERS, drawn),
        strict=True,
    ):
        images = np.repeat(np.arange(20), row.astype(int))
        clean = torch.from_numpy(CLEAN[images])
        other = torch.from_numpy(np.concatenate([OTHER[image == OWNERS] for image in images]))
        assert auroc == pytest.approx(detection.auroc(clean, other))
        assert fpr95 == pytest.approx(detection.fpr95(clean, other))
        assert mean == pytest.approx(float(other.mean()))


def test_draws_are_seeded() -> None:
    assert np.array_equal(clustered.draws(8, 5, 3), clustered.draws(8, 5, 3))
    assert not np.array_equal(clustered.draws(8, 5, 3), clustered.draws(8, 5, 4))


def test_undefined_values_are_left_out_and_a_draw_of_nothing_is_undefined() -> None:
    values = np.array([1.0, np.nan, 3.0, np.nan])
    owners = np.array([0, 0, 1, 2])
    found = clustered.mean(values, owners, np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 3.0]]))
    assert found[0] == 2.0
    assert np.isnan(found[1])
    assert clustered.interval(2.0, found, 0.95) == {"mean": 2.0, "low": 2.0, "high": 2.0}


@pytest.mark.parametrize("value", [None, float("nan")])
def test_an_undefined_number_has_no_interval(value: float | None) -> None:
    assert clustered.interval(value, np.array([1.0, 2.0]), 0.95) == {"mean": None, "low": None, "high": None}
    assert clustered.interval(1.0, np.array([np.nan]), 0.95) == {"mean": None, "low": None, "high": None}


def test_an_interval_holds_its_share_of_the_draws() -> None:
    found = clustered.interval(0.5, np.linspace(0, 1, 101), 0.9)
    assert (found["low"], found["high"]) == (pytest.approx(0.05), pytest.approx(0.95))
