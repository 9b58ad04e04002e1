"""What the explain stage hands to training: which samples, and which masks of the bank."""

import json
from pathlib import Path

import polars as pl
import pytest
import torch
import yaml
from tests.conftest import run_stage_script

TASK, TRAIN, AUGMENTED, FEATURES = "tiny_table", 32, 6, 4


@pytest.fixture
def changed(world: Path) -> Path:
    """The tiny table with augmented inputs and single removals, run up to curation, and an entry that uses neither."""
    params = yaml.safe_load((world / "params.yaml").read_text())
    params["tasks"][TASK]["dataset"]["augmented"] = AUGMENTED
    params["tasks"][TASK]["bank"]["training_laws"] = ["bernoulli", "singles"]
    own = params["table"]["explainers"]["deepfaith"]
    params["table"]["explainers"] = {
        "deepfaith": {**own, "objective": "local", "augmented": True, "singles": 0.5},
        "plain": {**own, "objective": "local", "augmented": False, "singles": 0.0},
    }
    params["fud"]["table"]["tasks"], params["fud"]["image"]["tasks"] = [], []
    (world / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    methods = [("attribute", TASK, method) for method in params["table"]["methods"]]
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    try:
        for job in [("dataset", TASK), ("target", TASK), ("bank", TASK), *methods, ("curves", TASK), ("curate", TASK)]:
            run_stage_script(world, *job)
        for name in params["table"]["explainers"]:
            run_stage_script(world, "explain", TASK, name)
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.set_num_threads(threads)
    return world


def test_augmented_inputs_and_single_removals_reach_training_where_asked_for(changed: Path) -> None:
    infos = {
        name: json.loads((changed / f"models/explainers/{TASK}/{name}/model.json").read_text()) for name in ("deepfaith", "plain")
    }
    assert infos["plain"]["train_samples"] == TRAIN
    assert infos["deepfaith"]["train_samples"] == TRAIN + AUGMENTED
    masks = infos["plain"]["masks_per_sample"]
    more = infos["deepfaith"]["training_passes"]["bank"] - infos["plain"]["training_passes"]["bank"]
    assert more == AUGMENTED * (masks + 2) + (TRAIN + AUGMENTED) * FEATURES
    history = {
        name: pl.read_parquet(changed / f"models/explainers/{TASK}/{name}/history.parquet") for name in ("deepfaith", "plain")
    }
    assert history["deepfaith"]["singles"].min() > 0
    assert history["plain"]["singles"].null_count() == len(history["plain"]), "no share, no loss"


def test_no_number_of_the_task_sees_an_augmented_input(changed: Path) -> None:
    split = pl.read_parquet(changed / f"data/tasks/{TASK}/samples.parquet")
    made = set(split.filter(pl.col("split") == "augmented")["sample_id"])
    assert len(made) == AUGMENTED
    assert made <= set(pl.read_parquet(changed / f"data/bank/{TASK}/training/part-00000.parquet")["sample_id"])
    for path in ("bank/{}/evaluation", "bank/{}/reference", "bank/{}/fitting", "attributions/{}/integrated_gradients"):
        assert not made & set(pl.read_parquet(changed / "data" / path.format(TASK) / "part-00000.parquet")["sample_id"]), path
    assert json.loads((changed / f"models/target/{TASK}/model.json").read_text())["n_test"] == 12
