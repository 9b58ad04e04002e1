"""Noise of a batch of items, each from a generator of its own: batch mates, order and batch size change no number."""

import torch
from torch import Tensor

from faithline.seeding import torch_generator

BLOCK = 1 << 14
"""Numbers that one generator draws at once. A value of its own, not a share of the batch: it is part of what a seed means."""


class ItemNoise:
    """A stream of standard normal tensors. Items of the same image and draw get the same numbers, whatever their mask."""

    def __init__(self, seed: int, image_ids: list[int], draws: list[int], shape: torch.Size, device: torch.device) -> None:
        """Make a generator for every (image, draw).

        Args:
            seed: Root seed.
            image_ids: Image of each item (B).
            draws: Number of the draw of each item (B).
            shape: Shape of one item.
            device: Where the noise goes; it is drawn on the CPU, so that devices agree.
        """
        pairs = list(zip(image_ids, draws, strict=True))
        unique = list(dict.fromkeys(pairs))
        place = {pair: i for i, pair in enumerate(unique)}
        self._rows = torch.tensor([place[pair] for pair in pairs])
        self._generators = [torch_generator(seed, "diffusion", image_id, draw) for image_id, draw in unique]
        self._shape = shape
        self._device = device
        self._ahead = max(1, BLOCK // max(1, shape.numel()))
        self._block = torch.empty(0)
        self._at = self._ahead

    def next(self) -> Tensor:
        """The next noise of every item, float32 (B, ...)."""
        if self._at == self._ahead:
            self._block = torch.stack([torch.randn(self._ahead, *self._shape, generator=g) for g in self._generators], 1)
            self._at = 0
        self._at += 1
        return self._block[self._at - 1][self._rows].to(self._device)
