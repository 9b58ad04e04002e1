"""More inputs for explainers, made of training inputs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from faithline.augmentation import augment
from faithline.bank import samples_of
from faithline.dataset import Samples
from faithline.masking import Features, column_features, patch_features, token_features

SPLIT = np.array(["train"] * 6 + ["validation"] * 2 + ["test"] * 2)


def _samples(x: Tensor, features: Features) -> Samples:
    return Samples(x, torch.zeros(10).long(), SPLIT, SPLIT == "train", features, ("a", "b"), (), {}, "")


TABLE = _samples(torch.arange(10).float()[:, None] + torch.tensor([0, 100, 200, 300.0]), column_features(4))
TEXT = _samples(torch.tensor([[10 * i + 1, 10 * i + 2, 10 * i + 3, 0, 0] for i in range(10)]), token_features(5, 0))
IMAGE = _samples(torch.rand(10, 2, 8, 8, generator=torch.Generator().manual_seed(0)), patch_features(8, 4, channels=2))


@pytest.mark.parametrize("samples", [TABLE, TEXT, IMAGE], ids=["table", "text", "image"])
def test_more_rows_for_explainers_and_for_nobody_else(samples: Samples) -> None:
    more = augment(samples, 20, 0)
    assert torch.equal(more.x[:10], samples.x)
    assert more.x.shape[0] == len(more.label) == len(more.split) == len(more.supervised) == 30
    assert more.x.dtype == samples.x.dtype
    assert (more.label[10:] == -1).all()
    assert torch.equal(more.learned(augmented=True), torch.tensor([*range(6), *range(10, 30)]))
    assert torch.equal(more.learned(augmented=False), torch.arange(6))
    assert torch.equal(more.explained(), samples.explained())
    assert torch.equal(samples_of("training", more), torch.tensor([*range(8), *range(10, 30)]))
    assert torch.equal(samples_of("evaluation", more), samples_of("evaluation", samples))
    assert len(more.x[10:].unique(dim=0)) > 10


@pytest.mark.parametrize("samples", [TABLE, TEXT, IMAGE], ids=["table", "text", "image"])
def test_seeded_and_only_of_training_samples(samples: Samples) -> None:
    more = augment(samples, 20, 0)
    assert torch.equal(augment(samples, 20, 0).x, more.x)
    assert not torch.equal(augment(samples, 20, 1).x, more.x)
    changed = replace(samples, x=samples.x.clone())
    changed.x[6:] = changed.x[6:].flip(0)  # what is no training sample
    assert torch.equal(augment(changed, 20, 0).x[10:], more.x[10:])
    assert augment(samples, 0, 0) is samples


def test_cells_of_tables_come_from_two_training_rows() -> None:
    made = augment(TABLE, 200, 0).x[10:] - torch.tensor([0, 100, 200, 300.0])
    assert ((made >= 0) & (made < 6)).all()
    assert all(len(row.unique()) <= 2 for row in made)
    assert any(len(row.unique()) == 2 for row in made)


def test_texts_are_a_beginning_and_an_end() -> None:
    made = augment(TEXT, 200, 0).x[10:]
    for row in made.tolist():
        words = [word for word in row if word]
        assert row == words + [0] * (5 - len(words)), "padding at the end only"
        assert 1 <= len(words) <= 5
        first = words[0] // 10
        cut = next((i for i, word in enumerate(words) if word != 10 * first + 1 + i), len(words))
        assert words[:cut] == [10 * first + 1 + i for i in range(cut)], "a beginning"
        rest = words[cut:]
        assert not rest or rest == [10 * (rest[0] // 10) + rest[0] % 10 + i for i in range(len(rest))], "a piece in order"


def test_images_move_a_little() -> None:
    ramp = (5 + torch.arange(32.0)).expand(10, 1, 32, 32).contiguous()
    made = augment(_samples(ramp, patch_features(32, 8, channels=1)), 50, 0).x[10:]
    assert made.min() >= 5 - 1e-4
    assert made.max() <= 36 + 1e-4, "the border is repeated, nothing is made up"
    middle = made[:, 0, 12:20, 12:20].mean((1, 2))
    assert (middle - 20.5).abs().max() < 4
    assert (middle - 20.5).abs().max() > 0.5
