"""Shapley values by sampled permutations of the features."""

import torch
from torch import Tensor

from faithline.attributions.query import Query
from faithline.config import ShapleySamplingSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = ("evaluation", "table")

CELLS_AT_ONCE = 2**25
"""Bounds the keep sets that are held at once (a byte each); changes no value."""


def attribute(query: Query, settings: ShapleySamplingSettings) -> Tensor:
    """Mean over permutations of v(features up to i) - v(features before i).

    Each permutation's differences add up to v(all) - v(none), so that the map's sum is exactly that, whatever was drawn. All
    samples, permutations and positions go through the model as one stream; v(all) and v(none) are played once a sample. captum
    plays one position of one permutation at a time, the same for all samples of a batch; here every sample has its own. Of a
    text only the real tokens are permuted. Where the task is exact the values are read off its table, and the model is not
    called.

    Args:
        query: The game, inputs, classes, seeds; its masks are all 2^n keep sets in index order, or None.
        settings: Number of `permutations`; each costs n - 1 passes a sample, and a sample two more.

    Returns:
        Estimated Shapley values (B, n), float32: higher = more support for the class; 0 where a text is padded.

    Source:
        Castro et al., Polynomial calculation of the Shapley value based on sampling, 2009; captum.attr.ShapleyValueSampling.
    """
    valid = query.game.features.valid(query.x).cpu()
    count, n = settings.permutations, query.game.features.n
    size = max(1, CELLS_AT_ONCE // (count * (n + 1) * n))
    return torch.cat([_block(query, rows, valid[rows], count) for rows in torch.arange(len(query.x)).split(size)])


def _block(query: Query, samples: Tensor, valid: Tensor, count: int) -> Tensor:
    """Values of some samples, (b, n)."""
    n = valid.shape[1]
    place = torch.stack([_places(exists, count, seed) for exists, seed in zip(valid, query.seeds[samples].tolist(), strict=True)])
    # Coalition k of a permutation keeps the features at places below k; padding is kept always. (b, P, n + 1, n)
    keep = place[:, :, None, :] < torch.arange(n + 1)[:, None]
    features = valid.sum(1)
    # Between the ends only; each sample's own ends are played once, as its first two coalitions.
    inner = (torch.arange(n + 1) > 0) & (torch.arange(n + 1) < features[:, None])
    played = inner[:, None].expand(-1, count, -1)
    ends = torch.stack([torch.ones_like(valid), ~valid], 1)
    rows = torch.cat([samples.repeat_interleave(2), samples[played.nonzero()[:, 0]]])
    value = _values(query, rows, torch.cat([ends.flatten(0, 1), keep[played]])).double()
    full, empty = value[: 2 * len(samples)].reshape(-1, 2).unbind(1)
    path = torch.where(torch.arange(n + 1) == 0, empty[:, None], full[:, None])[:, None].repeat(1, count, 1)
    path[played] = value[2 * len(samples) :]
    # The feature at place p brings the value from path[p] to path[p + 1].
    gains = path.diff(dim=2).gather(2, place.clamp(min=0))
    return gains.mean(1).float().masked_fill(~valid, 0.0)


def _places(exists: Tensor, count: int, seed: int) -> Tensor:
    """Place of each feature in `count` random permutations, int64 (count, n); -1 where there is no feature."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.full((count, len(exists)), -1)
    number = int(exists.sum())
    for row in places:
        row[exists] = torch.randperm(number, generator=generator)
    return places


def _values(query: Query, rows: Tensor, keep: Tensor) -> Tensor:
    """v of coalitions: from the table where there is one, else from the model."""
    if query.masks is not None:
        return query.masks.values[rows, keep.long() @ 2 ** torch.arange(keep.shape[1])]
    return query.game.evaluate(query.x, rows, keep, query.target).value
