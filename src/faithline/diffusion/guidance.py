"""The anti-class term: what pushes a sample away from the class whose evidence was removed."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Term = Literal["minus_log_p", "one_minus_p"]

Evidence = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""`evidence(x, target) -> log p_y(x), log (1 - p_y(x))`, (B,) each, differentiable; x is in the units of the score model."""


def log_probabilities(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """`log p` and `log (1 - p)` of each row's own class; the second stays exact where p rounds to 1.

    Args:
        logits: (B, classes).
        target: Class of each row, int64 (B,).
    """
    own = target[:, None]
    total = logits.logsumexp(1)
    others = logits.scatter(1, own, -torch.inf).logsumexp(1)
    return logits.gather(1, own)[:, 0] - total, others - total


def classifier_evidence(
    classifier: Callable[[Tensor], Tensor], mean: Sequence[float], std: Sequence[float], size: int
) -> Evidence:
    """The evidence of an image classifier, differentiated through everything that its inputs go through.

    Args:
        classifier: Normalised images (B, C, size, size) -> logits (B, classes).
        mean: Of each channel, for pixels in [0, 1].
        std: Of each channel, for pixels in [0, 1].
        size: Side that the classifier wants. Images of another size are resized (bilinear, antialiased).

    Returns:
        A function of images in [-1, 1], as score models have them.
    """

    def evidence(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        pixels = (x + 1) / 2
        if x.shape[-2:] != (size, size):
            pixels = functional.interpolate(pixels, (size, size), mode="bilinear", antialias=True, align_corners=False)
        shape = (1, -1, 1, 1)
        normalised = (pixels - pixels.new_tensor(mean).reshape(shape)) / pixels.new_tensor(std).reshape(shape)
        return log_probabilities(classifier(normalised).float(), target)

    return evidence


def anti_class_score(evidence: Evidence, x: Tensor, target: Tensor, term: Term) -> Tensor:
    """The score that the anti-class term adds, of the shape of x: float32, on a leaf of its own.

    `minus_log_p` is `-grad log p`, as the update of the paper has it. `one_minus_p` is `grad log (1 - p)`, as the paper's event
    has it: `-(p / (1 - p)) grad log p`, which switches itself off as p falls.

    Source:
        FUD, ICLR 2026 (spec, section 3.3).
    """
    leaf = x.detach().float().requires_grad_()
    with torch.enable_grad():
        log_p, log_rest = evidence(leaf, target)
        gain = -log_p if term == "minus_log_p" else log_rest
        (gradient,) = torch.autograd.grad(gain.sum(), leaf)
    return gradient
