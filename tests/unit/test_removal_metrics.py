"""The metrics that FUD is compared with: spec fud.md, sections 4.3 and 7.3, check 17."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from faithline.image_quality import image_quality
from faithline.metrics.infidelity import infidelity, noisy_baseline_images, square_removal_images
from faithline.metrics.insertion_deletion import curve_area, removal_curve, removal_images, removal_keep, substrate
from faithline.metrics.responses import pixel_maps, respond
from faithline.metrics.road import road_images
from faithline.metrics.sensitivity_n import random_subsets, sensitivity_n, subset_images, subset_sizes

NINE = tuple(level / 10 for level in range(1, 10))


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


class Linear:
    """Logits (0, w . x), float64; counts the images it saw and the largest batch."""

    def __init__(self, weights: Tensor) -> None:
        self.weights, self.seen, self.largest = weights.double(), 0, 0

    def __call__(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        self.largest = max(self.largest, len(images))
        logit = images.double().flatten(1) @ self.weights.flatten()
        return torch.stack([torch.zeros_like(logit), logit], 1)


def keep(maps: Tensor, fractions: tuple[float, ...] = NINE, order: str = "lerf", ids: tuple[int, ...] | None = None) -> Tensor:
    ids = ids or tuple(range(len(maps)))
    size = (maps.shape[-2], maps.shape[-1])
    return removal_keep(maps, ids, size, fractions, order, "pixel", "sum", seed=1)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------- responses


def test_every_image_is_shown_once_and_its_own_class_is_read() -> None:
    model, images = Linear(draws(1, 4, 4) - 0.3), draws(3, 2, 5, 1, 4, 4)
    target = torch.tensor([1, 0, 1])
    found = respond(model, images, target, batch=7)
    assert (model.seen, model.largest) == (30, 7)
    logit = (images.double().flatten(3) @ model.weights.flatten()).float()
    torch.testing.assert_close(found.logit, torch.where(target[:, None, None] == 1, logit, 0.0))
    probability = torch.where(target[:, None, None] == 1, logit.sigmoid(), (-logit).sigmoid())
    torch.testing.assert_close(found.probability, probability)
    assert torch.equal(found.top, probability > 0.5)
    assert found.top.any()
    assert not found.top.all()


def test_bad_targets_are_refused() -> None:
    model = Linear(draws(1, 4, 4))
    with pytest.raises(ValueError, match=r"target has classes outside 0 \.\.\. 1"):
        respond(model, draws(2, 1, 4, 4), torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=r"target \(1,\)"):
        respond(model, draws(2, 1, 4, 4), torch.tensor([0]))


def test_a_pixel_map_is_shared_among_channels() -> None:
    maps = draws(2, 4, 4)
    torch.testing.assert_close(pixel_maps(maps, (3, 4, 4)).sum(1), maps.double())
    assert torch.equal(pixel_maps(draws(2, 3, 4, 4), (3, 4, 4)), draws(2, 3, 4, 4).double())
    torch.testing.assert_close(pixel_maps(torch.ones(1, 2, 2), (1, 6, 6)), torch.ones(1, 1, 6, 6).double())
    with pytest.raises(ValueError, match="1 of 2 maps are not finite, number 1 first"):
        pixel_maps(torch.stack([maps[0], maps[1] / 0]), (1, 4, 4))
    with pytest.raises(ValueError, match="attribution has shape"):
        pixel_maps(draws(2, 2, 4, 4), (3, 4, 4))


# ------------------------------------------------------------------------------------------------------ insertion, deletion


def test_insertion_and_deletion_by_hand() -> None:
    """2 x 2 pixels 1, weights 8, 4, 2, 1 on top of -7.5: the map orders them from 8 down to 1."""
    image, maps = torch.ones(1, 1, 2, 2), torch.tensor([[[8.0, 4.0], [2.0, 1.0]]])
    target = torch.tensor([1])

    def predict(images: Tensor) -> Tensor:
        logit = (images * maps).flatten(1).sum(1) - 7.5
        return torch.stack([torch.zeros_like(logit), logit], 1)

    black, fractions = substrate(image, "black", blur_sigma=1.0), (0.75, 0.25, 0.5)

    def sigmoid(logit: float) -> float:
        return 1 / (1 + math.exp(-logit))

    for order, logits in (("lerf", (-7.5, 0.5, 4.5, 6.5, 7.5)), ("morf", (-7.5, -6.5, -4.5, -0.5, 7.5))):
        curve = removal_curve(predict, image, black, keep(maps, fractions, order), fractions, target)
        assert curve.fractions == (0.0, 0.25, 0.5, 0.75, 1.0)
        p = [sigmoid(logit) for logit in logits]
        torch.testing.assert_close(curve.responses.probability, torch.tensor([p]))
        area = 0.25 * (p[0] / 2 + p[1] + p[2] + p[3] + p[4] / 2)
        assert curve_area(curve.fractions, curve.responses.probability).item() == pytest.approx(area, abs=1e-6)


def test_a_better_map_inserts_faster_and_deletes_faster_and_passes_are_counted() -> None:
    weights, images, target = draws(1, 8, 8) - 0.5, draws(4, 1, 8, 8, seed=1), torch.ones(4, dtype=torch.long)
    good, bad = (weights * images)[:, 0], draws(4, 8, 8, seed=2)
    for kind in ("black", "blur"):
        filled = substrate(images, kind, blur_sigma=2.0)  # type: ignore[arg-type]
        areas = {}
        for name, maps in (("good", good if kind == "black" else (weights * (images - filled))[:, 0]), ("bad", bad)):
            for order in ("lerf", "morf"):
                model = Linear(weights)
                curve = removal_curve(model, images, filled, keep(maps, order=order), NINE, target, batch=16)
                assert (model.seen, model.largest) == (4 * (9 + 2), 16)
                areas[name, order] = curve_area(curve.fractions, curve.responses.logit)
        assert (areas["good", "lerf"] > areas["bad", "lerf"]).all()
        assert (areas["good", "morf"] < areas["bad", "morf"]).all()


def test_both_orders_are_one_ranking() -> None:
    maps = draws(3, 8, 8).mul(4).round()  # many ties
    for fractions in (NINE, (0.5,), (1 / 64, 63 / 64)):
        lerf, morf = keep(maps, fractions), keep(maps, fractions, "morf")
        assert torch.equal(morf.flatten(2).sum(2), lerf.flatten(2).sum(2))
        complement = keep(maps, tuple(1 - fraction for fraction in fractions))
        assert torch.equal(morf, ~complement)
    odd = draws(1, 7, 7)
    assert keep(odd, (0.5,), "morf").sum() == keep(odd, (0.5,)).sum() == 24
    least = keep(odd, (0.2,), "morf")[0, 0, 0]
    assert odd[0][least].max() < odd[0][~least].min()


def test_fill_and_kept_pixels() -> None:
    images, maps = draws(2, 3, 8, 8), draws(2, 8, 8, seed=3)
    masks = keep(maps)
    blurred = substrate(images, "blur", blur_sigma=1.0)
    found = removal_images(images, blurred, masks)
    assert found.shape == (2, 9, 3, 8, 8)
    wide = masks.expand_as(found)
    assert torch.equal(found[wide], images[:, None].expand_as(found)[wide])
    assert torch.equal(found[~wide], blurred[:, None].expand_as(found)[~wide])
    assert (blurred.flatten(2).std(2) < images.flatten(2).std(2)).all()
    torch.testing.assert_close(substrate(torch.full((1, 1, 8, 8), 0.3), "blur", blur_sigma=50.0), torch.full((1, 1, 8, 8), 0.3))
    with pytest.raises(ValueError, match="blur_sigma is 0"):
        substrate(images, "blur", blur_sigma=0.0)
    with pytest.raises(ValueError, match="must rise from 0 to 1"):
        curve_area((0.0, 0.5), torch.ones(1, 2))


# ------------------------------------------------------------------------------------------------------------ Sensitivity-N


def test_sensitivity_n_of_a_linear_model_is_one_at_every_size() -> None:
    images, weights = draws(3, 2, 6, 6), draws(2, 6, 6, seed=1) - 0.5
    model, target = Linear(weights), torch.ones(3, dtype=torch.long)
    sizes = subset_sizes(36, 8, 0.8)
    removed = random_subsets((4, 5, 6), (6, 6), sizes, 20, seed=0)
    clean = respond(model, images, target).logit
    shown = subset_images(images, removed)
    falls = clean[:, None, None] - respond(model, shown, target).logit
    assert model.seen == 3 + 3 * len(sizes) * 20
    for maps in (weights * images, (weights * images).sum(1)):
        found = sensitivity_n(maps, removed, falls, 2)
        torch.testing.assert_close(found.correlation, torch.ones(3, len(sizes)).double(), rtol=0, atol=1e-5)
        assert found.undefined.tolist() == [0] * len(sizes)
    opposite = sensitivity_n(-3 * weights * images, removed, falls, 2).correlation
    torch.testing.assert_close(opposite, -torch.ones(3, len(sizes)).double(), rtol=0, atol=1e-5)
    assert sensitivity_n(draws(3, 6, 6, seed=9), removed, falls, 2).correlation.abs().mean() < 0.6


def test_subsets_have_their_size_their_seed_and_are_black() -> None:
    sizes = subset_sizes(784, 10, 0.8)
    assert sizes[0] == 1
    assert sizes[-1] == round(0.8 * 784)
    assert len(sizes) == 10
    ratios = [b / a for a, b in pairwise(sizes[4:])]
    assert max(ratios) / min(ratios) < 1.1
    assert subset_sizes(4, 10, 0.75) == (1, 2, 3)
    removed = random_subsets((3, 8), (6, 6), (1, 7, 35), 30, seed=2)
    assert (removed.flatten(3).sum(3) == torch.tensor([1, 7, 35])[None, :, None]).all()
    assert torch.equal(random_subsets((8,), (6, 6), (7,), 30, seed=2)[0, 0], removed[1, 1])
    assert not torch.equal(removed[0, 1], removed[1, 1])
    assert removed[:, 1].float().mean((0, 1)).min() > 0  # every pixel has its turn
    images = draws(2, 3, 6, 6) + 0.1
    shown = subset_images(images, removed)
    assert torch.equal(shown == 0, removed.expand(-1, -1, -1, 3, -1, -1))
    with pytest.raises(ValueError, match=r"sizes in 1 \.\.\. 35"):
        random_subsets((3,), (6, 6), (36,), 30, seed=2)


def test_undefined_correlations_are_nan_and_counted() -> None:
    removed = random_subsets((0, 1), (6, 6), (1, 9), 10, seed=0)
    falls = draws(2, 2, 10)
    falls[1, 0] = 0.25
    found = sensitivity_n(draws(2, 6, 6), removed, falls, 1)
    assert found.correlation.isnan().tolist() == [[False, False], [True, False]]
    assert found.undefined.tolist() == [1, 0]
    assert sensitivity_n(torch.ones(2, 6, 6), removed, falls, 1).undefined.tolist() == [2, 2]
    with pytest.raises(ValueError, match="expected in all"):
        sensitivity_n(draws(2, 6, 6), removed, falls[:, :1], 1)


# --------------------------------------------------------------------------------------------------------------- infidelity


def perturbations(images: Tensor, ids: tuple[int, ...]) -> dict[str, Tensor]:
    return {
        "noise": noisy_baseline_images(images, ids, 12, std=0.2, share=0.5, seed=0),
        "square": square_removal_images(images, ids, 12, sides=(2, 3), seed=0),
    }


def test_infidelity_of_a_linear_model_is_zero_and_scale_drops_out() -> None:
    images, weights = draws(3, 2, 6, 6) + 1e-3, draws(2, 6, 6, seed=1) - 0.5
    images, ids, target = images.clamp(max=1), (4, 5, 6), torch.ones(3, dtype=torch.long)
    wrong = draws(3, 2, 6, 6, seed=5) - 0.5
    gradients = weights.expand(3, -1, -1, -1)
    for name, shown in perturbations(images, ids).items():
        model = Linear(weights)
        falls = respond(model, images, target).logit[:, None] - respond(model, shown, target).logit
        assert model.seen == 3 + 3 * 12, name
        for normalize in (False, True):
            exact = infidelity(gradients, "per_unit", images, shown, falls, normalize=normalize)
            assert exact.abs().max() < 1e-9
            parts = infidelity(gradients * images, "contribution", images, shown, falls, normalize=normalize)
            assert parts.abs().max() < 1e-9
            assert (infidelity(wrong, "per_unit", images, shown, falls, normalize=normalize) > 1e-3).all()
        normal = infidelity(wrong, "per_unit", images, shown, falls, normalize=True)
        torch.testing.assert_close(infidelity(1e-4 * wrong, "per_unit", images, shown, falls, normalize=True), normal)
        torch.testing.assert_close(infidelity(-7 * wrong, "per_unit", images, shown, falls, normalize=True), normal)
        raw = infidelity(wrong, "per_unit", images, shown, falls, normalize=False)
        assert not torch.allclose(infidelity(2 * wrong, "per_unit", images, shown, falls, normalize=False), raw)
        assert (normal <= raw + 1e-12).all()


def test_infidelity_by_hand() -> None:
    """Two versions of two pixels: predictions 1 and 2, falls 2 and 1. beta = (2 + 2) / 5; errors 1.2 and .6."""
    images = torch.full((1, 1, 1, 2), 0.5)
    shown = torch.tensor([[0.0, 0.5], [0.5, 0.0]]).reshape(1, 2, 1, 1, 2)
    maps, falls = torch.tensor([[[2.0, 4.0]]]), torch.tensor([[2.0, 1.0]])
    assert infidelity(maps, "per_unit", images, shown, falls, normalize=False).item() == pytest.approx((1 + 1) / 2)
    assert infidelity(maps, "per_unit", images, shown, falls, normalize=True).item() == pytest.approx((1.44 + 0.36) / 2)
    assert infidelity(maps / 2, "contribution", images, shown, falls, normalize=False).item() == pytest.approx((1 + 1) / 2)
    assert infidelity(0 * maps, "per_unit", images, shown, falls, normalize=True).item() == pytest.approx((4 + 1) / 2)


def test_a_black_pixel_has_nothing_to_lose() -> None:
    images = torch.tensor([0.0, 0.5]).reshape(1, 1, 1, 2)
    shown = torch.tensor([[0.3, 0.0], [0.7, 0.25]]).reshape(1, 2, 1, 1, 2)
    maps, falls = torch.tensor([[[9.0, 1.0]]]), torch.tensor([[1.0, 0.5]])
    assert infidelity(maps, "contribution", images, shown, falls, normalize=False).item() == pytest.approx(0)
    assert infidelity(maps, "per_unit", images, shown, falls, normalize=False).item() > 1


def test_perturbed_images_are_pictures_drawn_by_image() -> None:
    images = draws(3, 2, 6, 6) * 0.9 + 0.1
    for name, shown in perturbations(images, (4, 5, 6)).items():
        assert shown.shape == (3, 12, 2, 6, 6)
        assert shown.min() >= 0
        assert shown.max() <= 1
        assert torch.equal(perturbations(images[[2, 0]], (6, 4))[name], shown[[2, 0]])
    changed = perturbations(images, (4, 5, 6))["noise"] != images[:, None]
    assert (changed.any(2).flatten(2).sum(2) == 18).all()
    whole = noisy_baseline_images(images, (4, 5, 6), 200, std=0.2, share=1.0, seed=0)
    assert (whole == 0).float().mean().item() == pytest.approx(0.5, abs=0.02)
    assert whole[whole > 0].square().mean().sqrt().item() == pytest.approx(0.2, abs=0.01)
    black = (square_removal_images(images, (4, 5, 6), 300, sides=(2, 4), seed=0) == 0).all(2)
    assert set(black.flatten(2).sum(2).flatten().tolist()) == {4, 16}
    rows = black.any(3).sum(2)
    assert set(rows.flatten().tolist()) == {2, 4}
    assert black.flatten(2).any(1).all()  # corners too


def test_bad_perturbations_are_refused() -> None:
    images = draws(2, 1, 6, 6)
    with pytest.raises(ValueError, match=r"sides are \(7,\): 1 \.\.\. 6"):
        square_removal_images(images, (0, 1), 4, sides=(7,), seed=0)
    with pytest.raises(ValueError, match="share is 0"):
        noisy_baseline_images(images, (0, 1), 4, std=0.2, share=0.0, seed=0)
    with pytest.raises(ValueError, match="1 samples"):
        square_removal_images(images, (0, 1), 1, sides=(2,), seed=0)
    with pytest.raises(ValueError, match="K at least 2"):
        infidelity(draws(2, 6, 6), "per_unit", images, images[:, None], draws(2, 1), normalize=True)
    with pytest.raises(ValueError, match="falls: 1 values"):
        infidelity(
            draws(1, 1, 2),
            "per_unit",
            draws(1, 1, 1, 2),
            draws(1, 2, 1, 1, 2),
            draws(1, 2) / torch.tensor([1, 0]),
            normalize=True,
        )


# --------------------------------------------------------------------------------------------------------------------- ROAD


def test_a_ramp_is_restored_from_its_border() -> None:
    """A linear function is harmonic inside; at the border, where neighbours are missing on one side, it is not."""
    y, x = torch.meshgrid(torch.arange(9.0), torch.arange(9.0), indexing="ij")
    ramp = torch.stack([0.1 + 0.05 * x + 0.03 * y, 0.9 - 0.04 * x - 0.02 * y])[None]
    stays = draws(1, 5, 1, 9, 9) > torch.tensor([0.1, 0.4, 0.7, 0.9, 2.0]).reshape(1, 5, 1, 1, 1)
    stays[..., [0, -1], :] = True
    stays[..., :, [0, -1]] = True
    found = road_images(ramp, (3,), stays, noise=0.0, seed=0)
    torch.testing.assert_close(found, ramp[:, None].expand_as(found), rtol=0, atol=1e-6)


def test_a_removed_pixel_is_the_weighted_mean_of_its_neighbours() -> None:
    image = draws(1, 1, 3, 3)
    stays = torch.ones(1, 2, 1, 3, 3, dtype=torch.bool)
    stays[0, 0, 0, 1, 1] = stays[0, 1, 0, 0, 0] = False
    found = road_images(image, (0,), stays, noise=0.0, seed=0)
    a = image[0, 0]
    centre = (a[0, 1] + a[1, 0] + a[1, 2] + a[2, 1]) / 6 + (a[0, 0] + a[0, 2] + a[2, 0] + a[2, 2]) / 12
    corner = (a[0, 1] / 6 + a[1, 0] / 6 + a[1, 1] / 12) / (5 / 12)
    torch.testing.assert_close(torch.stack([found[0, 0, 0, 1, 1], found[0, 1, 0, 0, 0]]), torch.stack([centre, corner]))


def test_road_keeps_pixels_and_depends_on_no_batch_mate() -> None:
    images, maps, ids = draws(4, 3, 8, 8), draws(4, 8, 8, seed=1), (7, 2, 9, 4)
    masks = keep(maps, ids=ids)
    found = road_images(images, ids, masks, noise=0.01, seed=5)
    wide = masks.expand_as(found)
    assert torch.equal(found[wide], images[:, None].expand_as(found)[wide])
    assert found.min() >= 0
    assert found.max() <= 1
    assert torch.equal(road_images(images[2:3], (9,), masks[2:3], noise=0.01, seed=5), found[2:3])
    assert torch.equal(road_images(images.flip(0), ids[::-1], masks.flip(0, 1), noise=0.01, seed=5), found.flip(0, 1))
    quiet = road_images(images, ids, masks, noise=0.0, seed=5)
    assert (found - quiet)[~wide].std().item() == pytest.approx(0.01, rel=0.1)
    # the same noise at every level
    gone = ~(masks[:, 0] | masks[:, 1]).expand(-1, 3, -1, -1)
    torch.testing.assert_close((found - quiet)[:, 0][gone], (found - quiet)[:, 1][gone], rtol=0, atol=1e-6)


def test_geometry_of_the_mask_decides_what_interpolation_restores() -> None:
    """Section 7.3: scattered pixels come back, a smooth blob less, all but a square least."""
    generator = torch.Generator().manual_seed(0)

    def smooth(sigma: float) -> Tensor:
        return substrate(torch.rand(8, 1, 28, 28, generator=generator), "blur", blur_sigma=sigma)

    field = smooth(1.5)
    images = (field - field.amin((2, 3), True)) / (field.amax((2, 3), True) - field.amin((2, 3), True))
    centre = torch.full((28, 28), 14.0)
    y, x = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    square = -torch.maximum((y - centre).abs(), (x - centre).abs()).expand(8, -1, -1)
    psnr = []
    for maps in (torch.rand(8, 28, 28, generator=generator), smooth(3.0)[:, 0], square):
        found = road_images(images, tuple(range(8)), keep(maps, (0.5,)), noise=0.0, seed=0)[:, 0]
        quality = image_quality(found, images, metrics=("psnr",))["psnr"]
        assert quality is not None
        psnr.append(quality.mean().item())
    assert psnr[0] > psnr[1] + 3
    assert psnr[1] > psnr[2]


def test_bad_masks_are_refused() -> None:
    images = draws(1, 1, 4, 4)
    with pytest.raises(ValueError, match="1 masks keep no pixel"):
        road_images(images, (0,), torch.zeros(1, 1, 1, 4, 4, dtype=torch.bool), noise=0.01, seed=0)
    with pytest.raises(ValueError, match="masks of whole pixels"):
        road_images(images.expand(-1, 3, -1, -1), (0,), torch.ones(1, 1, 3, 4, 4, dtype=torch.bool), noise=0.01, seed=0)
    with pytest.raises(ValueError, match="noise is -1"):
        road_images(images, (0,), torch.ones(1, 1, 1, 4, 4, dtype=torch.bool), noise=-1.0, seed=0)
