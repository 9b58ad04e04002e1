"""Work cut into shards that survive a kill: done shards are found again, in a folder keyed by everything that decides them."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from tqdm import tqdm

from faithline.artifacts import file_sha256, publish, write_table

SHARD_ROWS = 256
"""Samples a shard: fixed, so that shards do not depend on the machine."""


def content_key(settings: Any, files: Iterable[str | Path]) -> str:
    """A key of the settings (JSON) and the bytes of files and of all files below folders; equal content, equal key."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for entry in files:
        entry = Path(entry)
        members = sorted(p for p in entry.rglob("*") if p.is_file()) if entry.is_dir() else [entry]
        for path in members:
            if "__pycache__" not in path.parts:
                digest.update(f"{path.as_posix()}\0{file_sha256(path)}\0".encode())
    return digest.hexdigest()[:24]


def loaded_code() -> list[str]:
    """Files of ours that this process has imported: what decides a stage's result besides its settings and inputs.

    Raises nothing; call it when everything the stage uses is imported.
    """
    root = Path(__file__).parent
    files = {Path(sys.argv[0])} | {
        path for module in list(sys.modules.values()) if root in (path := Path(getattr(module, "__file__", None) or "")).parents
    }
    return sorted(os.path.relpath(file) for file in files if file.suffix == ".py" and file.is_file())


def scratch_folder(stage: str, key: str) -> Path:
    """Folder of the unfinished work of one stage, outside every output; the same one when a killed run starts again.

    It lies in the main repository also when DVC runs an experiment in a temporary copy (`DVC_ROOT`).
    """
    folder = Path(os.environ.get("DVC_ROOT") or ".") / ".scratch" / stage / key
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def forget(stage: str) -> None:
    """Remove the scratch folders of a stage whose work is published."""
    shutil.rmtree(Path(os.environ.get("DVC_ROOT") or ".") / ".scratch" / stage, ignore_errors=True)


def run_shards(
    work: Callable[[range], pa.Table],
    samples: int,
    out: str | Path,
    *,
    stage: str,
    key: str,
    metadata: Mapping[str, str],
    shard_rows: int | None = None,
) -> int:
    """Compute every shard that is not there yet, then publish all of them as `out/part-NNNNN.parquet`.

    Args:
        work: Makes the rows of a range of sample positions. It must depend on nothing but the range.
        samples: Number of samples in all.
        out: Folder to publish.
        stage: Name of the scratch folder.
        key: Content key (`content_key`) of all that decides the result.
        metadata: Schema metadata of each part.
        shard_rows: Samples a shard, SHARD_ROWS where None; part of what a result is, so never chosen by the machine.

    Returns:
        Number of shards computed now; the others were found finished.
    """
    scratch = scratch_folder(stage, key)
    shard_rows = shard_rows or SHARD_ROWS
    computed = 0
    starts = range(0, samples, shard_rows)
    with tqdm(total=samples, desc=stage, unit="sample", mininterval=1.0) as progress:
        for number, start in enumerate(starts):
            rows = range(start, min(start + shard_rows, samples))
            path = scratch / f"part-{number:05d}.parquet"
            if not path.exists():
                write_table(path, work(rows), metadata)
                computed += 1
                _stop_here_if_asked(computed)
            progress.update(len(rows))
    with publish(out) as folder:
        for number in range(len(starts)):
            shutil.copy2(scratch / f"part-{number:05d}.parquet", folder)
    shutil.rmtree(scratch)
    return computed


def _stop_here_if_asked(computed: int) -> None:
    """Die without warning after N shards where `FAITHLINE_KILL_AFTER_SHARDS=N`: how tests prove that a kill loses nothing."""
    if os.environ.get("FAITHLINE_KILL_AFTER_SHARDS") == str(computed):
        os.kill(os.getpid(), 9)
