"""The two losses of DeepFaith, one number a sample: 0 is perfect agreement, 1/2 none, 1 the exact opposite."""

from typing import NamedTuple

import torch
from torch import Tensor

RESOLUTION = 1e-6
"""Effects that spread less than this (standard deviation) are float32 rounding of a saturated output, not a signal."""

_RELATIVE_FLOOR = 1e-10
"""Least variance of scores as a share of their mean square: keeps the gradient of a constant map finite, at any scale."""


class Loss(NamedTuple):
    """A loss of each row.

    Attributes:
        value: In [0, 1], shape (R,); 0 where it is not defined.
        defined: Whether the row's goal varies at all, bool (R,): a correlation with a constant does not exist. Anything that is
            not finite counts as defined and makes `value` NaN: it must show.
    """

    value: Tensor
    defined: Tensor

    def mean(self) -> Tensor:
        """Mean over the defined rows; NaN where there are none."""
        return self.value.sum() / self.defined.sum()


def pattern_consistency(scores: Tensor, maps: Tensor, valid: Tensor) -> Loss:
    """How far scores are from prior maps: `(1 - Pearson over the valid features) / 2`.

    Args:
        scores: Attributions of the explainer, (R, n).
        maps: Prior maps to imitate, (R, n).
        valid: Features that exist, bool (R, n).

    Source:
        DeepFaith, L_PC, in the halved form of the released code, so that both losses have the range [0, 1].
    """
    weight = valid.float()
    count = weight.sum(1, keepdim=True).clamp(min=1)
    goal = (maps - (maps * weight).sum(1, keepdim=True) / count) * weight
    scale = (maps * weight).square().sum(1)
    defined = ~(goal.square().sum(1) <= _RELATIVE_FLOOR * scale)  # NaN counts as defined, so that it shows in the loss
    return _half_loss(scores, goal, weight, count, defined)


def local_correlation(scores: Tensor, removed: Tensor, effects: Tensor) -> Loss:
    """How far the scores of removed features are from what their removal does: `(1 - Pearson over the masks) / 2`.

    The effects are constants of the mask bank, so no gradient and no call reaches the target.

    Args:
        scores: Attributions of the explainer, (R, n); 0 at features that do not exist.
        removed: Features taken away by each mask (the complement of `keep`), bool (R, S, n).
        effects: Fall of the value when they are removed, `v(all) - v(keep)`, (R, S).

    Source:
        DeepFaith, L_LC and Eq. (1).
    """
    sums = torch.einsum("rsn,rn->rs", removed.to(scores.dtype), scores)
    goal = effects - effects.mean(1, keepdim=True)
    defined = ~(goal.square().mean(1) <= RESOLUTION**2)  # NaN counts as defined, so that it shows in the loss
    return _half_loss(sums, goal, torch.ones_like(sums), torch.full_like(sums[:, :1], sums.shape[1]), defined)


def _half_loss(values: Tensor, goal: Tensor, weight: Tensor, count: Tensor, defined: Tensor) -> Loss:
    """`(1 - Pearson(values, goal)) / 2` over positions of weight 1; `goal` is centred already."""
    centred = (values - (values * weight).sum(1, keepdim=True) / count) * weight
    direction = goal / goal.norm(dim=1, keepdim=True).clamp(min=1e-15)
    # The floor grows with the scores, so that scaling them changes nothing; a map of zeros gets an absolute one.
    floor = _RELATIVE_FLOOR * (values * weight).detach().square().sum(1) + 1e-24
    correlation = (centred * direction).sum(1) * (centred.square().sum(1) + floor).rsqrt()
    return Loss(torch.where(defined, (1 - correlation) / 2, 0), defined)
