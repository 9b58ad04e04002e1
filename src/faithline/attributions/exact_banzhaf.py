"""Exact Banzhaf values from the table of all 2^n values; no model call."""

import torch
from torch import Tensor

from faithline.attributions.query import Query
from faithline.bank import all_keep_sets
from faithline.config import MethodSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = ("evaluation", "all")


def attribute(query: Query, settings: MethodSettings) -> Tensor:  # noqa: ARG001
    """Mean over all S without i of v(S + i) - v(S).

    Args:
        query: Its masks: all 2^n keep sets in index order (`bank.all_keep_sets`).
        settings: Not used.

    Returns:
        Banzhaf values (B, n), float32: higher = more support for the class.

    Raises:
        ValueError: If the masks are not the whole table.

    Source:
        Banzhaf, Weighted voting doesn't work, 1965.
    """
    masks, n = query.given_masks(), query.game.features.n
    if masks.keep.shape[1] != 2**n:
        raise ValueError(f"exact_banzhaf needs all 2^{n} keep sets of a sample")
    weight = torch.where(all_keep_sets(n), 1.0, -1.0).double() / 2 ** (n - 1)
    return (masks.values.double() @ weight).float().masked_fill(~masks.valid, 0.0)
