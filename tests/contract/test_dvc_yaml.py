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

from faithline.code_manifests import manifests

ROOT = Path(__file__).parents[2]


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


def test_a_job_depends_on_the_manifest_of_its_code_and_on_no_source_file() -> None:
    known = manifests(ROOT)
    for name, stage in stages().items():
        if name == "manifest":
            assert {"src/faithline", "stages", "constraints.txt", "constraints-fud.txt"} == file_deps(stage)
            continue
        manifest = Path(script(stage)).stem
        if manifest == "attribute":
            manifest = f"attribute-{stage.cmd.split()[-1].strip(chr(34))}"
        assert {dep for dep in file_deps(stage) if dep.startswith("data/manifests")} == {f"data/manifests/{manifest}.txt"}, name
        assert f"{manifest}.txt" in known, name
        sources = {dep for dep in file_deps(stage) if dep.endswith(".py")}
        assert all(dep.startswith(("src/faithline/tasks/", "user/")) for dep in sources), f"{name}: {sources}"


def test_a_task_file_is_a_dep_of_its_own_task_only() -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    tasks = {name: task["source"] for name, task in params["tasks"].items()}
    for name, stage in stages().items():
        kind, _, item = name.partition("@")
        task = next((t for t in sorted(tasks, key=len, reverse=True) if item == t or item.startswith(f"{t}-")), None)
        if kind in ("dataset", "target"):
            assert task is not None
            assert tasks[task] in file_deps(stage), name
        foreign = {source for other, source in tasks.items() if other != task}
        assert not foreign & file_deps(stage), f"{name} depends on another task's file"


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
        assert keys or name == "manifest", f"{name} lists no params"
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
