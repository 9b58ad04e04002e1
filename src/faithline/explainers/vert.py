"""VerT: the smallest mask under which a copy of the target, tuned to be deaf to what is masked, still answers as the target does.

What is explained is the copy; its masks are judged on the target like all others. The published method fits one mask an input, in
turns with the copy. Here a network gives the mask and both learn in the same steps, so that one pass explains an unseen input.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from faithline.config import VertSettings
from faithline.explainers.losses import Loss
from faithline.explainers.training_set import Batch, Term, by_row
from faithline.masking import MaskedModel


class TunedCopy(nn.Module):
    """A copy of the target that learns; it stays in eval mode, so that statistics of normalisation layers are the target's."""

    def __init__(self, game: MaskedModel) -> None:
        super().__init__()
        self.model = copy.deepcopy(game.model)
        self.game = MaskedModel(self.model, game.features, game.baseline, output="prob", max_batch=game.max_batch)
        self.model.requires_grad_(True)

    def train(self, mode: bool = True) -> "TunedCopy":  # noqa: ARG002 (the signature is torch's)
        """Stay in eval mode."""
        return super().train(False)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Class probabilities (R, classes) of whole inputs, and of inputs that a mask (R, n) in [0, 1] lets through in part.

        The rest is the removed input; a token is mixed in its embedding. Both are one pass of 2 R inputs.
        """
        seen = self.game.gradient_view(x, "prob")
        weight = mask[:, :, None] if self.game.features.kind == "text" else self.game.features.expand(mask)
        mixed = weight * seen.inputs + (1 - weight) * seen.baseline
        both = seen.module(torch.cat([seen.inputs, mixed]), *(torch.cat([extra, extra]) for extra in seen.extra))
        whole, masked = both.float().chunk(2)
        return whole, masked


@dataclass(frozen=True)
class Verification:
    """The objective of the masks, with the copy that learns beside them.

    Attributes:
        tuned: A `TunedCopy`, as the loop calls it.
        x: Training inputs (N, ...).
        probabilities: What the target says of them, (N, classes).
        sparsity: Weight of the mean mask.
    """

    tuned: nn.Module
    x: Tensor
    probabilities: Tensor
    sparsity: float

    def losses(self, scores: Tensor, batch: Batch) -> tuple[Term]:
        """`sparsity * mean mask + |f(x) - copy(x)|_1 + |copy(x) - copy(masked x)|_1` of each row.

        Args:
            scores: Masks in (0, 1) (a network with the head `sigmoid`), (R, n); 0 at features that do not exist.
            batch: Whose rows are those of `x`; masks of the bank are not used.

        Source:
            Bhalla et al., Discriminative Feature Attributions: Bridging Post Hoc Explainability and Inherent Interpretability,
            NeurIPS 2023 (VerT in its first version), without the rounding between turns.
        """
        whole, masked = self.tuned(self.x[batch.rows], scores)
        size = scores.sum(1) / batch.view.valid.sum(1).clamp(min=1)
        drift = (self.probabilities[batch.rows] - whole).abs().sum(1)
        value = self.sparsity * size + drift + (whole - masked).abs().sum(1)
        return (by_row(Loss(value, torch.ones_like(value, dtype=torch.bool))),)


def passes(settings: VertSettings, train_samples: int, validation_samples: int) -> int:
    """Evaluations of the copy in a training run: two an input and epoch; a short rest of an epoch's batches is left out."""
    steps = max(1, train_samples // settings.batch)
    return 2 * settings.epochs * (min(steps * settings.batch, train_samples) + validation_samples)
