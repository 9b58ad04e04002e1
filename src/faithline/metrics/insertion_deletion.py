"""Insertion and deletion at pixel resolution: pixels give way to a substrate in the order of a map.

One keep-mask serves both names. With the important pixels kept (LeRF), the curve read from kept fraction 0 to 1 is insertion
into the substrate; with the unimportant ones kept (MoRF), the curve read from 1 to 0 is deletion. LeRF with black at the nine
levels of FUD removes what FUD removes and differs from it in the fill alone.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor
from torchvision.transforms import functional as transforms

from faithline.diffusion.removal import Reduction, Unit, nested_keep
from faithline.metrics.responses import Predict, Responses, respond

Substrate = Literal["black", "blur"]
Order = Literal["morf", "lerf"]


@dataclass(frozen=True)
class RemovalCurve:
    """Responses along kept fractions, end points included.

    Attributes:
        fractions: Kept fractions from 0 (the substrate) to 1 (the image), F + 2.
        responses: Of every image and fraction, (I, F + 2).
    """

    fractions: tuple[float, ...]
    responses: Responses


def substrate(images: Tensor, kind: Substrate, *, blur_sigma: float) -> Tensor:
    """What removed pixels become.

    Args:
        images: In [0, 1], (I, C, H, W).
        kind: Black is 0 in [0, 1], before any normalisation; blur is the image under a Gaussian window with mirrored edges.
        blur_sigma: Of the window, in pixels. RISE takes 5 at 224 pixels, in an 11-pixel window; here the window reaches three
            sigma, or as far as the picture allows.

    Returns:
        Same shape and range.

    Source:
        Petsiuk et al., BMVC 2018 (RISE).
    """
    if kind == "black":
        return torch.zeros_like(images)
    if not blur_sigma > 0:
        raise ValueError(f"blur_sigma is {blur_sigma}: a positive number expected")
    window = [2 * min(round(3 * blur_sigma + 0.5), side - 1) + 1 for side in (images.shape[3], images.shape[2])]
    return transforms.gaussian_blur(images, window, [blur_sigma, blur_sigma]).clamp(0, 1)


def removal_keep(
    attribution: Tensor,
    image_ids: tuple[int, ...],
    size: tuple[int, int],
    fractions: tuple[float, ...],
    order: Order,
    unit: Unit,
    reduction: Reduction,
    *,
    patch: int = 1,
    seed: int,
) -> Tensor:
    """Which pixels stay: the most important ones (LeRF: the least relevant go first), or the least important ones (MoRF).

    Both orders read one ranking backwards and forwards, ties included: what MoRF removes first is what LeRF keeps to the last.
    Arguments, result and errors as `nested_keep`.
    """
    if order == "lerf":
        return nested_keep(attribution, image_ids, size, fractions, unit, reduction, patch=patch, seed=seed)
    units = size[0] * size[1] // patch**2 if unit != "channel" else size[0] * size[1] * attribution.shape[1]
    gone = tuple((units - round(fraction * units)) / units for fraction in fractions)
    return ~nested_keep(attribution, image_ids, size, gone, unit, reduction, patch=patch, seed=seed)


def removal_images(images: Tensor, filled: Tensor, keep: Tensor) -> Tensor:
    """The images with their kept pixels, and the fill elsewhere.

    Args:
        images: (I, C, H, W).
        filled: (I, C, H, W), or (I, F, C, H, W) where the fill depends on the mask.
        keep: bool (I, F, 1 or C, H, W).

    Returns:
        (I, F, C, H, W).
    """
    return torch.where(keep, images[:, None], filled if filled.ndim == 5 else filled[:, None])


def removal_curve(
    predict: Predict,
    images: Tensor,
    filled: Tensor,
    keep: Tensor,
    fractions: tuple[float, ...],
    target: Tensor,
    *,
    batch: int = 256,
) -> RemovalCurve:
    """Responses at every kept fraction and at both ends: I * (F + 2) passes.

    Args:
        predict: The model.
        images: In [0, 1], (I, C, H, W).
        filled: The substrate, (I, C, H, W).
        keep: bool (I, F, 1 or C, H, W).
        fractions: Kept fraction of each mask, F of them, in any order.
        target: The explained class, int64 (I,).
        batch: Images at once.

    Returns:
        The curve, by rising kept fraction.
    """
    order = sorted(range(len(fractions)), key=lambda level: fractions[level])
    shown = torch.cat([filled[:, None], removal_images(images, filled, keep[:, order]), images[:, None]], 1)
    return RemovalCurve((0.0, *(fractions[level] for level in order), 1.0), respond(predict, shown, target, batch=batch))


def curve_area(fractions: tuple[float, ...], values: Tensor) -> Tensor:
    """Area under curves over the kept fraction, by trapezoids.

    The area of LeRF is the insertion score (higher = better), that of MoRF the deletion score (lower = better).

    Args:
        fractions: Rising, from 0 to 1, K of them.
        values: (I, K).

    Returns:
        float64 (I,).

    Raises:
        ValueError: If the fractions do not rise from 0 to 1.
    """
    if fractions[0] != 0 or fractions[-1] != 1 or any(a >= b for a, b in pairwise(fractions)):
        raise ValueError(f"fractions are {fractions}: they must rise from 0 to 1")
    return torch.trapezoid(values.double(), torch.tensor(fractions, dtype=torch.float64, device=values.device), dim=1)
