"""The values that a stage reads are those that dvc.yaml lists for it: watched while the stages really run on a tiny task."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from dvc.repo import Repo
from tests.conftest import run_stage_script

from faithline import config

ROOT = Path(__file__).parents[2]
REAL, TINY = "digits_cnn", "tiny_image"

JOBS = {
    "dataset@digits_cnn": ("dataset", TINY),
    "target@digits_cnn": ("target", TINY),
    "bank@digits_cnn": ("bank", TINY),
    "attribute_image@digits_cnn-integrated_gradients": ("attribute", TINY, "integrated_gradients"),
    "attribute_image@digits_cnn-lime": ("attribute", TINY, "lime"),
    "curves@digits_cnn": ("curves", TINY),
    "curate@digits_cnn": ("curate", TINY),
    "explain_image@digits_cnn-deepfaith": ("explain", TINY, "deepfaith"),
    "evaluate@digits_cnn": ("evaluate", TINY),
    "score_model@digits_cnn": ("score_model", TINY),
    "fud_method@digits_cnn-integrated_gradients": ("fud", TINY, "integrated_gradients"),
    "fud_method@digits_cnn-lime": ("fud", TINY, "lime"),
    "fud_explainer@digits_cnn-deepfaith": ("fud", TINY, "deepfaith"),
    "fud_control@digits_cnn": ("fud", TINY, "controls"),
    "fud_score@digits_cnn": ("fud_score", TINY),
    "report": ("report",),
}
"""Jobs of the real pipeline, and the same on a task small enough to run here; in the order of the pipeline."""

SEEN_OTHERWISE = {f"tasks.{TINY}.modality", f"tasks.{TINY}.source"}
"""Read to find the task's section and its file. dvc.yaml sees them change without listing them: its params and deps are made with
`${item.modality}` (or one block a modality) and `${item.source}`."""


NAMED = {"fud.image.methods", "fud.image.explainers"}
"""Read to check the name that a job is started with: dvc.yaml makes one job for each of them."""


class Watched:
    """Which values of `params.yaml` are read after it was loaded, as dotted keys."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.paths: dict[int, str] = {}
        self.kept: list[config.Section] = []  # so that no other object gets the id of one of them

    def load(self, path: str | Path = "params.yaml") -> config.Params:
        params = config.parse(Path(path).read_text(), str(path))
        self._label(params, "")
        self.kept.append(params)
        self.used.clear()  # what the validators read is no use
        return params

    def _label(self, section: config.Section, path: str) -> None:
        self.paths[id(section)] = path
        for name in type(section).model_fields:
            value, key = section.__dict__[name], f"{path}.{name}".strip(".")
            if isinstance(value, config.Section):
                self._label(value, key)
            elif isinstance(value, dict):
                for entry, inner in value.items():
                    if isinstance(inner, config.Section):
                        self._label(inner, f"{key}.{entry}")
                section.__dict__[name] = WatchedNames(value, key, self.used)

    def read(self, section: config.Section, name: str) -> Any:
        path = self.paths.get(id(section))
        if path is not None and name in ("model_dump", "_order"):  # all of its values; which entries there are
            self.used.add(path)
        value = object.__getattribute__(section, name)
        if path is not None and name in type(section).model_fields and not isinstance(value, config.Section | dict):
            self.used.add(f"{path}.{name}".strip("."))
        return value


class WatchedNames(dict[str, Any]):
    """A mapping of sections by name: to walk over the names is a use of all of it, to look one up is not."""

    def __init__(self, content: dict[str, Any], key: str, used: set[str]) -> None:
        super().__init__(content)
        self.key, self.used = key, used

    def __iter__(self) -> Iterator[str]:
        self.used.add(self.key)
        return super().__iter__()

    def items(self) -> Any:
        self.used.add(self.key)
        return super().items()

    def keys(self) -> Any:
        self.used.add(self.key)
        return super().keys()

    def values(self) -> Any:
        self.used.add(self.key)
        return super().values()


@cache
def listed() -> dict[str, set[str]]:
    """Keys of params.yaml that dvc.yaml lists, by job, as they would be for the tiny task."""
    with Repo(str(ROOT)) as repo:
        return {
            stage.name: {key.replace(REAL, TINY) for dep in stage.deps if dep.def_path == "params.yaml" for key in dep.params}
            for stage in repo.index.stages
        }


def covers(listed_key: str, key: str) -> bool:
    return key == listed_key or key.startswith(f"{listed_key}.")


@pytest.fixture
def used(world: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Keys that each job reads, with settings that make every conditional use happen."""
    params = yaml.safe_load((world / "params.yaml").read_text())
    task = params["tasks"][TINY]
    task["game"] = {**task["game"], "baseline": "blur", "insertion_baseline": "noise"}
    params["tasks"] = {TINY: task}
    params["table"]["tasks"], params["text"]["tasks"], params["fud"]["table"]["tasks"] = [], [], []
    params["image"]["methods"].pop("banzhaf", None)
    params["curves"]["skip_duplicates"] = True
    (world / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    # What a report also reads: here nothing was timed and no other scale was run.
    (world / "benchmarks").mkdir()
    (world / "benchmarks/results.json").write_text("{}\n")
    (world / "reports/snapshots").mkdir(parents=True)

    watched = Watched()
    monkeypatch.setattr(config, "load", watched.load)
    monkeypatch.setattr(config.Section, "__getattribute__", lambda section, name: watched.read(section, name))
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    found = {}
    try:
        for job, words in JOBS.items():
            run_stage_script(world, *words)
            found[job] = set(watched.used)
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.set_num_threads(threads)
    return found


def test_each_stage_lists_what_it_reads_and_reads_what_it_lists(used: dict[str, set[str]]) -> None:
    faults = []
    for job, keys in used.items():
        assert keys, job
        wanted = listed()[job]
        seen = SEEN_OTHERWISE | (NAMED if job.startswith("fud_") else set())
        missing = {key for key in keys - seen if not any(covers(known, key) for known in wanted)}
        idle = {known for known in wanted if not any(covers(known, key) for key in keys)}
        if job == "report":
            # The page shows the hash of all values, so each section is read, whatever this tiny run shows of it.
            assert wanted == set(config.Params.model_fields)
            missing, idle = missing - {""}, set()
        if missing or idle:
            faults.append(f"{job}: reads but does not list {sorted(missing)}, lists but does not read {sorted(idle)}")
    assert not faults, "\n".join(faults)


def test_the_watch_sees_leaves_whole_sections_and_lists_of_names(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    monkeypatch.setattr(config.Section, "__getattribute__", lambda section, name: watched.read(section, name))
    params = watched.load()
    assert not watched.used
    assert params.curate.quantile
    assert params.tasks[TINY].game.model_dump()
    assert params.image.methods.names()
    assert params.image.explainers["deepfaith"].epochs
    assert watched.used >= {
        "curate.quantile",
        f"tasks.{TINY}.game",
        "image.methods",
        "image.explainers.deepfaith.epochs",
    }
    assert not {"curate", "tasks", "image.explainers", "image", "curate.cosine"} & watched.used
    assert list(params.image.explainers)
    assert "image.explainers" in watched.used
