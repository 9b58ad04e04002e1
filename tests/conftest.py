"""A tiny world for tests: three tasks outside the package, frozen, with a target and a bank each; made once a session."""

import os
import runpy
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

# As `seeding.setup` does for a stage; it counts only if it is set before the first matrix product.
os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small models gain nothing from threads, and threads that wait for each other crawl on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


TABLE_TASK = """
import numpy as np, torch
from torch import nn
from faithline.dataset import Samples
from faithline.masking import column_features
MODALITY = "table"
def load_samples(settings, seed):
    draw = np.random.default_rng(seed)
    sizes = {"train": settings.train, "validation": settings.validation, "test": settings.test}
    split = np.repeat(list(sizes), list(sizes.values()))
    x = torch.from_numpy(draw.normal(size=(len(split), 4)).astype(np.float32))
    supervised = (split == "train") & (np.arange(len(split)) < settings.supervised)
    names = ("length", "width", "height", "weight")
    return Samples(x, (x[:, 0] + x[:, 1] > 0).long(), split, supervised, column_features(4), ("small", "large"), names,
                   {"mean": [10.0, 5.0, 0.0, 1.0], "std": [2.0, 1.0, 1.0, 1.0]}, "drawn")
def build_target(settings, samples):
    return nn.Sequential(nn.Linear(4, settings.width), nn.ReLU(), nn.Linear(settings.width, 2))
"""

TEXT_TASK = """
import numpy as np, torch
from torch import nn
from faithline.dataset import Samples
from faithline.masking import token_features
MODALITY = "text"
VOCABULARY = ["<pad>", "<unk>", "good", "bad", "film", "plot", "cast", "the"]
class Bag(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding, self.head = nn.Embedding(8, width, padding_idx=0), nn.Linear(width, 2)
    def forward(self, ids):
        return self.head(self.embedding(ids).sum(1))
def load_samples(settings, seed):
    draw = np.random.default_rng(seed)
    sizes = {"train": settings.train, "validation": settings.validation, "test": settings.test}
    split = np.repeat(list(sizes), list(sizes.values()))
    x = draw.integers(2, 8, size=(len(split), 6))
    x[np.arange(6)[None] >= draw.integers(2, 7, size=len(split))[:, None]] = 0
    x[:, 0] = np.where(np.arange(len(split)) % 2, 2, 3)
    supervised = (split == "train") & (np.arange(len(split)) < settings.supervised)
    label = torch.from_numpy((x[:, 0] == 2).astype(np.int64))
    return Samples(torch.from_numpy(x), label, split, supervised, token_features(6, 0),
                   ("negative", "positive"), (), {"vocabulary": VOCABULARY, "pattern": r"[a-z]+"}, "drawn")
def build_target(settings, samples):
    return Bag(settings.width)
"""

IMAGE_TASK = """
import numpy as np, torch
from torch import nn
from faithline.dataset import Samples
from faithline.masking import patch_features
MODALITY = "image"
def load_samples(settings, seed):
    draw = np.random.default_rng(seed)
    sizes = {"train": settings.train, "validation": settings.validation, "test": settings.test}
    split = np.repeat(list(sizes), list(sizes.values()))
    x = draw.random((len(split), 3, 8, 8)).astype(np.float32)
    label = np.arange(len(split)) % 2
    x[label == 1, :, :4, :4] += 1
    supervised = (split == "train") & (np.arange(len(split)) < settings.supervised)
    return Samples(torch.from_numpy((x - 0.5) / 0.25), torch.from_numpy(label), split, supervised, patch_features(8, 4),
                   ("dark", "bright"), (), {"size": 8, "channels": 3, "mean": [0.5] * 3, "std": [0.25] * 3}, "drawn")
def build_target(settings, samples):
    return nn.Sequential(nn.Conv2d(3, settings.width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                         nn.Linear(4 * settings.width, 2))
"""


def tiny_params() -> dict[str, Any]:
    """The smoke preset with three tasks of its own."""
    params = yaml.safe_load((ROOT / "params/smoke.yaml").read_text())
    target = {"epochs": 3, "batch": 8, "learning_rate": 0.02, "weight_decay": 0.0, "dropout": 0.0, "width": 8, "depth": 1}
    layers = {"table": "1", "text": "embedding", "image": "1"}
    tasks = {}
    for modality in ("table", "text", "image"):
        tasks[f"tiny_{modality}"] = {
            "modality": modality,
            "source": f"user/{modality}_task.py",
            "dataset": {"train": 32, "supervised": 16, "validation": 8, "test": 12, "augmented": 0},
            "target": {**target, "layers": [layers[modality]]},
            "game": {
                "baseline": "pad" if modality == "text" else "zero",
                "insertion_baseline": "same",
                "output": "prob",
                "steps": 4,
                "max_batch": 256,
            },
            "bank": {
                "exact": False,
                "fitting": 32,
                "training": 16,
                "training_laws": ["bernoulli"],
                "evaluation": 16,
                "reference": 32,
                "fixed_size_fraction": 0.4,
            },
        }
        params[modality]["tasks"] = [f"tiny_{modality}"]
    params["tasks"] = tasks
    for modality in ("table", "image"):
        params["fud"][modality]["tasks"] = [f"tiny_{modality}"]
    return params


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder for the time of a block."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run_stage_script(world: Path, stage: str, *words: str) -> None:
    """Run one stage in this process, as `python stages/<stage>.py <words>` in a folder would."""
    argv = sys.argv
    sys.argv = [str(ROOT / "stages" / f"{stage}.py"), *words]
    try:
        with inside(world):
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        sys.argv = argv


@pytest.fixture(scope="session")
def _world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    folder = tmp_path_factory.mktemp("world")
    (folder / "user").mkdir()
    for name, code in (("table", TABLE_TASK), ("text", TEXT_TASK), ("image", IMAGE_TASK)):
        (folder / f"user/{name}_task.py").write_text(code)
    (folder / "params.yaml").write_text(yaml.safe_dump(tiny_params(), sort_keys=False))
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    try:
        for task in ("tiny_table", "tiny_text", "tiny_image"):
            for stage in ("dataset", "target", "bank"):
                run_stage_script(folder, stage, task)
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.set_num_threads(threads)
    return folder


@pytest.fixture
def world(_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the tiny world, free to be broken, as the current folder: samples, targets and banks of three tasks."""
    folder = tmp_path / "world"
    shutil.copytree(_world, folder)
    monkeypatch.chdir(folder)
    return folder
