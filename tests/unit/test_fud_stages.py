"""The stages of FUD on a tiny task: what they store and say, that nothing depends on company, that a kill loses nothing."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from tests.conftest import run_stage_script

from faithline import config, engine, fud_experiments, fud_sampling, score_models, workspace
from faithline.artifacts import read_json, read_table
from faithline.errors import ArtifactError
from faithline.fud_sampling import COLUMNS, CONTROLS, EMPTY, MAIN
from faithline.maps import write_misfit
from faithline.workspace import Workspace

pytestmark = pytest.mark.usefixtures("one_thread")

TASK = "tiny_image"
LEVELS = (0.75, 0.5, 0.25)
CALLS = 3 + 4
"""Of the smoke sampler: four denoising steps of which one would end below the switch, two Langevin steps at two levels."""


@pytest.fixture(scope="module")
def sampled(_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny world with all stages of FUD run."""
    folder = tmp_path_factory.mktemp("fud") / "world"
    shutil.copytree(_world, folder)
    raw = yaml.safe_load((folder / "params.yaml").read_text())
    raw["tasks"] = {name: task for name, task in raw["tasks"].items() if name != "tiny_text"}
    raw["text"]["tasks"] = []
    raw["evaluate"]["bootstrap"] = 100
    raw["fud"]["image"]["controls"] = ["random", "another", "inverse", "edge"]
    (folder / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    patch = pytest.MonkeyPatch()
    patch.setenv("FAITHLINE_THREADS", "1")  # as the tests: bits differ between numbers of threads
    try:
        for task, methods in (
            (TASK, ("integrated_gradients", "lime", "banzhaf")),
            ("tiny_table", ("integrated_gradients", "kernel_shap")),
        ):
            for method in methods:
                run_stage_script(folder, "attribute", task, method)
            for stage in ("curves", "curate"):
                run_stage_script(folder, stage, task)
        run_stage_script(folder, "explain", TASK, "deepfaith")
        for explainer in ("deepfaith", "deepfaith_paper"):
            run_stage_script(folder, "explain", "tiny_table", explainer)
        run_stage_script(folder, "evaluate", TASK)
        run_stage_script(folder, "score_model", TASK)
        for name in ("integrated_gradients", "lime", "deepfaith", CONTROLS):
            run_stage_script(folder, "fud", TASK, name)
        run_stage_script(folder, "fud_score", TASK)
        run_stage_script(folder, "fud_table", "tiny_table")
    finally:
        patch.undo()
        torch.use_deterministic_algorithms(deterministic)
        torch.set_num_threads(threads)
    return folder


@pytest.fixture
def here(sampled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy, free to be broken, as the current folder; what stages that run in it set for torch is set back."""
    folder = tmp_path / "fud"
    shutil.copytree(sampled, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FAITHLINE_THREADS", "1")
    deterministic = torch.are_deterministic_algorithms_enabled()
    yield folder
    torch.use_deterministic_algorithms(deterministic)


def opened(task: str = TASK) -> Workspace:
    return workspace.open_workspace(task, config.load())


def records(name: str) -> pl.DataFrame:
    return read_table(fud_sampling.folder_of(TASK, name), COLUMNS)


# ----------------------------------------------------------------------------------------------------------------- samples


def test_every_reconstruction_has_a_row(here: Path) -> None:
    frame = records("lime")
    counts = {key: len(part) for key, part in frame.group_by(["ordering", "sampler"])}
    assert counts == {("own", MAIN): 12, ("matched_random", MAIN): 12, ("own", "unguided"): 6}
    assert frame.filter(pl.col("sampler") == MAIN)["calls"].unique().to_list() == [CALLS]
    assert frame.filter(pl.col("sampler") == "unguided")["dose"].unique().to_list() == [0.0]
    assert frame.filter(pl.col("sampler") == MAIN)["dose"].min() > 0  # type: ignore[operator]
    assert frame["prob"].is_between(0, 1).all()
    assert frame.filter(pl.col("sampler") != MAIN)["png"].is_null().all()
    controls = records(CONTROLS)
    assert set(controls["candidate"]) == {"random", "another", "inverse", "edge", EMPTY}
    assert controls.filter(pl.col("candidate") == EMPTY)["level"].to_list() == [0.0] * 4


def test_the_recorded_confidence_is_the_target_s_on_the_stored_image(here: Path) -> None:
    """Spec mutation: label against prediction. The images are stored with 8 bits, so the two differ by rounding."""
    stage = fud_sampling.open_stage(opened())
    frame = records("lime").filter((pl.col("sampler") == MAIN) & (pl.col("ordering") == "own"))
    images = torch.stack([fud_sampling.from_png(data) for data in frame["png"]])
    place = {sample: row for row, sample in enumerate(stage.scene.image_ids)}
    target = stage.scene.targets[torch.tensor([place[i] for i in frame["sample_id"]])]
    prob = fud_sampling.predictor(stage)(images).double().softmax(1)
    stored = torch.tensor(frame["prob"].to_list(), dtype=torch.float64)
    torch.testing.assert_close(prob.gather(1, target[:, None])[:, 0], stored, atol=0.02, rtol=0)
    log_odds = torch.tensor((frame["logit"] - frame["logsumexp"]).to_list(), dtype=torch.float64)
    torch.testing.assert_close(log_odds.exp(), stored)


def test_kept_pixels_are_those_of_the_image(here: Path) -> None:
    stage = fud_sampling.open_stage(opened())
    maps = fud_sampling.candidate_maps(stage.opened, "lime", stage.ids)
    keep = fud_sampling.keep_masks(stage, maps, LEVELS)
    frame = (
        records("lime")
        .filter((pl.col("sampler") == MAIN) & (pl.col("ordering") == "own"))
        .sort("sample_id", "level", descending=[False, True])
    )
    for image, part in enumerate(frame.partition_by("sample_id", maintain_order=True)):
        clean = fud_sampling.from_png(fud_sampling.png(stage.scene.pixels[image]))
        for level, data in enumerate(part["png"]):
            kept = keep[image, level].expand_as(clean)
            made = fud_sampling.from_png(data)
            assert torch.equal(made[kept], clean[kept])
            assert not torch.equal(made[~kept], clean[~kept])


def test_a_candidate_s_samples_do_not_depend_on_the_other_candidates_or_images(here: Path) -> None:
    raw = yaml.safe_load(Path("params.yaml").read_text())
    raw["fud"]["image"] |= {"methods": ["lime"], "samples": 2}
    Path("params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    before = records("lime").filter(pl.col("sampler") == MAIN)
    fud_sampling.sample(opened(), "lime")
    after = records("lime").filter(pl.col("sampler") == MAIN)
    ids = after["sample_id"].unique().to_list()
    assert len(ids) == 2
    own = pl.col("ordering") == "own"
    assert after.filter(own).equals(before.filter(own & pl.col("sample_id").is_in(ids)))


def test_methods_share_their_noise(here: Path) -> None:
    """Where two candidates keep the same pixels, they get the same image: the empty mask is the extreme of it."""
    assert records(CONTROLS).filter(pl.col("candidate") == EMPTY)["mask_sha256"].n_unique() == 1
    frames = pl.concat([records(name).filter(pl.col("sampler") == MAIN) for name in ("lime", "integrated_gradients", CONTROLS)])
    twins = frames.group_by("sample_id", "mask_sha256", "draw").agg(pl.col("prob").n_unique().alias("different"))
    assert twins["different"].max() == 1


def test_a_killed_job_goes_on_and_ends_with_the_same_bytes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {path.name: path.read_bytes() for path in fud_sampling.folder_of(TASK, "lime").iterdir()}
    assert len(whole) == 2, "two images fit the batch"
    real, made = fud_sampling._records, []

    def counted(*args: Any) -> Any:
        made.append(args)
        if len(made) == 4:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(fud_sampling, "_records", counted)
    with pytest.raises(KeyboardInterrupt):
        fud_sampling.sample(opened(), "lime")
    assert {path.name: path.read_bytes() for path in fud_sampling.folder_of(TASK, "lime").iterdir()} == whole, "the old is whole"
    monkeypatch.setattr(fud_sampling, "_records", real)
    computed: list[int] = []
    run_shards = engine.run_shards
    monkeypatch.setattr(engine, "run_shards", lambda *args, **settings: computed.append(run_shards(*args, **settings)))
    fud_sampling.sample(opened(), "lime")
    assert computed == [1], "the first group of images was there"
    assert {path.name: path.read_bytes() for path in fud_sampling.folder_of(TASK, "lime").iterdir()} == whole


def test_a_map_that_orders_nothing_is_null_and_counted(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fud_sampling.candidate_maps

    def some_flat(*args: Any) -> torch.Tensor:
        maps = real(*args).clone()
        maps[0], maps[1, 0, 0] = 3.0, torch.nan
        return maps

    monkeypatch.setattr(fud_sampling, "candidate_maps", some_flat)
    fud_sampling.sample(opened(), "lime")
    frame = records("lime")
    own = frame.filter((pl.col("sampler") == MAIN) & (pl.col("ordering") == "own")).sort("sample_id")
    assert own["prob"].is_null().to_list() == [True] * 6 + [False] * 6
    run_stage_script(here, "fud_score", TASK)
    score = read_json(f"reports/fud/{TASK}.json")["methods"]["lime"]["score"]
    assert (score["n"], score["null"]) == (2, 2)
    monkeypatch.setattr(fud_sampling, "candidate_maps", lambda *args: torch.zeros_like(real(*args)))
    with pytest.raises(ArtifactError, match=r"lime has no map of samples .* that orders anything"):
        fud_sampling.sample(opened(), "lime")


def test_the_class_is_the_predicted_one_or_the_label_as_asked(here: Path) -> None:
    """Spec mutation: label against prediction. One image is called otherwise than it is labelled."""
    task = opened()
    first = int(task.samples.index("test")[0])
    task.samples.label[first] = 1 - task.explained[first]
    assert int(fud_sampling.open_stage(task).scene.targets[0]) == int(task.explained[first])
    raw = yaml.safe_load(Path("params.yaml").read_text())
    raw["fud"]["image"]["target"] = "label"
    Path("params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    other = opened()
    other.samples.label[first] = 1 - other.explained[first]
    assert int(fud_sampling.open_stage(other).scene.targets[0]) == 1 - int(other.explained[first])


def test_a_method_that_does_not_fit_says_so(here: Path) -> None:
    write_misfit(workspace.attribution_folder(TASK, "lime"), "no reason", {**opened().metadata(), "method": "lime"})
    fud_sampling.sample(opened(), "lime")
    assert [path.name for path in fud_sampling.folder_of(TASK, "lime").iterdir()] == ["does_not_fit.json"]
    run_stage_script(here, "fud_score", TASK)
    result = read_json(f"reports/fud/{TASK}.json")
    assert result["misfits"] == {"lime": "no reason"}
    assert "lime" not in result["methods"]


def test_a_score_model_of_another_target_is_refused(here: Path) -> None:
    path = score_models.folder_of(TASK) / "model.json"
    path.write_text(path.read_text().replace(opened().target.sha256, "f" * 64))
    with pytest.raises(ArtifactError, match=r"was made beside another target \(ffffffffffff, not"):
        fud_sampling.open_stage(opened())


def test_a_missing_score_model_names_the_command(here: Path) -> None:
    shutil.rmtree(score_models.folder_of(TASK))
    with pytest.raises(ArtifactError, match="dvc repro"):
        fud_sampling.open_stage(opened())


# ------------------------------------------------------------------------------------------------------------------ scores


def test_the_result_has_the_promised_schema(here: Path) -> None:
    result = read_json(f"reports/fud/{TASK}.json")
    methods = result["methods"]
    assert set(methods) == {"integrated_gradients", "lime", "deepfaith", "random", "another", "inverse", "edge"}
    for name, row in methods.items():
        assert row["role"] in ("supervision", "explainer", "control"), name
        for key in ("score", "tau"):
            assert {"mean", "low", "high"} <= set(row[key]), name
        assert row["score"]["low"] <= row["score"]["mean"] <= row["score"]["high"]
        assert (row["calibrated"] is None) == (row["role"] == "control"), name
    assert methods["random"]["above_random"]["mean"] == 0
    assert set(result["evidence"]) == {"fud", "ins_del", "ins_del_blur", "sensitivity_n", "infid", "road"}
    for rival, row in result["evidence"].items():
        assert 0 <= row["auroc"] <= 1, rival
        assert 0 <= row["fpr95"] <= 1, rival
        assert {"psnr", "ssim", "ms_ssim", "fsim", "gmsd", "haarpsi", "vsi"} <= set(row), rival
    count = result["evidence"]["fud"]["images"]
    assert count == 3 * 4 * 3
    assert result["evidence"]["infid"]["images"] == result["evidence"]["sensitivity_n"]["images"] == count, "as many for each"
    assert result["hard_vs_soft"]["hard"].keys() == result["hard_vs_soft"]["soft"].keys()
    assert result["hard_vs_soft"]["hard"] != result["hard_vs_soft"]["soft"]
    assert len(result["chain"]["steps"]) == 50
    assert result["samplers"]["unguided"]["gradients"] == 0
    assert result["reference"] is None


def test_a_score_is_the_mean_confidence_of_its_rows(here: Path) -> None:
    result = read_json(f"reports/fud/{TASK}.json")["methods"]
    for name in ("lime", "deepfaith"):
        frame = records(name).filter(pl.col("sampler") == MAIN)
        for ordering, key in (("own", "score"), ("matched_random", "matched_random")):
            assert result[name][key]["mean"] == pytest.approx(
                frame.filter(pl.col("ordering") == ordering)["prob"].mean(), rel=1e-5
            )


def test_missing_rows_are_refused(here: Path) -> None:
    part = sorted(fud_sampling.folder_of(TASK, "lime").iterdir())[0]
    part.unlink()
    with pytest.raises(SystemExit, match=rf"error: data/fud/{TASK}: \d+ rows of prob, \d+ expected: run `dvc repro`"):
        run_stage_script(here, "fud_score", TASK)


def test_a_stranger_is_refused(here: Path) -> None:
    shutil.copytree(fud_sampling.folder_of(TASK, "lime"), fud_sampling.folder_of(TASK, "guess"))
    with pytest.raises(SystemExit, match=r"holds \['guess'\], which params.yaml does not name"):
        run_stage_script(here, "fud_score", TASK)


def test_tables_are_judged_by_a_copula(here: Path) -> None:
    result = read_json("reports/fud/tiny_table.json")
    assert result["kind"] == "table"
    fud = config.load().fud.table
    assert set(result["methods"]) == {*fud.methods, *fud.explainers, "random", "another", "inverse"}
    assert result["conventions"]["kept_columns"] == [3, 2, 1]
    methods = result["methods"]
    assert methods["integrated_gradients"]["score"]["mean"] > methods["inverse"]["score"]["mean"]
    frame = read_table(Path("data/fud/tiny_table/records.parquet"))
    own = frame.filter(pl.col("candidate") == "kernel_shap")
    assert len(own) == 10 * 3
    assert methods["kernel_shap"]["score"]["mean"] == pytest.approx(own["prob"].mean(), rel=1e-5)


def test_a_chain_that_is_called_cleaner_than_clean_is_told_apart_too() -> None:
    """A classifier that is surer of noise than of images: the AUROC climbs from 0 to 0.5 and ends between the sets."""
    curves = fud_experiments.told_apart(
        np.array([[0.0, 0.0, 0.1, 0.45, 0.5], [1.0, 1.0, 0.9, 0.55, 0.5], [1.0, 0.6, 0.5, 0.5, 0.5]])
    )
    assert curves[0].tolist() == pytest.approx(curves[1].tolist())
    assert fud_experiments._half_way(curves).tolist() == pytest.approx([0.4, 0.4, 0.8])
