"""L2X: choose the few features from which the target's answer can be told; a variational bound of mutual information."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faithline.config import L2xSettings
from faithline.explainers.losses import Loss
from faithline.explainers.network import Block
from faithline.explainers.target_features import View
from faithline.explainers.training_set import Batch, Term, by_row


class Predictor(nn.Module):
    """q(class | x * m): a Transformer over raw features, each multiplied by its mask; of the selector's size.

    A token is masked in its embedding, a patch or a cell in the units of the normalised input.
    """

    def __init__(self, seen: View, tokens: int, classes: int, settings: L2xSettings) -> None:
        """Fit the layers to a raw view.

        Args:
            seen: Raw view of the training samples.
            tokens: Size of the vocabulary if features are token ids, else 0.
            classes: Classes of the target.
            settings: Width, depth, heads and dropout.
        """
        super().__init__()
        width = settings.width
        self.tokens = tokens
        self.embed: nn.Module = nn.Embedding(tokens, width) if tokens else nn.Linear(seen.local.shape[2], width)
        self.position = nn.Parameter(torch.randn(seen.valid.shape[1], width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, settings.heads, settings.dropout) for _ in range(settings.depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, local: Tensor, valid: Tensor, mask: Tensor) -> Tensor:
        """Logits (R, classes) from what the mask (R, n), in [0, 1], lets through."""
        weight = mask[:, :, None]
        hidden = (self.embed(local) * weight if self.tokens else self.embed(local * weight)) + self.position
        for block in self.blocks:
            hidden = block(hidden, valid)
        exists = valid.float()[:, :, None]
        return self.head((self.norm(hidden) * exists).sum(1) / exists.sum(1).clamp(min=1))


def sample_subset(scores: Tensor, valid: Tensor, subset: int, temperature: float) -> Tensor:
    """A relaxed subset of at most `subset` features, (R, n) in [0, 1]: the maximum over that many Gumbel-softmax draws.

    Args:
        scores: Logits of the features, (R, n).
        valid: Features that exist, bool (R, n); the others are never chosen.
        subset: Number of draws.
        temperature: Of the softmax; towards 0 each draw is one feature.

    Source:
        Chen et al., Learning to Explain: An Information-Theoretic Perspective on Model Interpretation, ICML 2018, section 3.3.
    """
    logits = scores.masked_fill(~valid, -torch.inf)
    draws = F.gumbel_softmax(logits.expand(subset, *logits.shape), tau=temperature)
    return draws.amax(0)


@dataclass(frozen=True)
class Selection:
    """The objective of the selector, with the predictor that learns beside it.

    Attributes:
        predictor: A `Predictor`, as the loop calls it.
        raw: Raw view of the training samples.
        probabilities: What the target says of them, (N, classes).
        settings: Size of the subset and temperature.
    """

    predictor: nn.Module
    raw: View
    probabilities: Tensor
    settings: L2xSettings

    def losses(self, scores: Tensor, batch: Batch) -> tuple[Term]:
        """Cross-entropy of the predictor on a chosen subset, the class drawn as the target's probabilities have it.

        The expectation over the class is taken exactly, so no class is drawn.

        Args:
            scores: Logits of the selector, (R, n).
            batch: Whose rows are those of `raw`; masks are not used.

        Source:
            L2X, Eq. (6).
        """
        seen = self.raw.take(batch.rows)
        mask = sample_subset(scores, seen.valid, self.settings.subset, self.settings.temperature)
        logits = self.predictor(seen.local, seen.valid, mask).float()
        value = F.cross_entropy(logits, self.probabilities[batch.rows], reduction="none")
        return (by_row(Loss(value, torch.ones_like(value, dtype=torch.bool))),)
