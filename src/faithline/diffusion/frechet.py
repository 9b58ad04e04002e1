"""How far two sets of images lie apart, seen through the features of a network."""

import torch
from torch import Tensor


def frechet_distance(first: Tensor, second: Tensor) -> float:
    """Squared Frechet distance of the Gaussians fitted to two sets of feature vectors, (N, d) and (M, d); 0 for equal sets.

    With fewer vectors than dimensions it is biased upwards: compare it only with that of other sets of the same sizes.

    Raises:
        ValueError: If a set has fewer than two vectors, or the dimensions differ.

    Source:
        Heusel et al., 2017 (FID), with other features than Inception's.
    """
    if min(len(first), len(second)) < 2 or first.shape[1:] != second.shape[1:]:
        raise ValueError(f"features {tuple(first.shape)} and {tuple(second.shape)}: two sets of vectors of one length expected")
    first, second = first.double(), second.double()
    root = _root(first.T.cov())
    cross = torch.linalg.eigvalsh(root @ second.T.cov() @ root).clamp(min=0).sqrt().sum()
    gap = (first.mean(0) - second.mean(0)).square().sum()
    return max(0.0, float(gap + first.var(0).sum() + second.var(0).sum() - 2 * cross))


def _root(covariance: Tensor) -> Tensor:
    values, axes = torch.linalg.eigh(covariance)
    return axes * values.clamp(min=0).sqrt() @ axes.T
