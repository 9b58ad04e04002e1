"""Masks of kept fractions: spec fud.md, check 3."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from faithline.diffusion.removal import nested_keep

NINE = tuple(i / 10 for i in range(1, 10))


def maps(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def keep(attribution: Tensor, fractions: tuple[float, ...] = NINE, size: tuple[int, int] = (8, 8), **how: object) -> Tensor:
    settings = {"unit": "pixel", "reduction": "sum", "seed": 3, **how}
    return nested_keep(attribution, tuple(range(len(attribution))), size, fractions, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("unit", "units"), [("pixel", 64), ("channel", 192), ("patch", 16)])
def test_masks_nest_and_have_exact_counts(unit: str, units: int) -> None:
    found = keep(maps(4, 3, 8, 8), unit=unit, patch=2)
    assert found.shape == (4, 9, 3 if unit == "channel" else 1, 8, 8)
    area = 4 if unit == "patch" else 1
    counts = found.flatten(2).sum(2)
    assert (counts == torch.tensor([round(q * units) * area for q in NINE])).all()
    assert not (found[:, :-1] & ~found[:, 1:]).any()


def test_the_most_important_stay() -> None:
    attribution = maps(2, 3, 8, 8)
    (found,) = keep(attribution, (0.25,)).unbind(1)
    reduced = attribution.sum(1, keepdim=True)
    for row, mask in zip(reduced, found, strict=True):
        assert row[mask].min() > row[~mask].max()
    magnitude = attribution.abs().sum(1, keepdim=True)
    (found,) = keep(attribution, (0.25,), reduction="abs_sum").unbind(1)
    for row, mask in zip(magnitude, found, strict=True):
        assert row[mask].min() > row[~mask].max()


def test_patches_go_as_one() -> None:
    attribution = maps(2, 8, 8)
    (found,) = keep(attribution, (0.5,), unit="patch", patch=4).unbind(1)
    tiles = found.unfold(2, 4, 4).unfold(3, 4, 4).flatten(-2)
    assert (tiles.all(-1) | ~tiles.any(-1)).all()
    sums = functional.avg_pool2d(attribution[:, None], 4)
    for row, mask in zip(sums, tiles.all(-1), strict=True):
        assert row[mask].min() > row[~mask].max()


def test_ties_are_seeded_and_not_raster() -> None:
    attribution = torch.zeros(2, 8, 8)
    attribution[:, 7, 7] = 1
    half = keep(attribution, (0.5,))[:, 0, 0]
    assert half[:, 7, 7].all()
    assert (half[:, :4].flatten(1).sum(1) < 28).all()  # raster order would keep the first 31 or 32 of these 32
    assert not torch.equal(half[0], half[1])
    assert torch.equal(half, keep(attribution, (0.5,))[:, 0, 0])
    assert not torch.equal(half, keep(attribution, (0.5,), seed=4)[:, 0, 0])
    alone = nested_keep(attribution[1:], (1,), (8, 8), (0.5,), "pixel", "sum", seed=3)
    assert torch.equal(alone[0, 0, 0], half[1])


def test_a_coarse_map_is_resized_before_it_is_ranked() -> None:
    attribution = maps(2, 4, 4)
    (found,) = keep(attribution, (0.3,)).unbind(1)
    fine = functional.interpolate(attribution[:, None], (8, 8), mode="bilinear", align_corners=False)
    for row, mask in zip(fine, found, strict=True):
        assert int(mask.sum()) == 19  # a resized mask would be blocks of four
        assert row[mask].min() >= row[~mask].max()


@pytest.mark.parametrize(
    ("attribution", "how", "message"),
    [
        (torch.ones(2, 8, 8), {}, "image 0 is constant"),
        (maps(2, 8, 8).index_fill(0, torch.tensor([1]), torch.nan), {}, "image 1 has values that are not finite"),
        (maps(2, 64), {}, "has shape"),
        (maps(2, 8, 8), {"unit": "channel"}, "one map a channel"),
        (maps(2, 8, 8), {"fractions": (0.5, 1.0)}, r"in \(0, 1\)"),
        (maps(2, 8, 8), {"fractions": (0.0,)}, r"in \(0, 1\)"),
        (maps(2, 8, 8), {"fractions": (0.5, 0.5)}, "different numbers"),
        (maps(2, 8, 8), {"fractions": (0.001,)}, "keeps 0"),
        (maps(2, 8, 8), {"unit": "patch", "patch": 3}, "does not tile"),
    ],
)
def test_what_orders_nothing_is_refused(attribution: Tensor, how: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        keep(attribution, **how)  # type: ignore[arg-type]
