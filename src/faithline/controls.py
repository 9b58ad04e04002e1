"""Negative controls: maps that know nothing of the model. A metric that likes them measures something else."""

import torch
import torch.nn.functional as F
from torch import Tensor

from faithline.masking import Features
from faithline.seeding import torch_generator

IMAGE_ONLY = ("edge", "centre")
"""Controls that need pixels."""


def control_map(name: str, features: Features, x: Tensor, sample_ids: Tensor, mean_map: Tensor, seed: int) -> Tensor:
    """Maps of one control, float32 (B, n).

    Args:
        name: `random`: standard normal values of each sample's own seed. `mean_map`: the mean of the maps that teach the
            explainers, the same for every sample. `edge`: Sobel gradient magnitude of the image, summed over each patch.
            `centre`: a Gaussian bump in the middle of the image (standard deviation: a quarter of its side).
        features: How inputs are cut.
        x: Inputs (B, ...).
        sample_ids: Their ids (B,).
        mean_map: (n,).
        seed: Root seed.

    Raises:
        ValueError: If the name is unknown or needs an image.
    """
    if name == "random":
        draws = [torch.randn(features.n, generator=torch_generator(seed, "random map", int(i))) for i in sample_ids]
        return torch.stack(draws)
    if name == "mean_map":
        return mean_map.expand(len(x), -1).clone()
    if features.kind != "image":
        raise ValueError(f"control {name!r} needs an image task, not {features.kind}")
    if name == "edge":
        return features.to_features(_sobel_magnitude(x))
    if name == "centre":
        rows = torch.arange(features.rows) - (features.rows - 1) / 2
        columns = torch.arange(features.columns) - (features.columns - 1) / 2
        sigma = max(features.rows, features.columns) / 4
        bump = torch.exp(-(rows[:, None] ** 2 + columns[None] ** 2) / (2 * sigma**2))
        return bump.flatten().expand(len(x), -1).clone()
    raise ValueError(f"unknown control {name!r}")


def _sobel_magnitude(x: Tensor) -> Tensor:
    kernel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 8
    grey = F.pad(x.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    horizontal, vertical = F.conv2d(grey, kernel[None, None]), F.conv2d(grey, kernel.T[None, None])
    return (horizontal**2 + vertical**2).sqrt()[:, 0]


def scaled(maps: Tensor) -> Tensor:
    """Maps (B, n) divided by their largest magnitude, so that each weighs the same in a mean; a zero map stays zero."""
    return maps / maps.abs().amax(1, keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)
