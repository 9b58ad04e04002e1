"""Curate one task: score every supervising map on its training sample, drop the rest, store what teaches."""

import polars as pl
import pyarrow as pa
import torch

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

    leader = curation.deduplicate(maps, finite, params.curate.cosine)
    alive = leader == torch.arange(len(methods))
    judge = open_judge(opened, ids)
    metrics = [str(name) for name in params.evaluate.metrics]
    scores = torch.stack(
        [
            judge.score_stored(
                maps[:, k],
                alive[:, k],
                read_table(workspace.curves_folder(task) / f"{name}.parquet", CURVE_COLUMNS),
                metrics,
            )
            for k, name in enumerate(methods)
        ],
        1,
    )
    kept, passed = curation.quantile_filter(scores, alive, metrics, params.curate.quantile, params.curate.on_empty)
    index = curation.index_frame(ids, methods, leader, kept, passed)
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
