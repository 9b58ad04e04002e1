"""Occlusion: a sliding window of features is removed."""

import torch
from torch import Tensor

from faithline.attributions.query import Query
from faithline.config import OcclusionSettings
from faithline.masking import Features

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: OcclusionSettings) -> Tensor:
    """Mean fall of the value over the windows that cover a feature; one forward pass a window and one a sample.

    Windows are squares of `window` x `window` patches of an image, runs of `window` columns of a table or of real tokens of a
    text. The last window of a row is cut at the edge, as in captum. All samples and windows go through the model as one stream.

    Args:
        query: The game, inputs and classes.
        settings: `window` and `stride`, in features.

    Returns:
        Attributions (B, n), float32: higher = the value falls more without the feature; 0 where a text is padded.

    Raises:
        ValueError: If the window does not fit the grid or the stride leaves gaps.

    Source:
        Zeiler and Fergus, Visualizing and Understanding Convolutional Networks, 2014; averaging as captum.attr.Occlusion.
    """
    game, x = query.game, query.x
    covered = _windows(game.features, game.features.valid(x).cpu(), settings.window, settings.stride)
    used = covered.any(2)
    # The first coalition of each sample is the clean input; unused windows of short texts cost nothing.
    played = torch.cat([torch.ones(len(x), 1, dtype=torch.bool), used], dim=1)
    keep = torch.cat([torch.ones(len(x), 1, game.features.n, dtype=torch.bool), ~covered], dim=1)
    rows = played.nonzero()[:, 0]
    values = torch.zeros(played.shape)
    values[played] = game.evaluate(x, rows, keep[played], query.target).value
    fall = values[:, :1] - values[:, 1:]
    weight = covered.float()
    return (fall[:, None] @ weight)[:, 0] / weight.sum(1).clamp(min=1)


def _windows(features: Features, valid: Tensor, window: int, stride: int) -> Tensor:
    """Features that each window covers, bool (B, W, n); a window that covers none is not used."""
    if stride > window:
        raise ValueError(f"stride = {stride}: must be <= window = {window}, else some features are never removed")
    if features.kind == "image":
        if window > min(features.rows, features.columns):
            raise ValueError(f"window = {window}: must be <= the {features.rows} x {features.columns} grid of features")
        down = _runs(torch.arange(features.rows), torch.tensor(features.rows), window, stride)
        across = _runs(torch.arange(features.columns), torch.tensor(features.columns), window, stride)
        grid = down[:, None, :, None] & across[None, :, None, :]
        return grid.reshape(1, -1, features.n).expand(len(valid), -1, -1)
    if features.kind == "table" and window > features.n:
        raise ValueError(f"window = {window}: must be <= the {features.n} features")
    # Place of each real token among the real tokens; a text shorter than the window is removed as a whole.
    place = (valid.cumsum(1) - 1).masked_fill(~valid, -1)
    return _runs(place, valid.sum(1, keepdim=True), window, stride)


def _runs(place: Tensor, length: Tensor, window: int, stride: int) -> Tensor:
    """Windows over places 0..length-1: bool (..., W, n), W as for the longest; windows beyond a row's own last are empty."""
    last = ((length - window).clamp(min=0) + stride - 1) // stride
    number = torch.arange(int(last.max()) + 1 if last.numel() else 0)
    start = number * stride
    inside = (place[..., None, :] >= start[:, None]) & (place[..., None, :] < start[:, None] + window)
    return inside & (number <= last)[..., None]
