"""Exact Banzhaf values from the table of all 2^n values; no model call."""

import torch
from torch import Tensor

from faithline.bank import Masks, all_keep_sets
from faithline.config import MethodSettings
from faithline.masking import MaskedModel

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = ("evaluation", "all")


def attribute(
    game: MaskedModel,
    x: Tensor,  # noqa: ARG001
    target: Tensor,  # noqa: ARG001
    settings: MethodSettings,  # noqa: ARG001
    *,
    masks: Masks | None,
    background: Tensor | None,  # noqa: ARG001
    seeds: Tensor,  # noqa: ARG001
) -> Tensor:
    """Mean over all S without i of v(S + i) - v(S).

    Args:
        game: The game.
        x: Not used.
        target: Not used.
        settings: Not used.
        masks: All 2^n keep sets in index order (`bank.all_keep_sets`).
        background: Not used.
        seeds: Not used.

    Returns:
        Banzhaf values (B, n), float32: higher = more support for the class.

    Raises:
        ValueError: If the masks are not the whole table.

    Source:
        Banzhaf, Weighted voting doesn't work, 1965.
    """
    n = game.features.n
    if masks is None or masks.keep.shape[1] != 2**n:
        raise ValueError(f"exact_banzhaf needs all 2^{n} keep sets of a sample")
    weight = torch.where(all_keep_sets(n), 1.0, -1.0).double() / 2 ** (n - 1)
    return (masks.values.double() @ weight).float().masked_fill(~masks.valid, 0.0)
