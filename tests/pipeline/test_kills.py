"""kill -9 at any moment loses no finished work and changes no byte, with DVC around the stages as in real life."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.pipeline.checkout import Checkout, clone, environment, ran
from tests.pipeline.conftest import smoke

pytestmark = pytest.mark.extended

COUNTED = '''"""A task whose model writes down how many inputs each call has: the pass counter of these tests."""

import os

import numpy as np
import torch
from torch import nn

from faithline.dataset import Samples
from faithline.masking import column_features

MODALITY = "table"


class Counted(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, width), nn.ReLU())
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        if path := os.environ.get("PASSES"):
            with open(path, "a") as handle:
                handle.write(f"{len(x)}\\n")
        return self.head(self.body(x))


def load_samples(settings, seed):
    draw = np.random.default_rng(seed)
    sizes = {"train": settings.train, "validation": settings.validation, "test": settings.test}
    split = np.repeat(list(sizes), list(sizes.values()))
    x = torch.from_numpy(draw.normal(size=(len(split), 6)).astype(np.float32))
    supervised = (split == "train") & (np.arange(len(split)) < settings.supervised)
    return Samples(x, (x[:, 0] * x[:, 1] > 0).long(), split, supervised, column_features(6), ("no", "yes"), tuple("abcdef"),
                   {"mean": [0.0] * 6, "std": [1.0] * 6}, "drawn")


def build_target(settings, samples):
    return Counted(settings.width)
'''

EPOCHS = 60
SHARDS = 3  # of 256 samples: 600 explained ones, 640 for training
BANK, ATTRIBUTE = "bank@counted", "attribute_table@counted-integrated_gradients"
EXPLAIN = "explain_table@counted-deepfaith"


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A clone in which a task of three shards has run undisturbed."""
    params = smoke()
    task = params["tasks"]["affairs_mlp"]
    task["source"] = "user/counted.py"
    task["dataset"] = {"train": 600, "supervised": 560, "validation": 40, "test": 40, "augmented": 0}
    task["bank"] = {**task["bank"], "exact": False}
    task["game"] = {**task["game"], "steps": 6}
    params["tasks"] = {"counted": task}
    table, deepfaith = params["table"], params["table"]["explainers"]["deepfaith"]
    params["table"] = {**table, "tasks": ["counted"], "explainers": {"deepfaith": {**deepfaith, "epochs": EPOCHS}}}
    params["image"]["tasks"] = []
    params["fud"]["table"]["tasks"], params["fud"]["image"]["tasks"] = [], []
    checkout = clone(tmp_path_factory.mktemp("kills") / "repo", smoke())
    checkout.write("user/counted.py", COUNTED)
    checkout.set_params(params)
    checkout.commit("a task that counts")
    checkout.dvc("repro")
    checkout.commit("results")
    return checkout


def passes(log: Path) -> int:
    """Inputs that went through the model since the log was last read."""
    total = sum(int(line) for line in log.read_text().split()) if log.exists() else 0
    log.unlink(missing_ok=True)
    return total


def scratch(checkout: Checkout, stage: str) -> list[str]:
    return sorted(path.name for path in checkout.folder.glob(f".scratch/{stage}/*/*"))


@contextmanager
def back_to_the_commit(checkout: Checkout) -> Iterator[None]:
    with checkout.put_back():
        yield
    assert not ran(checkout.dvc("repro"))


@pytest.mark.parametrize("after", [1, SHARDS - 1], ids=["first", "before-last"])
@pytest.mark.parametrize(
    ("job", "first", "out"),
    [
        (BANK, "bank-counted-fitting", "data/bank/counted/fitting"),
        (ATTRIBUTE, "attribute-counted-integrated_gradients", "data/attributions/counted/integrated_gradients"),
    ],
    ids=["bank", "attribute"],
)
def test_a_kill_between_shards(counted: Checkout, tmp_path: Path, job: str, first: str, out: str, after: int) -> None:
    log = tmp_path / "passes"
    again = ("repro", "--single-item", "--force", job)  # forced: the result is in DVC's cache already
    with back_to_the_commit(counted):
        undisturbed = counted.outputs()
        counted.dvc(*again, PASSES=str(log))
        assert counted.outputs() == undisturbed
        whole = passes(log)
        assert whole > 0

        failed = counted.dvc(*again, status=None, PASSES=str(log), FAITHLINE_KILL_AFTER_SHARDS=str(after))
        assert f"failed to reproduce '{job}'" in failed
        until = passes(log)
        assert 0 < until < whole
        assert scratch(counted, first) == [f"part-{number:05d}.parquet" for number in range(after)]
        assert not (counted.folder / out).exists()
        assert counted.half_written() == []
        assert counted.git("status", "--porcelain", "--", ".", ":!dvc.lock") == "", "no data shows up in git"

        counted.dvc(*again, PASSES=str(log))
        assert passes(log) == whole - until, "no finished shard was computed again"
        assert counted.outputs() == undisturbed
        assert scratch(counted, first) == []


def start(checkout: Checkout, *words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        ["dvc", *words],
        cwd=checkout.folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # so that one signal ends DVC and the stage, as pulling the plug would
    )


def checkpoints(checkout: Checkout) -> dict[str, int]:
    """Finished checkpoints of the explainer, with the time each was made."""
    found = {}
    for path in checkout.folder.glob(".scratch/explain-counted-deepfaith/*/epoch-*"):
        try:
            found[path.name] = path.stat().st_mtime_ns
        except FileNotFoundError:  # the stage drops old ones meanwhile
            continue
    return found


@pytest.mark.parametrize("epoch", [5, EPOCHS - 5], ids=["first", "last"])
def test_a_kill_in_the_middle_of_training(counted: Checkout, epoch: int) -> None:
    again = ("repro", "--single-item", "--force", EXPLAIN)
    wanted = f"epoch-{epoch:05d}"
    with back_to_the_commit(counted):
        undisturbed = counted.outputs()
        process = start(counted, *again)
        limit = time.monotonic() + 300
        while wanted not in checkpoints(counted):
            assert process.poll() is None, "the stage ended before it was killed"
            assert time.monotonic() < limit
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kept = checkpoints(counted)
        assert wanted in kept
        assert not (counted.folder / "models/explainers/counted/deepfaith").exists()
        assert counted.half_written() == []

        process = start(counted, *again)
        seen: dict[str, int] = {}
        while process.poll() is None:
            seen |= checkpoints(counted)
            time.sleep(0.002)
        assert process.returncode == 0
        remade = {name for name, made in seen.items() if kept.get(name) != made}
        assert all(name > max(kept) for name in remade), "training went on where it was, it did not start again"
        assert counted.outputs() == undisturbed
        assert scratch(counted, "explain-counted-deepfaith") == []
