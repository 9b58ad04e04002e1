"""The attribute stage hands a method what it reads: the exact table where there is one, background rows, counted passes."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import torch
import yaml
from tests.conftest import run_stage_script

from faithline import attributing, config


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Stages set threads and determinism for their process."""
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.set_num_threads(threads)


def attribute(world: Path, task: str, method: str, **settings: object) -> pl.DataFrame:
    """Run the stage with these settings of a method; returns its maps."""
    params = yaml.safe_load((world / "params.yaml").read_text())
    params[task.removeprefix("tiny_")]["methods"][method] = {"role": "supervision", **settings}
    (world / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    run_stage_script(world, "attribute", task, method)
    return pl.read_parquet(world / f"data/attributions/{task}/{method}")


def test_shapley_sampling_reads_the_exact_table_and_else_plays(world: Path) -> None:
    played = attribute(world, "tiny_table", "shapley_sampling", permutations=200)
    assert set(played["passes"]) == {2 + 200 * 3}
    params = yaml.safe_load((world / "params.yaml").read_text())
    params["tasks"]["tiny_table"]["bank"]["exact"] = True
    (world / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    run_stage_script(world, "bank", "tiny_table")
    read = attribute(world, "tiny_table", "shapley_sampling", permutations=200)
    assert set(read["passes"]) == {2**4}
    torch.testing.assert_close(read["attribution"].to_torch(), played["attribution"].to_torch(), atol=1e-6, rtol=1e-5)
    exact = attribute(world, "tiny_table", "exact_shapley")
    torch.testing.assert_close(read["attribution"].to_torch(), exact["attribution"].to_torch(), atol=0.05, rtol=0)


def test_rise_counts_the_masks_it_reads(world: Path) -> None:
    assert set(attribute(world, "tiny_text", "rise", masks=20)["passes"]) == {20}


def test_the_limit_in_the_schema_is_the_background_that_there_is(world: Path) -> None:
    assert attributing.BACKGROUND_ROWS == config.MAX_BACKGROUND_ROWS
    assert set(attribute(world, "tiny_table", "deeplift_shap", output="prob", rows=32)["passes"]) == {2 * 32}
    with pytest.raises(SystemExit, match=r"table\.methods\.rise\.masks = 33: must be <= tasks\.tiny_table\.bank\.fitting"):
        attribute(world, "tiny_table", "rise", masks=33)
    with pytest.raises(SystemExit, match=r"deeplift_shap\.rows = 33: must be <= tasks\.tiny_table\.dataset\.train"):
        attribute(world, "tiny_table", "deeplift_shap", output="prob", rows=33)
    with pytest.raises(SystemExit, match=r"table\.methods\.deeplift_shap\.rows = 65: Input should be less than or equal to 64"):
        attribute(world, "tiny_table", "deeplift_shap", output="prob", rows=65)
