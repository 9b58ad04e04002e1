"""The sweeps of all methods of a task, one file a method; what was swept before is not swept again."""

import os
import shutil
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from faithline import engine, workspace
from faithline.artifacts import publish, write_table
from faithline.curation import deduplicate
from faithline.judging import Judge
from faithline.maps import StoredMaps, read_maps, read_misfit, refuse_strangers
from faithline.metrics.curves import to_frame
from faithline.workspace import Workspace


def open_judge(opened: Workspace, sample_ids: Tensor) -> Judge:
    """The judge of some explained samples of a task, from its evaluation bank."""
    bank = opened.bank("evaluation")
    return Judge(
        game=opened.game,
        insertion=opened.insertion,
        x=opened.samples.x[sample_ids],
        target=opened.explained[sample_ids],
        sample_ids=sample_ids,
        bernoulli=bank.masks(sample_ids, "bernoulli"),
        fixed_size=bank.masks(sample_ids, "fixed_size"),
        singles=bank.masks(sample_ids, "singles"),
        table=None if opened.insertion is not None else bank.table(sample_ids),
        steps=opened.settings.game.steps,
        metrics=opened.params.metrics,
        seed=opened.params.seed,
    )


def read_all_maps(opened: Workspace) -> dict[str, StoredMaps]:
    """The maps of every method that params.yaml names, in its order; those that do not fit the target are left out.

    Raises:
        ArtifactError: If one is missing or damaged, or a folder is there that params.yaml does not name.
    """
    methods = opened.params.modality(opened.task).methods
    folder = workspace.attribution_folder(opened.task, "")
    refuse_strangers(folder, methods.names())
    target = opened.target.sha256
    fitting = [name for name in methods.names() if read_misfit(folder / name, target) is None]
    return {name: read_maps(folder / name, opened.samples.features, target) for name in fitting}


def sweep_methods(opened: Workspace) -> None:
    """Sweep the maps of every method and publish `data/curves/<task>/<method>.parquet`.

    Each method's curves are kept in a scratch folder under a key of their own (its maps, the game, the bank), so that an added
    or changed method costs only its own sweep. With `curves.skip_duplicates` the maps that curation drops as duplicates are not
    swept on the training samples; the key then covers the maps of all supervising methods.
    """
    task, params = opened.task, opened.params
    stored = read_all_maps(opened)
    skipped = _duplicates(opened, stored) if params.curves.skip_duplicates else {}
    judge = open_judge(opened, opened.samples.scored())
    shared = [
        params.seed,
        opened.settings.game.model_dump(),
        params.baselines.model_dump(),
        params.curves.model_dump(),
        params.curate.cosine if params.curves.skip_duplicates else None,
    ]
    inputs: list[str | Path] = [
        *engine.loaded_code(),
        workspace.target_folder(task),
        workspace.task_folder(task),
        workspace.bank_folder(task, "evaluation"),
    ]
    with publish(workspace.curves_folder(task)) as folder:
        for method, maps in tqdm(stored.items(), desc=f"curves-{task}", unit="method"):
            others = [
                workspace.attribution_folder(task, name) for name in (stored if params.curves.skip_duplicates else [method])
            ]
            key = engine.content_key([*shared, method], [*inputs, *others])
            scratch = engine.scratch_folder(f"curves-{task}-{method}", key) / "curves.parquet"
            if not scratch.exists():
                swept = maps.finite & torch.isin(maps.sample_ids, judge.sample_ids)
                swept &= ~torch.isin(maps.sample_ids, skipped.get(method, torch.empty(0, dtype=torch.int64)))
                ids = maps.sample_ids[swept]
                rows = torch.searchsorted(judge.sample_ids, ids)
                before = opened.game.passes
                sweeps = judge.take(rows).sweep(maps.attribution[swept])
                metadata = {**opened.metadata(), "candidate": method, "passes": str(opened.game.passes - before)}
                write_table(scratch, to_frame(ids, opened.samples.split[ids.numpy()].tolist(), sweeps), metadata)
            try:
                os.link(scratch, folder / f"{method}.parquet")
            except OSError:  # another file system, or one without hard links
                shutil.copy2(scratch, folder / f"{method}.parquet")


def _duplicates(opened: Workspace, stored: dict[str, StoredMaps]) -> dict[str, Tensor]:
    """Training samples on which each supervising method repeats an earlier one."""
    roles = opened.params.modality(opened.task).methods.roles()
    names = [name for name in stored if roles[name] == "supervision"]
    ids = opened.samples.index("train", supervised=True)
    chosen = [stored[name].of(ids) for name in names]
    leader = deduplicate(
        torch.stack([maps.attribution for maps in chosen], 1),
        torch.stack([maps.finite for maps in chosen], 1),
        opened.params.curate.cosine,
    )
    return {name: ids[(leader[:, k] != k) & (leader[:, k] >= 0)] for k, name in enumerate(names)}
