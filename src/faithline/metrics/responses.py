"""What a classifier says to perturbed images: the only road from the pixel metrics to a model."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Predict = Callable[[Tensor], Tensor]
"""Images in [0, 1], (Q, C, H, W) -> logits (Q, classes). Whoever builds it counts and pads."""


@dataclass(frozen=True)
class Responses:
    """Of the explained class, one per image, in the leading shape of the images.

    Attributes:
        probability: Softmax probability, float32 (I, ...).
        logit: Before the softmax, float32 (I, ...).
        top: Whether the class is the first choice, bool (I, ...).
    """

    probability: Tensor
    logit: Tensor
    top: Tensor


def respond(predict: Predict, images: Tensor, target: Tensor, *, batch: int = 256) -> Responses:
    """Show every image to the model once.

    Args:
        predict: The model.
        images: In [0, 1], (I, ..., C, H, W): any number of versions of each of I images.
        target: The explained class of each image, int64 (I,).
        batch: Images at once.

    Returns:
        Responses of shape (I, ...).

    Raises:
        ValueError: If there is not one class an image, or a class is none of the model's.
    """
    if images.ndim < 4 or target.shape != images.shape[:1]:
        raise ValueError(f"images {tuple(images.shape)} and target {tuple(target.shape)}: (I, ..., C, H, W) and (I,) expected")
    shape = images.shape[:-3]
    flat = images.flatten(0, -4)
    with torch.no_grad():
        logits = torch.cat([predict(block) for block in flat.split(batch)]).float()
    if bool(((target < 0) | (target >= logits.shape[1])).any()):
        raise ValueError(f"target has classes outside 0 ... {logits.shape[1] - 1}")
    which = target.reshape(-1, *[1] * (len(shape) - 1)).expand(shape).flatten()[:, None].to(logits.device)
    logit = logits.gather(1, which)[:, 0]
    probability = functional.softmax(logits, 1).gather(1, which)[:, 0]
    return Responses(probability.reshape(shape), logit.reshape(shape), (logits.argmax(1) == which[:, 0]).reshape(shape))


def pixel_maps(attribution: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Maps as contributions of channel values, for metrics that multiply or sum them.

    A map per pixel is shared equally among the channels, so that summing over them gives it back. A map of another size than the
    image is resized (bilinear), as `diffusion.removal.nested_keep` does.

    Args:
        attribution: (I, h, w) or (I, C, h, w).
        shape: C, H, W of the images.

    Returns:
        float64 (I, C, H, W).

    Raises:
        ValueError: If a map is not finite or of a wrong shape.
    """
    channels, *size = shape
    if attribution.ndim not in (3, 4) or (attribution.ndim == 4 and attribution.shape[1] not in (1, channels)):
        raise ValueError(f"attribution has shape {tuple(attribution.shape)}: (I, h, w) or (I, {channels}, h, w) expected")
    bad = ~attribution.isfinite().flatten(1).all(1)
    if bool(bad.any()):
        raise ValueError(f"attribution: {int(bad.sum())} of {len(bad)} maps are not finite, number {int(bad.nonzero()[0])} first")
    maps = (attribution if attribution.ndim == 4 else attribution[:, None]).double()
    if list(maps.shape[-2:]) != size:
        maps = functional.interpolate(maps, size, mode="bilinear", align_corners=False)
    return maps if maps.shape[1] == channels else maps.expand(-1, channels, -1, -1) / channels
