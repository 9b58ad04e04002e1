"""ViT-Shapley: FastSHAP on a surrogate, a copy of the target that was fine-tuned to answer masked inputs.

The surrogate's values replace the bank's in training. At test time the totals are those of the target itself, since it is what
is explained.
"""

import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from faithline import seeding
from faithline.bank import Masks
from faithline.config import SurrogateSettings
from faithline.masking import MaskedModel


class Surrogate(NamedTuple):
    """What a fine-tuned surrogate says, and what it took.

    Attributes:
        values: Its v(keep) under the masks of the bank, float32 (N, S).
        full: Its v(all features), (N,).
        empty: Its v(no feature), (N,).
        divergence: Mean KL divergence from the target's output in each epoch, (epochs,).
        passes: Forward passes of the surrogate, fine-tuning and values together, int64 scalar.
    """

    values: Tensor
    full: Tensor
    empty: Tensor
    divergence: Tensor
    passes: Tensor


def fit_surrogate(
    game: MaskedModel, x: Tensor, keep: Tensor, probabilities: Tensor, settings: SurrogateSettings, *, seed: int
) -> Surrogate:
    """Fine-tune a copy of the target on masked inputs and ask it for the values of the bank's masks.

    `KL(f(x) || surrogate(x masked))`, a mask drawn anew for every sample and epoch, all its sizes being equally likely. The copy
    stays in eval mode, so that statistics of normalisation layers are the target's. No call reaches the target.

    Args:
        game: The game of the target; its removal and its value are those of the surrogate's game.
        x: Training inputs (N, ...).
        keep: Masks of the bank, bool (N, S, n).
        probabilities: The target's output for the clean inputs, (N, classes).
        settings: Length of the fine-tuning.
        seed: Root seed.

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
    # One stream for the ends and the bank's masks; the class is the one the target explains.
    ends = torch.stack([torch.ones_like(keep[:, 0]), ~game.features.valid(x)], 1)
    values = surrogate.values(x, torch.cat([ends, keep], 1), probabilities.argmax(1))
    passes = torch.tensor(surrogate.passes)
    surrogate.close()
    return Surrogate(values[:, 2:].clone(), values[:, 0].clone(), values[:, 1].clone(), torch.tensor(means), passes)


def uniform_size_masks(valid: Tensor, generator: torch.Generator) -> Tensor:
    """One keep mask a row, bool (B, n): every number of kept features from none to all is equally likely; padding stays."""
    order = torch.rand(valid.shape, generator=generator).masked_fill(~valid, 2.0).argsort(1).argsort(1)
    size = (torch.rand(len(valid), generator=generator) * (valid.sum(1) + 1)).long()
    return (order < size[:, None]) | ~valid


def surrogate_masks(masks: Masks, surrogate: Surrogate) -> Masks:
    """The bank's masks with the surrogate's values in the place of the target's."""
    return Masks(masks.keep, surrogate.values, surrogate.full, surrogate.empty, masks.valid)
