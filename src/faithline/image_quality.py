"""How much of a picture is left: full-reference quality of images against the clean ones, by piq.

Small pictures do not carry the published settings: a window, a scale or a wavelength does not fit. `quality_settings` says what
is used at a size and what cannot be computed there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import piq
import torch
from torch import Tensor

Metric = Literal["psnr", "ssim", "ms_ssim", "fsim", "gmsd", "haarpsi", "vsi"]
Options = dict[str, float | int | bool | tuple[float, ...]]
METRICS: tuple[Metric, ...] = get_args(Metric)
"""Higher = closer to the reference, but for GMSD, where 0 is equal."""

WINDOW = 11
SIGMA = 1.5
"""Gaussian window of SSIM and MS-SSIM as published; a smaller window has the same shape: its sigma shrinks with it."""

SCALE_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Of MS-SSIM, Wang et al. 2003, finest scale first; fewer scales take the first ones, scaled to sum 1."""

WAVELENGTHS = (6, 12, 24, 48)
"""Of the log-Gabor filters of FSIM, in pixels, Zhang et al. 2011."""

HAAR_SCALES = 3
"""Of HaarPSI. piq reads its weights from the third scale: with fewer it fails, or gives NaN for colour."""

PSNR_EPSILON = 1e-8
"""What piq adds to the mean squared error: equal images have 80 dB."""


@dataclass(frozen=True)
class QualitySetting:
    """How a metric is computed at a size.

    Attributes:
        metric: Its name.
        published: Whether every setting is that of the metric's paper.
        options: Settings that depend on the size, by name.
        unavailable: Why it cannot be computed at this size; empty where it can.
    """

    metric: Metric
    published: bool
    options: Options
    unavailable: str = ""


def quality_settings(size: tuple[int, int], channels: int) -> dict[Metric, QualitySetting]:
    """Settings of the seven metrics for pictures of a size.

    * SSIM: the published 11-pixel window where it fits, else the largest odd one that does.
    * MS-SSIM: the published window and as many of the five scales as fit, at least two; where two do not, the largest odd window,
      of 3 pixels at least, with which two do.
    * FSIM: the published wavelengths that are no longer than the shorter side, at least two (it measures agreement between them).
      With colour (FSIMc) for three channels, without for one.
    * GMSD: no setting; halves the picture, then takes 3-pixel differences.
    * HaarPSI: the published three scales need 16 pixels.
    * VSI: no setting, it resizes to 256 pixels itself; a gray picture becomes three equal channels.

    Args:
        size: Height and width.
        channels: 1 or 3.

    Returns:
        A setting for every name in METRICS.

    Raises:
        ValueError: If the channels are neither 1 nor 3, or a side is not positive.
    """
    if channels not in (1, 3):
        raise ValueError(f"{channels} channels: 1 (gray) or 3 (colour) expected")
    side = min(size)
    if side < 1:
        raise ValueError(f"size is {size}: positive sides expected")

    def found(metric: Metric, missing: str, published: bool, options: Options | None = None) -> QualitySetting:
        return QualitySetting(metric, published and not missing, {} if missing or options is None else options, missing)

    window = min(WINDOW, side - 1 + side % 2)
    fine = min(WINDOW, _odd((side - 1) // 2 + 1))  # the window must fit the picture at half its size
    scales = sum((fine - 1) * 2**level + 1 <= side for level in range(len(SCALE_WEIGHTS)))
    weights = SCALE_WEIGHTS[:scales]
    waves = sum(wavelength <= side for wavelength in WAVELENGTHS)
    settings = (
        found("psnr", "", True),
        found(
            "ssim",
            "" if window >= 3 else f"a window of 3 pixels does not fit {side}",
            window == WINDOW,
            {"kernel_size": window, "kernel_sigma": SIGMA * window / WINDOW},
        ),
        found(
            "ms_ssim",
            "" if fine >= 3 else f"a window of 3 pixels at two scales needs 5 pixels, not {side}",
            fine == WINDOW and scales == len(SCALE_WEIGHTS),
            {
                "kernel_size": fine,
                "kernel_sigma": SIGMA * fine / WINDOW,
                "scale_weights": tuple(weight / sum(weights) for weight in weights),
            },
        ),
        found(
            "fsim",
            "" if waves >= 2 else f"two wavelengths need {WAVELENGTHS[1]} pixels, not {side}",
            waves == len(WAVELENGTHS),
            {"scales": waves, "chromatic": channels == 3},
        ),
        found("gmsd", "" if side >= 6 else f"3 pixels at half the size need 6, not {side}", True),
        found(
            "haarpsi",
            "" if side >= 2 ** (HAAR_SCALES + 1) else f"{HAAR_SCALES} scales need {2 ** (HAAR_SCALES + 1)} pixels, not {side}",
            True,
            {"scales": HAAR_SCALES},
        ),
        found("vsi", "", channels == 3),
    )
    return {setting.metric: setting for setting in settings}


def image_quality(
    images: Tensor, references: Tensor, *, metrics: tuple[Metric, ...] = METRICS, batch: int = 128
) -> dict[Metric, Tensor | None]:
    """Quality of every image against its reference, kept pixels included.

    Args:
        images: In [0, 1], (Q, C, H, W), C 1 or 3.
        references: The clean images, same shape.
        metrics: Which.
        batch: Images at once.

    Returns:
        For each metric float32 (Q,) on the CPU, or None where the size does not allow it (`quality_settings` says why). NaN where
        a metric is undefined for a pair, as HaarPSI of two black pictures is.

    Raises:
        ValueError: If shapes differ, there is no image, or a value is outside [0, 1] or not finite.
    """
    _check(images, references)
    settings = quality_settings((images.shape[2], images.shape[3]), images.shape[1])
    scores: dict[Metric, Tensor | None] = {}
    for metric in metrics:
        if settings[metric].unavailable:
            scores[metric] = None
            continue
        compute = _metric(settings[metric])
        with torch.no_grad():
            pairs = zip(images.float().split(batch), references.float().split(batch), strict=True)
            values = torch.cat([compute(x, y).cpu() for x, y in pairs])
        scores[metric] = torch.where(values.isfinite(), values, torch.nan)
    return scores


def psnr_removed(images: Tensor, references: Tensor, keep: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of the removed pixels alone, in dB.

    Args:
        images: In [0, 1], (Q, C, H, W).
        references: The clean images, same shape.
        keep: Which pixels (Q, 1, H, W) or channel values (Q, C, H, W) stayed, bool.

    Returns:
        float32 (Q,) on the CPU, 80 where the removed pixels are equal; NaN where none was removed.

    Raises:
        ValueError: As `image_quality`, or if the masks have another shape.
    """
    _check(images, references)
    if keep.dtype != torch.bool or keep.shape not in (images.shape, (len(images), 1, *images.shape[2:])):
        raise ValueError(f"keep is {keep.dtype} {tuple(keep.shape)}: bool masks of images {tuple(images.shape)} expected")
    removed = (~keep).expand(images.shape).flatten(1)
    squares = (images.double() - references.double()).flatten(1).square()
    error = torch.where(removed, squares, 0.0).sum(1) / removed.sum(1)
    return (-10 * (error + PSNR_EPSILON).log10()).float().cpu()


def _odd(number: int) -> int:
    """The largest odd number that is not above it."""
    return number - 1 + number % 2


def _metric(setting: QualitySetting) -> Callable[[Tensor, Tensor], Tensor]:
    """The metric as a function of images and references, (B, C, H, W) each -> (B,)."""
    options = dict(setting.options)
    if setting.metric == "ms_ssim":
        weights = torch.tensor(options.pop("scale_weights"))
        return lambda x, y: piq.multi_scale_ssim(x, y, reduction="none", scale_weights=weights.to(x), **options)
    if setting.metric == "vsi":  # piq would repeat a gray channel too, with a warning
        return lambda x, y: piq.vsi(x.expand(-1, 3, -1, -1), y.expand(-1, 3, -1, -1), reduction="none")
    function = {"psnr": piq.psnr, "ssim": piq.ssim, "fsim": piq.fsim, "gmsd": piq.gmsd, "haarpsi": piq.haarpsi}[setting.metric]
    return lambda x, y: function(x, y, reduction="none", **options)


def _check(images: Tensor, references: Tensor) -> None:
    if images.ndim != 4 or images.shape != references.shape or not len(images):
        raise ValueError(f"images {tuple(images.shape)} and references {tuple(references.shape)}: equal (Q, C, H, W) expected")
    for name, values in (("images", images), ("references", references)):
        bad = ~((values >= 0) & (values <= 1)).flatten(1).all(1)  # NaN is neither
        if bool(bad.any()):
            raise ValueError(
                f"{name}: {int(bad.sum())} of {len(bad)} have values outside [0, 1], number {int(bad.nonzero()[0])} first"
            )
