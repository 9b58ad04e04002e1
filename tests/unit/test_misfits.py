"""A method that does not fit a target, from its stage to the report."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import torch
import yaml
from tests.conftest import run_stage_script

from faithline.errors import ArtifactError
from faithline.maps import read_misfit

TASK = "tiny_image"
FITTING = ["integrated_gradients", "lime", "score_cam"]
MISFITS = ["attention_rollout", "generic_attention"]
REASON = "Sequential has no attention layer whose weights can be read"
LATER = (("curves", TASK), ("curate", TASK), ("explain", TASK, "deepfaith"), ("evaluate", TASK), ("report",))


def set_methods(world: Path, methods: dict[str, dict[str, object]], reference: str = "integrated_gradients") -> None:
    """Leave one task with these methods and one explainer."""
    params = yaml.safe_load((world / "params.yaml").read_text())
    params["tasks"] = {TASK: params["tasks"][TASK]}
    params["table"]["tasks"], params["text"]["tasks"] = [], []
    params["fud"]["table"]["tasks"], params["fud"]["image"]["tasks"] = [], []
    params["image"]["methods"] = methods
    params["image"]["explainers"]["deepfaith"]["epochs"] = 1
    params["curves"]["skip_duplicates"] = True
    params["report"]["reference"] = reference
    (world / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


@pytest.fixture
def attributed(world: Path) -> Iterator[Path]:
    """The tiny world with maps of three methods of five; two do not fit its CNN, one of them is the first of the list."""
    set_methods(
        world,
        {
            "attention_rollout": {"role": "supervision"},
            "integrated_gradients": {"role": "supervision", "output": "prob", "steps": 4},
            "lime": {"role": "supervision", "masks": 32, "kernel_width": 0.5, "ridge": 0.01},
            "generic_attention": {"role": "reference", "output": "prob"},
            "score_cam": {"role": "baseline", "output": "prob", "channels": 2},
        },
    )
    (world / "benchmarks").mkdir()
    (world / "benchmarks/results.json").write_text("{}\n")
    (world / "reports/snapshots").mkdir(parents=True)
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    for method in (*MISFITS, *FITTING):
        run_stage_script(world, "attribute", TASK, method)
    yield world
    torch.use_deterministic_algorithms(deterministic)
    torch.set_num_threads(threads)


def test_the_stage_publishes_the_reason_and_no_maps(attributed: Path) -> None:
    model = json.loads((attributed / f"models/target/{TASK}/model.json").read_text())
    for method in MISFITS:
        folder = attributed / f"data/attributions/{TASK}/{method}"
        assert [path.name for path in folder.iterdir()] == ["does_not_fit.json"]
        found = json.loads((folder / "does_not_fit.json").read_text())
        assert (found["task"], found["method"], found["reason"]) == (TASK, method, REASON)
        assert read_misfit(folder, model["sha256"]) == REASON
        with pytest.raises(ArtifactError, match="explains another model"):
            read_misfit(folder, "ab" * 32)
    assert read_misfit(attributed / f"data/attributions/{TASK}/lime", model["sha256"]) is None


def test_a_method_that_fits_again_replaces_the_reason(attributed: Path) -> None:
    folder = attributed / f"data/attributions/{TASK}/lime"
    shutil.copytree(attributed / f"data/attributions/{TASK}/{MISFITS[0]}", folder, dirs_exist_ok=True)
    run_stage_script(attributed, "attribute", TASK, "lime")
    assert [path.name for path in folder.iterdir()] == ["part-00000.parquet"]


def test_later_stages_leave_it_out_and_the_report_says_why(attributed: Path) -> None:
    for words in LATER:
        run_stage_script(attributed, *words)
    assert {path.stem for path in (attributed / f"data/curves/{TASK}").iterdir()} == set(FITTING)
    taught = pl.read_parquet(attributed / f"data/curated/{TASK}/index.parquet")
    assert set(taught["method"]) == {"integrated_gradients", "lime"}
    candidates = json.loads((attributed / "reports/leaderboard.json").read_text())["tasks"][TASK]["candidates"]
    assert set(FITTING) <= set(candidates)
    assert not set(MISFITS) & set(candidates)
    page = (attributed / "reports/index.html").read_text()
    readme = (attributed / "reports/README.md").read_text()
    for method in MISFITS:
        assert f"{method} not applicable: {REASON}" in page
        assert f"{method} not applicable: {REASON}".replace("_", "\\_") in readme
    assert "lime not applicable" not in page
    # A row for a method that has no maps would be an invention.
    path = attributed / f"reports/evaluation/{TASK}.json"
    result = json.loads(path.read_text())
    result["candidates"][MISFITS[0]] = result["candidates"]["lime"]
    path.write_text(json.dumps(result))
    with pytest.raises(SystemExit, match=f"a row for {MISFITS[0]}, which does not fit"):
        run_stage_script(attributed, "report")


def test_a_damaged_reason_is_refused(attributed: Path) -> None:
    (attributed / f"data/attributions/{TASK}/{MISFITS[0]}/does_not_fit.json").write_text('{"reason": 3}')
    with pytest.raises(SystemExit, match=r"does_not_fit.json gives no reason"):
        run_stage_script(attributed, "curves", TASK)


def test_no_teacher_and_no_reference_are_named(attributed: Path) -> None:
    methods = yaml.safe_load((attributed / "params.yaml").read_text())["image"]["methods"]
    set_methods(attributed, methods, reference="generic_attention")
    run_stage_script(attributed, "curves", TASK)
    run_stage_script(attributed, "curate", TASK)
    run_stage_script(attributed, "explain", TASK, "deepfaith")
    with pytest.raises(SystemExit, match=r"report.reference = 'generic_attention' does not fit the target of tiny_image"):
        run_stage_script(attributed, "evaluate", TASK)
    for method in FITTING:
        methods[method]["role"] = "baseline"
    set_methods(attributed, methods)
    with pytest.raises(SystemExit, match=r"no method of role supervision fits the target of tiny_image"):
        run_stage_script(attributed, "curate", TASK)
