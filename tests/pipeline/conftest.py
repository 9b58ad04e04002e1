"""The pipeline, run once a session on the smoke preset and then looked at from many sides."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.pipeline.checkout import ROOT, Checkout, clone


def smoke() -> dict[str, Any]:
    """The smoke preset without its text task: two modalities, 21 jobs, no download."""
    params = yaml.safe_load((ROOT / "params/smoke.yaml").read_text())
    del params["tasks"]["reviews_transformer"]
    params["text"]["tasks"] = []
    del params["image"]["methods"]["banzhaf"]
    for modality in ("table", "image"):
        params[modality]["explainers"] = {"deepfaith": params[modality]["explainers"]["deepfaith"]}
    deepfaith = params["table"]["explainers"]["deepfaith"]
    params["table"]["explainers"]["deepfaith_paper"] = {**deepfaith, "inputs": "raw", "augmented": False, "head": "sigmoid"}
    return params


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A clone in which `dvc repro` has run and everything is committed. Leave it as you found it (`put_back`, `edited`)."""
    checkout = clone(tmp_path_factory.mktemp("pipeline") / "repo", smoke())
    log = checkout.dvc("repro")
    (checkout.folder.parent / "repro.log").write_text(log)
    checkout.commit("results")
    return checkout


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """Where a test of its own may clone to."""
    return tmp_path / "own" / "repo"
