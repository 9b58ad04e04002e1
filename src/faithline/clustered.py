"""Bootstrap over images of numbers that pool many pictures made from each image.

Pictures of one image are alike, so images are drawn, each with all that was made of it. A draw is a row of counts: how often each
image is in it. Equal counts make the numbers of several sets of pictures a paired comparison.
"""

import numpy as np

from faithline.detection import ACCEPTED_PERCENT
from faithline.seeding import numpy_generator

Interval = dict[str, float | None]


def draws(images: int, repeats: int, seed: int) -> np.ndarray:
    """How often each image is in each draw, float64 (repeats, images); every row sums to the number of images."""
    generator = numpy_generator(seed, "clustered bootstrap", images)
    return generator.multinomial(images, np.full(images, 1 / images), size=repeats).astype(np.float64)


def mean(values: np.ndarray, owners: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Mean over the pictures of each draw, undefined ones (NaN) left out; NaN for a draw without any: (repeats,).

    Args:
        values: One a picture, (Q,).
        owners: Image of each picture, 0 to I - 1, (Q,).
        drawn: See `draws`, (repeats, I).
    """
    known = ~np.isnan(values)
    images = drawn.shape[1]
    total = np.bincount(owners[known], weights=values[known], minlength=images)
    count = np.bincount(owners[known], minlength=images)
    upper, lower = drawn @ total, drawn @ count
    return np.divide(upper, lower, out=np.full(len(drawn), np.nan), where=lower > 0)


def auroc(clean: np.ndarray, other: np.ndarray, owners: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """`detection.auroc` of each draw: its clean images against the pictures made from them, (repeats,).

    Args:
        clean: Score of each image, (I,).
        other: Score of each picture, (Q,).
        owners: Image of each picture, (Q,).
        drawn: See `draws`, (repeats, I).
    """
    wins = (clean[:, None] > other) + 0.5 * (clean[:, None] == other)
    images = drawn.shape[1]
    table = np.stack([np.bincount(owners, weights=row, minlength=images) for row in wins])  # (clean image, owner)
    pairs = drawn.sum(1) * (drawn @ np.bincount(owners, minlength=images))
    return np.divide(((drawn @ table) * drawn).sum(1), pairs, out=np.full(len(drawn), np.nan), where=pairs > 0)


def fpr95(clean: np.ndarray, other: np.ndarray, owners: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """`detection.fpr95` of each draw, (repeats,). Arguments as in `auroc`."""
    order = np.argsort(-clean, kind="stable")
    images = drawn.shape[1]
    needed = -(-ACCEPTED_PERCENT * images // 100)
    threshold = order[(drawn[:, order].cumsum(1) >= needed).argmax(1)]  # image whose score accepts enough of the draw
    passed = other >= clean[:, None]
    table = np.stack([np.bincount(owners, weights=row, minlength=images) for row in passed])
    count = drawn @ np.bincount(owners, minlength=images)
    return np.divide((table[threshold] * drawn).sum(1), count, out=np.full(len(drawn), np.nan), where=count > 0)


def interval(value: float | None, resampled: np.ndarray, confidence: float) -> Interval:
    """A value with the percentile interval of its draws; all None where it is undefined."""
    known = resampled[~np.isnan(resampled)]
    if value is None or not np.isfinite(value) or not len(known):
        return {"mean": None, "low": None, "high": None}
    tail = (1 - confidence) / 2
    low, high = np.quantile(known, [tail, 1 - tail])
    return {"mean": float(value), "low": float(low), "high": float(high)}
