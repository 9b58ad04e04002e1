"""Does an image still look like the data? Scores, higher = more in-distribution, and how well they tell two sets apart."""

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

ACCEPTED_PERCENT = 95
"""Share of the clean images that the threshold of `fpr95` accepts."""


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Energy of each image under a classifier: -T logsumexp(logits / T). Low = in-distribution.

    Adding a constant to all logits of an image leaves its probabilities alone and lowers its energy by that constant.

    Args:
        logits: Of the classifier that is evaluated, (Q, classes).
        temperature: T > 0.

    Returns:
        Energy, float64 (Q,).

    Raises:
        ValueError: If logits are not finite or not (Q, classes), or T is not positive.

    Source:
        Liu et al., NeurIPS 2020, equation 4.
    """
    _check_rows("logits", logits)
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}: a positive number expected")
    return -temperature * torch.logsumexp(logits.double() / temperature, 1)


def energy_score(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """In-distribution score of each image: minus its `energy`, float64 (Q,), higher = more like the data. Arguments as there."""
    return -energy(logits, temperature)


def neighbour_score(features: Tensor, reference: Tensor, neighbours: int) -> Tensor:
    """In-distribution score of each image: minus the distance to its k-th nearest reference image, in a network's features.

    Features are scaled to length 1 first, so that the distance is Euclidean on the sphere and orders as the cosine does. The
    length of penultimate features follows the size of the logits, which is what `energy` reads already; direction is the
    evidence that it lacks. The reference images must be none of those that are scored: an image is its own nearest neighbour.

    Args:
        features: Penultimate features of the images, (Q, d).
        reference: Penultimate features of clean images, (R, d), R >= k.
        neighbours: k.

    Returns:
        Score, float64 (Q,), from -2 to 0.

    Raises:
        ValueError: If a feature is not finite, a row is all zero, widths differ, or k is not in 1 ... R.

    Source:
        Sun et al., ICML 2022.
    """
    _check_rows("features", features)
    _check_rows("reference", reference)
    if features.shape[1] != reference.shape[1]:
        raise ValueError(f"features have {features.shape[1]} values an image, reference has {reference.shape[1]}")
    if not 1 <= neighbours <= len(reference):
        raise ValueError(f"neighbours is {neighbours}: 1 ... {len(reference)} (the reference images) expected")
    cosine = _unit("features", features) @ _unit("reference", reference).mT
    kth = cosine.topk(neighbours, dim=1).values[:, -1]
    return -(2 - 2 * kth).clamp(min=0).sqrt()


def auroc(clean: Tensor, other: Tensor) -> float:
    """Area under the ROC curve with the clean images as the positive class: P(clean score > other score), ties count half.

    Args:
        clean: In-distribution scores of clean images, (n,), higher = more in-distribution.
        other: Those of the images that a metric made, (m,).

    Returns:
        0.5 = indistinguishable, 1 = every clean image scores higher.

    Raises:
        ValueError: If a set is empty or a score is not finite.
    """
    scores = np.concatenate([_scores("clean", clean), _scores("other", other)])
    return float(roc_auc_score(np.repeat([1, 0], [clean.numel(), other.numel()]), scores))


def fpr95(clean: Tensor, other: Tensor) -> float:
    """Share of the other images that pass as clean where 95 % of the clean images do.

    The threshold is the highest clean score that accepts at least 95 % of the clean images: the ceil(0.95 n)-th largest of them;
    a score equal to it is accepted. The code of the energy paper takes the point of the ROC curve whose recall is nearest to 95 %
    instead, which may lie below: with 10 clean images, recall 0.9 and 1 are equally near, and here it is 1.

    Args:
        clean: In-distribution scores of clean images, (n,), higher = more in-distribution.
        other: Those of the images that a metric made, (m,).

    Returns:
        Share in [0, 1]; higher = harder to tell from clean images.

    Raises:
        ValueError: If a set is empty or a score is not finite.
    """
    ordered = np.sort(_scores("clean", clean))[::-1]
    threshold = ordered[-(-ACCEPTED_PERCENT * len(ordered) // 100) - 1]  # integers: 0.95 n rounds up past itself for some n
    return float((_scores("other", other) >= threshold).mean())


def _scores(name: str, scores: Tensor) -> np.ndarray:
    if scores.ndim != 1 or not len(scores):
        raise ValueError(f"{name} has shape {tuple(scores.shape)}: one score an image expected, at least one image")
    _check_finite(name, scores)
    return scores.double().cpu().numpy()


def _check_rows(name: str, rows: Tensor) -> None:
    if rows.ndim != 2 or not rows.shape[1]:
        raise ValueError(f"{name} has shape {tuple(rows.shape)}: one row an image expected")
    _check_finite(name, rows)


def _check_finite(name: str, values: Tensor) -> None:
    bad = (~values.isfinite()).flatten(1).any(1) if values.ndim > 1 else ~values.isfinite()
    if bool(bad.any()):
        raise ValueError(f"{name}: {int(bad.sum())} of {len(values)} rows are not finite, row {int(bad.nonzero()[0])} first")


def _unit(name: str, rows: Tensor) -> Tensor:
    length = rows.double().norm(dim=1, keepdim=True)
    if bool((length == 0).any()):
        raise ValueError(f"{name}: row {int((length[:, 0] == 0).nonzero()[0])} is all zero: it has no direction")
    return rows.double() / length
