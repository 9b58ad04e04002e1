"""ViT-Shapley: FastSHAP on a surrogate, a copy of the target that was fine-tuned to answer masked inputs.

The surrogate's values replace the bank's in training. At test time the totals are those of the target itself, since it is what
is explained.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from faithline import seeding
from faithline.bank import Masks
from faithline.config import SurrogateSettings
from faithline.masking import MaskedModel


def fit_surrogate(
    game: MaskedModel, x: Tensor, probabilities: Tensor, settings: SurrogateSettings, *, seed: int
) -> tuple[MaskedModel, Tensor]:
    """Fine-tune a copy of the target on masked inputs.

    `KL(f(x) || surrogate(x masked))`, a mask drawn anew for every sample and epoch, all its sizes being equally likely. The copy
    stays in eval mode, so that statistics of normalisation layers are the target's. No call reaches the target.

    Args:
        game: The game of the target; its removal and its value are those of the surrogate's game.
        x: Training inputs (N, ...).
        probabilities: The target's output for them, (N, classes), on the device of the target.
        settings: Length of the fine-tuning.
        seed: Root seed.

    Returns:
        The game of the surrogate, whose `passes` count the fine-tuning, and the mean divergence of each epoch, float32 (epochs,).

    Source:
        Covert et al., Learning to Estimate Shapley Values with Vision Transformers, ICLR 2023, Eq. (4) and section 4.
    """
    model = copy.deepcopy(game.model)
    surrogate = MaskedModel(model, game.features, game.baseline, output=game.output, max_batch=game.max_batch)
    device = probabilities.device
    model.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    means = []
    for epoch in range(settings.epochs):
        generator = seeding.torch_generator(seed, "surrogate", epoch)
        total = 0.0
        for rows in torch.randperm(len(x), generator=generator).split(settings.batch):
            inputs, goal = x[rows].to(device), probabilities[rows.to(device)]
            stays = uniform_size_masks(game.features.valid(x[rows]), generator).to(device)
            masked = surrogate.masked(inputs, torch.arange(len(rows), device=device), stays)
            copies = masked.shape[1]
            answer = model(masked.flatten(0, 1)).float().log_softmax(1)
            loss = F.kl_div(answer, goal.repeat_interleave(copies, 0), reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        means.append(total / len(x))
    model.requires_grad_(False)
    return surrogate, torch.tensor(means)


def values_with_ends(surrogate: MaskedModel, x: Tensor, keep: Tensor, target: Tensor) -> Tensor:
    """v(all), v(none) and v of each mask, float32 (N, 2 + S), for keep (N, S, n) and explained classes (N,)."""
    ends = torch.stack([torch.ones_like(surrogate.features.valid(x)), ~surrogate.features.valid(x)], 1)
    # Cloned, since what was made in inference mode cannot take part in training.
    return surrogate.values(x, torch.cat([ends, keep], 1), target).clone()


def with_values(masks: Masks, values: Tensor) -> Masks:
    """The same masks with other values, as `values_with_ends` gives them."""
    return Masks(masks.keep, values[:, 2:], values[:, 0], values[:, 1], masks.valid)


def uniform_size_masks(valid: Tensor, generator: torch.Generator) -> Tensor:
    """One keep mask a row, bool (B, n): every number of kept features from none to all is equally likely; padding stays."""
    order = torch.rand(valid.shape, generator=generator).masked_fill(~valid, 2.0).argsort(1).argsort(1)
    size = (torch.rand(len(valid), generator=generator) * (valid.sum(1) + 1)).long()
    return (order < size[:, None]) | ~valid
