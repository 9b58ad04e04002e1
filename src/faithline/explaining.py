"""Train one explainer on what curation kept and on the mask bank, and publish it with its training curves."""

import os
import shutil
from pathlib import Path

import polars as pl
import torch
from dvclive import Live
from torch import Tensor

from faithline import engine, workspace
from faithline.artifacts import publish, read_table, write_table
from faithline.bank import Bank, Masks
from faithline.config import CxplainSettings, DeepFaithSettings, ExplainerSettings, L2xSettings, ShapleySettings, VertSettings
from faithline.explainers.load import save_explainer
from faithline.explainers.train import Row, train_explainer
from faithline.explainers.training_set import Pairs
from faithline.maps import column_to_maps
from faithline.workspace import Workspace


def curated_pairs(opened: Workspace) -> Pairs:
    """The maps that teach, with their weights, from `data/curated/<task>/`.

    Raises:
        ArtifactError: If a file is missing, damaged or lacks a column.
    """
    folder = workspace.curated_folder(opened.task)
    index = read_table(
        folder / "index.parquet", {"sample_id": pl.Int64, "method": pl.String, "kept": pl.Boolean, "weight": pl.Float32}
    )
    maps = read_table(folder / "maps.parquet", {"sample_id": pl.Int64, "method": pl.String, "attribution": None})
    joined = maps.join(
        index.filter("kept").select("sample_id", "method", "weight"),
        on=["sample_id", "method"],
        how="left",
        maintain_order="left",
    )
    return Pairs(
        sample_ids=torch.from_numpy(joined["sample_id"].to_numpy().copy()),
        maps=column_to_maps(joined["attribution"]),
        weight=torch.from_numpy(joined["weight"].to_numpy().copy()),
    )


def training_masks(bank: Bank, sample_ids: Tensor, settings: ExplainerSettings) -> Masks:
    """The masks that a module learns from, in the order of the samples.

    Raises:
        ArtifactError: If the bank has none of that law.
    """
    if isinstance(settings, ShapleySettings):
        return bank.masks(sample_ids, "shapley_kernel")
    if isinstance(settings, CxplainSettings):
        return bank.masks(sample_ids, "singles")
    masks = bank.masks(sample_ids, "bernoulli")
    return masks.first(0) if isinstance(settings, L2xSettings | VertSettings) else masks


def explain(opened: Workspace, name: str) -> None:
    """Train an explainer and write `models/explainers/<task>/<name>/` and its DVCLive curves in `reports/train/<task>/<name>/`.

    A killed run goes on from its last checkpoint, which lies in a scratch folder keyed by all that decides the result.
    """
    task, params = opened.task, opened.params
    settings = params.modality(task).explainers[name]
    train, validation = opened.samples.learned(augmented=settings.augmented), opened.samples.index("validation")
    bank = opened.bank("training")
    key = engine.content_key(
        [params.seed, task, name, settings.model_dump(), opened.settings.game.model_dump(), opened.settings.target.layers],
        [
            *engine.loaded_code(),
            workspace.task_folder(task),
            workspace.target_folder(task),
            workspace.bank_folder(task, "training"),
            workspace.curated_folder(task),
        ],
    )
    scratch = engine.scratch_folder(f"explain-{task}-{name}", key)
    curves = Path("reports/train") / task / name
    trained = train_explainer(
        opened.game,
        opened.samples,
        layers=opened.settings.target.layers,
        train_ids=train,
        train_masks=training_masks(bank, train, settings),
        train_singles=bank.masks(train, "singles") if isinstance(settings, DeepFaithSettings) and settings.singles else None,
        validation_ids=validation,
        validation_masks=bank.masks(validation, "bernoulli"),
        selection_masks=training_masks(bank, validation, settings),
        pairs=curated_pairs(opened),
        settings=settings,
        seed=params.seed + settings.seed_offset,
        scratch=scratch,
    )
    if int(os.environ.get("RANK", "0")) != 0:  # under torchrun one process writes
        return
    with publish(workspace.explainer_folder(task, name)) as folder:
        save_explainer(folder, trained, opened.game, settings, target_sha256=opened.target.sha256)
        write_table(folder / "history.parquet", history_frame(trained.history), opened.metadata())
    _write_live(curves, trained.history)
    shutil.rmtree(scratch)


def history_frame(history: list[Row]) -> pl.DataFrame:
    """The training curves, one row an epoch."""
    schema = {
        "epoch": pl.Int32,
        "loss": pl.Float32,
        "validation_loss": pl.Float32,
        "pattern": pl.Float32,
        "singles": pl.Float32,
        "local": pl.Float32,
        "alpha": pl.Float32,
        "validation_inf": pl.Float32,
        "validation_local": pl.Float32,
    }
    return pl.DataFrame(history, schema=schema)


def _write_live(folder: Path, history: list[Row]) -> None:
    """The same curves as DVCLive writes them, for `dvc plots` and editors; rewritten whole, as a resumed run has them all."""
    shutil.rmtree(folder, ignore_errors=True)
    with Live(str(folder), dvcyaml=None, save_dvc_exp=False, report=None, monitor_system=False) as live:
        for row in history:
            for metric, value in row.items():
                if metric != "epoch" and value is not None:
                    live.log_metric(metric, value, timestamp=False)
            live.next_step()
    (folder / "metrics.json").unlink()  # its last row, again; only tables belong into a folder of plots
