"""Curate one task: score every supervising map on its training sample, drop the rest, store what teaches."""

import polars as pl
import pyarrow as pa
import torch
from torch import Tensor

from faithline import curation, workspace
from faithline.artifacts import maps_column, publish, read_table, write_json, write_table
from faithline.errors import ArtifactError
from faithline.sweeping import open_judge, read_all_maps
from faithline.workspace import Workspace

CURVE_COLUMNS = {"sample_id": pl.Int64, "sweep": None, "step": pl.Int32, "value": pl.Float32}


def curate(opened: Workspace) -> None:
    """Write `data/curated/<task>/index.parquet` (what became of each map), `maps.parquet` (those that teach,
    per feature) and the counts in `reports/curate/<task>.json`.

    Raises:
        ArtifactError: If a map or a curve is missing or damaged, or no supervising method fits the target.
    """
    task, params = opened.task, opened.params
    roles = params.modality(task).methods.roles()
    everything = read_all_maps(opened)
    methods = [name for name in everything if roles[name] == "supervision"]
    if not methods:
        raise ArtifactError(f"no method of role supervision fits the target of {task}: name one in params.yaml that does")
    ids = opened.samples.index("train", supervised=True)
    stored = [everything[name].of(ids) for name in methods]
    maps = torch.stack([item.attribution for item in stored], 1)
    finite = torch.stack([item.finite for item in stored], 1)

    settings = params.curate
    judge = open_judge(opened, ids)
    metrics = [str(name) for name in params.evaluate.metrics]

    def score(which: Tensor) -> Tensor:
        stored = [
            judge.score_stored(
                maps[:, k],
                which[:, k],
                read_table(workspace.curves_folder(task) / f"{name}.parquet", CURVE_COLUMNS),
                metrics,
            )
            for k, name in enumerate(methods)
        ]
        return torch.stack(stored, 1)

    place = None
    if settings.leader == "best_mean_rank":
        usable = finite & (maps != 0).any(2)
        place = curation.mean_place(score(usable), usable, metrics)
    leader = curation.deduplicate(maps, finite, settings.cosine, place)
    alive = leader == torch.arange(len(methods))
    scores = score(alive)
    kept, passed = curation.quantile_filter(scores, alive, metrics, settings.quantile, settings.on_empty)
    weight = curation.teaching_weights(kept, curation.mean_place(scores, alive, metrics), settings.weights)
    index = curation.index_frame(ids, methods, leader, kept, passed, weight)
    sample, method = kept.nonzero(as_tuple=True)
    with publish(workspace.curated_folder(task)) as folder:
        write_table(folder / "index.parquet", index, opened.metadata())
        write_table(
            folder / "maps.parquet",
            pa.table(
                {
                    "sample_id": pa.array(ids[sample].numpy(), pa.int64()),
                    "method": pa.array([methods[k] for k in method.tolist()], pa.string()),
                    "attribution": maps_column(maps[sample, method]),
                }
            ),
            opened.metadata(),
        )
    write_json(f"reports/curate/{task}.json", curation.summary(index))
