"""DeepLIFT with the Rescale rule from the game's baseline (captum)."""

import warnings

import torch
from captum.attr import DeepLift
from torch import Tensor, nn

from faithline.attributions.gradients import chunks, fold
from faithline.bank import Masks
from faithline.config import GradientSettings
from faithline.masking import MaskedModel

MODALITIES: tuple[str, ...] = ("image", "text", "table")
MASKS: tuple[str, str] | None = None


class _RescaledSoftmax(nn.Module):
    """Class logits less their mean over classes, scaled for each sample so that their difference is that of the probability.

    captum's own softmax rule subtracts a mean over the whole batch, so that a map depends on its batch mates. This is the paper's
    normalisation (3.6), sample by sample, followed by the Rescale rule from the normalised logit to the probability.
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


def attribute(
    game: MaskedModel,
    x: Tensor,
    target: Tensor,
    settings: GradientSettings,
    *,
    masks: Masks | None,  # noqa: ARG001
    background: Tensor | None,  # noqa: ARG001
    seeds: Tensor,  # noqa: ARG001
) -> Tensor:
    """Contributions of the differences from the removed input, by the Rescale rule; two forward passes and a backward one.

    Activations that are modules (ReLU, Sigmoid, Tanh, ...) follow the Rescale rule; functional ones, products and attention fall
    back to their gradient, as in captum. On a network of linear layers and such modules a map sums to value(x) - value(baseline).
    With `output: prob` a map is that of the logit less the mean logit (DeepLIFT paper, 3.6), scaled to keep this sum.

    Args:
        game: The game.
        x: Inputs (B, ...).
        target: Explained classes, int64 (B,).
        settings: `output` that is explained.
        masks: Not used.
        background: Not used.
        seeds: Not used.

    Returns:
        Maps (B, *map_shape), float32: higher = more support for the class.

    Raises:
        RuntimeError: If the model uses one activation module twice (captum's limit).

    Source:
        Shrikumar et al., Learning Important Features Through Propagating Activation Differences, ICML 2017; captum.attr.DeepLift.
    """
    maps = []
    for part, view, classes in chunks(game, x, target, settings.output, 2):
        softmax = settings.output == "prob"
        module = _RescaledSoftmax(view.module.network, classes) if softmax else view.module
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Setting forward, backward hooks and attributes")
            attribution = DeepLift(module).attribute(
                view.inputs,
                view.baseline,
                0 if softmax else classes,
                additional_forward_args=view.extra or None,
            )
        maps.append(fold(game, part, attribution))
    return torch.cat(maps)
