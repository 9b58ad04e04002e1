"""Full-reference quality of images: spec fud.md, check 15."""

import math
import warnings

import pytest
import torch
from torch import Tensor

from faithline.image_quality import METRICS, image_quality, psnr_removed, quality_settings

IDEAL = {"psnr": 80.0, "ssim": 1.0, "ms_ssim": 1.0, "fsim": 1.0, "gmsd": 0.0, "haarpsi": 1.0, "vsi": 1.0}


def pictures(count: int, channels: int, side: int) -> Tensor:
    """Smooth blobs over a slope, far from 0 and 1."""
    generator = torch.Generator().manual_seed(side)
    axis = torch.linspace(-1, 1, side)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    cy, cx = torch.rand(2, count, channels, 1, 1, generator=generator) - 0.5
    return 0.3 + 0.1 * (x + y) / 2 + 0.4 * torch.exp(-((x - cx) ** 2 + (y - cy) ** 2) / 0.1)


def noise(like: Tensor) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 28), (1, 8), (3, 64)])
def test_equal_images_have_the_ideal_value_and_noise_only_lowers_it(channels: int, side: int) -> None:
    clean = pictures(3, channels, side)
    levels = [image_quality((clean + amount * noise(clean)).clamp(0, 1), clean) for amount in (0.0, 0.02, 0.06, 0.2)]
    settings = quality_settings((side, side), channels)
    for metric in METRICS:
        if settings[metric].unavailable:
            assert all(level[metric] is None for level in levels)
            continue
        curve = torch.stack([level[metric] for level in levels])  # type: ignore[misc]
        assert curve.shape == (4, 3)
        torch.testing.assert_close(curve[0], torch.full((3,), IDEAL[metric]), rtol=1e-5, atol=1e-5)
        direction = 1 if metric == "gmsd" else -1
        assert (direction * curve.diff(dim=0) > 0).all(), metric


def test_what_a_size_allows() -> None:
    missing = {side: {m for m, s in quality_settings((side, 40), 1).items() if s.unavailable} for side in (4, 8, 12, 16, 28)}
    assert missing[4] == {"ms_ssim", "fsim", "gmsd", "haarpsi"}
    assert missing[8] == {"fsim", "haarpsi"}
    assert missing[12] == {"haarpsi"}
    assert missing[16] == missing[28] == set()
    small = quality_settings((28, 28), 1)
    assert small["ssim"].options == {"kernel_size": 11, "kernel_sigma": 1.5}
    assert small["ms_ssim"].options["kernel_size"] == 11
    assert small["ms_ssim"].options["scale_weights"] == pytest.approx((0.0448 / 0.3304, 0.2856 / 0.3304))
    assert small["fsim"].options == {"scales": 3, "chromatic": False}
    assert {metric for metric, setting in small.items() if not setting.published} == {"ms_ssim", "fsim", "vsi"}
    assert quality_settings((8, 8), 1)["ssim"].options["kernel_size"] == 7
    assert quality_settings((8, 8), 1)["ms_ssim"].options["kernel_size"] == 3
    assert quality_settings((8, 8), 1)["ms_ssim"].options["kernel_sigma"] == pytest.approx(1.5 * 3 / 11)
    assert all(setting.published for setting in quality_settings((161, 161), 3).values())
    assert not quality_settings((160, 160), 3)["ms_ssim"].published
    assert quality_settings((8, 8), 1)["haarpsi"].unavailable == "3 scales need 16 pixels, not 8"


@pytest.mark.parametrize("side", range(3, 40))
def test_every_size_is_computed_or_named(side: int) -> None:
    clean = pictures(1, 1, side)
    found = image_quality((clean + 0.05 * noise(clean)).clamp(0, 1), clean)
    settings = quality_settings((side, side), 1)
    for metric, values in found.items():
        assert (values is None) == bool(settings[metric].unavailable)
        assert values is None or bool(values.isfinite().all()), metric


def test_stored_values() -> None:
    """Of piq 0.8.0: another release that computes something else is noticed."""
    clean = pictures(1, 3, 28)
    found = image_quality((clean + 0.1 * noise(clean)).clamp(0, 1), clean)
    stored = {"psnr": 19.7483, "ssim": 0.2686, "ms_ssim": 0.7028, "fsim": 0.6683, "gmsd": 0.1047, "haarpsi": 0.6161, "vsi": 0.84}
    assert {metric: values.item() for metric, values in found.items() if values is not None} == pytest.approx(stored, abs=2e-4)


def test_batches_change_nothing_and_gray_needs_no_warning() -> None:
    clean = pictures(5, 1, 28)
    other = (clean + 0.05 * noise(clean)).clamp(0, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole, pairs = image_quality(other, clean), image_quality(other, clean, batch=2)
        colour = image_quality(other.expand(-1, 3, -1, -1), clean.expand(-1, 3, -1, -1), metrics=("vsi",))
    assert list(whole) == list(METRICS)
    for metric in METRICS:
        torch.testing.assert_close(whole[metric], pairs[metric], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(whole["vsi"], colour["vsi"])


def test_zero_fill_follows_the_fraction() -> None:
    """PSNR = a - 10 log10(fraction): the error of an image is the share of removed pixels times what a pixel costs."""
    generator = torch.Generator().manual_seed(0)
    clean = pictures(1, 1, 64)
    order = torch.rand(64 * 64, generator=generator).argsort().argsort().reshape(1, 1, 64, 64)
    fractions = [level / 10 for level in range(1, 10)]
    keep = torch.cat([order >= fraction * 64 * 64 for fraction in fractions])
    images, references = torch.where(keep, clean, 0.0), clean.expand(9, -1, -1, -1)
    psnr = image_quality(images, references, metrics=("psnr",))["psnr"]
    a = -10 * clean.square().mean().log10().item()
    assert psnr is not None
    torch.testing.assert_close(psnr, torch.tensor([a - 10 * math.log10(fraction) for fraction in fractions]), rtol=0, atol=0.25)
    removed = psnr_removed(images, references, keep)
    torch.testing.assert_close(removed, torch.full((9,), a), rtol=0, atol=0.25)


def test_psnr_of_removed_pixels_by_hand() -> None:
    clean = torch.full((3, 2, 1, 2), 0.5)
    images = clean.clone()
    images[:, :, 0, 1] = torch.tensor([0.6, 0.8])  # errors .1 and .3: mean square .05
    keep = torch.tensor([[True, False], [True, True], [False, True]]).reshape(3, 1, 1, 2)
    found = psnr_removed(images, clean, keep)
    assert found[0].item() == pytest.approx(-10 * math.log10(0.05), abs=1e-4)
    assert found[1].isnan()
    assert found[2].item() == pytest.approx(80)
    channel = torch.tensor([True, False]).reshape(1, 2, 1, 1).expand(3, 2, 1, 2)
    assert psnr_removed(images, clean, channel)[0].item() == pytest.approx(-10 * math.log10(0.09 / 2), abs=1e-4)


def test_undefined_pairs_are_nan() -> None:
    black = torch.zeros(1, 1, 28, 28)
    found = image_quality(black, black, metrics=("haarpsi", "ssim"))
    assert found["haarpsi"] is not None
    assert found["haarpsi"].isnan().all()
    assert found["ssim"] is not None
    assert found["ssim"].item() == 1


def test_bad_images_are_refused() -> None:
    clean = pictures(2, 1, 28)
    with pytest.raises(ValueError, match=r"images: 2 of 2 have values outside \[0, 1\], number 0 first"):
        image_quality(2 * clean - 1.5, clean)
    broken = clean.clone()
    broken[1, 0, 3, 3] = torch.nan
    with pytest.raises(ValueError, match="references: 1 of 2 have values outside"):
        image_quality(clean, broken)
    with pytest.raises(ValueError, match=r"images \(2, 1, 28, 28\) and references \(1, 1, 28, 28\)"):
        image_quality(clean, clean[:1])
    with pytest.raises(ValueError, match="2 channels"):
        image_quality(clean.expand(-1, 2, -1, -1), clean.expand(-1, 2, -1, -1))
    with pytest.raises(ValueError, match=r"keep is torch\.float32"):
        psnr_removed(clean, clean, torch.ones(2, 1, 28, 28))
