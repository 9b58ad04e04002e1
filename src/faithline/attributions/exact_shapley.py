"""Exact Shapley values from the table of all 2^n values; no model call."""

import math

import torch
from torch import Tensor

from faithline.attributions.query import Query
from faithline.bank import all_keep_sets
from faithline.config import MethodSettings

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = ("evaluation", "all")


def attribute(query: Query, settings: MethodSettings) -> Tensor:  # noqa: ARG001
    """sum over S without i of |S|! (n - |S| - 1)! / n! * (v(S + i) - v(S)).

    Args:
        query: Its masks: all 2^n keep sets in index order (`bank.all_keep_sets`).
        settings: Not used.

    Returns:
        Shapley values (B, n), float32: higher = more support for the class. They sum to v(all) - v(none).

    Raises:
        ValueError: If the masks are not the whole table.

    Source:
        Shapley, A value for n-person games, 1953.
    """
    masks, n = query.given_masks(), query.game.features.n
    if masks.keep.shape[1] != 2**n:
        raise ValueError(f"exact_shapley needs all 2^{n} keep sets of a sample")
    share = torch.tensor([math.factorial(s) * math.factorial(n - s - 1) / math.factorial(n) for s in range(n)]).double()
    keep = all_keep_sets(n)
    size = keep.sum(1, keepdim=True)
    # v(K) counts for each member i as v(S + i) with |S| = |K| - 1, and against each other i as v(S) with |S| = |K|.
    weight = torch.where(keep, share[(size - 1).clamp(min=0)], -share[size.clamp(max=n - 1)])
    return (masks.values.double() @ weight).float().masked_fill(~masks.valid, 0.0)
