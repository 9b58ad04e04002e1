"""Controls know nothing of the model, and each is what it says."""

import pytest
import torch

from faithline.controls import control_map, scaled
from faithline.masking import column_features, patch_features

FEATURES = patch_features(8, 2, channels=1)


def make(name: str, x: torch.Tensor, ids: list[int], seed: int = 0) -> torch.Tensor:
    return control_map(name, FEATURES, x, torch.tensor(ids), torch.arange(16.0), seed)


def test_random_maps_belong_to_the_sample_not_to_the_batch():
    x = torch.zeros(3, 1, 8, 8)
    together, alone = make("random", x, [5, 6, 7]), make("random", x[:1], [6])
    assert torch.equal(together[1], alone[0])
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(alone, make("random", x[:1], [6], seed=1))


def test_edges_are_found_where_the_image_changes():
    x = torch.zeros(1, 1, 8, 8)
    x[..., 4:] = 1.0  # a vertical edge between columns 3 and 4: patches of columns 1 and 2
    edges = make("edge", x, [0]).reshape(4, 4)
    assert (edges[:, 1] > 0).all()
    assert (edges[:, 2] > 0).all()
    assert edges[:, [0, 3]].abs().max() == 0
    torch.testing.assert_close(edges[:, 1], torch.full((4,), 1.0))  # 2 rows of pixels, one column of magnitude 1/2


def test_the_centre_map_peaks_in_the_middle_and_is_symmetric():
    centre = make("centre", torch.zeros(2, 1, 8, 8), [0, 1])[0].reshape(4, 4)
    assert torch.equal(centre, centre.flip(0))
    assert torch.equal(centre, centre.T)
    assert centre.argmax().item() in (5, 6, 9, 10)


def test_the_mean_map_is_the_same_for_all():
    maps = make("mean_map", torch.zeros(2, 1, 8, 8), [0, 1])
    assert torch.equal(maps[0], torch.arange(16.0))
    assert torch.equal(maps[0], maps[1])


def test_pixel_controls_need_pixels():
    with pytest.raises(ValueError, match="needs an image task"):
        control_map("edge", column_features(3), torch.zeros(1, 3), torch.tensor([0]), torch.zeros(3), 0)


def test_scaled_maps_reach_one_and_zero_maps_stay():
    out = scaled(torch.tensor([[2.0, -4.0], [0.0, 0.0]]))
    torch.testing.assert_close(out, torch.tensor([[0.5, -1.0], [0.0, 0.0]]))
