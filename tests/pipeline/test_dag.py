"""What runs and what does not: the DAG on the smoke preset, in a clone."""

import json
import re
from typing import Any

import pytest
import yaml
from tests.pipeline.checkout import Checkout, ran

pytestmark = pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")  # of DVC itself

METRICS = {"fc", "fe", "mc", "inf", "rp", "ins", "del", "neg", "pos", "irof"}


def number(value: Any, *, nullable: bool = False) -> bool:
    return (nullable and value is None) or (isinstance(value, int | float) and not isinstance(value, bool))


def read_json(checkout: Checkout, path: str) -> Any:
    return json.loads((checkout.folder / path).read_text())


# ---------------------------------------------------------------------------------------------------------------- one run


def test_every_job_ran_once_and_made_all_it_names(pipeline: Checkout) -> None:
    log = (pipeline.folder.parent / "repro.log").read_text()
    stages = pipeline.stages()
    assert ran(log) == stages
    assert len(stages) <= 28, "this suite must stay quick"
    locked = yaml.safe_load((pipeline.folder / "dvc.lock").read_text())["stages"]
    assert set(locked) == stages
    for path in pipeline.outputs():
        assert (pipeline.folder / path).exists(), path
    for task in ("affairs_mlp", "digits_cnn"):
        for path in (
            f"data/tasks/{task}/samples.parquet",
            f"models/target/{task}/model.safetensors",
            f"data/bank/{task}/training/part-00000.parquet",
            f"data/attributions/{task}/integrated_gradients/part-00000.parquet",
            f"data/curves/{task}/integrated_gradients.parquet",
            f"data/curated/{task}/index.parquet",
            f"models/explainers/{task}/deepfaith/model.safetensors",
            f"data/evaluation/{task}/scores.parquet",
            f"reports/metrics/{task}.json",
            f"reports/curate/{task}.json",
            f"reports/fud/{task}.json",
        ):
            assert (pipeline.folder / path).is_file(), path
    assert (pipeline.folder / "reports/index.html").stat().st_size > 10_000


def test_a_run_leaves_git_clean_and_nothing_half_written(pipeline: Checkout) -> None:
    assert pipeline.git("status", "--porcelain") == ""
    assert pipeline.half_written() == []
    assert not [path for path in pipeline.folder.glob(".scratch/*/*/*") if not path.parent.parent.name.startswith("curves-")]


def test_no_file_names_the_machine_or_the_time(pipeline: Checkout) -> None:
    for path in [*pipeline.folder.glob("reports/**/*"), *pipeline.folder.glob("models/**/*.json")]:
        if path.is_file():
            assert str(pipeline.folder.parent).encode() not in path.read_bytes(), path


def test_leaderboard_has_the_promised_schema(pipeline: Checkout) -> None:
    board = read_json(pipeline, "reports/leaderboard.json")
    assert set(board) == {"tasks"}
    assert set(board["tasks"]) == {"affairs_mlp", "digits_cnn"}
    for task, row in board["tasks"].items():
        assert set(row) == {"target", "n_test", "candidates", "runner_up"}
        assert set(row["target"]) == {"accuracy", "auc"}
        assert all(number(value) for value in row["target"].values())
        assert row["n_test"] == 40
        controls = {"random", "mean_map"} | ({"edge", "centre"} if task == "digits_cnn" else set())
        assert controls | {"deepfaith", "deepfaith_refined", "integrated_gradients", "oracle_prior"} <= set(row["candidates"])
        for name, candidate in row["candidates"].items():
            columns = {"role", "mean_rank", "family_rank", "metrics", "passes", "training_passes", "changes", "versus"}
            assert set(candidate) == columns, name
            assert (candidate["changes"] is not None) == (candidate["role"] == "explainer"), name
            assert candidate["role"] in {"supervision", "baseline", "explainer", "refined", "control", "reference"}
            assert number(candidate["mean_rank"], nullable=candidate["role"] == "reference"), name
            assert number(candidate["family_rank"], nullable=candidate["role"] == "reference"), name
            assert number(candidate["passes"], nullable=name == "oracle_prior"), name
            assert candidate["role"] != "refined" or candidate["passes"] == 1 + 16, "the explainer's pass and its masks"
            assert set(candidate["metrics"]) == METRICS
            for metric, value in candidate["metrics"].items():
                assert set(value) == {"mean", "low", "high", "n", "null"}, (name, metric)
                assert value["n"] + value["null"] == row["n_test"], (name, metric)
                ends = [value[end] for end in ("low", "mean", "high")]
                assert all(number(end, nullable=value["n"] == 0) for end in ends), (name, metric)
                assert value["n"] == 0 or ends == sorted(ends), (name, metric)
        assert set(row["runner_up"]) == {"candidate", "mean_rank_difference", "without_fe_mc"}
        assert row["runner_up"]["candidate"] in row["candidates"]
        assert set(row["runner_up"]["mean_rank_difference"]) == {"mean", "low", "high"}
    text = (pipeline.folder / "reports/leaderboard.json").read_text()
    assert text == json.dumps(board, sort_keys=True, indent=2, ensure_ascii=False) + "\n", "sorted, so that a diff is quiet"


def test_findings_have_the_promised_schema(pipeline: Checkout) -> None:
    findings = read_json(pipeline, "reports/findings.json")
    assert findings
    for finding in findings:
        assert set(finding) == {"claim", "source", "verdict", "evidence"}
        assert finding["verdict"] in {"confirmed", "refuted", "untestable"}
        assert all(isinstance(word, str) and word for word in finding.values())


def test_metrics_read_well_in_dvc(pipeline: Checkout) -> None:
    shown = json.loads(pipeline.run("dvc", "metrics", "show", "--json").stdout)
    files = shown[""]["data"] if "" in shown else shown
    assert {path for path in files if path.startswith("reports/metrics/")} == {
        "reports/metrics/affairs_mlp.json",
        "reports/metrics/digits_cnn.json",
    }
    assert not [path for path, content in files.items() if "error" in content]


# --------------------------------------------------------------------------------------------------------- what runs again


def test_again_nothing_runs(pipeline: Checkout) -> None:
    before = (pipeline.folder / "dvc.lock").read_bytes()
    log = pipeline.dvc("repro")
    assert not ran(log)
    assert "up to date" in log
    assert (pipeline.folder / "dvc.lock").read_bytes() == before


def kinds(stages: set[str]) -> set[str]:
    return {name.partition("@")[0].partition("_")[0] for name in stages}


@pytest.mark.parametrize(
    ("old", "new", "direct", "later"),
    [
        ("quantile: 0.2", "quantile: 0.3", {"curate"}, {"curate", "explain", "evaluate", "fud", "report"}),
        ("bootstrap: 100", "bootstrap: 200", {"evaluate", "fud", "report"}, {"evaluate", "fud", "report"}),
        ("gallery: 3", "gallery: 2", {"report"}, {"report"}),
        (
            "skip_duplicates: false",
            "skip_duplicates: true",
            {"curves", "report"},
            {"curves", "curate", "explain", "evaluate", "fud", "report"},
        ),
    ],
)
def test_a_value_reruns_the_stages_that_read_it_and_nothing_earlier(
    pipeline: Checkout, old: str, new: str, direct: set[str], later: set[str]
) -> None:
    with pipeline.edited("params.yaml", old, new):
        stages = pipeline.would_run()
        assert direct != {"curate"} or ran(pipeline.dvc("repro", "--dry")) == stages
    assert direct <= kinds(stages) <= direct | {"report"}, stages
    assert kinds(pipeline.descendants(stages)) == later


def test_a_value_of_one_explainer_reruns_that_explainer_only(pipeline: Checkout) -> None:
    params = pipeline.params()
    params["table"]["explainers"]["deepfaith_paper"]["epochs"] = 3
    before = (pipeline.folder / "params.yaml").read_text()
    pipeline.set_params(params)
    try:
        stages = pipeline.would_run()
    finally:
        pipeline.write("params.yaml", before)
    column = "explain_table@affairs_mlp-deepfaith_paper"
    assert stages == {column, "evaluate@affairs_mlp", "report"}, "whoever lists the explainers' values says so"
    assert pipeline.descendants({column}) == {column, "evaluate@affairs_mlp", "fud_table@affairs_mlp", "report"}


def test_a_method_s_file_reruns_its_columns_only(pipeline: Checkout) -> None:
    path = "src/faithline/attributions/kernel_shap.py"
    code = (pipeline.folder / path).read_text()
    with pipeline.put_back(), pipeline.edited(path, code, code + "\nWORD = 1\n"):
        assert pipeline.would_run() == {"manifest"}
        pipeline.dvc("repro", "manifest")
        stages = pipeline.would_run()
    assert stages == {"attribute_table@affairs_mlp-kernel_shap"}
    later = pipeline.descendants(stages)
    assert not [name for name in later if "digits_cnn" in name], "a task without the method is left alone"
    assert kinds(later) == {"attribute", "curves", "curate", "explain", "evaluate", "fud", "report"}


def test_a_sampler_s_value_resamples_and_trains_nothing(pipeline: Checkout) -> None:
    """Spec fud.md, check 20; what only the scores read resamples nothing."""
    params = pipeline.params()
    before = (pipeline.folder / "params.yaml").read_text()
    sampled = {f"fud_{kind}@digits_cnn" + (f"-{name}" if name else "") for kind, name in (
        ("method", "integrated_gradients"), ("method", "lime"), ("explainer", "deepfaith"), ("control", ""))}  # fmt: skip
    try:
        params["fud"]["image"]["sampler"]["scale"] = 2.0
        pipeline.set_params(params)
        assert pipeline.would_run() == {*sampled, "fud_score@digits_cnn", "report"}
        params["fud"]["image"]["sampler"]["scale"] = 4.0
        params["fud"]["image"]["evidence"]["neighbours"] = 4
        pipeline.set_params(params)
        assert pipeline.would_run() == {"fud_score@digits_cnn", "report"}
    finally:
        pipeline.write("params.yaml", before)


def test_a_comment_reruns_nothing(pipeline: Checkout) -> None:
    path = "src/faithline/masking.py"
    code = (pipeline.folder / path).read_text()
    with pipeline.put_back(), pipeline.edited(path, code, code + "\n# A word more.\n"):
        assert ran(pipeline.dvc("repro")) == {"manifest"}


def test_a_task_s_own_value_leaves_the_other_task_alone(pipeline: Checkout) -> None:
    with pipeline.edited("params.yaml", "fixed_size_fraction: 0.2", "fixed_size_fraction: 0.25"):
        stages = pipeline.would_run()
    assert stages == {"bank@digits_cnn", "evaluate@digits_cnn", "report"}
    assert not [name for name in pipeline.descendants(stages) if "affairs_mlp" in name]


# ------------------------------------------------------------------------------------------------------------ bad values


def test_bad_values_of_an_experiment_die_at_once_with_key_and_rule(pipeline: Checkout) -> None:
    with pipeline.put_back():
        log = pipeline.dvc(
            *("exp", "run", "--set-param", "curate.quantile=1.7", "--set-param", "+curate.quantil=0.3"),
            *("--set-param", "evaluate.bootstrap=many"),
            status=None,
        )
        lock = pipeline.git("status", "--porcelain", "dvc.lock")
        assert pipeline.half_written() == []
    assert "params.yaml: 3 invalid value(s); nothing was run" in log
    assert "curate.quantile = 1.7: Input should be less than 0.5" in log
    assert "curate.quantil = 0.3: Extra inputs are not permitted" in log
    assert re.search(r"evaluate\.bootstrap = 'many': Input should be a valid integer", log)
    assert "failed to reproduce" in log
    assert "Traceback" not in log
    assert len(ran(log)) == 1, "the first job stops the run"
    assert lock == ""


def test_an_unknown_key_is_refused_before_anything_runs(pipeline: Checkout) -> None:
    with pipeline.put_back():
        done = pipeline.run("dvc", "exp", "run", "--set-param", "curate.quantil=0.3", status=None)
    assert done.returncode != 0
    assert "quantil" in done.stderr
    assert not ran(done.stdout)


def test_a_task_file_that_is_not_there(pipeline: Checkout) -> None:
    with (
        pipeline.put_back(),
        pipeline.edited("params.yaml", "source: src/faithline/tasks/affairs_mlp.py", "source: user/nowhere.py"),
    ):
        done = pipeline.run("python", "-m", "faithline.config", status=1, PYTHONPATH="src")
        log = pipeline.dvc("repro", "dataset@affairs_mlp", status=None)
    assert "tasks.affairs_mlp.source = 'user/nowhere.py': no such file" in done.stderr
    assert "Traceback" not in done.stderr + log
    assert "user/nowhere.py" in log
    assert not ran(log)


# -------------------------------------------------------------------------------------------------------------- reviewers


def test_a_reviewer_pulls_and_is_up_to_date(pipeline: Checkout) -> None:
    pipeline.dvc("push", "--quiet")
    review = Checkout(pipeline.folder.parent / "review")
    pipeline.git("clone", "--quiet", ".", str(review.folder))
    log = review.dvc("repro", "--allow-missing", "--dry")
    assert not ran(log), "dvc.lock is true without any data"
    log = review.dvc("pull")
    assert "failed" not in log.lower()
    assert "up to date" in review.dvc("status")
    assert not review.would_run()
    assert review.outputs() == pipeline.outputs()
    made, pulled = (c.folder / "reports/index.html" for c in (pipeline, review))
    assert pulled.read_bytes() == made.read_bytes()


def test_a_damaged_object_of_the_remote_is_refused(pipeline: Checkout) -> None:
    pipeline.dvc("push", "--quiet")
    store = pipeline.folder.parent / "faithline-store"
    digest = pipeline.outputs()["reports/index.html"]
    path = store / "files/md5" / digest[:2] / digest[2:]
    whole = path.read_bytes()
    review = Checkout(pipeline.folder.parent / "cautious")
    pipeline.git("clone", "--quiet", ".", str(review.folder))
    path.chmod(0o644)
    path.write_bytes(b"<p>Trust me.</p>")
    path.chmod(0o444)
    try:
        done = review.run("dvc", "pull", "report", status=None)
    finally:
        path.chmod(0o644)
        path.write_bytes(whole)
    assert done.returncode != 0
    assert not (review.folder / "reports/index.html").exists()
