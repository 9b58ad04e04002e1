"""FUD of a table task: removed columns are drawn from a Gaussian copula, given the kept ones; no score model is needed.

Reads maps, writes `data/fud/<task>/records.parquet` and `reports/fud/<task>.json`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch
from torch import Tensor

from faithline import copula, fud, workspace
from faithline.artifacts import publish, write_json, write_table
from faithline.errors import ArtifactError
from faithline.explainers.load import load_explainer
from faithline.fud_intervals import interval, pairs
from faithline.maps import read_maps, read_misfit
from faithline.schemas.fud import TableFudSettings
from faithline.seeding import torch_generator
from faithline.workspace import Workspace

CONTROLS = ("random", "another", "inverse")
"""Orders that know nothing, or the wrong way round: `another` and `inverse` are of the report's reference method."""


@dataclass(frozen=True)
class Rows:
    """The judged rows.

    Attributes:
        x: float32 (I, n).
        ids: int64 (I,).
        target: Class whose evidence is removed, the model's own first choice, int64 (I,).
        full: Its clean confidence, (I,).
        counts: Columns that stay at each level.
        model: The distribution.
        settings: `fud.table`.
    """

    x: Tensor
    ids: Tensor
    target: Tensor
    full: Tensor
    counts: tuple[int, ...]
    model: copula.Copula
    settings: TableFudSettings


def judge(opened: Workspace) -> None:
    """Judge all candidates and controls of a table task.

    Raises:
        ArtifactError: If a method does not fit, or a map orders nothing in any sample.
    """
    settings, samples, seed = opened.params.fud.table, opened.samples, opened.params.seed
    ids = samples.index("test")[: settings.samples]
    train = samples.x[samples.index("train")]
    try:
        fitted = copula.fit_copula(train, sweeps=settings.sweeps, least_eigenvalue=settings.least_eigenvalue, seed=seed)
    except ValueError as error:
        raise ArtifactError(f"{opened.task}: {error}") from error
    rows = Rows(
        x=samples.x[ids],
        ids=ids,
        target=opened.explained[ids],
        full=opened.prob[ids].double(),
        counts=copula.kept_counts(samples.features.n, settings.levels),
        model=fitted,
        settings=settings,
    )
    roles: dict[str, str] = {name: str(role) for name, role in opened.params.table.methods.roles().items()}
    folders = {name: workspace.attribution_folder(opened.task, name) for name in settings.methods}
    misfits = {
        name: reason for name, folder in folders.items() if (reason := read_misfit(folder, opened.target.sha256)) is not None
    }
    maps = {name: _maps(opened, name, ids) for name in (*settings.methods, *settings.explainers) if name not in misfits}
    reference = _maps(opened, opened.params.report.reference, ids)
    draws = [torch.randn(samples.features.n, generator=torch_generator(seed, "random columns", int(i))) for i in ids]
    maps |= {"random": torch.stack(draws), "another": reference.roll(1, 0), "inverse": -reference}
    confidences, unguided, effective = {}, {}, {}
    for name, own in maps.items():
        confidences[name], effective[name] = _confidences(opened, rows, own, settings.scale)
        unguided[name], _ = _confidences(opened, rows, own, 0.0)
    role = {name: "control" if name in CONTROLS else roles.get(name, "explainer") for name in maps}
    with publish(f"data/fud/{opened.task}") as folder:
        write_table(folder / "records.parquet", _frame(rows, confidences, unguided, effective), opened.metadata())
    result: dict[str, Any] = {
        "kind": "table",
        "task": opened.task,
        "images": len(ids),
        "levels": [count / samples.features.n for count in rows.counts],
        "misfits": misfits,
        "conventions": {
            "columns": samples.features.n,
            "kept_columns": list(rows.counts),
            "discrete_columns": int(fitted.discrete.sum()),
            "shrinkage": fitted.shrinkage,
            "scale": settings.scale,
            "candidates": settings.candidates,
            "draws": settings.draws,
            "sweeps": settings.sweeps,
            "seed": seed,
        },
        "target": {"accuracy": opened.target.info["accuracy"], "clean_confidence": float(rows.full.mean())},
        "methods": _methods(opened, rows, confidences, unguided, effective, role),
        "pairs": pairs({name: fud.score(values) for name, values in confidences.items()}, opened.params),
    }
    write_json(f"reports/fud/{opened.task}.json", result)


def _maps(opened: Workspace, name: str, ids: Tensor) -> Tensor:
    if name in opened.params.table.explainers:
        folder = workspace.explainer_folder(opened.task, name)
        explainer = load_explainer(folder, opened.target.model, max_batch=opened.settings.game.max_batch)
        return explainer(opened.samples.x[ids]).cpu()
    folder = workspace.attribution_folder(opened.task, name)
    stored = read_maps(folder, opened.samples.features, opened.target.sha256).of(ids)
    return torch.where(stored.finite[:, None], stored.attribution, torch.nan)


def _confidences(opened: Workspace, rows: Rows, maps: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Confidences (I, F, R) and mean effective sample size of the candidates (I,); NaN where a map orders nothing."""
    settings, game = rows.settings, opened.game
    usable = maps.isfinite().all(1) & (maps != maps[:, :1]).any(1)
    shape = (len(maps), len(rows.counts), settings.draws)
    found = torch.full(shape, torch.nan, dtype=torch.float64)
    effective = torch.full((len(maps),), torch.nan, dtype=torch.float64)
    if not bool(usable.any()):
        return found, effective
    ids = tuple(rows.ids[usable].tolist())
    keep = copula.columns_kept(maps[usable], ids, rows.counts, opened.params.seed)
    made = copula.reconstruct_rows(
        rows.model,
        rows.x[usable],
        ids,
        keep,
        rows.target[usable],
        lambda x: game.predict(x)[0].cpu(),
        draws=settings.draws,
        scale=scale,
        candidates=settings.candidates,
        sweeps=settings.sweeps,
        seed=opened.params.seed,
        max_batch=game.max_batch,
    )
    found[usable] = copula.row_confidences(
        lambda x: game.predict(x)[0].cpu(), made.rows, rows.target[usable], game.max_batch
    ).double()
    effective[usable] = made.effective.flatten(1).mean(1)
    return found, effective


def _frame(
    rows: Rows, confidences: Mapping[str, Tensor], unguided: Mapping[str, Tensor], effective: Mapping[str, Tensor]
) -> pl.DataFrame:
    frames = []
    for name, values in confidences.items():
        images, levels, draws = values.shape
        frames.append(
            pl.DataFrame(
                {
                    "sample_id": rows.ids.repeat_interleave(levels * draws).tolist(),
                    "candidate": name,
                    "kept_columns": [count for _ in range(images) for count in rows.counts for _ in range(draws)],
                    "draw": list(range(draws)) * (images * levels),
                    "prob": values.flatten().tolist(),
                    "unguided_prob": unguided[name].flatten().tolist(),
                    "effective": effective[name].repeat_interleave(levels * draws).tolist(),
                }
            ).with_columns(pl.col("prob", "unguided_prob", "effective").fill_nan(None))
        )
    return pl.concat(frames)


def _methods(
    opened: Workspace,
    rows: Rows,
    confidences: Mapping[str, Tensor],
    unguided: Mapping[str, Tensor],
    effective: Mapping[str, Tensor],
    role: Mapping[str, str],
) -> dict[str, dict[str, Any]]:
    levels = [float(count) for count in rows.counts]
    random = fud.score(confidences["random"])
    table = {}
    for name, values in confidences.items():
        curve = values.mean(2)
        columns = {
            "score": fud.score(values),
            "above_random": fud.score(values) - random,
            "tau": fud.smoothness(curve, levels),
            "rises": fud.rises(curve, levels, rows.full),
            "unguided_score": fud.score(unguided[name]),
            "effective": effective[name],
        }
        row: dict[str, Any] = {"role": role[name]}
        row |= dict(zip(columns, interval(torch.stack(list(columns.values()), 1), opened.params), strict=True))
        row["curve"] = interval(curve, opened.params)
        table[name] = row
    return table
