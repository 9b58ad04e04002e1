"""The grid of the sensitivity study, what is collected of it, and what is said when something is missing."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from faithline import config, sensitivity
from faithline.config import Params
from faithline.errors import ArtifactError
from faithline.sensitivity import ABLATIONS, FACTORS

PRESET = "params/sensitivity.yaml"


@pytest.fixture(scope="module")
def preset() -> Params:
    return config.load(PRESET)


def leaves(values: Any, prefix: str = "") -> dict[str, Any]:
    """Values by dotted key."""
    if not isinstance(values, dict):
        return {prefix.strip("."): values}
    return {key: leaf for name, value in values.items() for key, leaf in leaves(value, f"{prefix}.{name}").items()}


def test_every_variant_is_a_valid_params_file_that_differs_in_its_own_keys_only(preset: Params) -> None:
    experiments, _ = sensitivity.plan(preset)
    before = leaves(preset.model_dump())
    for name, changes in experiments.items():
        after = leaves(sensitivity.varied(preset, changes).model_dump())
        assert {key for key in before | after if before.get(key) != after.get(key)} == set(changes), name
        assert all(after[key] == value for key, value in changes.items()), name


def test_every_factor_reaches_every_task_and_takes_the_value_of_the_preset(preset: Params) -> None:
    experiments, points = sensitivity.plan(preset)
    for factor in FACTORS:
        rows = [point for point in points if point.factor == factor.name]
        assert tuple(row.value for row in rows) == factor.values == tuple(sorted(set(factor.values)))
        usual = [row.value for row in rows if row.experiment is None]
        assert usual == [sensitivity.preset_value(factor, preset)], "the preset's own run answers for its value, once"
        for row in rows:
            if row.experiment is not None:
                keys = set(experiments[row.experiment])
                assert set(experiments[row.experiment].values()) == {row.value}
                per_task = [{"task": task, "modality": settings.modality} for task, settings in preset.tasks.items()]
                assert keys == {key.format(**words) for key in factor.keys for words in per_task}
    assert len(preset.tasks) == 2


def test_the_paper_s_constants_and_ablations_are_all_there(preset: Params) -> None:
    _, points = sensitivity.plan(preset)
    assert [factor.symbol for factor in FACTORS] == ["k", "δ", "p", "ε", "e", "C"]
    ablations = {point.value: point.experiment for point in points if point.factor == "ablation"}
    assert list(ablations) == ["full", "pattern", "local", "dedup", "filter", "leader", "weights", "soft"]
    assert ablations["full"] is None
    # An ablation that a factor's value also is, is run once.
    assert (ablations["dedup"], ablations["filter"]) == ("p-0.0", "delta-1.0")


def test_names_are_names_of_git_refs_and_no_two_experiments_are_equal(preset: Params) -> None:
    experiments, points = sensitivity.plan(preset)
    assert all(name.replace("-", "").replace(".", "").isalnum() for name in experiments)
    assert len({json.dumps(changes, sort_keys=True) for changes in experiments.values()}) == len(experiments)
    assert {point.experiment for point in points} == {None, *experiments}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda raw: raw["curate"].update(quantile=0.25), r"the preset has p = \['0.25'\]: must be one of \(0.0, 0.1"),
        (lambda raw: raw["table"]["explainers"]["deepfaith"].update(masks_per_step=16), r"the preset has k = \['16', '32'\]"),
        (
            lambda raw: raw["image"]["explainers"].update(other=raw["image"]["explainers"].pop("deepfaith")),
            "the preset has no image.explainers.deepfaith.masks_per_step",
        ),
    ],
)
def test_a_preset_that_is_not_on_the_grid_is_refused(edit: Any, message: str) -> None:
    raw = yaml.safe_load(Path(PRESET).read_text())
    edit(raw)
    with pytest.raises(ArtifactError, match=message):
        sensitivity.plan(config.parse(yaml.safe_dump(raw)))


def test_a_variant_with_a_bad_value_or_key_is_refused(preset: Params) -> None:
    with pytest.raises(config.ConfigError, match=r"curate\.quantile = 0\.7"):
        sensitivity.varied(preset, {"curate.quantile": 0.7})
    with pytest.raises(ArtifactError, match=r"no curate\.quantil"):
        sensitivity.varied(preset, {"curate.quantil": 0.1})


# ------------------------------------------------------------------------------------------------------------ collection


def result(task: str, rank: float) -> dict[str, str]:
    """Result files of one run, as `evaluate` and `curate` write them; nothing here was measured."""
    interval = {"mean": rank / 10, "low": rank / 10 - 0.01, "high": rank / 10 + 0.01, "n": 9, "null": 0}
    ranked = {"mean_rank": rank, "mean_rank_low": rank - 1, "mean_rank_high": rank + 1}
    row = {"role": "explainer", **ranked, "metrics": dict.fromkeys(("inf", "del", "ins", "fc"), interval)}
    evaluation = {"n_test": 9, "candidates": {"deepfaith": row, "lime": row, "oracle_prior": {**row, "role": "reference"}}}
    counts = {"lime": {"maps": 10, "taught": 3}, "saliency": {"maps": 10, "taught": 0}}
    return {
        f"reports/evaluation/{task}.json": json.dumps(evaluation),
        f"reports/curate/{task}.json": json.dumps({"methods": counts}),
    }


class Revision:
    """Files of a commit, in the place of `dvc.api.DVCFileSystem`."""

    def __init__(self, rev: str) -> None:
        rank = {"HEAD": 1.0, "rev of k-8": 2.0}.get(rev, 3.0)
        self.files = result("affairs_mlp", rank) | result("digits_cnn", rank)

    def read_text(self, path: str) -> str:
        return self.files[path]


def test_collect_writes_a_row_for_every_value_and_task(preset: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiments, points = sensitivity.plan(preset)
    monkeypatch.setattr(sensitivity, "_finished", lambda: {name: f"rev of {name}" for name in experiments})
    monkeypatch.setattr("dvc.api.DVCFileSystem", Revision)
    sensitivity.collect(preset, tmp_path / "results.json")
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["params_sha256"] == preset.sha256()
    assert "rev of" not in json.dumps(found), "the same results give the same file, whatever the commits are called"
    rows = {(row["factor"], row["value"], row["task"]): row for row in found["rows"]}
    assert len(rows) == len(found["rows"]) == 2 * len(points)
    assert rows["k", 32, "digits_cnn"]["mean_rank"] == {"mean": 1.0, "low": 0.0, "high": 2.0}, "the preset's run"
    assert rows["ablation", "full", "digits_cnn"]["mean_rank"]["mean"] == 1.0
    assert rows["k", 8, "affairs_mlp"]["metrics"]["inf"] == {"mean": 0.2, "low": 0.19, "high": 0.21}
    assert rows["k", 8, "affairs_mlp"]["taught"] == 0.15
    assert rows["k", 8, "affairs_mlp"]["candidates"] == 2, "references are no rivals"
    assert {factor["name"]: factor["preset"] for factor in found["factors"]} == {
        factor.name: sensitivity.preset_value(factor, preset) for factor in FACTORS
    }
    assert [ablation["name"] for ablation in found["ablations"]] == [ablation.name for ablation in ABLATIONS]


def test_missing_experiments_are_an_error_that_names_them_and_nothing_is_written(
    preset: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiments, _ = sensitivity.plan(preset)
    there = {name: f"rev of {name}" for name in experiments if name not in ("k-8", "ablation-local")}
    monkeypatch.setattr(sensitivity, "_finished", lambda: there)
    monkeypatch.setattr("dvc.api.DVCFileSystem", Revision)
    message = rf"2 of {len(experiments)} experiments have no result: k-8, ablation-local; nothing was written"
    with pytest.raises(ArtifactError, match=message):
        sensitivity.collect(preset, tmp_path / "results.json")
    assert not list(tmp_path.iterdir())


def test_queue_leaves_out_what_has_finished_and_checks_all_before(preset: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr("dvc.cli.main", lambda words: calls.append(words) or 0)
    monkeypatch.setattr(sensitivity, "_finished", lambda: {"k-8": "rev"})
    sensitivity.queue(preset)
    experiments, _ = sensitivity.plan(preset)
    queued = {words[words.index("--name") + 1]: words for words in calls if "--queue" in words}
    assert set(queued) == set(experiments) - {"k-8"}
    assert "curate.quantile=0.0" in queued["p-0.0"]
    assert queued["p-0.0"][-1] == "evaluate"
    assert calls.index(queued["p-0.0"]) > calls.index(["queue", "remove", "--queued", "--failed"])

    calls.clear()
    monkeypatch.setattr(sensitivity, "varied", lambda *_: (_ for _ in ()).throw(ArtifactError("bad")))
    with pytest.raises(ArtifactError, match="bad"):
        sensitivity.queue(preset)
    assert not calls


def test_dvc_that_fails_stops_the_queueing(preset: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dvc.cli.main", lambda words: 255 if "--queue" in words else 0)
    monkeypatch.setattr(sensitivity, "_finished", dict)
    with pytest.raises(SystemExit, match=r"error: `dvc exp run --queue --name k-8` ended with 255"):
        sensitivity.queue(preset)


@pytest.mark.parametrize("words", [[], ["collect"], ["queue", "more"]])
def test_a_wrong_call_says_how(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["sensitivity", *words])
    with pytest.raises(SystemExit, match=r"usage: python -m faithline\.sensitivity queue \| collect FILE"):
        runpy.run_path(sensitivity.__file__, run_name="__main__")
