"""DeepFaith: imitate curated prior maps (L_PC), then agree with what the bank's removals do (L_LC)."""

from torch import Tensor

from faithline.config import DeepFaithSettings
from faithline.explainers.losses import local_correlation, pattern_consistency
from faithline.explainers.training_set import Batch, Term, by_row


def losses(scores: Tensor, batch: Batch) -> tuple[Term, Term]:
    """L_PC of each pair and L_LC of each row of a batch, for scores (R, n)."""
    pattern = pattern_consistency(scores[batch.owner], batch.maps, batch.view.valid[batch.owner])
    local = local_correlation(scores, batch.removed, batch.effects)
    return Term(pattern, batch.weight, batch.owner), by_row(local)


def weights(settings: DeepFaithSettings, alpha: float) -> tuple[float, float]:
    """Weights of L_PC and L_LC in an epoch, alpha being that of Algorithm 1."""
    alpha = {"full": alpha, "pattern": 1.0, "local": 0.0}[settings.objective]
    return alpha, 1 - alpha
