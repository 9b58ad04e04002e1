"""A user's own model on their own arrays, exactly as docs/your-model.md tells it, gets a leaderboard through the DAG."""

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.pipeline.checkout import ROOT, clone, ran
from tests.pipeline.conftest import smoke

pytestmark = pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")  # of DVC itself


def blocks(language: str) -> list[str]:
    text = (ROOT / "docs/your-model.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def task_file() -> str:
    (code,) = [block for block in blocks("python") if "MODALITY" in block]
    return code


def test_the_task_file_of_the_docs_is_short() -> None:
    lines = [line for line in task_file().splitlines() if line.strip()]
    assert len(lines) < 30
    assert max(len(line) for line in lines) <= 130


@pytest.mark.extended
def test_a_user_s_task_gets_a_leaderboard(fresh: Path) -> None:
    (entry,) = [yaml.safe_load(block) for block in blocks("yaml") if "source: user/wine.py" in block]
    params = smoke()
    params["tasks"] = entry
    params["table"]["tasks"], params["image"]["tasks"] = ["wine"], []
    params["fud"]["table"]["tasks"], params["fud"]["image"]["tasks"] = [], []
    checkout = clone(fresh, smoke())
    checkout.write("user/wine.py", task_file())
    checkout.set_params(params)
    checkout.commit("our own task")
    assert ran(checkout.dvc("repro")) == checkout.stages()
    board = json.loads((checkout.folder / "reports/leaderboard.json").read_text())
    assert set(board["tasks"]) == {"wine"}
    wine = board["tasks"]["wine"]
    assert wine["n_test"] == 48
    assert wine["target"]["accuracy"] > 0.8, "three growers are easy to tell apart"
    assert {"deepfaith", "integrated_gradients", "random"} <= set(wine["candidates"])
    assert wine["runner_up"]["candidate"] in wine["candidates"]
    assert "wine" in (checkout.folder / "reports/index.html").read_text()
    log = checkout.dvc("repro")
    assert not ran(log)
    # Its file is a dep like any other: edited, what follows from it runs.
    checkout.write("user/wine.py", task_file() + "\n# A word more.\n")
    assert {"dataset@wine", "target@wine"} <= checkout.would_run()
