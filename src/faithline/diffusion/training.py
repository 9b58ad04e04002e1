"""Train a small denoising network on images: the score model of a task that brings none."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from diffusers import UNet2DModel
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from faithline.diffusion.schedule import Schedule
from faithline.schemas.fud import TrainedScoreSettings
from faithline.seeding import derive, device, torch_generator

BLOCKS = 10
"""Times that training looks at the validation images, and can go on from after a kill."""

GRADIENT_NORM = 1.0


@dataclass(frozen=True)
class TrainedScore:
    """A trained network.

    Attributes:
        network: The running mean of the weights, on the CPU, in eval mode.
        history: One row a block: step, mean training loss since the last, loss of the validation images.
    """

    network: nn.Module
    history: list[dict[str, float]]


def build_network(settings: TrainedScoreSettings, channels: int, size: int) -> nn.Module:
    """The network for square images: convolutions only, half the side at each further entry of `settings.channels`.

    Raises:
        ValueError: If the side cannot be halved that often.
    """
    halvings = len(settings.channels) - 1
    if size % 2**halvings:
        raise ValueError(f"score_model.channels: {halvings} halvings do not divide images of {size} pixels a side")
    network = UNet2DModel(
        sample_size=size,
        in_channels=channels,
        out_channels=channels,
        layers_per_block=settings.layers,
        block_out_channels=tuple(settings.channels),
        norm_num_groups=settings.groups,
        down_block_types=("DownBlock2D",) * len(settings.channels),
        up_block_types=("UpBlock2D",) * len(settings.channels),
        add_attention=False,
    )
    return cast(nn.Module, network)  # type checkers see diffusers' placeholder for an absent torch


def train_score_model(
    images: Tensor,
    validation: Tensor,
    schedule: Schedule,
    settings: TrainedScoreSettings,
    *,
    seed: int,
    scratch: Path,
    live: Callable[[dict[str, float]], None] | None = None,
) -> TrainedScore:
    """Learn to tell the noise in noisy images; the running mean of the weights is kept.

    Each step has a seed of its own: a killed run goes on from its newest checkpoint and ends with the same bytes.

    Args:
        images: In [-1, 1], float32 (N, C, S, S).
        validation: The same, of images that training does not see; their noise is the same at every look.
        schedule: The noise levels.
        settings: Network and optimiser.
        seed: Root seed.
        scratch: Folder of this run's checkpoints, keyed by all that decides the result.
        live: Called with each row of the history.

    Raises:
        ValueError: If images and network do not fit, or the loss is not finite.

    Source:
        Ho et al., 2020, Algorithm 1.
    """
    accelerator = Accelerator(mixed_precision="bf16" if settings.precision == "bf16" else "no", cpu=device().type == "cpu")
    scratch.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(derive(seed, "score model", "weights"))
    network = build_network(settings, images.shape[1], images.shape[2])
    optimizer = torch.optim.AdamW(network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    rate = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, settings.steps, pct_start=settings.warmup_fraction, cycle_momentum=False
    )
    model, optimizer = accelerator.prepare(network, optimizer)
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(settings.ema))
    progress = _Progress(rate)
    accelerator.register_for_checkpointing(average, progress)
    if found := sorted(scratch.glob("step-*")):
        accelerator.load_state(str(found[-1]))

    abar = schedule.abar.float().to(accelerator.device)
    images = images.to(accelerator.device)
    ends = {round(settings.steps * block / BLOCKS) for block in range(1, BLOCKS + 1)}
    total, count = torch.zeros((), device=accelerator.device), 0
    model.train()
    for step in range(progress.steps(), settings.steps):
        generator = torch_generator(seed, "score model", "step", step)
        rows = torch.randint(len(images), (settings.batch,), generator=generator)
        t = torch.randint(len(abar), (settings.batch,), generator=generator)
        noise = torch.randn(settings.batch, *images.shape[1:], generator=generator).to(accelerator.device)
        with accelerator.autocast():
            loss = _loss(model, images[rows.to(images.device)], t.to(images.device), noise, abar).mean()
        if not bool(loss.isfinite()):
            raise ValueError(f"the score model's loss is not finite in step {step + 1}: lower score_model.learning_rate")
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
        average.update_parameters(network)
        total, count = total + loss.detach(), count + 1
        if step + 1 in ends:
            row = {
                "step": step + 1,
                "loss": float(total) / count,
                "validation_loss": validation_loss(average.module, validation, abar, seed, settings.batch),
            }
            progress.history.append(row)
            total, count = torch.zeros_like(total), 0
            if live is not None:
                live(row)
            if step + 1 < settings.steps:
                _save(accelerator, scratch, step + 1)
    return TrainedScore(average.module.cpu().eval(), progress.history)


def _loss(model: nn.Module, clean: Tensor, t: Tensor, noise: Tensor, abar: Tensor) -> Tensor:
    kept = abar[t][:, None, None, None]
    predicted = model(kept.sqrt() * clean + (1 - kept).sqrt() * noise, t, return_dict=False)[0]
    return functional.mse_loss(predicted.float(), noise, reduction="none").flatten(1).mean(1)


@torch.no_grad()
def validation_loss(model: nn.Module, images: Tensor, abar: Tensor, seed: int, batch: int) -> float:
    """Mean squared error of the noise, the time steps spread evenly over the images, which have the same noise at every call."""
    training = model.training
    model.eval()
    noise = torch.randn(images.shape, generator=torch_generator(seed, "score model", "validation"))
    t = torch.linspace(0, len(abar) - 1, len(images)).long()
    parts = zip(*(value.to(abar.device).split(batch) for value in (images, t, noise)), strict=True)
    losses = torch.cat([_loss(model, x, step, drawn, abar) for x, step, drawn in parts])
    model.train(training)
    return float(losses.mean())


class _Progress:
    """History and learning rate, as a checkpoint keeps them."""

    def __init__(self, rate: Any) -> None:
        self.history: list[dict[str, float]] = []
        self._rate = rate

    def steps(self) -> int:
        return int(self.history[-1]["step"]) if self.history else 0

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history, "rate": self._rate.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history = state["history"]
        self._rate.load_state_dict(state["rate"])


def _save(accelerator: Accelerator, scratch: Path, step: int) -> None:
    """Write a checkpoint whole or not at all, and drop the one before."""
    partial = scratch / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    accelerator.save_state(str(partial))
    os.replace(partial, scratch / f"step-{step:07d}")
    for old in sorted(scratch.glob("step-*"))[:-1]:
        shutil.rmtree(old)
