"""More inputs for explainers to learn from, made of training inputs: the target answers for any input, so they need no label."""

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from faithline.dataset import Samples
from faithline.masking import Features
from faithline.seeding import numpy_generator

ROTATION, SHIFT, SCALE = 10.0, 0.08, 0.1
"""Largest changes of an image: degrees, share of its side, share of its size."""

BLOCK = 1024
"""Images warped at once; bounds memory."""


def augment(samples: Samples, count: int, seed: int) -> Samples:
    """The samples and `count` more of split `augmented`, without a label (-1).

    Tables: each cell comes from one of two random training rows, so that every value is one that occurs. Images: a random
    training image, turned, moved and scaled a little; what comes in from outside repeats the border. Texts: the beginning of one
    random training text and the end of another.

    Args:
        samples: Samples of a task.
        count: How many more; 0 gives the samples back as they are.
        seed: Root seed.
    """
    if not count:
        return samples
    generator = numpy_generator(seed, "augmentation")
    train = samples.index("train").numpy()
    first = samples.x[train[generator.integers(len(train), size=count)]]
    second = samples.x[train[generator.integers(len(train), size=count)]]
    kind = samples.features.kind
    if kind == "table":
        made = torch.where(torch.from_numpy(generator.random(tuple(first.shape)) < 0.5), first, second)
    elif kind == "image":
        made = torch.cat([_warp(part, generator) for part in first.split(BLOCK)])
    else:
        made = _spliced(first, second, samples.features, generator)
    return replace(
        samples,
        x=torch.cat([samples.x, made]),
        label=torch.cat([samples.label, torch.full((count,), -1)]),
        split=np.concatenate([samples.split, np.full(count, "augmented")]),
        supervised=np.concatenate([samples.supervised, np.zeros(count, dtype=bool)]),
    )


def _warp(images: Tensor, generator: np.random.Generator) -> Tensor:
    """Each image (B, C, H, W) under its own random similarity."""
    count = len(images)
    angle = np.deg2rad(generator.uniform(-ROTATION, ROTATION, count))
    size = 1 + generator.uniform(-SCALE, SCALE, count)
    shift = 2 * generator.uniform(-SHIFT, SHIFT, (count, 2))  # the grid runs from -1 to 1
    rows = np.stack(
        [
            np.stack([np.cos(angle) / size, -np.sin(angle) / size, shift[:, 0]], 1),
            np.stack([np.sin(angle) / size, np.cos(angle) / size, shift[:, 1]], 1),
        ],
        1,
    )
    grid = F.affine_grid(torch.from_numpy(rows).to(images.dtype), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _spliced(first: Tensor, second: Tensor, features: Features, generator: np.random.Generator) -> Tensor:
    """Token ids (B, L): the first k tokens of one text and the last l of the other, k + l >= 1, padded at the end."""
    made = torch.full_like(first, features.pad_id)
    valid = [features.valid(part).numpy() for part in (first, second)]
    for row in range(len(first)):
        head, tail = (part[row][torch.from_numpy(mask[row])] for part, mask in zip((first, second), valid, strict=True))
        head = head[: generator.integers(1, len(head) + 1)]
        tail = tail[len(tail) - generator.integers(0, len(tail) + 1) :]
        joined = torch.cat([head, tail])[: made.shape[1]]
        made[row, : len(joined)] = joined
    return made
