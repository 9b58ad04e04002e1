"""Bad input and faults, stage by stage: one clear line, exit status 1, nothing half-written, old results untouched."""

import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from tests.conftest import inside, run_stage_script
from tests.pipeline.checkout import ROOT, environment, half_written

from faithline import engine
from faithline.attributing import Job

TASK = "tiny_table"
CHAIN = (
    ("attribute", TASK, "integrated_gradients"),
    ("attribute", TASK, "kernel_shap"),
    ("curves", TASK),
    ("curate", TASK),
    ("explain", TASK, "deepfaith"),
    ("explain", TASK, "deepfaith_paper"),
    ("evaluate", TASK),
)


@contextmanager
def torch_put_back() -> Iterator[None]:
    """Stages run in this process, and set torch up for themselves."""
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _torch_as_before() -> Iterator[None]:
    with torch_put_back():
        yield


@pytest.fixture(scope="session")
def _judged(_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judged") / "world"
    shutil.copytree(_world, folder)
    with inside(folder), torch_put_back():
        for words in CHAIN:
            run_stage_script(folder, *words)
    return folder


@pytest.fixture
def judged(_judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the tiny world in which every stage of the table task has run, as the current folder."""
    folder = tmp_path / "judged"
    shutil.copytree(_judged, folder)
    monkeypatch.chdir(folder)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, the scratch folder and byte code left out."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not {".scratch", "__pycache__"} & set(path.relative_to(folder).parts)
    }


def refused(world: Path, *words: str) -> str:
    """Run a stage that must stop; what it says. A string as exit code is status 1 with the string on stderr."""
    before = content(world)
    with pytest.raises(SystemExit) as stopped:
        run_stage_script(world, *words)
    message = stopped.value.code
    assert isinstance(message, str)
    assert message.startswith("error: ")
    assert len(message.splitlines()) == 1, message
    assert content(world) == before, "old results are untouched and nothing new is there"
    assert half_written(world) == []
    return message


def rewrite(world: Path, path: str, old: str, new: str) -> None:
    text = (world / path).read_text()
    assert old in text, f"{path} has no {old!r}"
    (world / path).write_text(text.replace(old, new))


def set_params(world: Path, change: Callable[[dict[str, Any]], None]) -> None:
    params = yaml.safe_load((world / "params.yaml").read_text())
    change(params)
    (world / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


# -------------------------------------------------------------------------------------------------------------- data files


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other_columns(path: Path) -> None:
    """Whole and with the right metadata, but without one of the columns."""
    metadata = pq.read_schema(path).metadata
    pq.write_table(pa.table({"something": [1, 2]}).replace_schema_metadata(metadata), path)


def no_metadata(path: Path) -> None:
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)


READERS = {
    f"data/tasks/{TASK}/samples.parquet": ("bank", TASK),
    f"models/target/{TASK}/predictions.parquet": ("bank", TASK),
    f"data/bank/{TASK}/fitting/part-00000.parquet": ("attribute", TASK, "kernel_shap"),
    f"data/bank/{TASK}/evaluation/part-00000.parquet": ("curves", TASK),
    f"data/bank/{TASK}/training/part-00000.parquet": ("explain", TASK, "deepfaith"),
    f"data/attributions/{TASK}/kernel_shap/part-00000.parquet": ("curves", TASK),
    f"data/curves/{TASK}/kernel_shap.parquet": ("curate", TASK),
    f"data/curated/{TASK}/index.parquet": ("explain", TASK, "deepfaith"),
    f"data/curated/{TASK}/maps.parquet": ("explain", TASK, "deepfaith"),
}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (truncated, "cannot be read as Parquet"),
        (empty, "cannot be read as Parquet"),
        (Path.unlink, ("is missing", "lacks")),
        (other_columns, "has no column"),
    ],
    ids=["truncated", "empty", "missing", "schema-less"],
)
@pytest.mark.parametrize("path", READERS)
def test_a_damaged_parquet_is_named(judged: Path, path: str, damage: Callable[[Path], None], says: str | tuple[str, ...]) -> None:
    damage(judged / path)
    message = refused(judged, *READERS[path])
    assert any(words in message for words in ([says] if isinstance(says, str) else says)), message
    assert path in message or str(Path(path).parent) in message
    assert damage is other_columns or "dvc repro" in message, "it says what to do"


@pytest.mark.parametrize("use", ["fitting", "training", "evaluation"])
def test_a_bank_without_metadata_belongs_to_no_model(judged: Path, use: str) -> None:
    path = f"data/bank/{TASK}/{use}/part-00000.parquet"
    no_metadata(judged / path)
    assert "was made for another model (sha256 not recorded" in refused(judged, *READERS[path])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("attribute", TASK, "kernel_shap"), "data/bank/tiny_table/fitting was made for another model"),
        (("curves", TASK), "data/attributions/tiny_table/integrated_gradients explains another model"),
        (("explain", TASK, "deepfaith"), "data/bank/tiny_table/training was made for another model"),
        (("evaluate", TASK), "made for another model"),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_results_for_another_model_are_refused(judged: Path, words: tuple[str, ...], says: str) -> None:
    set_params(judged, lambda params: params["tasks"][TASK]["target"].update(epochs=1))
    run_stage_script(judged, "target", TASK)
    message = refused(judged, *words)
    assert says in message
    assert "dvc repro" in message


def test_an_explainer_of_another_model_is_refused(judged: Path) -> None:
    for name in ("target", "bank"):
        set_params(judged, lambda params: params["tasks"][TASK]["target"].update(epochs=1))
        run_stage_script(judged, name, TASK)
    for words in CHAIN[:4]:
        run_stage_script(judged, *words)
    assert f"models/explainers/{TASK}/deepfaith explains another model" in refused(judged, "evaluate", TASK)


@pytest.mark.parametrize("path", [f"data/tasks/{TASK}/inputs.safetensors", f"models/target/{TASK}/model.safetensors"])
@pytest.mark.parametrize(("damage", "says"), [(truncated, "is not"), (Path.unlink, "is missing")])
def test_damaged_tensors_are_named(world: Path, path: str, damage: Callable[[Path], None], says: str) -> None:
    damage(world / path)
    message = refused(world, "bank", TASK)
    assert path in message
    assert says in message


@pytest.mark.parametrize("path", [f"data/tasks/{TASK}/task.json", f"models/target/{TASK}/model.json"])
@pytest.mark.parametrize(("damage", "says"), [(truncated, "is not valid JSON"), (Path.unlink, "is missing")])
def test_damaged_json_is_named(world: Path, path: str, damage: Callable[[Path], None], says: str) -> None:
    damage(world / path)
    assert f"{path} {says}" in refused(world, "bank", TASK)


def test_what_params_no_longer_name_stops_the_run(judged: Path) -> None:
    left = judged / f"data/attributions/{TASK}/lime"
    left.mkdir()
    message = refused(judged, "curves", TASK)
    assert "which params.yaml does not name" in message
    assert f"rm -r data/attributions/{TASK}/lime" in message


# -------------------------------------------------------------------------------------------------------- samples and models


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("x[[3, 7], 1] = float('nan')", "2 inputs hold NaN or infinity (first rows: [3, 7])"),
        ("x[5, 2] = float('inf')", "1 inputs hold NaN or infinity (first rows: [5])"),
        ("x[:, 2] = 1.5", "columns ['height'] are constant over the training split"),
        ("split[split == 'validation'] = 'test'", "split validation is empty"),
        ("x = x[:, :3]", "inputs have shape (3,), the features say (4,)"),
    ],
)
def test_bad_columns_are_named(world: Path, line: str, says: str) -> None:
    rewrite(world, "user/table_task.py", "    return Samples(", f"    {line}\n    return Samples(")
    assert says in refused(world, "dataset", TASK)


def test_a_class_without_samples_is_named(world: Path) -> None:
    rewrite(world, "user/table_task.py", '("small", "large")', '("small", "large", "huge")')
    assert "classes ['huge'] have no train sample" in refused(world, "dataset", TASK)


def test_a_label_without_class_is_named(world: Path) -> None:
    rewrite(world, "user/table_task.py", ".long(), split", ".long() * 2, split")
    assert "labels lie in [0, 2], but there are 2 classes" in refused(world, "dataset", TASK)


def test_a_checkpoint_with_another_class_count(world: Path) -> None:
    rewrite(world, "user/table_task.py", '("small", "large")', '("small", "large", "huge")')
    rewrite(world, "user/table_task.py", "(x[:, 0] + x[:, 1] > 0).long()", "torch.arange(len(x)) % 3")
    run_stage_script(world, "dataset", TASK)
    message = refused(world, "bank", TASK)
    assert f"models/target/{TASK}: checkpoint has 2 classes, task has 3" in message
    assert "the model gives 2 classes, the task has 3" in refused(world, "target", TASK)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("nn.Linear(4, ", "nn.Linear(5, ", "the model does not take inputs of shape (4,)"),
        ("settings.width, 2))", "settings.width, 2), nn.Threshold(1e9, float('nan')))", "loss is not finite in epoch 1"),
        ("settings.width, 2))", "settings.width, 2), nn.Flatten(0))", "the model must give logits of shape (B, 2)"),
        ("def build_target", "def build_model", "lacks build_target"),
        ('MODALITY = "table"', 'MODALITY = "image"', "MODALITY is 'image', params.yaml says modality: table"),
    ],
)
def test_a_model_that_does_not_fit(world: Path, old: str, new: str, says: str) -> None:
    rewrite(world, "user/table_task.py", old, new)
    stage = "dataset" if "MODALITY" in old else "target"
    message = refused(world, stage, TASK)
    assert says in message
    assert "user/table_task.py" in message or "target's training loss" in message


def test_weights_that_give_nan_are_refused_where_they_are_taken_as_they_are(world: Path) -> None:
    set_params(world, lambda params: params["tasks"][TASK]["target"].update(epochs=0))
    rewrite(world, "user/table_task.py", "settings.width, 2))", "settings.width, 2), nn.Threshold(1e9, float('nan')))")
    assert "the target gives NaN or infinity for 52 samples" in refused(world, "target", TASK)


def test_a_method_that_gives_nan_stops_above_the_limit(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from faithline.attributions import integrated_gradients

    known = integrated_gradients.attribute
    monkeypatch.setattr(integrated_gradients, "attribute", lambda *words, **named: known(*words, **named) * torch.nan)
    message = refused(world, "attribute", TASK, "integrated_gradients")
    assert "100.0% of the maps of samples 0-27 are not finite (limit 1.0%, curate.max_non_finite_fraction)" in message


def test_a_task_without_file(world: Path) -> None:
    (world / "user/table_task.py").unlink()
    with pytest.raises(SystemExit) as stopped:
        run_stage_script(world, "dataset", TASK)
    assert stopped.value.code == (
        f"params.yaml: 1 invalid value(s); nothing was run\n  tasks.{TASK}.source = 'user/table_task.py': no such file"
    )


# --------------------------------------------------------------------------------------------------------- unwritable disks


@pytest.mark.parametrize("place", ["data/curated", f"data/curated/{TASK}"])
def test_a_plain_file_where_a_folder_must_be(judged: Path, place: str) -> None:
    shutil.rmtree(judged / place)
    (judged / place).write_text("mine")
    assert place in refused(judged, "curate", TASK)
    assert (judged / place).read_text() == "mine"


def test_a_full_disk_keeps_the_finished_shards(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing to /dev/full fails as on a full disk; here the third of four shards is written to it."""
    words = ("attribute", TASK, "integrated_gradients")
    monkeypatch.setattr(engine, "SHARD_ROWS", 8)
    out = f"data/attributions/{TASK}/integrated_gradients"
    run_stage_script(world, *words)
    expected = content(world / out)
    assert len(expected) == 4
    shutil.rmtree(world / out)

    spans: list[range] = []
    rows, scratch_folder = Job.rows, engine.scratch_folder

    def counted(job: Job, span: range) -> pa.Table:
        spans.append(span)
        return rows(job, span)

    def full(stage: str, key: str) -> Path:
        folder = scratch_folder(stage, key)
        (folder / "part-00002.parquet.tmp").symlink_to("/dev/full")
        return folder

    monkeypatch.setattr(Job, "rows", counted)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "scratch_folder", full)
        assert "No space left on device" in refused(world, *words)
    assert not (world / out).exists()
    assert [span.start for span in spans] == [0, 8, 16]
    spans.clear()
    for unfinished in world.glob(".scratch/*/*/*.tmp"):
        unfinished.unlink()  # the disk has room again
    run_stage_script(world, *words)
    assert [span.start for span in spans] == [16, 24], "finished shards are not computed again"
    assert content(world / out) == expected


def test_a_full_disk_leaves_old_numbers_whole(judged: Path) -> None:
    (judged / f"reports/curate/{TASK}.json.tmp").symlink_to("/dev/full")
    assert "No space left on device" in refused(judged, "curate", TASK)


def run(world: Path, *words: str, **named: Any) -> subprocess.CompletedProcess[str]:
    """Run a stage as DVC does, in a process of its own."""
    return subprocess.run(
        [sys.executable, str(ROOT / "stages" / f"{words[0]}.py"), *words[1:]],
        cwd=world,
        env=environment(PYTHONPATH=str(ROOT / "src")),
        capture_output=True,
        text=True,
        **named,
    )


def test_files_that_may_not_grow(world: Path) -> None:
    """Every write fails in the kernel, wherever it comes from; the process itself says one line and ends with status 1."""
    before = content(world)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    done = run(world, "dataset", TASK, preexec_fn=limit)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert content(world) == before
    assert half_written(world) == []


@pytest.mark.extended
def test_a_file_system_that_is_too_small(world: Path) -> None:
    place = world / "data/attributions"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(place)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting needs root: {mounted.stderr.strip()}")
    try:
        (place / "filler").write_bytes(bytes(4096))
        done = run(world, "attribute", TASK, "integrated_gradients")
        assert done.returncode == 1
        assert "No space left on device" in done.stderr
        assert "Traceback" not in done.stderr
        assert not list(place.rglob("*.parquet"))
        assert half_written(world) == []
        assert list(world.glob(".scratch/attribute-*/*/part-00000.parquet")), "the finished shard is kept"
    finally:
        subprocess.run(["umount", str(place)], check=True)
