"""One visible loop that trains an explainer. The explained model is asked for clean features once, and never again."""

import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from faithline import seeding
from faithline.bank import Masks
from faithline.config import ExplainerSettings
from faithline.dataset import Samples
from faithline.errors import ArtifactError
from faithline.explainers.alpha import AlphaController
from faithline.explainers.deepfaith import Pairs, TrainingSet, losses
from faithline.explainers.losses import Loss, local_correlation
from faithline.explainers.network import Kind, Network, Shape
from faithline.explainers.target_features import View, view
from faithline.masking import MaskedModel

CHECKPOINT_EPOCHS = 5
"""Epochs between checkpoints; two are kept. It changes no result."""

GRADIENT_NORM = 1.0
"""Longest gradient step: the correlation's gradient has no bound where scores hardly vary."""

Row = dict[str, float | int | None]


@dataclass(frozen=True)
class TrainedExplainer:
    """A trained network and how it came about.

    Attributes:
        network: With the weights of the epoch of best validation infidelity, in eval mode, on the CPU.
        layers: Modules of the target that it reads; None if it sees raw inputs.
        history: One row an epoch: `epoch` (from 1), `pattern` (mean L_PC, None without curated maps), `local` (mean L_LC),
            `alpha` (weight of L_PC in that epoch), `validation_inf` (mean correlation, higher is better), `validation_local`.
        info: Counts and the chosen epoch, JSON-able.
    """

    network: Network
    layers: list[str] | None
    history: list[Row]
    info: dict[str, Any]


class _Progress:
    """What a checkpoint holds besides network and optimiser; Accelerate saves it with them."""

    def __init__(self, controller: AlphaController) -> None:
        self.controller = controller
        self.history: list[Row] = []
        self.best_epoch = 0
        self.best_loss = math.inf
        self.best_weights: dict[str, Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "controller": self.controller.state_dict(),
            "history": self.history,
            "best_epoch": self.best_epoch,
            "best_loss": self.best_loss,
            "best_weights": self.best_weights,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.controller.load_state_dict(state["controller"])
        self.history = state["history"]
        self.best_epoch = state["best_epoch"]
        self.best_loss = state["best_loss"]
        self.best_weights = state["best_weights"]


def train_explainer(
    game: MaskedModel,
    samples: Samples,
    *,
    layers: list[str],
    train_ids: Tensor,
    train_masks: Masks,
    validation_ids: Tensor,
    validation_masks: Masks,
    pairs: Pairs,
    settings: ExplainerSettings,
    seed: int,
    scratch: Path,
    live: Callable[[Row], None] | None = None,
) -> TrainedExplainer:
    """Train a network to score features: `alpha * L_PC + (1 - alpha) * L_LC`, alpha by Algorithm 1 with the epoch as its unit.

    No masked input reaches the target: effects come from the bank, and a target-reading explainer costs one clean pass a sample.
    A killed run goes on from its newest checkpoint and ends with the same bytes. Starts under `torchrun` too; the number of
    processes must then be `settings.devices`.

    Args:
        game: The game to be explained.
        samples: The frozen task.
        layers: Modules of the target to read (`target.layers`); not used if `settings.inputs` is `raw`.
        train_ids: Training samples, ascending (N,).
        train_masks: Their masks for training, in that order.
        validation_ids: Validation samples, ascending.
        validation_masks: Their masks; the epoch with the best correlation on them is kept.
        pairs: Curated maps of training samples; may be empty if the objective is `local`.
        settings: The explainer's section of `params.yaml`.
        seed: Root seed.
        scratch: Folder of this run's checkpoints, keyed by all that decides the result.
        live: Called with each row of the history as it is made.

    Raises:
        ArtifactError: Wrong number of processes, no curated map though the objective imitates them, no varying effect, or a loss
            that is not finite (the message names the samples).
    """
    # One process of a plain run must not wait for others, and tests share a process: Accelerate keeps its state globally.
    accelerator = Accelerator(
        mixed_precision="bf16" if settings.precision == "bf16" else "no", cpu=seeding.device().type == "cpu"
    )
    if accelerator.num_processes != settings.devices:
        raise ArtifactError(
            f"devices = {settings.devices}, but {accelerator.num_processes} process(es) train: start this stage with "
            f"`torchrun --standalone --nproc-per-node {settings.devices}`"
        )
    if not len(pairs.sample_ids) and settings.objective != "local":
        raise ArtifactError(f"objective {settings.objective} imitates curated maps, but curation kept none: see curate.on_empty")

    passes = game.passes
    reads = layers if settings.inputs == "target_features" else None
    train_view = view(game, samples.x[train_ids], reads).to(accelerator.device)
    validation_view = view(game, samples.x[validation_ids], reads).to(accelerator.device)
    clean_passes = game.passes - passes
    data = TrainingSet(train_ids, train_view, train_masks, pairs, accelerator.device)
    validation = (
        validation_view,
        (~validation_masks.keep).to(accelerator.device),
        validation_masks.effects.to(accelerator.device),
    )

    torch.manual_seed(seeding.derive(seed, "explainer", "weights"))
    network = Network(network_shape(game, train_view, settings, len(samples.class_names))).to(accelerator.device)
    network.fit_scales(train_view)
    optimizer = torch.optim.AdamW(network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    model, optimizer = accelerator.prepare(network, optimizer)
    progress = _Progress(AlphaController(settings.alpha))
    accelerator.register_for_checkpointing(progress)
    _resume(accelerator, scratch)

    steps_per_epoch = max(1, len(train_ids) // settings.batch)
    for epoch in range(len(progress.history), settings.epochs):
        # Seeded anew each epoch: a resumed run draws what an undisturbed one draws, and ranks drop out different activations.
        torch.manual_seed(seeding.derive(seed, "explainer", "dropout", epoch, accelerator.process_index))
        generator = seeding.torch_generator(seed, "explainer", "batches", epoch)
        alpha = {"full": progress.controller.alpha, "pattern": 1.0, "local": 0.0}[settings.objective]
        totals = torch.zeros(4, dtype=torch.float64, device=accelerator.device)
        model.train()
        batches = data.batches(
            settings.batch, settings.masks_per_step, generator, accelerator.process_index, accelerator.num_processes
        )
        for step, batch in enumerate(batches, start=epoch * steps_per_epoch):
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * _schedule(
                    step, settings.epochs * steps_per_epoch, settings.warmup_fraction
                )
            pattern, local = losses(model(*batch.view), batch)
            # Sums over this rank's rows by counts over all ranks: their mean gradient is that of the whole batch.
            sums = torch.stack([(pattern.value * batch.weight).sum(), local.value.sum()])
            counts = torch.stack([(pattern.defined * batch.weight).sum(), local.defined.sum()])
            means = sums * accelerator.num_processes / accelerator.reduce(counts).clamp(min=1e-6)
            loss = alpha * means[0] + (1 - alpha) * means[1]
            if not bool(torch.isfinite(loss)):
                raise _non_finite(epoch, batch.sample_ids, batch.owner, pattern, local)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
            optimizer.step()
            optimizer.zero_grad()
            totals += torch.cat([sums.detach(), counts]).double()

        pattern_sum, local_sum, pattern_count, local_count = accelerator.reduce(totals).tolist()
        if not local_count:
            raise ArtifactError("no mask of any training sample changes the target's value: there is nothing to learn")
        pattern_mean = pattern_sum / pattern_count if pattern_count else None
        validation_local = _validation_loss(accelerator.unwrap_model(model), *validation, settings.batch)
        row: Row = {
            "epoch": epoch + 1,
            "pattern": pattern_mean,
            "local": local_sum / local_count,
            "alpha": alpha,
            "validation_inf": 1 - 2 * validation_local,
            "validation_local": validation_local,
        }
        if validation_local < progress.best_loss:
            progress.best_loss, progress.best_epoch = validation_local, epoch + 1
            progress.best_weights = {
                name: tensor.detach().clone() for name, tensor in accelerator.unwrap_model(model).state_dict().items()
            }
        progress.history.append(row)
        if pattern_mean is not None:
            progress.controller.update(pattern_mean)
        if (epoch + 1) % CHECKPOINT_EPOCHS == 0 and epoch + 1 < settings.epochs:
            _save(accelerator, scratch, epoch + 1)
        if live is not None and accelerator.is_main_process:
            live(row)

    if game.passes != passes + clean_passes:
        raise RuntimeError(f"training called the explained model {game.passes - passes - clean_passes} times; it must never")
    network = accelerator.unwrap_model(model).cpu()
    network.load_state_dict(progress.best_weights)
    info = {
        "best_epoch": progress.best_epoch,
        "validation_inf": progress.history[progress.best_epoch - 1]["validation_inf"],
        "train_samples": len(train_ids),
        "validation_samples": len(validation_ids),
        "curated_maps": len(pairs.sample_ids),
        "masks_per_sample": train_masks.keep.shape[1],
        "clean_passes": clean_passes,
        "parameters": sum(p.numel() for p in network.parameters()),
    }
    return TrainedExplainer(network.eval(), reads, progress.history, info)


def network_shape(game: MaskedModel, seen: View, settings: ExplainerSettings, classes: int) -> Shape:
    """The network that fits a view: a Transformer for raw inputs and for texts, convolutions or a perceptron otherwise."""
    features = game.features
    raw = settings.inputs == "raw"
    kind: Kind = "encoder"
    if not raw and features.kind == "image":
        kind = "grid"
    elif not raw and features.kind == "table":
        kind = "row"
    is_ids = seen.local.ndim == 2
    return Shape(
        kind=kind,
        head=settings.head,
        rows=features.rows,
        columns=features.columns,
        local=0 if is_ids else seen.local.shape[2],
        context=seen.context.shape[1],
        tokens=game.embedding().num_embeddings if is_ids else 0,
        classes=0 if raw else classes,
        width=settings.width,
        depth=settings.depth,
        heads=settings.heads,
        dropout=settings.dropout,
    )


def _schedule(step: int, steps: int, warmup_fraction: float) -> float:
    """Share of the learning rate: linear warm-up, then a cosine to 0."""
    warmup = warmup_fraction * steps
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 0.5 + 0.5 * math.cos(math.pi * (step - warmup) / max(1.0, steps - warmup))


@torch.inference_mode()
def _validation_loss(network: Network, seen: View, removed: Tensor, effects: Tensor, batch: int) -> float:
    """Mean local-correlation loss over the validation samples."""
    network.eval()
    parts = [
        local_correlation(network(*seen.take(rows)), removed[rows], effects[rows])
        for rows in torch.arange(len(effects), device=effects.device).split(batch)
    ]
    loss = Loss(torch.cat([part.value for part in parts]), torch.cat([part.defined for part in parts]))
    if not bool(loss.defined.any()):
        raise ArtifactError("no mask of any validation sample changes the target's value: the explainer cannot be judged")
    return float(loss.mean())


def _non_finite(epoch: int, sample_ids: Tensor, owner: Tensor, pattern: Loss, local: Loss) -> ArtifactError:
    """The error of a loss that is not finite, with the samples it comes from."""
    bad = ~torch.isfinite(local.value)
    bad[owner[~torch.isfinite(pattern.value)]] = True
    ids = sample_ids[bad.cpu()].tolist()
    return ArtifactError(
        f"the loss is not finite in epoch {epoch + 1}, samples {ids[:10]} ({len(ids)} in all): "
        f"look at their inputs, masks and curated maps, or lower learning_rate"
    )


def _save(accelerator: Accelerator, scratch: Path, epoch: int) -> None:
    """Write a checkpoint whole or not at all, and drop all but the newest two."""
    partial, final = scratch / "partial", scratch / f"epoch-{epoch:05d}"
    if accelerator.is_main_process:
        shutil.rmtree(partial, ignore_errors=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(partial))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.replace(partial, final)
        for old in sorted(scratch.glob("epoch-*"))[:-2]:
            shutil.rmtree(old)
    accelerator.wait_for_everyone()


def _resume(accelerator: Accelerator, scratch: Path) -> None:
    """Load the newest checkpoint, if there is one."""
    scratch.mkdir(parents=True, exist_ok=True)
    found = sorted(scratch.glob("epoch-*"))
    if found:
        accelerator.load_state(str(found[-1]))
