"""What DeepLIFT and DeepLIFT SHAP share: contributions by the Rescale rule, each sample for itself (captum)."""

import warnings

import torch
from captum.attr import DeepLift
from torch import Tensor, nn

from faithline.attributions.gradients import Output
from faithline.masking import GradientView


def contributions(view: GradientView, baseline: Tensor, classes: Tensor, output: Output) -> Tensor:
    """Contributions of `view.inputs` - `baseline`, of their shape; two forward passes and a backward one a row.

    Activations that are modules (ReLU, Sigmoid, Tanh, ...) follow the Rescale rule; functional ones, products and attention
    fall back to their gradient, as in captum. With `prob` they are those of the logit less the mean logit, scaled so that the
    map of a network of linear layers and such modules sums to the difference of the probabilities.

    Raises:
        RuntimeError: If the model uses one activation module twice (captum's limit).
    """
    softmax = output == "prob"
    module = _RescaledSoftmax(view.module.network, classes) if softmax else view.module
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Setting forward, backward hooks and attributes")
        return DeepLift(module).attribute(
            view.inputs.detach().requires_grad_(), baseline, 0 if softmax else classes, additional_forward_args=view.extra or None
        )


class _RescaledSoftmax(nn.Module):
    """Class logits less their mean over classes, scaled for each sample so that their difference is that of the probability.

    captum's own softmax rule subtracts a mean over the whole batch, so that a map depends on its batch mates. This is the
    paper's normalisation (3.6), sample by sample, followed by the Rescale rule from the normalised logit to the probability.
    captum calls the module with the clean inputs in the first half of the rows and the baselines in the second.
    """

    def __init__(self, network: nn.Module, classes: Tensor) -> None:
        super().__init__()
        self.network = network
        self._classes = classes.repeat(2)[:, None]

    def forward(self, inputs: Tensor, *extra: Tensor) -> Tensor:
        """Scaled normalised logits, (2B, 1)."""
        logits = self.network(inputs, *extra)
        normalised = logits.gather(1, self._classes) - logits.mean(1, keepdim=True)
        return normalised * _slope(logits.detach(), normalised.detach(), self._classes).repeat(2, 1)


def _slope(logits: Tensor, normalised: Tensor, classes: Tensor) -> Tensor:
    """Change of the probability over change of the normalised logit, (B, 1); their derivative where the logit stays."""
    prob = logits.softmax(1).gather(1, classes)
    (clean, removed), (top, bottom) = prob.chunk(2), normalised.chunk(2)
    count = logits.shape[1]
    derivative = clean * (1 - clean) * count / max(count - 1, 1)
    moved = (top - bottom).abs() > 1e-6
    return torch.where(moved, (clean - removed) / torch.where(moved, top - bottom, 1.0), derivative)
