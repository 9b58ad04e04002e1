"""dvc.yaml says the truth: code deps, outputs, quoting; and the repository around it is set up as the pipeline needs."""

import configparser
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.repo import Repo
from tests.contract.import_closure import closure

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"

INERT = {
    "src/faithline/config.py",  # earned by test_config.py::test_no_value_has_a_default: params.yaml holds all values
    "src/faithline/engine.py",  # earned by test_engine.py::test_kill_loses_no_shard_and_changes_no_byte
}
"""Files that decide no byte of an output, each with the test that proves it. `__init__.py` files: test_source.py."""

CHOSEN_BY_NAME = ("src/faithline/attributions/", "src/faithline/tasks/", "user/")
"""Where modules lie that a stage loads by a name from the matrix or from params."""


@cache
def stages() -> dict[str, Any]:
    """Expanded stages by name, of the params.yaml that is checked out."""
    with Repo(str(ROOT)) as repo:
        return {stage.addressing: stage for stage in repo.index.stages}


@cache
def text() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "dvc.yaml").read_text())


def definitions() -> dict[str, Any]:
    """Stages as written: of a `foreach`, its `do`."""
    return {name: stage.get("do", stage) for name, stage in text()["stages"].items()}


def relative(path: str) -> str:
    return Path(path).relative_to(ROOT).as_posix()


def file_deps(stage: Any) -> set[str]:
    return {relative(dep.fs_path) for dep in stage.deps if hasattr(dep, "fs_path") and dep.def_path != "params.yaml"}


def script(stage: Any) -> str:
    found = re.search(r"stages/\w+\.py", stage.cmd)
    assert found, stage.cmd
    return found.group(0)


def test_code_deps_are_the_import_closure() -> None:
    faults = []
    for name, stage in stages().items():
        listed = {dep for dep in file_deps(stage) if dep.endswith(".py")}
        by_name = {dep for dep in listed if dep.startswith(CHOSEN_BY_NAME)}
        reached: set[str] = set()
        for root in [script(stage), *sorted(by_name)]:
            reached |= {relative(str(path)) for path in closure(ROOT / root, SRC)}
        needed = {path for path in reached if not path.endswith("__init__.py")} - INERT
        if needed != listed:
            faults.append(f"{name}: missing {sorted(needed - listed)}, extra {sorted(listed - needed)}")
    assert not faults, "\n".join(faults)


def test_modules_loaded_by_name_are_deps_of_their_column_only() -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    tasks = {name: task["source"] for name, task in params["tasks"].items()}
    seen = set()
    for name, stage in stages().items():
        kind, _, item = name.partition("@")
        listed = {dep for dep in file_deps(stage) if dep.startswith(CHOSEN_BY_NAME)}
        task = next((t for t in sorted(tasks, key=len, reverse=True) if item == t or item.startswith(f"{t}-")), None)
        if kind in ("dataset", "target"):
            assert task is not None
            assert tasks[task] in listed, name
        foreign = {source for other, source in tasks.items() if other != task}
        assert not foreign & listed, f"{name} depends on another task's file"
        if kind.startswith("attribute"):
            seen.add(item)
            method = item.removeprefix(f"{task}-")
            assert f"src/faithline/attributions/{method}.py" in listed, name
    assert seen, "no attribute stage found"


def test_every_code_dep_exists_and_libraries_count_as_code() -> None:
    for name, stage in stages().items():
        for dep in file_deps(stage):
            if dep.endswith(".py"):
                assert (ROOT / dep).is_file(), f"{name}: {dep}"
        assert "constraints.txt" in file_deps(stage), f"{name} must rerun when a pinned library changes"
        assert not {"pyproject.toml", "constraints-dev.txt"} & file_deps(stage), f"{name} must not rerun for a tool"


def test_commands_run_the_checked_out_code_and_quote_names() -> None:
    for name, stage in text()["stages"].items():
        definition = stage.get("do", stage)  # foreach or matrix
        command = definition["cmd"]
        assert command.startswith(("${py} ", "PYTHONPATH=src python ")), f"{name}: {command}"
        bare = re.sub(r'"[^"]*"', "", command)
        assert not {"${item", "${key"} & set(re.findall(r"\$\{\w+", bare)), (
            f"{name}: quote matrix values, a shell reads them: {command}"
        )
    for word in text().get("vars", []):
        if isinstance(word, dict) and "py" in word:
            assert word["py"] == "PYTHONPATH=src python"


def test_every_stage_is_described_and_none_is_special() -> None:
    for name, stage in text()["stages"].items():
        definition = stage.get("do", stage)  # foreach or matrix
        assert len(definition.get("desc", "")) > 20, f"{name}: say what it makes and what it costs"
        assert not {"frozen", "always_changed", "wdir"} & set(definition), name
        for out in definition.get("outs", []):
            assert not (isinstance(out, dict) and any("persist" in options for options in out.values())), name


def test_no_output_lies_in_another() -> None:
    outs = sorted((relative(out.fs_path) + "/", name) for name, stage in stages().items() for out in stage.outs)
    for (first, owner), (second, other) in pairwise(outs):
        assert not second.startswith(first), f"{first} of {owner} holds {second} of {other}"


def test_params_are_sections_never_the_whole_file() -> None:
    known = yaml.safe_load((ROOT / "params.yaml").read_text())
    for name, stage in stages().items():
        keys = [key for dep in stage.deps if dep.def_path == "params.yaml" for key in dep.params]
        assert keys, f"{name} lists no params"
        for key in keys:
            place = known
            for part in key.split("."):
                assert isinstance(place, dict), f"{name}: {key}"
                assert part in place, f"{name}: params.yaml has no {key}"
                place = place[part]


def test_text_results_are_in_git_and_big_ones_are_not() -> None:
    for name, stage in stages().items():
        for out in stage.outs:
            path = relative(out.fs_path)
            if path.startswith(("data/", "models/")):
                assert out.use_cache, f"{name}: {path}"
            if path.startswith("reports/evaluation/"):
                assert out.use_cache, f"{name}: {path} is long; reports/metrics and the leaderboard say it in short"
            elif path.endswith(".json"):
                assert not out.use_cache, f"{name}: {path} belongs into git, where a diff shows it"


def test_the_default_run_stays_affordable() -> None:
    assert len(stages()) <= 200, "a job costs seconds before it does anything"


@pytest.mark.parametrize("folder", ["data", "models"])
def test_static_gitignore(folder: str) -> None:
    """A failed run rolls DVC's own entries back; these lines keep gigabytes out of `git add .` whatever happens."""
    lines = (ROOT / folder / ".gitignore").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["/*", "!/.gitignore"]


def test_default_remote_verifies() -> None:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".dvc/config")
    assert parser["core"]["remote"] == "store"
    assert parser["core"]["analytics"] == "false"
    remote = parser["'remote \"store\"'"]
    assert remote["verify"] == "true"
    assert not Path(remote["url"]).is_absolute(), "no path of one machine in the repository"


def test_dvc_and_git_ignore_scratch_and_byte_code() -> None:
    for file in (".gitignore", ".dvcignore"):
        lines = (ROOT / file).read_text().splitlines()
        for pattern in (".scratch/", "__pycache__/", "*.pyc", "*.partial/", ".venv/"):
            assert pattern in lines, f"{file}: {pattern}"
