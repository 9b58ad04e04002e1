"""FUD's protocol: spec fud.md, checks 1, 2, 13 and 16, controls, and the one call of the public API."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import faithline as fl
from faithline import fud
from faithline.diffusion.guidance import classifier_evidence
from faithline.diffusion.presets import ANNEALED, PAPER, SOFT, Preset
from faithline.diffusion.removal import nested_keep
from faithline.diffusion.schedule import linear_schedule
from faithline.diffusion.score import gaussian_score
from faithline.fud import Scene
from faithline.score_models import LoadedScore

pytestmark = pytest.mark.usefixtures("one_thread")

SIDE = 6
LEVELS = [0.75, 0.5, 0.25]
SCHEDULE = linear_schedule(1000, 1e-4, 0.02)
SHORT = replace(ANNEALED, denoising_steps=10, langevin_steps=6, langevin_levels=(50, 12), variance="fixed_small")


class ByCorner(nn.Module):
    """Class 1 is light in the upper left 3 x 3 pixels; all else is ignored."""

    def forward(self, x: Tensor) -> Tensor:
        light = 4 * (x[:, 0, :3, :3].mean((1, 2)) - 0.5) * 3
        return torch.stack([-light, light], 1)


def field() -> tuple[Tensor, Tensor]:
    """Mean and covariance of smooth 6 x 6 images in [-1, 1]."""
    place = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE)).double()
    distance = torch.cdist(place, place)
    return torch.zeros(SIDE**2, dtype=torch.float64), 0.09 * torch.exp(-(distance**2) / 2) + 1e-4 * torch.eye(SIDE**2)


def images(count: int) -> Tensor:
    """Images of the field with a light corner, pixels in [0, 1]."""
    mean, covariance = field()
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(count, SIDE**2, generator=draw, dtype=torch.float64) @ torch.linalg.cholesky(covariance).T + mean
    pixels = ((rows.reshape(count, 1, SIDE, SIDE) + 1) / 2).float()
    pixels[:, :, :3, :3] += 0.25
    return pixels.clamp(0, 1)


def scene(count: int = 4, max_batch: int = 5) -> Scene:
    mean, covariance = field()
    return Scene(
        pixels=images(count),
        image_ids=tuple(range(10, 10 + count)),
        targets=torch.ones(count, dtype=torch.int64),
        model=gaussian_score(SCHEDULE, mean, covariance),
        schedule=SCHEDULE,
        evidence=classifier_evidence(ByCorner(), [0.0], [1.0], SIDE),
        seed=0,
        max_batch=max_batch,
    )


def truth(count: int) -> Tensor:
    maps = torch.zeros(count, SIDE, SIDE)
    maps[:, :3, :3] = 1
    return maps + 1e-3 * torch.rand(count, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def keep(maps: Tensor, ids: tuple[int, ...]) -> Tensor:
    return nested_keep(maps, ids, (SIDE, SIDE), tuple(LEVELS), "pixel", "sum", seed=0)


@pytest.mark.parametrize("preset", [SHORT, replace(PAPER, denoising_steps=8, variance="fixed_small")], ids=["annealed", "paper"])
def test_kept_pixels_are_those_of_the_image_bit_by_bit(preset: Preset) -> None:
    """Spec check 1, in pixels: the way to [-1, 1] and back rounds, kept pixels do not."""
    where = scene()
    masks = keep(truth(4), where.image_ids)
    made = fud.regenerate(where, masks, preset, 2)
    kept = masks[:, :, None].expand_as(made.pixels)
    clean = where.pixels[:, None, None].expand_as(made.pixels)
    assert torch.equal(made.pixels[kept], clean[kept])
    assert not torch.equal(made.pixels[~kept], clean[~kept])
    assert made.pixels.shape == (4, len(LEVELS), 2, 1, SIDE, SIDE)


def test_soft_masks_move_kept_pixels() -> None:
    where = scene()
    masks = keep(truth(4), where.image_ids)
    made = fud.regenerate(where, masks, replace(SOFT, denoising_steps=8, variance="fixed_small"), 1)
    kept = masks[:, :, None].expand_as(made.pixels)
    assert not torch.equal(made.pixels[kept], where.pixels[:, None, None].expand_as(made.pixels)[kept])


def test_end_points() -> None:
    """Spec check 2: all kept is the image at no cost; nothing kept is the same for every map."""
    where = scene()
    whole = torch.ones(4, 1, 1, SIDE, SIDE, dtype=torch.bool)
    made = fud.regenerate(where, whole, SHORT, 1)
    assert torch.equal(made.pixels[:, 0, 0], where.pixels)
    assert int(made.calls.sum()) == 0
    both = torch.cat([~whole, ~whole], 1)
    nothing = fud.regenerate(where, both, SHORT, 1)
    assert torch.equal(nothing.pixels[:, 0], nothing.pixels[:, 1])
    assert set(nothing.calls.flatten().tolist()) == {10 - 1 + 12}, "one step of ten would end below the switch"


def test_nothing_depends_on_batch_or_company() -> None:
    """Spec check 13."""
    masks = keep(truth(4), scene().image_ids)
    together = fud.regenerate(scene(max_batch=5), masks, SHORT, 1)
    alone = replace(scene(max_batch=5), pixels=images(4)[2:3], image_ids=(12,), targets=torch.ones(1, dtype=torch.int64))
    assert torch.equal(fud.regenerate(alone, masks[2:3], SHORT, 1).pixels[0], together.pixels[2])


def test_an_image_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"values from -1 to -1: pixels in \[0, 1\] expected"):
        replace(scene(), pixels=-torch.ones(4, 1, SIDE, SIDE))
    with pytest.raises(ValueError, match=r"pixels in \[0, 1\] expected"):
        replace(scene(), pixels=torch.full((4, 1, SIDE, SIDE), torch.nan))


def test_removed_pixels_fit_the_kept_ones_in_the_same_units() -> None:
    """Spec mutation: [0, 1] against [-1, 1]. Smooth images with dark borders are dark inside, not gray."""
    where = replace(scene(), pixels=torch.full((4, 1, SIDE, SIDE), 0.2))
    keep_all_but_one = torch.ones(4, 1, 1, SIDE, SIDE, dtype=torch.bool)
    keep_all_but_one[..., 2, 2] = False
    made = fud.regenerate(where, keep_all_but_one, replace(SHORT, scale=0.0), 8).pixels[..., 2, 2]
    assert float(made.mean()) == pytest.approx(0.2, abs=0.06)


def test_confidence_is_the_softmax_of_each_row_s_own_class() -> None:
    """Spec mutations: a double softmax, and a class index that is not gathered."""
    logits = torch.tensor([[0.0, 3.0], [0.0, 3.0], [1.0, 1.0]]).log1p()
    found = fud.confidence(logits, torch.tensor([0, 1, 1]))
    assert found.tolist() == pytest.approx([0.2, 0.8, 0.5])


def test_tau_tells_falling_from_rising() -> None:
    """Spec check 16: positive = confidence falls with removal; a constant curve has none."""
    curves = torch.tensor([[0.9, 0.5, 0.1], [0.1, 0.5, 0.9], [0.4, 0.4, 0.4], [0.9, 0.9, 0.1]])
    falling, rising, constant, tied = fud.smoothness(curves, LEVELS).tolist()
    assert (falling, rising) == (1, -1)
    assert constant != constant
    assert tied == pytest.approx(2 / (3 * 2) ** 0.5), "tau-b: one pair of three is tied"


def test_areas_scores_and_rises_by_hand() -> None:
    curve = torch.tensor([[0.8, 0.6, 0.2]])
    assert float(fud.score(curve[..., None])) == pytest.approx(1.6 / 3)
    found = fud.area(curve, LEVELS, torch.tensor([0.1]), torch.tensor([1.0]))
    assert float(found) == pytest.approx(0.25 * (0.1 / 2 + 0.2 + 0.6 + 0.8 + 1.0 / 2))
    assert float(fud.rises(torch.tensor([[0.8, 0.9, 0.2]]), LEVELS, torch.tensor([0.7]))) == pytest.approx(2 / 3)
    shuffled = fud.area(curve[:, [2, 0, 1]], [0.25, 0.75, 0.5], torch.tensor([0.1]), torch.tensor([1.0]))
    assert torch.equal(found, shuffled)


def test_matched_random_maps_are_as_smooth_and_know_nothing() -> None:
    maps = torch.nn.functional.avg_pool2d(torch.randn(3, 1, 20, 20, generator=torch.Generator().manual_seed(2)), 5, 1)[:, 0]
    random = fud.matched_random(maps, (1, 2, 3), seed=0)
    torch.testing.assert_close(torch.fft.rfft2(random).abs(), torch.fft.rfft2(maps).abs(), atol=1e-3, rtol=1e-3)
    for own, other in zip(maps, random, strict=True):
        assert abs(float(torch.corrcoef(torch.stack([own.flatten(), other.flatten()]))[0, 1])) < 0.6
        ahead = [float(torch.corrcoef(torch.stack([m[:, 1:].flatten(), m[:, :-1].flatten()]))[0, 1]) for m in (own, other)]
        assert ahead[1] == pytest.approx(ahead[0], abs=0.15)
    assert torch.equal(fud.matched_random(maps[1:2], (2,), seed=0)[0], random[1])
    assert not torch.equal(fud.matched_random(maps, (1, 2, 3), seed=1), random)


# -------------------------------------------------------------------------------------------------------------- fl.fud_score


def loaded() -> LoadedScore:
    mean, covariance = field()
    model = gaussian_score(SCHEDULE, mean, covariance)
    return LoadedScore(model, SCHEDULE, 1, SIDE, False, None, "0" * 64, "1" * 64)  # type: ignore[arg-type]


def game() -> fl.MaskedModel:
    return fl.MaskedModel(ByCorner(), fl.patch_features(SIDE, 1, channels=1), fl.Baseline.zero(), max_batch=32)


def judge(maps: dict[str, Tensor], count: int = 12, **changes: object) -> dict[str, fl.FudResult]:
    settings = {"sampler": SHORT, "levels": LEVELS, "draws": 1, "bootstrap": 200, **changes}
    return fl.fud_score(game(), images(count), maps, loaded(), torch.ones(count, dtype=torch.int64), **settings)


def test_one_call_says_which_map_knows() -> None:
    found = judge({"truth": truth(12), "inverse": -truth(12)})
    assert set(found) == {"random", "truth", "inverse"}
    assert found["truth"].score > found["random"].score > found["inverse"].score
    assert found["truth"].above_random[1] > 0 > found["inverse"].above_random[2], "the intervals exclude 0"
    assert found["truth"].low < found["truth"].score < found["truth"].high
    assert found["truth"].images.shape == (12, 3, 1, 1, SIDE, SIDE)
    assert found["truth"].calls == 12 * 3 * 21


def test_a_map_on_the_features_is_the_map_on_their_pixels() -> None:
    on_pixels, on_features = judge({"a": truth(12)}), judge({"a": truth(12).flatten(1)})
    assert torch.equal(on_pixels["a"].confidences, on_features["a"].confidences)


@pytest.mark.parametrize(
    ("maps", "changes", "message"),
    [
        ({"flat": torch.ones(12, SIDE, SIDE)}, {}, "flat: attribution: the map of image 0 is constant"),
        (
            {"nan": torch.full((12, SIDE, SIDE), torch.nan)},
            {},
            "nan: attribution: the map of image 0 has values that are not finite",
        ),
        ({"few": torch.rand(3, SIDE, SIDE)}, {}, r"maps of 'few' have shape \(3, 6, 6\)"),
        ({"a": truth(12)}, {"levels": [1.0, 0.5]}, r"different numbers in \(0, 1\) expected"),
        ({"a": truth(12)}, {"std": [4.0]}, r"x has pixels from .* in \[0, 1\]: give mean and std"),
        ({"random": truth(12)}, {}, "the name 'random' is that of the random order"),
    ],
)
def test_what_judges_nothing_is_refused(maps: dict[str, Tensor], changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        judge(maps, **changes)


def test_a_score_model_of_other_channels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the score model knows images of 3 channel\(s\), x has 1"):
        fl.fud_score(game(), images(2), {"a": truth(2)}, replace(loaded(), channels=3))
