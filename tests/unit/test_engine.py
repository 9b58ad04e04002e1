"""Shards that survive a kill. These tests earn engine.py its exemption from the deps of stages: it decides no byte."""

import os
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from faithline import engine
from faithline.artifacts import read_metadata, read_table

ROOT = Path(__file__).parents[2]
SAMPLES = 2 * engine.SHARD_ROWS + 10


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.delenv("FAITHLINE_KILL_AFTER_SHARDS", raising=False)


def squares(rows: range) -> pa.Table:
    return pa.table({"sample_id": list(rows), "value": [i * i for i in rows]})


def run(key: str = "k", kill_after: int | None = None, root: Path | None = None) -> tuple[int, list[int]]:
    """Run 14 samples in shards of 4 in a child process: how it ended (minus the signal), and the shards it computed."""
    log = Path("log")
    log.unlink(missing_ok=True)
    log.touch()

    def work(rows: range) -> pa.Table:
        with log.open("a") as handle:
            handle.write(f"{rows.start}\n")
        return squares(rows)

    child = os.fork()  # not a new interpreter: importing takes longer than the whole test
    if child == 0:
        status = 1
        try:
            engine.SHARD_ROWS = 4
            if kill_after is not None:
                os.environ["FAITHLINE_KILL_AFTER_SHARDS"] = str(kill_after)
            if root is not None:
                os.environ["DVC_ROOT"] = str(root)
            engine.run_shards(work, 14, "out", stage="squares", key=key, metadata={"task": "t"})
            status = 0
        finally:
            os._exit(status)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return ended, [int(line) for line in log.read_text().split()]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_all_rows_in_order_with_their_metadata() -> None:
    computed = engine.run_shards(squares, SAMPLES, "out", stage="s", key="k", metadata={"task": "t"})
    assert computed == 3
    assert sorted(os.listdir("out")) == ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]
    assert read_table("out")["value"].to_list() == [i * i for i in range(SAMPLES)]
    assert read_metadata("out") == {"task": "t"}
    assert not list(Path(".scratch/s").iterdir()), "finished work leaves no scratch"


@pytest.mark.parametrize("kill_after", [1, 3])
def test_kill_loses_no_shard_and_changes_no_byte(kill_after: int) -> None:
    assert run() == (0, [0, 4, 8, 12])
    expected = content(Path("out"))
    shutil.rmtree("out")

    ended, made = run(kill_after=kill_after)
    assert ended == -signal.SIGKILL
    assert made == [0, 4, 8, 12][:kill_after]
    assert not Path("out").exists(), "no half output"
    assert run() == (0, [0, 4, 8, 12][kill_after:]), "finished shards are not computed again"
    assert content(Path("out")) == expected


def test_other_settings_do_not_find_these_shards() -> None:
    run("k", kill_after=2)
    assert run("other") == (0, [0, 4, 8, 12])


def test_a_torn_shard_does_not_pass_for_a_whole_one() -> None:
    run("k", kill_after=2)
    folder = Path(".scratch/squares/k")
    (folder / "part-00002.parquet.tmp").write_bytes(b"half")
    assert run("k") == (0, [8, 12])
    assert sorted(os.listdir("out")) == [f"part-{i:05d}.parquet" for i in range(4)]


def test_a_fault_in_one_shard_keeps_the_others_and_publishes_nothing() -> None:
    def breaks(rows: range) -> pa.Table:
        if rows.start:
            raise OSError("No space left on device")
        return squares(rows)

    with pytest.raises(OSError, match="No space left"):
        engine.run_shards(breaks, SAMPLES, "out", stage="s", key="k", metadata={})
    assert not Path("out").exists()
    assert engine.run_shards(squares, SAMPLES, "out", stage="s", key="k", metadata={}) == 2


def test_scratch_lies_in_the_main_repository(tmp_path: Path) -> None:
    main = tmp_path / "main"
    main.mkdir()
    run("k", kill_after=1, root=main)
    assert (main / ".scratch/squares/k/part-00000.parquet").is_file()
    assert not Path(".scratch").exists()


def test_content_key_sees_settings_names_and_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "a").write_text("1")
    key = engine.content_key({"x": 1}, ["in"])
    assert key == engine.content_key({"x": 1}, ["in"])
    (folder / "__pycache__" / "a.pyc").write_text("2")
    assert key == engine.content_key({"x": 1}, ["in"]), "byte code is no content"
    assert key != engine.content_key({"x": 2}, ["in"])
    (folder / "a").rename(folder / "b")
    renamed = engine.content_key({"x": 1}, ["in"])
    assert renamed != key
    (folder / "b").write_text("2")
    assert engine.content_key({"x": 1}, ["in"]) not in (key, renamed)


def test_loaded_code_is_ours_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    files = engine.loaded_code()
    assert "src/faithline/engine.py" in files
    assert "src/faithline/artifacts.py" in files
    assert not any("site-packages/torch" in file for file in files)
