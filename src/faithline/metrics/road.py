"""ROAD: removed pixels are interpolated from their neighbours, with a little noise, so that a removal is hard to see.

The masks are those of `insertion_deletion.removal_keep`, in both orders; the score of a map is the mean response over its levels,
confidence and first choice alike.
"""

from functools import lru_cache

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.linalg import splu
from torch import Tensor

from faithline.seeding import torch_generator

NEIGHBOURS = {
    (0, 1): 1 / 6,
    (1, 0): 1 / 6,
    (0, -1): 1 / 6,
    (-1, 0): 1 / 6,
    (1, 1): 1 / 12,
    (1, -1): 1 / 12,
    (-1, 1): 1 / 12,
    (-1, -1): 1 / 12,
}
"""Weight of each neighbour in the mean that a removed pixel becomes."""


def road_images(images: Tensor, image_ids: tuple[int, ...], keep: Tensor, *, noise: float, seed: int) -> Tensor:
    """Fill the removed pixels of every mask by noisy linear imputation.

    Each removed pixel becomes the weighted mean of its eight neighbours, removed ones included: one sparse system a mask,
    factorised once for all channels. At the border the weights of the neighbours that exist are scaled to sum 1. Noise is added
    to the solution (the same numbers for all masks of an image), which is then cut to [0, 1].

    Args:
        images: In [0, 1], (I, C, H, W).
        image_ids: Id of each image: it names its noise.
        keep: Which pixels stay, bool (I, F, 1, H, W).
        noise: Standard deviation; the paper takes 0.01. 0 = the plain harmonic fill.
        seed: Root seed.

    Returns:
        (I, F, C, H, W) in [0, 1]; kept pixels are those of the images.

    Raises:
        ValueError: If shapes do not fit, noise is negative, or a mask keeps no pixel: then nothing is there to interpolate.

    Source:
        Rong et al., ICML 2022, section 4.
    """
    count, channels, height, width = images.shape
    if keep.dtype != torch.bool or keep.shape != (count, keep.shape[1], 1, height, width) or len(image_ids) != count:
        raise ValueError(
            f"images {tuple(images.shape)}, keep {keep.dtype} {tuple(keep.shape)}, {len(image_ids)} ids: masks of whole "
            "pixels (I, F, 1, H, W) and one id an image expected"
        )
    if not noise >= 0:
        raise ValueError(f"noise is {noise}: 0 or more expected")
    masks = keep.flatten(2).cpu().numpy()
    if not masks.any(2).all():
        raise ValueError(f"keep: {int((~masks.any(2)).sum())} masks keep no pixel: nothing is there to interpolate from")
    pixels = images.flatten(2).mT.cpu().double().numpy()
    filled = np.repeat(pixels[:, None], keep.shape[1], 1)
    for image, image_id in enumerate(image_ids):
        generator = torch_generator(seed, "road", image_id)
        draws = noise * torch.randn(height * width, channels, generator=generator, dtype=torch.float64).numpy()
        for level, stays in enumerate(masks[image]):
            if not stays.all():
                solved = _interpolated(pixels[image], stays, height, width)
                filled[image, level, ~stays] = np.clip(solved + draws[~stays], 0, 1)
    found = torch.from_numpy(filled).to(images).mT.reshape(count, -1, channels, height, width)
    return torch.where(keep, images[:, None], found)  # the images' own numbers, not their way through float64


def _interpolated(pixels: np.ndarray, stays: np.ndarray, height: int, width: int) -> np.ndarray:
    """Values of the removed pixels, (removed, C), such that each is the weighted mean of its neighbours."""
    goes = np.flatnonzero(~stays)
    rows = _neighbour_weights(height, width)[goes]
    known = rows @ np.where(stays[:, None], pixels, 0.0)
    system = sparse.eye_array(len(goes), format="csc") - rows[:, goes].tocsc()
    return splu(system, permc_spec="MMD_AT_PLUS_A").solve(known)


@lru_cache(maxsize=4)
def _neighbour_weights(height: int, width: int) -> sparse.csr_array:
    """Row-stochastic matrix (pixels, pixels) of the weights of every pixel's neighbours."""
    y, x = (grid.ravel() for grid in np.mgrid[:height, :width])
    rows, columns, weights = [], [], []
    for (down, right), weight in NEIGHBOURS.items():
        exists = (y + down >= 0) & (y + down < height) & (x + right >= 0) & (x + right < width)
        rows.append(np.flatnonzero(exists))
        columns.append(((y + down) * width + x + right)[exists])
        weights.append(np.full(exists.sum(), weight))
    matrix = sparse.csr_array((np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns))), (y.size, y.size))
    return sparse.csr_array(sparse.diags_array(1 / matrix.sum(1)) @ matrix)
