"""Variants of a preset really run as queued DVC experiments, and their results come back as one file."""

import json

import pytest
from tests.pipeline.checkout import Checkout

pytestmark = pytest.mark.extended

GRID = """
import sys
from faithline import config, sensitivity as s
s.FACTORS = (s.Factor("p", "p", "quantile", ("curate.quantile",), (0.0, 0.2)),)
s.ABLATIONS = tuple(ablation for ablation in s.ABLATIONS if ablation.name in ("full", "local", "dedup"))
from faithline.errors import run_stage
from pathlib import Path
run_stage(lambda: s.queue(config.load()) if sys.argv[1] == "queue" else s.collect(config.load(), Path("../results.json")))
"""
"""The study on a grid of two experiments."""


def study(checkout: Checkout, word: str, status: int = 0) -> str:
    """Queue or collect; all that was said."""
    done = checkout.run("python", "-c", GRID, word, status=status, PYTHONPATH="src")
    return done.stdout + done.stderr


def test_two_variants_run_once_and_are_collected(pipeline: Checkout) -> None:
    out = pipeline.folder.parent / "results.json"
    before = pipeline.git("status", "--porcelain")
    said = study(pipeline, "collect", status=1)
    assert said.startswith("error: 2 of 2 experiments have no result: p-0.0, ablation-local; nothing was written.")
    assert len(said.splitlines()) == 1
    assert not out.exists()

    said = study(pipeline, "queue")
    assert [said.count(f"Queued experiment '{name}'") for name in ("p-0.0", "ablation-local")] == [1, 1]
    pipeline.dvc("exp", "run", "--run-all")
    study(pipeline, "collect")
    assert pipeline.git("status", "--porcelain") == before, "the checkout itself is as it was"

    rows = {(row["factor"], row["value"], row["task"]): row for row in json.loads(out.read_text())["rows"]}
    tasks = list(pipeline.params()["tasks"])
    values = {("p", 0.0), ("p", 0.2), ("ablation", "full"), ("ablation", "local"), ("ablation", "dedup")}
    assert set(rows) == {(*value, task) for value in values for task in tasks}
    for task in tasks:
        own = json.loads(pipeline.git("show", f"HEAD:reports/metrics/{task}.json"))["candidates"]["deepfaith"]
        assert rows["p", 0.2, task]["mean_rank"]["mean"] == own["mean_rank"]
        assert rows["p", 0.2, task]["metrics"]["inf"]["mean"] == own["inf"]
        # Without a filter more maps teach; another objective makes other maps.
        assert rows["p", 0.0, task]["taught"] > rows["p", 0.2, task]["taught"]
        assert rows["ablation", "local", task]["metrics"] != rows["ablation", "full", task]["metrics"]
        assert {**rows["ablation", "dedup", task], "factor": "p", "value": 0.0} == rows["p", 0.0, task]

    assert "Queued experiment" not in study(pipeline, "queue"), "what has finished is not run again"
