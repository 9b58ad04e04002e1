"""One visible loop that trains an explainer. The explained model is asked for clean features once, and never again."""

import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from faithline import seeding
from faithline.artifacts import read_tensors, write_tensors
from faithline.bank import Masks
from faithline.config import (
    CxplainSettings,
    DeepFaithSettings,
    ExplainerSettings,
    FastShapSettings,
    L2xSettings,
    ShapleySettings,
    VertSettings,
    VitShapleySettings,
)
from faithline.dataset import Samples
from faithline.errors import ArtifactError
from faithline.explainers import cxplain, deepfaith, fastshap, l2x, vert, vit_shapley
from faithline.explainers.alpha import AlphaController
from faithline.explainers.losses import Loss, local_correlation
from faithline.explainers.network import Head, Kind, Network, Shape
from faithline.explainers.target_features import View, raw_view, view
from faithline.explainers.training_set import Batch, Pairs, Term, TrainingSet
from faithline.masking import MaskedModel

CHECKPOINT_EPOCHS = 5
"""Epochs between checkpoints; two are kept. It changes no result."""

GRADIENT_NORM = 1.0
"""Longest gradient step: the correlation's gradient has no bound where scores hardly vary."""

Row = dict[str, float | int | None]
Losses = Callable[[Tensor, Batch], tuple[Term, ...]]
"""The terms of an objective, for the scores (R, n) of a batch."""


@dataclass(frozen=True)
class TrainedExplainer:
    """A trained network and how it came about.

    Attributes:
        network: With the weights of the epoch of least validation loss, in eval mode, on the CPU.
        layers: Modules of the target that it reads; None if it sees raw inputs.
        history: One row an epoch: `epoch` (from 1); of DeepFaith `pattern` (mean L_PC, None without curated maps), `local` (mean
            L_LC) and `alpha` (weight of L_PC in that epoch), of the others `loss` and `validation_loss`; of all
            `validation_inf` (mean correlation, higher is better) and `validation_local`. What a module has not is None.
        info: Counts and the chosen epoch, JSON-able.
    """

    network: Network
    layers: list[str] | None
    history: list[Row]
    info: dict[str, Any]


class _Progress:
    """What a checkpoint holds besides network and optimiser; Accelerate saves it with them."""

    def __init__(self, controller: AlphaController | None) -> None:
        self.controller = controller
        self.history: list[Row] = []
        self.best_epoch = 0
        self.best_loss = math.inf
        self.best_weights: dict[str, Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "controller": None if self.controller is None else self.controller.state_dict(),
            "history": self.history,
            "best_epoch": self.best_epoch,
            "best_loss": self.best_loss,
            "best_weights": self.best_weights,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.controller is not None:
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
    selection_masks: Masks,
    pairs: Pairs,
    settings: ExplainerSettings,
    seed: int,
    scratch: Path,
    train_singles: Masks | None = None,
    live: Callable[[Row], None] | None = None,
) -> TrainedExplainer:
    """Train a network to score features by the objective of `settings.module`; that of DeepFaith is `alpha * L_PC + (1 - alpha) *
    L_LC`, alpha by Algorithm 1 with the epoch as its unit.

    No masked input reaches the target: values come from the bank (those of ViT-Shapley and VerT from a copy), and clean inputs
    reach it before training only, once a sample for an explainer that reads its features and once for one that learns from its
    output.
    The epoch whose loss on the validation samples is least is kept, each module by its own loss, DeepFaith by L_LC. A killed run
    goes on from its newest checkpoint and ends with the same bytes. Starts under `torchrun` too; the number of processes must be
    `settings.devices` then.

    Args:
        game: The game to be explained.
        samples: The frozen task.
        layers: Modules of the target to read (`target.layers`); not used if `settings.inputs` is `raw`.
        train_ids: Training samples, ascending (N,).
        train_masks: Their masks for training, in that order, of the law that the module learns from.
        validation_ids: Validation samples, ascending.
        validation_masks: Their Bernoulli masks, on which every module's INF is measured.
        selection_masks: Their masks of the law that the module learns from, on which its own loss is; DeepFaith's are the former.
        pairs: Curated maps of training samples, for DeepFaith; may be empty if its objective is `local`.
        settings: The explainer's section of `params.yaml`.
        seed: Root seed.
        scratch: Folder of this run's checkpoints, keyed by all that decides the result.
        train_singles: `singles` masks of the training samples, for DeepFaith with a share of single removals.
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
    no_pairs = Pairs(pairs.sample_ids[:0], pairs.maps[:0], pairs.weight[:0])
    if not isinstance(settings, DeepFaithSettings):
        pairs = no_pairs
    elif not len(pairs.sample_ids) and settings.objective != "local":
        raise ArtifactError(f"objective {settings.objective} imitates curated maps, but curation kept none: see curate.on_empty")
    scratch.mkdir(parents=True, exist_ok=True)

    passes = game.passes
    reads = layers if settings.inputs == "target_features" else None
    train_view = view(game, samples.x[train_ids], reads).to(accelerator.device)
    validation_view = view(game, samples.x[validation_ids], reads).to(accelerator.device)
    both = samples.x[torch.cat([train_ids, validation_ids])]
    probabilities = torch.empty(len(both), 0)
    if isinstance(settings, L2xSettings | VertSettings | VitShapleySettings):
        probabilities = game.predict(both)[0].softmax(1).to(accelerator.device)
    clean_passes = game.passes - passes
    single_values = 0 if train_singles is None else train_singles.values.numel()
    bank_passes = game.baseline.copies * (_values_read(train_masks) + _values_read(selection_masks) + single_values)
    surrogate_passes, divergence = 0, None
    if isinstance(settings, VitShapleySettings):
        keep = torch.cat([train_masks.keep, selection_masks.keep])
        found = _surrogate(accelerator, scratch, game, both, len(train_ids), keep, probabilities, settings, seed)
        train_masks = vit_shapley.with_values(train_masks, found["values"][: len(train_ids)])
        selection_masks = vit_shapley.with_values(selection_masks, found["values"][len(train_ids) :])
        bank_passes, surrogate_passes, divergence = 0, int(found["passes"]), found["divergence"].tolist()
    if isinstance(settings, VertSettings):
        bank_passes, surrogate_passes = 0, vert.passes(settings, len(train_ids), len(validation_ids))
    data = TrainingSet(train_ids, train_view, train_masks, pairs, accelerator.device, train_singles)
    selection = TrainingSet(validation_ids, validation_view, selection_masks, no_pairs, accelerator.device)

    torch.manual_seed(seeding.derive(seed, "explainer", "weights"))
    network = Network(network_shape(game, train_view, settings, len(samples.class_names))).to(accelerator.device)
    network.fit_scales(train_view)
    modules: list[nn.Module] = [network]
    raw = raw_view(game.features, both if isinstance(settings, L2xSettings) else both[:0]).to(accelerator.device)
    if isinstance(settings, L2xSettings):
        tokens = game.embedding().num_embeddings if raw.local.ndim == 2 else 0
        modules.append(l2x.Predictor(raw, tokens, len(samples.class_names), settings).to(accelerator.device))
    if isinstance(settings, VertSettings):
        modules.append(vert.TunedCopy(game))
    rates = [
        settings.learning_rate,
        settings.copy_learning_rate if isinstance(settings, VertSettings) else settings.learning_rate,
    ]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    groups = [{"params": list(module.parameters()), "lr": rate} for module, rate in zip(modules, rates, strict=False)]
    optimizer = torch.optim.AdamW(groups, weight_decay=settings.weight_decay)
    *prepared, optimizer = accelerator.prepare(*modules, optimizer)
    model = prepared[0]
    judged: nn.Module = accelerator.unwrap_model(model)
    average: AveragedModel | None = None
    if isinstance(settings, DeepFaithSettings) and settings.ema:
        average = AveragedModel(judged, multi_avg_fn=get_ema_multi_avg_fn(settings.ema))
        judged = average.module
        accelerator.register_for_checkpointing(average)
    losses: Losses
    selection_losses: Losses
    match settings:
        case DeepFaithSettings():
            losses, selection_losses = deepfaith.losses, deepfaith.losses
        case FastShapSettings() | VitShapleySettings():
            losses, selection_losses = fastshap.losses, fastshap.losses
        case CxplainSettings():
            losses = selection_losses = partial(cxplain.losses, output=game.output)
        case L2xSettings():
            first, rest = slice(len(train_ids)), slice(len(train_ids), None)
            losses = l2x.Selection(prepared[1], raw.take(first), probabilities[first], settings).losses
            selection_losses = l2x.Selection(prepared[1], raw.take(rest), probabilities[rest], settings).losses
        case VertSettings():
            x, count = both.to(accelerator.device), len(train_ids)
            losses = vert.Verification(prepared[1], x[:count], probabilities[:count], settings.sparsity).losses
            selection_losses = vert.Verification(prepared[1], x[count:], probabilities[count:], settings.sparsity).losses
    progress = _Progress(AlphaController(settings.alpha) if isinstance(settings, DeepFaithSettings) else None)
    accelerator.register_for_checkpointing(progress)
    _resume(accelerator, scratch)

    masks_per_step = train_masks.keep.shape[1]
    if isinstance(settings, DeepFaithSettings | ShapleySettings):
        masks_per_step = settings.masks_per_step
    steps_per_epoch = max(1, len(train_ids) // settings.batch)
    for epoch in range(len(progress.history), settings.epochs):
        # Seeded anew each epoch: a resumed run draws what an undisturbed one draws, and ranks drop out different activations.
        torch.manual_seed(seeding.derive(seed, "explainer", "dropout", epoch, accelerator.process_index))
        generator = seeding.torch_generator(seed, "explainer", "batches", epoch)
        weights: tuple[float, ...] = (1.0,)
        if isinstance(settings, DeepFaithSettings) and progress.controller is not None:
            weights = deepfaith.weights(settings, progress.controller.alpha)
        totals = torch.zeros(2, len(weights), dtype=torch.float64, device=accelerator.device)
        for module in prepared:
            module.train()
        batches = data.batches(settings.batch, masks_per_step, generator, accelerator.process_index, accelerator.num_processes)
        for step, batch in enumerate(batches, start=epoch * steps_per_epoch):
            share = _schedule(step, settings.epochs * steps_per_epoch, settings.warmup_fraction)
            for group, rate in zip(optimizer.param_groups, rates, strict=False):
                group["lr"] = rate * share
            terms = losses(model(*batch.view), batch)
            # Sums over this rank's rows by counts over all ranks: their mean gradient is that of the whole batch.
            sums = torch.stack([(term.loss.value * term.weight).sum() for term in terms])
            counts = torch.stack([(term.loss.defined * term.weight).sum() for term in terms])
            means = sums * accelerator.num_processes / accelerator.reduce(counts).clamp(min=1e-6)
            loss = sum((weight * mean for weight, mean in zip(weights, means, strict=True)), means.new_zeros(()))
            if not bool(torch.isfinite(loss)):
                raise _non_finite(epoch, batch.sample_ids, terms)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(parameters, GRADIENT_NORM)
            optimizer.step()
            optimizer.zero_grad()
            if average is not None:
                average.update_parameters(accelerator.unwrap_model(model))
            totals += torch.stack([sums.detach(), counts]).double()

        term_sums, term_counts = accelerator.reduce(totals).tolist()
        if not term_counts[-1]:
            raise ArtifactError("no mask of any training sample changes the target's value: there is nothing to learn")
        epoch_means = [value / count if count else None for value, count in zip(term_sums, term_counts, strict=True)]
        validation_local = _validation_loss(judged, validation_view, validation_masks, settings, accelerator.device)
        chosen_by = validation_local
        row: Row = dict.fromkeys(("epoch", "loss", "validation_loss", "pattern", "singles", "local", "alpha"))
        row["epoch"] = epoch + 1
        if progress.controller is None:
            chosen_by = _selection_loss(prepared, selection, selection_losses, settings.batch, seed)
            row["loss"], row["validation_loss"] = epoch_means[0], chosen_by
        else:
            row["pattern"], row["singles"], row["local"], row["alpha"] = *epoch_means, weights[0]
        row |= {"validation_inf": 1 - 2 * validation_local, "validation_local": validation_local}
        if chosen_by < progress.best_loss:
            progress.best_loss, progress.best_epoch = chosen_by, epoch + 1
            progress.best_weights = {name: tensor.detach().clone() for name, tensor in judged.state_dict().items()}
        progress.history.append(row)
        if progress.controller is not None and epoch_means[0] is not None:
            progress.controller.update(epoch_means[0])
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
        "training_passes": {
            "bank": bank_passes,
            "clean": clean_passes,
            "surrogate": surrogate_passes,
        },
        "surrogate_divergence": divergence,
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
    head: Head = "signed"
    if isinstance(settings, DeepFaithSettings):
        head = settings.head
    elif isinstance(settings, CxplainSettings):
        head = "softmax"
    elif isinstance(settings, VertSettings):
        head = "sigmoid"
    return Shape(
        kind=kind,
        head=head,
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
def _validation_loss(network: nn.Module, seen: View, masks: Masks, settings: ExplainerSettings, device: torch.device) -> float:
    """Mean local-correlation loss over the validation samples."""
    network.eval()
    parts = []
    for rows in torch.arange(len(masks.keep)).split(settings.batch):
        some, part = seen.take(rows.to(device)), masks.take(rows)
        scores = network(*some)
        if isinstance(settings, ShapleySettings):
            scores = fastshap.normalise(scores, (part.full - part.empty).to(device), some.valid)
        parts.append(local_correlation(scores, (~part.keep).to(device), part.effects.to(device)))
    loss = Loss(torch.cat([part.value for part in parts]), torch.cat([part.defined for part in parts]))
    if not bool(loss.defined.any()):
        raise ArtifactError("no mask of any validation sample changes the target's value: the explainer cannot be judged")
    return float(loss.mean())


@torch.no_grad()
def _selection_loss(modules: list[nn.Module], data: TrainingSet, losses: Losses, batch: int, seed: int) -> float:
    """Mean of a module's own loss over the validation samples."""
    for module in modules:
        module.eval()
    torch.manual_seed(seeding.derive(seed, "explainer", "selection"))  # L2X draws subsets: the same ones after each epoch
    parts = [losses(modules[0](*part.view), part)[0].loss for part in data.in_order(batch)]
    loss = Loss(torch.cat([part.value for part in parts]), torch.cat([part.defined for part in parts]))
    mean = float(loss.mean())
    if not math.isfinite(mean):
        raise ArtifactError("the loss of the validation samples is not finite: the explainer cannot be judged")
    return mean


def _values_read(masks: Masks) -> int:
    """Values of the bank that an explainer learns from: those of its masks, v(all) and v(none) of each sample."""
    samples, count = masks.keep.shape[:2]
    return samples * (count + 2) if count else 0


def _non_finite(epoch: int, sample_ids: Tensor, terms: tuple[Term, ...]) -> ArtifactError:
    """The error of a loss that is not finite, with the samples it comes from."""
    bad = torch.zeros(len(sample_ids), dtype=torch.bool)
    for term in terms:
        bad[term.owner[~torch.isfinite(term.loss.value)].cpu()] = True
    ids = sample_ids[bad].tolist()
    return ArtifactError(
        f"the loss is not finite in epoch {epoch + 1}, samples {ids[:10]} ({len(ids)} in all): "
        f"look at their inputs, masks and curated maps, or lower learning_rate"
    )


def _surrogate(
    accelerator: Accelerator,
    scratch: Path,
    game: MaskedModel,
    x: Tensor,
    fitted: int,
    keep: Tensor,
    probabilities: Tensor,
    settings: VitShapleySettings,
    seed: int,
) -> dict[str, Tensor]:
    """`values` of all inputs x by a surrogate of the first `fitted` of them, its `passes` and its `divergence`.

    The main process makes them once; a run that was killed afterwards finds them again.
    """
    path = scratch / "surrogate.safetensors"
    if accelerator.is_main_process and not path.exists():
        surrogate, divergence = vit_shapley.fit_surrogate(game, x[:fitted], probabilities[:fitted], settings.surrogate, seed=seed)
        values = vit_shapley.values_with_ends(surrogate, x, keep, probabilities.argmax(1))
        write_tensors(path, {"values": values, "divergence": divergence, "passes": torch.tensor(surrogate.passes)})
    accelerator.wait_for_everyone()
    return read_tensors(path)


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
    found = sorted(scratch.glob("epoch-*"))
    if found:
        accelerator.load_state(str(found[-1]))
