"""DeepFaith: imitate curated prior maps (L_PC), then agree with what the bank's removals do (L_LC)."""

from torch import Tensor

from faithline.config import DeepFaithSettings
from faithline.explainers.losses import local_correlation, pattern_consistency
from faithline.explainers.training_set import Batch, Term, by_row


def losses(scores: Tensor, batch: Batch) -> tuple[Term, Term, Term]:
    """Of a batch, for scores (R, n): L_PC of each pair, and of each row L_LC over single removals and over random ones.

    Eq. (1) leaves open from which law the removed sets come. Random halves alone (INF) leave the scores of single features noisy;
    with a share of single removals (FE, MC) both are learned. The scores of single removals are the scores themselves.
    """
    pattern = pattern_consistency(scores[batch.owner], batch.maps, batch.view.valid[batch.owner])
    singles = pattern_consistency(scores, batch.single_effects, batch.view.valid)
    local = local_correlation(scores, batch.removed, batch.effects)
    return Term(pattern, batch.weight, batch.owner), by_row(singles), by_row(local)


def weights(settings: DeepFaithSettings, alpha: float) -> tuple[float, float, float]:
    """Weights of L_PC and of L_LC's two parts in an epoch, alpha being that of Algorithm 1."""
    alpha = {"full": alpha, "pattern": 1.0, "local": 0.0}[settings.objective]
    return alpha, (1 - alpha) * settings.singles, (1 - alpha) * (1 - settings.singles)
