"""Outputs kept, packed, pulled and found again; and the whole smoke preset, texts included."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.pipeline.checkout import ROOT, Checkout, clone, environment, ran

pytestmark = [
    pytest.mark.extended,
    pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning"),  # of DVC itself
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A clone in which the smoke preset has run as it is."""
    checkout = clone(tmp_path_factory.mktemp("smoke") / "repo", yaml.safe_load((ROOT / "params/smoke.yaml").read_text()))
    assert ran(checkout.dvc("repro")) == checkout.stages()
    checkout.commit("results")
    return checkout


def test_the_smoke_preset_gives_a_leaderboard_of_every_task(whole: Checkout) -> None:
    board = json.loads((whole.folder / "reports/leaderboard.json").read_text())
    assert set(board["tasks"]) == {"affairs_mlp", "reviews_transformer", "digits_cnn"}
    assert whole.git("status", "--porcelain") == ""
    assert not ran(whole.dvc("repro"))


def test_an_experiment_with_another_quantile_starts_at_curate(whole: Checkout) -> None:
    with whole.put_back():
        before = whole.outputs()
        log = whole.dvc("exp", "run", "--set-param", "curate.quantile=0.3")
        started = ran(log)
        assert {name for name in started if name.startswith("curate")} == {
            f"curate@{task}" for task in ("affairs_mlp", "reviews_transformer", "digits_cnn")
        }
        assert started <= whole.descendants({name for name in whole.stages() if name.startswith("curate")})
        assert "report" in started
        after = whole.outputs()
    earlier = ("data/tasks", "models/target", "data/bank", "data/attributions", "data/curves")
    assert {path for path in before if path.startswith(earlier)} == {path for path in after if path.startswith(earlier)}
    assert all(before[path] == after[path] for path in before if path.startswith(earlier))


def test_an_experiment_with_one_explainer_value_reruns_three_jobs(whole: Checkout) -> None:
    with whole.put_back():
        before = whole.outputs()
        log = whole.dvc("exp", "run", "--set-param", "table.explainers.deepfaith_paper.epochs=3")
        assert ran(log) == {"explain_table@affairs_mlp-deepfaith_paper", "evaluate@affairs_mlp", "report"}
        after = whole.outputs()
    changed = {path for path in before if before[path] != after[path]}
    assert "models/explainers/affairs_mlp/deepfaith_paper" in changed
    assert not [path for path in changed if "digits_cnn" in path and "gallery" not in path]
    assert {path for path in changed if path.startswith(("data/", "models/"))} == {
        "models/explainers/affairs_mlp/deepfaith_paper",
        "data/evaluation/affairs_mlp",
    }


def test_a_value_put_back_is_found_in_the_run_cache(whole: Checkout) -> None:
    column = "explain_table@affairs_mlp-deepfaith"
    with whole.put_back():
        before = whole.outputs()
        params = whole.params()
        params["table"]["explainers"]["deepfaith"]["epochs"] += 1
        whole.set_params(params)
        assert column in ran(whole.dvc("repro", column))
        assert whole.outputs() != before
        params["table"]["explainers"]["deepfaith"]["epochs"] -= 1
        whole.set_params(params)
        log = whole.dvc("repro", column)
        assert f"Stage '{column}' is cached - skipping run" in log
        assert not ran(log)
        assert whole.outputs() == before


def test_a_forced_rerun_gives_the_same_bytes(whole: Checkout) -> None:
    with whole.put_back():
        before = whole.outputs()
        jobs = ["bank@digits_cnn", "attribute_image@digits_cnn-lime", "explain_text@reviews_transformer-deepfaith"]
        for job in [*jobs, "evaluate@digits_cnn", "report"]:
            assert ran(whole.dvc("repro", "--single-item", "--force", "--no-run-cache", job)) == {job}
        assert whole.outputs() == before


def test_a_bundle_is_all_that_a_reviewer_needs(whole: Checkout, tmp_path: Path) -> None:
    stamp = Path(sys.prefix) / ".installed"
    # -o: this environment is the one under test; make must not install the clone into it.
    whole.run("make", "-o", str(stamp), "bundle", f"VENV={sys.prefix}")
    assert whole.git("status", "--porcelain") == "", "a bundle changes nothing that git sees"
    review = Checkout(tmp_path / "review")
    whole.git("clone", "--quiet", ".", str(review.folder))
    subprocess.run(["tar", "-xf", str(whole.folder / "faithline-store.tar"), "-C", str(tmp_path)], check=True)
    assert (tmp_path / "faithline-store/README.txt").is_file()
    review.dvc("pull")
    assert "up to date" in review.dvc("status")
    assert not ran(review.dvc("repro", "--allow-missing", "--dry"))
    assert review.outputs() == whole.outputs()


def test_publish_pushes_to_a_folder_and_leaves_no_remote_behind(whole: Checkout, tmp_path: Path) -> None:
    stamp = Path(sys.prefix) / ".installed"
    place = tmp_path / "published"
    whole.run("make", "-o", str(stamp), "publish", f"VENV={sys.prefix}", f"REMOTE={place}")
    assert len(list(place.glob("files/md5/*/*"))) > 50
    assert "publish" not in whole.dvc("remote", "list")
    review = tmp_path / "review"
    whole.git("clone", "--quiet", ".", str(review))
    subprocess.run(["dvc", "remote", "modify", "--local", "store", "url", str(place)], cwd=review, env=environment(), check=True)
    assert "up to date" in Checkout(review).dvc("pull") + Checkout(review).dvc("status")


def test_a_removed_method_takes_its_results_with_it(whole: Checkout) -> None:
    with whole.put_back():
        log = whole.dvc("exp", "run", "--set-param", "~image.methods.lime")
        assert "curves@digits_cnn" in ran(log)
        assert not (whole.folder / "data/attributions/digits_cnn/lime").exists()
        board = json.loads((whole.folder / "reports/leaderboard.json").read_text())
        assert "lime" not in board["tasks"]["digits_cnn"]["candidates"]


def test_a_method_removed_by_hand_stops_the_run_and_says_how_to_go_on(whole: Checkout) -> None:
    with whole.put_back():
        params = whole.params()
        del params["image"]["methods"]["lime"]
        whole.set_params(params)
        log = whole.dvc("repro", "curves@digits_cnn", status=None)
        assert "failed to reproduce 'curves@digits_cnn'" in log
        assert "rm -r data/attributions/digits_cnn/lime" in log
