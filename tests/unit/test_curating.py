"""What the curate stage writes: which maps teach, which of near-duplicates leads, and how much each counts."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import yaml
from tests.conftest import run_stage_script

from faithline import config, curating, curation, workspace

TASK = "tiny_table"


@pytest.fixture
def swept(world: Path) -> Path:
    """The tiny table up to its sweeps."""
    methods = config.load().table.methods.names()
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    try:
        for job in [*(("attribute", TASK, method) for method in methods), ("curves", TASK)]:
            run_stage_script(world, *job)
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.set_num_threads(threads)
    return world


def curated(**changes: Any) -> tuple[pl.DataFrame, torch.Tensor]:
    """The index under other settings of `curate`, and the mean place of each map among all of its sample, (samples, methods)."""
    raw = yaml.safe_load(Path("params.yaml").read_text())
    raw["curate"] |= changes
    Path("params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    places: list[torch.Tensor] = []
    real = curation.mean_place
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curation, "mean_place", lambda *args: places.append(real(*args)) or places[-1])
        curating.curate(workspace.open_workspace(TASK, config.load()))
    return pl.read_parquet(f"data/curated/{TASK}/index.parquet"), places[0]


def test_the_best_ranked_of_near_duplicates_leads_where_asked_for(swept: Path) -> None:
    first, _ = curated(cosine=0.3, leader="first")
    best, place = curated(cosine=0.3, leader="best_mean_rank")
    methods = best["method"].unique(maintain_order=True).to_list()
    rows = best.with_columns(pl.Series("place", place.flatten().tolist())).filter(pl.col("reason") == "duplicate")
    leaders = best.select("sample_id", pl.col("method").alias("duplicate_of")).with_columns(
        pl.Series("leads", place.flatten().tolist())
    )
    led = rows.join(leaders, on=["sample_id", "duplicate_of"], how="left")
    assert len(led) > 10
    assert (led["leads"] <= led["place"]).all()
    order = {name: k for k, name in enumerate(methods)}
    assert any(order[row["duplicate_of"]] > order[row["method"]] for row in led.to_dicts()), "the first of the list leads always"
    in_order = first.filter(pl.col("reason") == "duplicate").to_dicts()
    assert all(order[row["duplicate_of"]] < order[row["method"]] for row in in_order)


def test_better_ranked_maps_count_for_more_where_asked_for(swept: Path) -> None:
    equal, _ = curated(quantile=0.0, cosine=1.0, weights="equal")
    ranked, place = curated(quantile=0.0, cosine=1.0, weights="rank")
    assert ranked["kept"].equals(equal["kept"])
    together = ranked.with_columns(pl.Series("place", place.flatten().tolist()), equal=equal["weight"]).filter("kept")
    sums = together.group_by("sample_id").agg(pl.col("weight").sum(), pl.len().alias("maps"))
    assert sums["weight"].to_list() == pytest.approx([1.0] * len(sums))
    assert (sums["maps"] > 1).any()
    for _, rows in together.filter(pl.len().over("sample_id") > 1).group_by("sample_id"):
        best, worst = rows.sort("place").head(1), rows.sort("place").tail(1)
        assert best["weight"][0] / worst["weight"][0] == pytest.approx(worst["place"][0] / best["place"][0], rel=1e-5)
        assert rows["equal"].n_unique() == 1
