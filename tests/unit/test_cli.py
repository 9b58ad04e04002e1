"""The command line: what it writes, and how it says no."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from faithline import config, submission, workspace
from faithline.artifacts import write_table
from faithline.cli import app
from faithline.explainers.load import save_explainer
from faithline.explainers.network import Network
from faithline.explainers.target_features import view
from faithline.explainers.train import TrainedExplainer, network_shape
from faithline.metrics.catalogue import METRICS

ROOT = Path(__file__).parents[2]


def run(*words: str | Path) -> Result:
    threads = torch.get_num_threads()
    try:
        return CliRunner().invoke(app, [str(word) for word in words])
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)


def message(result: Result) -> str:
    """The one line of an expected fault; anything else (a traceback, a success) fails the test."""
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    return result.output.strip()


# ------------------------------------------------------------------------------------------------------------------- check


def test_compose_prints_a_valid_params_file_for_one_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    made = run("compose", "params/tasks/imdb_lstm.yaml")
    assert made.exit_code == 0
    (tmp_path / "made.yaml").write_text(made.output)
    assert run("check", "--params", tmp_path / "made.yaml").output.startswith(f"{tmp_path / 'made.yaml'}: valid (1 tasks, ")
    assert message(run("compose", "params/tasks/none.yaml")).endswith("No such file or directory: 'params/tasks/none.yaml'")
    assert "modality = None, must be table, text or image" in message(run("compose", "params/smoke.yaml"))


def test_check_accepts_the_presets_and_refuses_a_wrong_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert run("check").output.startswith("params.yaml: valid (4 tasks, ")
    text = Path("params.yaml").read_text()
    (tmp_path / "bad.yaml").write_text(text.replace("seed: 0", "seed: abc"))
    assert "seed = 'abc': Input should be a valid integer" in message(run("check", "--params", tmp_path / "bad.yaml"))
    assert "none.yaml" in message(run("check", "--params", tmp_path / "none.yaml"))


@pytest.mark.parametrize("words", [["--help"], ["check"], ["explain", "--help"], ["score", "--help"]])
def test_light_commands_load_nothing_heavy(words: list[str]) -> None:
    code = (
        "import resource, sys\nfrom faithline.cli import app\n"
        "try:\n    app()\nfinally:\n"
        "    heavy = {'torch', 'polars', 'pyarrow', 'numpy', 'matplotlib', 'captum', 'pandas'} & set(sys.modules)\n"
        "    used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "    print('HEAVY', sorted(heavy), used.ru_utime + used.ru_stime)"
    )
    env = {**os.environ, "PYTHONPATH": "src"}
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, env=env, capture_output=True, text=True)
    _, heavy, seconds = done.stdout.splitlines()[-1].rsplit(" ", 2)
    assert done.returncode == 0
    assert heavy == "[]"
    assert float(seconds) < 0.6, "processor time; the clock on the wall depends on the neighbours"
    assert time.perf_counter() - start < 10


# ----------------------------------------------------------------------------------------------------------------- explain


def make_explainer(task: str) -> Path:
    """An explainer that was never trained: enough to be run."""
    opened = workspace.open_workspace(task, config.load())
    settings = opened.params.modality(task).explainers["deepfaith"]
    layers = opened.settings.target.layers
    seen = view(opened.game, opened.samples.x[:8], layers)
    torch.manual_seed(0)
    network = Network(network_shape(opened.game, seen, settings, 2))
    network.fit_scales(seen)
    folder = workspace.explainer_folder(task, "deepfaith")
    folder.mkdir(parents=True)
    trained = TrainedExplainer(network.eval(), layers, [], {})
    save_explainer(folder, trained, opened.game, settings, target_sha256=opened.target.sha256)
    return folder


def test_explain_images(world: Path) -> None:
    folder = make_explainer("tiny_image")
    Image.fromarray(np.full((20, 20, 3), 200, dtype=np.uint8)).save("bright.jpg")
    Image.fromarray(np.full((8, 8), 20, dtype=np.uint8)).save("dark.png")
    done = run("explain", folder, "bright.jpg", "dark.png", "--out", "out")
    assert done.exit_code == 0, done.output
    assert sorted(os.listdir("out")) == ["attributions.json", "attributions.parquet", "bright.png", "dark.png"]
    with Image.open("out/bright.png") as picture:
        assert picture.size == (256, 256)
        assert np.ptp(np.asarray(picture).reshape(-1, 3), axis=0).max() > 10, "an overlay shows something"
    numbers = json.loads(Path("out/attributions.json").read_text())
    assert [entry["name"] for entry in numbers] == ["bright", "dark"]
    assert numbers[0]["features"] == ["0,0", "0,1", "1,0", "1,1"]
    table = pl.read_parquet("out/attributions.parquet")
    assert table["attribution"].to_numpy().shape == (2, 4)
    assert np.allclose(table["attribution"].to_numpy()[0], numbers[0]["attribution"], rtol=1e-5)
    assert table["class"].to_list() == [entry["class"] for entry in numbers]


def test_explain_texts(world: Path) -> None:
    folder = make_explainer("tiny_text")
    Path("review.txt").write_text("A good <b>film</b>")
    assert run("explain", folder, "review.txt", "--out", "out").exit_code == 0
    page = Path("out/review.html").read_text()
    assert page.count("<span") == len(["a", "good", "b", "film", "b"])
    entry = json.loads(Path("out/attributions.json").read_text())[0]
    assert entry["features"] == ["a", "good", "b", "film", "b"]
    assert len(entry["attribution"]) == 5
    assert entry["class"] == "positive"
    assert pl.read_parquet("out/attributions.parquet")["attribution"][0][5] == 0, "padding has no attribution"


def test_explain_tables(world: Path) -> None:
    folder = make_explainer("tiny_table")
    Path("rows.csv").write_text("weight,height,width,length\n1,0,9,14\n1,0,1,2\n")
    assert run("explain", folder, "rows.csv", "--out", "out").exit_code == 0
    assert {"rows-1.png", "rows-2.png"} < set(os.listdir("out"))
    entries = json.loads(Path("out/attributions.json").read_text())
    assert [entry["class"] for entry in entries] == ["large", "small"]
    assert entries[0]["features"] == ["length", "width", "height", "weight"]


def test_explain_leaves_other_files_alone_and_writes_nothing_on_a_fault(world: Path) -> None:
    folder = make_explainer("tiny_table")
    Path("good.csv").write_text("length,width,height,weight\n1,2,3,4\n")
    Path("bad.csv").write_text("length,width\n1,2\n")
    Path("out").mkdir()
    Path("out/mine.txt").write_text("precious")
    assert "bad.csv lacks the columns" in message(run("explain", folder, "good.csv", "bad.csv", "--out", "out"))
    assert os.listdir("out") == ["mine.txt"]
    assert run("explain", folder, "good.csv", "--out", "out").exit_code == 0
    assert Path("out/mine.txt").read_text() == "precious"


def test_explain_refuses_what_does_not_fit(world: Path) -> None:
    folder = make_explainer("tiny_table")
    Path("row.csv").write_text("length,width,height,weight\n1,2,3,4\n")
    assert "no task 'elsewhere'" in message(run("explain", "elsewhere/deepfaith", "row.csv", "--out", "out"))
    none = workspace.explainer_folder("tiny_table", "none")
    assert "model.json is missing" in message(run("explain", none, "row.csv", "--out", "out"))
    Path("file").write_text("in the way")
    assert "file" in message(run("explain", folder, "row.csv", "--out", "file"))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    assert "not a whole safetensors file" in message(run("explain", folder, "row.csv", "--out", "out"))
    assert not Path("out").exists()


def test_explain_refuses_another_target(world: Path) -> None:
    folder = make_explainer("tiny_table")
    Path("row.csv").write_text("length,width,height,weight\n1,2,3,4\n")
    info = json.loads((folder / "model.json").read_text())
    info["target_state_sha256"] = "0" * 64
    (folder / "model.json").write_text(json.dumps(info))
    assert "explains another model" in message(run("explain", folder, "row.csv", "--out", "out"))


# ------------------------------------------------------------------------------------------------------------------- score


def true_maps(opened: workspace.Workspace) -> torch.Tensor:
    """What the label of tiny_table says: length and width speak for `large`, and against `small`."""
    ids = opened.samples.index("test")
    toward = torch.where(opened.explained[ids] == 1, 1.0, -1.0)[:, None]
    return opened.samples.x[ids] * toward * torch.tensor([1.0, 1.0, 0.01, 0.02])


@pytest.fixture
def evaluated(world: Path) -> workspace.Workspace:
    """A task whose reference method has scores: those of the true maps."""
    opened = workspace.open_workspace("tiny_table", config.load())
    ids = opened.samples.index("test")
    scored = submission.score_submission(opened, opened.params.report.reference, ids, true_maps(opened))
    write_table(workspace.evaluation_folder("tiny_table") / "scores.parquet", scored, opened.metadata())
    return opened


def save_maps(opened: workspace.Workspace, path: str, sign: float = 1.0) -> None:
    ids = opened.samples.index("test")
    maps = sign * true_maps(opened).numpy()
    if path.endswith(".npz"):
        np.savez(path, sample_id=ids.numpy(), attribution=maps)
    else:
        pl.DataFrame({"sample_id": ids.numpy(), "attribution": maps}).write_parquet(path)


@pytest.mark.parametrize("file", ["mine.npz", "mine.parquet"])
def test_score_prints_ten_metrics_and_writes_every_sample(evaluated: workspace.Workspace, file: str) -> None:
    save_maps(evaluated, file)
    done = run("score", "tiny_table", file)
    assert done.exit_code == 0, done.output
    for metric in METRICS:
        assert f" {metric} " in done.output
    assert done.output.count("0.000 [0.000, 0.000]") == len(METRICS), "the same maps differ by nothing"
    table = pl.read_parquet("mine.scores.parquet")
    assert table.columns == ["sample_id", "candidate", "metric", "value"]
    assert len(table) == 12 * len(METRICS)
    assert table["candidate"].unique().to_list() == ["mine"]


def test_score_does_not_depend_on_the_order_of_rows(evaluated: workspace.Workspace) -> None:
    save_maps(evaluated, "mine.parquet")
    pl.read_parquet("mine.parquet").reverse().write_parquet("other.parquet")
    for file in ("mine", "other"):
        assert run("score", "tiny_table", f"{file}.parquet").exit_code == 0
    assert pl.read_parquet("mine.scores.parquet").equals(pl.read_parquet("other.scores.parquet"))


def test_score_tells_better_from_worse(evaluated: workspace.Workspace) -> None:
    save_maps(evaluated, "wrong.npz", sign=-1)
    done = run("score", "tiny_table", "wrong.npz", "--name", "wrong", "--out", "wrong.parquet")
    row = next(line for line in done.output.splitlines() if " inf " in line)
    assert "worse" in row
    assert Path("wrong.parquet").is_file()


def test_score_counts_a_map_that_is_not_finite(evaluated: workspace.Workspace) -> None:
    ids = evaluated.samples.index("test").numpy()
    maps = evaluated.samples.x[ids].numpy().copy()
    maps[3, 0] = np.nan
    np.savez("mine.npz", sample_id=ids, attribution=maps)
    done = run("score", "tiny_table", "mine.npz")
    assert done.exit_code == 0, done.output
    row = next(line for line in done.output.splitlines() if " inf " in line)
    assert row.rstrip(" │|").endswith("1"), row
    table = pl.read_parquet("mine.scores.parquet")
    assert table.filter(pl.col("sample_id") == ids[3])["value"].null_count() == len(METRICS)


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"sample_id": np.arange(40, 52), "attribution": np.zeros((12, 3))}, r"maps have shape (3,); task tiny_table needs (4,)"),
        ({"sample_id": np.arange(3), "attribution": np.zeros((3, 4))}, "samples [0, 1, 2] (3 in all) are not in the test split"),
        ({"sample_id": np.array([40, 40]), "attribution": np.zeros((2, 4))}, "explains samples twice: [40]"),
        ({"sample_id": np.array([40.5]), "attribution": np.zeros((1, 4))}, "sample_id must be one integer a map"),
        ({"sample_id": np.array([40]), "attribution": np.zeros((2, 4))}, "sample_id must be one integer a map"),
        ({"sample_id": np.array([], dtype=int), "attribution": np.zeros((0, 4))}, "holds no map"),
        ({"ids": np.arange(3), "attribution": np.zeros((3, 4))}, "lacks the arrays ['sample_id']"),
        ({"sample_id": np.array([40]), "attribution": np.array([["a"] * 4])}, "not numbers"),
        ({"sample_id": np.array([40]), "attribution": np.array([[{}] * 4])}, "cannot be read as npz"),
    ],
)
def test_score_refuses_bad_maps(evaluated: workspace.Workspace, arrays: dict[str, np.ndarray], expected: str) -> None:
    np.savez("mine.npz", **arrays)
    assert expected in message(run("score", "tiny_table", "mine.npz"))
    assert not Path("mine.scores.parquet").exists()


def test_score_refuses_bad_files(evaluated: workspace.Workspace) -> None:
    assert "no task 'digits'" in message(run("score", "digits", "mine.npz"))
    assert "mine.npz is missing" in message(run("score", "tiny_table", "mine.npz"))
    Path("mine.csv").write_text("1")
    assert "maps come as .parquet or .npz" in message(run("score", "tiny_table", "mine.csv"))
    save_maps(evaluated, "mine.parquet")
    assert "--name" in message(run("score", "tiny_table", "mine.parquet", "--name", "My Maps"))
    Path("mine.parquet").write_bytes(Path("mine.parquet").read_bytes()[:50])
    assert "cannot be read as Parquet" in message(run("score", "tiny_table", "mine.parquet"))
    Path("mine.npz").write_bytes(b"PK\x03\x04 half")
    assert "cannot be read as npz" in message(run("score", "tiny_table", "mine.npz"))
    pl.DataFrame({"sample_id": [40, 41], "attribution": [[1.0], [1.0, 2.0]]}).write_parquet("ragged.parquet")
    assert "all of one shape" in message(run("score", "tiny_table", "ragged.parquet"))
    pl.DataFrame({"sample_id": [40], "map": [[1.0]]}).write_parquet("nameless.parquet")
    assert "has no column 'attribution'" in message(run("score", "tiny_table", "nameless.parquet"))


def test_score_needs_an_evaluated_task(evaluated: workspace.Workspace) -> None:
    save_maps(evaluated, "mine.npz")
    (workspace.evaluation_folder("tiny_table") / "scores.parquet").unlink()
    assert "scores.parquet is missing: run `dvc repro`" in message(run("score", "tiny_table", "mine.npz"))
    assert not Path("mine.scores.parquet").exists()


def test_score_refuses_a_bank_of_another_model(evaluated: workspace.Workspace) -> None:
    save_maps(evaluated, "mine.npz")
    bank = workspace.bank_folder("tiny_table", "evaluation") / "part-00000.parquet"
    write_table(bank, pl.read_parquet(bank), {**evaluated.metadata(), "target_sha256": "f" * 64})
    assert "was made for another model" in message(run("score", "tiny_table", "mine.npz"))
