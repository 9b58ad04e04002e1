"""A throw-away clone of this repository, in which the pipeline really runs."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from dvc.repo import Repo

ROOT = Path(__file__).parents[2]

OLD_RESULTS = ("evaluation", "curate", "metrics", "train", "plots", "leaderboard.json", "findings.json", "README.md")
"""Results of the committed run that lie in git, below reports/: none of them may pass for one of the clone's."""


def environment(**words: str) -> dict[str, str]:
    """This process's environment with the tests' own Python first, one thread, and a name to commit under."""
    own = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FAITHLINE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "FAITHLINE_CACHE": os.environ.get("FAITHLINE_CACHE") or str(ROOT / ".cache"),
        **{
            f"GIT_{who}_{what}": word
            for who in ("AUTHOR", "COMMITTER")
            for what, word in (("NAME", "t"), ("EMAIL", "t@t.invalid"))
        },
    }
    dropped = ("DVC_ROOT", "FAITHLINE_KILL_AFTER_SHARDS", "PYTHONPATH")
    return {**{name: word for name, word in os.environ.items() if name not in dropped}, **own, **words}


@dataclass(frozen=True)
class Checkout:
    """A clone and what tests do in it."""

    folder: Path

    def run(self, *command: str, status: int | None = 0, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the clone; its exit status must be `status` (None: any)."""
        done = subprocess.run(command, cwd=self.folder, env=environment(**env), capture_output=True, text=True)
        assert status is None or done.returncode == status, (
            f"{command} ended with {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        )
        return done

    def git(self, *words: str) -> str:
        """Run git; its output."""
        return self.run("git", *words).stdout

    def dvc(self, *words: str, status: int | None = 0, **env: str) -> str:
        """Run dvc; its output and its errors together."""
        done = self.run("dvc", *words, status=status, **env)
        return done.stdout + done.stderr

    def commit(self, message: str) -> None:
        """Commit everything that git does not ignore."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)

    def write(self, path: str, text: str) -> None:
        """Write a file of the clone."""
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def params(self) -> dict[str, Any]:
        """What params.yaml says now."""
        return yaml.safe_load((self.folder / "params.yaml").read_text())

    def set_params(self, params: dict[str, Any]) -> None:
        """Write params.yaml."""
        self.write("params.yaml", yaml.safe_dump(params, sort_keys=False))

    def stages(self) -> set[str]:
        """Names of all jobs."""
        with Repo(str(self.folder)) as repo:
            return {stage.name for stage in repo.index.stages}

    def would_run(self) -> set[str]:
        """Jobs that `dvc repro` would start because something they read differs; those that follow from them are not named.

        What `dvc repro --dry` says, asked of DVC itself: that spares the start of a process.
        """
        with Repo(str(self.folder)) as repo, repo.lock:
            return {stage.name for stage in repo.index.stages if stage.changed()}

    def descendants(self, stages: set[str]) -> set[str]:
        """The jobs themselves and all that read what they make, however far down."""
        with Repo(str(self.folder)) as repo:
            edges = [(before.name, after.name) for after, before in repo.index.graph.edges]
        reached = set(stages)
        while grown := {after for before, after in edges if before in reached} - reached:
            reached |= grown
        return reached

    def outputs(self) -> dict[str, str]:
        """Content hash of every output by path, as dvc.lock has it."""
        lock = yaml.safe_load((self.folder / "dvc.lock").read_text())
        return {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage.get("outs", [])}

    def half_written(self) -> list[str]:
        """Traces of writing that was not finished, outside the scratch folder."""
        return half_written(self.folder)

    @contextmanager
    def edited(self, path: str, old: str, new: str) -> Iterator[None]:
        """Replace some text of a file for the time of a block."""
        file = self.folder / path
        before = file.read_text()
        assert old in before, f"{path} has no {old!r}"
        file.write_text(before.replace(old, new))
        try:
            yield
        finally:
            file.write_text(before)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Afterwards params.yaml, dvc.lock and all outputs are again what was committed."""
        try:
            yield
        finally:
            self.git("checkout", "--quiet", ".")
            self.git("clean", "--quiet", "-fd")
            self.dvc("checkout", "--quiet", "--force")


def ran(log: str) -> set[str]:
    """Jobs that a log of dvc says are run."""
    return set(re.findall(r"Running stage '([^']+)'", log))


def half_written(folder: Path) -> list[str]:
    """Unfinished files and folders below a folder, outside `.scratch` and what DVC keeps for itself."""
    return sorted(
        path.relative_to(folder).as_posix()
        for pattern in ("*.partial", "*.tmp")
        for path in folder.rglob(pattern)
        if not {".scratch", ".dvc", ".git"} & set(path.relative_to(folder).parts)
    )


def clone(folder: Path, params: dict[str, Any]) -> Checkout:
    """Clone this repository with its uncommitted work, under other params, without the results of its own run.

    Args:
        folder: Where to; its parent should be empty, as the default remote lies beside a clone.
        params: What params.yaml shall hold.
    """
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True, env=environment())
    checkout = Checkout(folder)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for path in sorted(set(listed.stdout.split("\0")) - {""}):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_file():
            shutil.copy2(ROOT / path, folder / path)
        else:  # removed, and the removal is not committed yet
            (folder / path).unlink(missing_ok=True)
    (folder / "dvc.lock").unlink(missing_ok=True)
    for name in (*OLD_RESULTS, *(f"fud/{path.name}" for path in (folder / "reports/fud").glob("*.json"))):
        shutil.rmtree(folder / "reports" / name, ignore_errors=True)
        (folder / "reports" / name).unlink(missing_ok=True)
    checkout.set_params(params)
    checkout.git("config", "user.name", "t")
    checkout.git("config", "user.email", "t@t.invalid")
    checkout.commit("under test")
    return checkout
