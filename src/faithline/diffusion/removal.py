"""Which features stay at each kept fraction: nested masks from an attribution."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from faithline.seeding import torch_generator

Unit = Literal["pixel", "channel", "patch"]
Reduction = Literal["sum", "abs_sum"]


def nested_keep(
    attribution: Tensor,
    image_ids: tuple[int, ...],
    size: tuple[int, int],
    fractions: tuple[float, ...],
    unit: Unit,
    reduction: Reduction,
    *,
    patch: int = 1,
    seed: int,
) -> Tensor:
    """Keep the most important units of each image.

    There is one ranking an image, so masks are nested in the fraction, and exactly `round(fraction * units)` units stay. Equal
    importance is ordered at random, by a seed of the image: by position, ties would draw raster-shaped masks.

    Args:
        attribution: Importance, higher = more support, (B, h, w) or (B, C, h, w). A map of another size than the image is
            resized (bilinear) before it is ranked.
        image_ids: Id of each image (B): it names the order of ties.
        size: Height and width of the image.
        fractions: Kept fractions, each in (0, 1); F of them, in any order.
        unit: What stays or goes as one: a pixel, a channel value (needs C > 1), or a patch.
        reduction: How a pixel's channels become one number: their sum, or the sum of their magnitudes. A patch sums its pixels.
            For channel values: as they are, or their magnitude.
        patch: Side of a patch in pixels, for `unit="patch"`.
        seed: Root seed.

    Returns:
        bool (B, F, 1, H, W); for channel values (B, F, C, H, W).

    Raises:
        ValueError: If a map is not finite, constant or of a wrong shape, a fraction is outside (0, 1), repeated or so near an end
            that no unit goes or stays, or the patch does not tile the image.

    Source:
        FUD, ICLR 2026 (spec, section 3.6).
    """
    _check(attribution, image_ids, size, fractions, unit, patch)
    maps = attribution.float() if attribution.ndim == 4 else attribution.float()[:, None]
    if maps.shape[-2:] != size:
        maps = functional.interpolate(maps, size, mode="bilinear", align_corners=False)
    if reduction == "abs_sum":
        maps = maps.abs()
    if unit != "channel":
        maps = maps.sum(1, keepdim=True)
    if unit == "patch":
        maps = functional.avg_pool2d(maps, patch) * patch**2
    flat = maps.flatten(1)
    units = flat.shape[1]
    constant = [image_id for image_id, row in zip(image_ids, flat, strict=True) if bool((row == row[0]).all())]
    if constant:
        raise ValueError(f"attribution: the map of image {constant[0]} is constant ({len(constant)} are): it orders nothing")
    counts = [round(fraction * units) for fraction in fractions]
    for fraction, count in zip(fractions, counts, strict=True):
        if not 0 < count < units:
            raise ValueError(f"fractions: {fraction} of {units} units keeps {count}; an end point needs no mask")
    place = _places(flat.cpu(), image_ids, seed).to(attribution.device)
    keep = torch.stack([place < count for count in counts], 1).reshape(len(maps), len(counts), *maps.shape[1:])
    if unit == "patch":
        keep = keep.repeat_interleave(patch, 3).repeat_interleave(patch, 4)
    return keep


def _places(flat: Tensor, image_ids: tuple[int, ...], seed: int) -> Tensor:
    """Position of each unit in the order of falling importance, (B, units)."""
    shuffles = torch.stack([torch.randperm(flat.shape[1], generator=torch_generator(seed, "ties", i)) for i in image_ids])
    order = flat.gather(1, shuffles).argsort(dim=1, descending=True, stable=True)
    return shuffles.gather(1, order).argsort(1)


def _check(
    attribution: Tensor,
    image_ids: tuple[int, ...],
    size: tuple[int, int],
    fractions: tuple[float, ...],
    unit: Unit,
    patch: int,
) -> None:
    if attribution.ndim not in (3, 4) or len(attribution) != len(image_ids):
        raise ValueError(
            f"attribution has shape {tuple(attribution.shape)}; ({len(image_ids)}, h, w) or ({len(image_ids)}, C, h, w) expected"
        )
    if unit == "channel" and (attribution.ndim == 3 or attribution.shape[1] == 1):
        raise ValueError(f"attribution has shape {tuple(attribution.shape)}: masks of channel values need one map a channel")
    for image_id, row in zip(image_ids, attribution, strict=True):
        if not row.isfinite().all():
            raise ValueError(f"attribution: the map of image {image_id} has values that are not finite")
    if not fractions or len(set(fractions)) < len(fractions) or not all(0 < fraction < 1 for fraction in fractions):
        raise ValueError(f"fractions are {fractions}: different numbers in (0, 1) expected")
    if unit == "patch" and (patch < 1 or any(side % patch for side in size)):
        raise ValueError(f"patch is {patch}: it does not tile {size[0]} x {size[1]} pixels")
