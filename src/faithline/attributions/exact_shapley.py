"""Exact Shapley values from the table of all 2^n values; no model call."""

import math

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
    """sum over S without i of |S|! (n - |S| - 1)! / n! * (v(S + i) - v(S)).

    Args:
        game: The game.
        x: Not used.
        target: Not used.
        settings: Not used.
        masks: All 2^n keep sets in index order (`bank.all_keep_sets`).
        background: Not used.
        seeds: Not used.

    Returns:
        Shapley values (B, n), float32: higher = more support for the class. They sum to v(all) - v(none).

    Raises:
        ValueError: If the masks are not the whole table.

    Source:
        Shapley, A value for n-person games, 1953.
    """
    n = game.features.n
    if masks is None or masks.keep.shape[1] != 2**n:
        raise ValueError(f"exact_shapley needs all 2^{n} keep sets of a sample")
    share = torch.tensor([math.factorial(s) * math.factorial(n - s - 1) / math.factorial(n) for s in range(n)]).double()
    keep = all_keep_sets(n)
    size = keep.sum(1, keepdim=True)
    # v(K) counts for each member i as v(S + i) with |S| = |K| - 1, and against each other i as v(S) with |S| = |K|.
    weight = torch.where(keep, share[(size - 1).clamp(min=0)], -share[size.clamp(max=n - 1)])
    return (masks.values.double() @ weight).float().masked_fill(~masks.valid, 0.0)
