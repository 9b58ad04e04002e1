"""CXPlain: a distribution over features that matches how much the target's loss grows when each is removed."""

import torch
from torch import Tensor

from faithline.config import Output
from faithline.explainers.losses import RESOLUTION, Loss
from faithline.explainers.training_set import Batch, Term, by_row


def losses(scores: Tensor, batch: Batch, *, output: Output) -> tuple[Term]:
    """`KL(w || phi)` of each row: w the share of each feature in the growth of the loss, phi the softmax scores of the network.

    A row is defined where the removal of some feature makes the loss grow.

    Args:
        scores: Probabilities over the features (a network with the head `softmax`), (R, n).
        batch: With one mask a feature (law `singles`), in any order.
        output: What the game measures.

    Source:
        Schwab and Karlen, CXPlain: Causal Explanations for Model Interpretation under Uncertainty, NeurIPS 2019, Eqs. (1) to (5);
        with the explained class in the place of the label.
    """
    growth = torch.einsum("rsn,rs->rn", batch.removed.to(scores.dtype), loss_growth(batch.full, batch.effects, output))
    growth = growth.clamp(min=0)  # NaN stays, so that it shows in the loss
    total = growth.sum(1)
    defined = ~(total <= RESOLUTION)
    share = growth / torch.where(defined, total, 1)[:, None]
    # x log x is 0 at 0; a score of 0 in float32 gets the least normal number, so that the logarithm exists.
    tiny = torch.finfo(scores.dtype).tiny
    divergence = (torch.special.xlogy(share, share) - share * scores.clamp(min=tiny).log()).sum(1)
    return (by_row(Loss(torch.where(defined, divergence, 0), defined)),)


def loss_growth(full: Tensor, effects: Tensor, output: Output) -> Tensor:
    """By how much the target's loss grows under each mask, (R, S).

    Of probabilities the loss is the cross-entropy of the explained class; of logits and log-odds it is the value, negated.

    Args:
        full: v(all features), (R,).
        effects: Fall of the value under each mask, (R, S).
        output: What the game measures.
    """
    if output != "prob":
        return effects
    least = 1e-7  # a probability that float32 rounds to 0 is not infinitely surprising
    return full[:, None].clamp(min=least).log() - (full[:, None] - effects).clamp(min=least).log()
