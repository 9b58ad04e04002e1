"""FastSHAP: one pass predicts Shapley values, learnt by weighted least squares on Shapley-kernel masks."""

import torch
from torch import Tensor

from faithline.explainers.losses import RESOLUTION, Loss
from faithline.explainers.training_set import Batch, Term, by_row
from faithline.masking import MaskedModel, class_value


def losses(scores: Tensor, batch: Batch) -> tuple[Term]:
    """Mean squared error of `v(none) + sum over the kept features of phi` as a prediction of `v(keep)`, over the masks of a row.

    The masks are drawn with the Shapley kernel's probabilities, so the plain mean is the weighted least squares whose minimum,
    under the efficiency constraint, are the Shapley values. A row is defined where its game varies at all.

    Args:
        scores: Raw output of the network, (R, n); 0 at features that do not exist.
        batch: With `removed` of the law `shapley_kernel`.

    Source:
        Jethwani et al., FastSHAP: Real-Time Shapley Value Estimation, ICLR 2022, Eq. (4) with additive efficient normalization.
    """
    total = batch.full - batch.empty
    phi = normalise(scores, total, batch.view.valid)
    # A prediction for the kept features and one for the removed ones have the same error, since phi sums to the total.
    error = batch.effects - torch.einsum("rsn,rn->rs", batch.removed.to(phi.dtype), phi)
    flat = (batch.effects.abs() <= RESOLUTION).all(1) & (total.abs() <= RESOLUTION)  # NaN is not flat, so that it shows
    return (by_row(Loss(torch.where(flat, 0, error.square().mean(1)), ~flat)),)


def normalise(scores: Tensor, total: Tensor, valid: Tensor) -> Tensor:
    """Spread what is missing to efficiency evenly over the features, so that each row sums to its total.

    Args:
        scores: (R, n); 0 at features that do not exist.
        total: v(all) - v(none), (R,).
        valid: Features that exist, bool (R, n).

    Source:
        FastSHAP, Eq. (5) (Ruiz et al., 1998).
    """
    missing = (total - scores.sum(1)) / valid.sum(1).clamp(min=1)
    return scores + torch.where(valid, missing[:, None], 0)


def total_value(game: MaskedModel, x: Tensor) -> Tensor:
    """v(all) - v(none) of the explained class of each input, float32 (B,) on the CPU; 1 + `copies` model calls an input."""
    logits, target = game.predict(x)
    none = torch.zeros(len(x), 1, game.features.n, dtype=torch.bool)
    return class_value(logits, target, game.output).cpu() - game.values(x, none, target)[:, 0]
