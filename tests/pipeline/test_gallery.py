"""Pictures that may not be shown are not: a task with gallery samples is explained and scored, and the page shows those only."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from PIL import Image
from tests.conftest import run_stage_script

TASK = "tiny_image"
STAGES = (
    ("dataset", TASK),
    ("target", TASK),
    ("bank", TASK),
    ("attribute", TASK, "integrated_gradients"),
    ("attribute", TASK, "lime"),
    ("attribute", TASK, "banzhaf"),
    ("curves", TASK),
    ("curate", TASK),
    ("explain", TASK, "deepfaith"),
    ("evaluate", TASK),
    ("report",),
)
GALLERY = """
def with_gallery(samples):
    from dataclasses import replace
    import os
    count = int(os.environ["GALLERY"])
    shown = torch.full((count, 3, 8, 8), 2.0)
    return replace(samples, x=torch.cat([samples.x, shown]), label=torch.cat([samples.label, torch.full((count,), -1)]),
                   split=np.concatenate([samples.split, ["gallery"] * count]),
                   supervised=np.concatenate([samples.supervised, np.zeros(count, dtype=bool)]), showable=False)
"""
WHITE = 255


def run(world: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> str:
    """Run every stage with so many gallery pictures, all of them plain white; the page."""
    monkeypatch.setenv("GALLERY", str(count))
    file = world / "user/image_task.py"
    code = file.read_text()
    file.write_text(
        code.replace("    return Samples(", "    return with_gallery(Samples(").replace('"drawn")', '"drawn"))') + GALLERY
    )
    params = yaml.safe_load((world / "params.yaml").read_text())
    params["tasks"] = {TASK: params["tasks"][TASK]}
    params["table"]["tasks"], params["text"]["tasks"] = [], []
    params["fud"]["table"]["tasks"], params["fud"]["image"]["tasks"] = [], []
    (world / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    (world / "benchmarks").mkdir()
    (world / "benchmarks/results.json").write_text("{}")
    (world / "reports/snapshots").mkdir(parents=True)
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    try:
        for words in STAGES:
            run_stage_script(world, *words)
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.set_num_threads(threads)
    return (world / "reports/index.html").read_text()


def inputs(page: str) -> list[np.ndarray]:
    """Pictures of inputs on the page."""
    found = re.findall(r'src="data:image/png;base64,([^"]+)" alt="input, sample', page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(uri)))) for uri in found]


def test_the_page_shows_gallery_samples_and_the_numbers_leave_them_out(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = run(world, monkeypatch, 2)
    shown = inputs(page)
    assert len(shown) == 2
    assert all((picture == WHITE).all() for picture in shown)
    assert "true class not known" in page
    maps = re.findall(r'alt="map of (\w+) for class', page)
    assert set(maps) == {"deepfaith", "integrated_gradients", "lime", "banzhaf"}
    assert page.count("undefined</span>") == 0

    gallery = {52, 53}
    assert json.loads((world / f"reports/evaluation/{TASK}.json").read_text())["n_test"] == 12
    for method in ("integrated_gradients", "banzhaf"):
        stored = pl.read_parquet(world / f"data/attributions/{TASK}/{method}/part-00000.parquet")
        assert set(stored.filter(pl.col("split") == "gallery")["sample_id"]) == gallery
        assert not gallery & set(pl.read_parquet(world / f"data/curves/{TASK}/{method}.parquet")["sample_id"])
    assert not gallery & set(pl.read_parquet(world / f"data/evaluation/{TASK}/scores.parquet")["sample_id"])
    masked = set(pl.read_parquet(world / f"data/bank/{TASK}/evaluation/part-00000.parquet")["sample_id"])
    assert gallery <= masked, "feature ablation reads single removals of all that it explains"


def test_without_gallery_samples_nothing_is_shown(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = run(world, monkeypatch, 0)
    assert inputs(page) == []
    assert "Samples of this data set are not shown." in page
    assert 'alt="map of' not in page
    assert json.loads((world / f"reports/evaluation/{TASK}.json").read_text())["n_test"] == 12
