"""Sensitivity-N: does the summed attribution of a random pixel set go with the fall that its removal causes?

The sets depend on the image only: their falls are measured once and serve every map.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from faithline.metrics.correlation import pearson
from faithline.metrics.responses import pixel_maps
from faithline.seeding import torch_generator


@dataclass(frozen=True)
class SensitivityN:
    """Correlations of I images at N sizes.

    Attributes:
        correlation: Pearson, float64 (I, N), higher = better; NaN where the sums or the falls of a size do not vary.
        undefined: How many of the images have NaN at each size, int64 (N,).
    """

    correlation: Tensor
    undefined: Tensor


def subset_sizes(pixels: int, count: int, largest: float) -> tuple[int, ...]:
    """Sizes from one pixel to a share of all, evenly spaced on a log scale; repeats are dropped, so there may be fewer.

    Args:
        pixels: Of the image.
        count: Sizes wanted.
        largest: The largest size as a share of the pixels, in (0, 1); Ancona et al. go to about 0.8.

    Raises:
        ValueError: If a value is out of range.
    """
    if pixels < 2 or count < 1 or not 0 < largest < 1:
        raise ValueError(f"{pixels} pixels, {count} sizes up to {largest}: at least 2, at least 1, in (0, 1) expected")
    return tuple(np.unique(np.geomspace(1, max(1, round(largest * pixels)), count).round().astype(int)).tolist())


def random_subsets(
    image_ids: tuple[int, ...], size: tuple[int, int], sizes: tuple[int, ...], subsets: int, *, seed: int
) -> Tensor:
    """Random pixel sets, drawn by image: the same for every map, whatever the batch.

    Args:
        image_ids: Id of each image (I).
        size: Height and width.
        sizes: Pixels of a set, N of them, each in 1 ... H*W - 1.
        subsets: Sets of each size, S >= 2.
        seed: Root seed.

    Returns:
        Which pixels go, bool (I, N, S, 1, H, W).

    Raises:
        ValueError: If a size or the number of sets is out of range.
    """
    pixels = size[0] * size[1]
    if not sizes or not all(1 <= n < pixels for n in sizes) or subsets < 2:
        raise ValueError(f"sizes are {sizes}, {subsets} sets each: sizes in 1 ... {pixels - 1} and at least 2 sets expected")
    removed = torch.zeros(len(image_ids), len(sizes), subsets, pixels, dtype=torch.bool)
    for image, image_id in enumerate(image_ids):
        for level, n in enumerate(sizes):
            generator = torch_generator(seed, "sensitivity_n", image_id, n)
            chosen = torch.rand(subsets, pixels, generator=generator, dtype=torch.float64).topk(n, dim=1).indices
            removed[image, level].scatter_(1, chosen, True)
    return removed.reshape(len(image_ids), len(sizes), subsets, 1, *size)


def subset_images(images: Tensor, removed: Tensor) -> Tensor:
    """The images with each set at 0 (black): (I, C, H, W) and bool (I, N, S, 1, H, W) -> (I, N, S, C, H, W)."""
    return torch.where(removed, 0.0, images[:, None, None])


def sensitivity_n(attribution: Tensor, removed: Tensor, falls: Tensor, channels: int) -> SensitivityN:
    """Correlation of summed attribution and fall over the sets of each size.

    Args:
        attribution: Contributions, signed, (I, h, w) or (I, C, h, w).
        removed: Which pixels went, bool (I, N, S, 1, H, W).
        falls: Output for the clean image minus output without the set, (I, N, S). Ancona et al. take the logit; whether it is
            that or the probability belongs next to the result.
        channels: C of the images.

    Raises:
        ValueError: If shapes do not fit or a map is not finite.

    Source:
        Ancona et al., ICLR 2018, section 4.
    """
    if falls.shape != removed.shape[:3] or len(attribution) != len(removed):
        raise ValueError(
            f"{len(attribution)} maps, sets {tuple(removed.shape)}, falls {tuple(falls.shape)}: (I, N, S, ...) expected in all"
        )
    maps = pixel_maps(attribution, (channels, *removed.shape[-2:])).sum(1).flatten(1)
    sums = torch.einsum("insp,ip->ins", removed.flatten(3).double(), maps)
    correlation = pearson(sums, falls)
    return SensitivityN(correlation, correlation.isnan().sum(0))
