"""The schema of params.yaml: what it accepts, and how it says no."""

import copy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from faithline import config

ROOT = Path(__file__).parents[2]
PRESETS = ["params.yaml", *(f"params/{name}.yaml" for name in ("smoke", "sensitivity", "full", "paper", "photos", "photos_gpu"))]


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(ROOT)
    return yaml.safe_load((ROOT / "params/smoke.yaml").read_text())


def put(raw: dict[str, Any], key: str, value: Any) -> str:
    """The YAML text with one dotted key set."""
    changed = copy.deepcopy(raw)
    *parents, leaf = key.split(".")
    place = changed
    for part in parents:
        place = place[part]
    place[leaf] = value
    return yaml.safe_dump(changed, sort_keys=False)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_validate(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config.parse((ROOT / preset).read_text(), preset)


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("seed", "abc", "valid integer"),
        ("seed", -1, "greater than or equal to 0"),
        ("curate.quantile", 1.7, "less than 0.5"),
        ("curate.quantile", float("nan"), "finite"),
        ("curate.cosine", 0, "greater than 0"),
        ("curate.on_empty", "ignore", "'best_mean_rank' or 'drop'"),
        ("evaluate.metrics", ["fc", "auc"], "Input should be"),
        ("evaluate.metrics", [], "at least 1"),
        ("evaluate.bootstrap", 1, "greater than or equal to 100"),
        ("tasks.digits_cnn.game.max_batch", 0, "greater than or equal to 1"),
        ("tasks.digits_cnn.bank.exact", "perhaps", "boolean"),
        ("image.methods.integrated_gradients.steps", 0, "greater than or equal to 1"),
        ("image.methods.integrated_gradients.role", "teacher", "'supervision', 'baseline' or 'reference'"),
        ("metrics.min_prob", 1, "less than 1"),
    ],
)
def test_wrong_value_names_key_value_and_rule(raw: dict[str, Any], key: str, value: Any, rule: str) -> None:
    with pytest.raises(config.ConfigError) as error:
        config.parse(put(raw, key, value))
    lines = str(error.value).splitlines()
    assert lines[0] == f"params.yaml: {len(lines) - 1} invalid value(s); nothing was run"
    assert any(line.strip().startswith(key) and rule in line for line in lines[1:]), str(error.value)


@pytest.mark.parametrize(
    "key", ["curate.quantil", "image.methods.integrated_gradients.stepz", "tasks.digits_cnn.game.bacth", "extra"]
)
def test_unknown_key_is_refused(raw: dict[str, Any], key: str) -> None:
    with pytest.raises(config.ConfigError, match=rf"{key} = 1: Extra inputs are not permitted"):
        config.parse(put(raw, key, 1))


def test_missing_key_is_refused(raw: dict[str, Any]) -> None:
    del raw["curate"]["cosine"]
    with pytest.raises(config.ConfigError, match=r"curate\.cosine: Field required"):
        config.parse(yaml.safe_dump(raw))


def test_all_faults_at_once(raw: dict[str, Any]) -> None:
    raw["seed"] = "abc"
    raw["curate"]["quantile"] = 1.7
    raw["image"]["methods"]["saliency_map"] = {"role": "supervision"}
    with pytest.raises(config.ConfigError) as error:
        config.parse(yaml.safe_dump(raw))
    for key in ("seed", "curate.quantile", "image.methods.saliency_map"):
        assert key in str(error.value)
    assert "3 invalid value(s)" in str(error.value)


def test_bad_name_is_refused_with_a_usable_key(raw: dict[str, Any]) -> None:
    raw["image"]["explainers"]["Deep-Faith"] = next(iter(raw["image"]["explainers"].values()))
    with pytest.raises(config.ConfigError, match=r"image\.explainers\.Deep-Faith = 'Deep-Faith': .*pattern"):
        config.parse(yaml.safe_dump(raw))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tasks.digits_cnn.source", "src/faithline/tasks/nowhere.py", r"tasks.digits_cnn.source.*no such file"),
        ("image.tasks", [], r"image.tasks = \[\]: must list exactly the image tasks"),
        ("image.methods.lime.masks", 10**6, r"image.methods.lime.masks = 1000000: must be <= tasks.digits_cnn.bank.fitting"),
        ("report.reference", "grad_cam", r"report.reference = 'grad_cam': must be one of"),
        ("tasks.digits_cnn.dataset.supervised", 10**6, r"tasks.digits_cnn.dataset: supervised .* must be <= train"),
        ("tasks.digits_cnn.game.baseline", "pad", r"tasks.digits_cnn: game.baseline=pad does not fit a image task"),
        (
            "tasks.digits_cnn.bank.training_laws",
            ["singles"],
            r"tasks.digits_cnn.bank: training_laws = \['singles'\]: must name bernoulli",
        ),
        ("tasks.digits_cnn.bank.training_laws", ["bernoulli", "bernoulli"], r"bank: training_laws = .* and no law twice"),
        (
            "curate.leader",
            "best_mean_rank",
            r"curate.leader = 'best_mean_rank': needs the sweeps of all maps",
        ),
        (
            "image.refinements.deepfaith_refined.explainer",
            "nobody",
            r"deepfaith_refined.explainer = 'nobody': must be one",
        ),
        (
            "image.refinements.deepfaith_refined.masks",
            10**6,
            r"refined.masks = 1000000: must be <= tasks.digits_cnn.bank",
        ),
        ("image.explainers.deepfaith.heads", 5, r"image.explainers.deepfaith: width .* must be a multiple of heads"),
        ("image.explainers.deepfaith.masks_per_step", 10**6, r"masks_per_step = 1000000: must be <= tasks.digits_cnn.bank"),
    ],
)
def test_sections_that_disagree(raw: dict[str, Any], key: str, value: Any, message: str) -> None:
    raw["curves"]["skip_duplicates"] = True
    raw["image"]["methods"].setdefault("lime", {"role": "supervision", "masks": 8, "kernel_width": 0.5, "ridge": 0.01})
    with pytest.raises(config.ConfigError, match=message.replace("[]", r"\[\]")):
        config.parse(put(raw, key, value))


def test_method_and_explainer_may_not_share_a_name(raw: dict[str, Any]) -> None:
    raw["image"]["explainers"]["integrated_gradients"] = raw["image"]["explainers"]["deepfaith"]
    with pytest.raises(config.ConfigError, match="a method has the same name"):
        config.parse(yaml.safe_dump(raw))


def _rival(own: dict[str, Any], module: str) -> dict[str, Any]:
    shared = {
        key: value for key, value in own.items() if key not in ("head", "objective", "singles", "ema", "masks_per_step", "alpha")
    }
    return {**shared, "module": module}


@pytest.mark.parametrize(
    ("module", "law"),
    [("fastshap", "shapley_kernel"), ("vit_shapley", "shapley_kernel"), ("cxplain", "singles"), ("l2x", None), ("vert", None)],
)
def test_a_module_says_which_keys_and_masks_it_needs(raw: dict[str, Any], module: str, law: str | None) -> None:
    own = {
        "fastshap": {"masks_per_step": 8},
        "vit_shapley": {"masks_per_step": 8, "surrogate": {"epochs": 1, "batch": 8, "learning_rate": 1e-4}},
        "cxplain": {},
        "l2x": {"subset": 4, "temperature": 0.5},
        "vert": {"sparsity": 0.1, "copy_learning_rate": 1e-4},
    }[module]
    raw["tasks"]["digits_cnn"]["bank"]["training_laws"] = ["bernoulli"]
    for explainer in raw["image"]["explainers"].values():
        explainer["singles"] = 0.0
    entry = {**_rival(raw["image"]["explainers"]["deepfaith"], module), **own}
    raw["image"]["explainers"]["rival"] = entry
    if law is not None:
        with pytest.raises(config.ConfigError, match=rf"image\.explainers\.rival\.module = '{module}': needs {law} in tasks"):
            config.parse(yaml.safe_dump(raw))
        raw["tasks"]["digits_cnn"]["bank"]["training_laws"].append(law)
    assert config.parse(yaml.safe_dump(raw)).image.explainers["rival"].module == module
    entry["objective"] = "full"
    with pytest.raises(config.ConfigError, match=r"image\.explainers\.rival\.objective = 'full': Extra inputs"):
        config.parse(yaml.safe_dump(raw))
    del entry["objective"], entry["width"]
    with pytest.raises(config.ConfigError, match=r"image\.explainers\.rival\.width: Field required"):
        config.parse(yaml.safe_dump(raw))


def test_single_removals_need_their_masks(raw: dict[str, Any]) -> None:
    raw["tasks"]["digits_cnn"]["bank"]["training_laws"] = ["bernoulli"]
    for explainer in raw["image"]["explainers"].values():
        explainer["singles"] = 0.0
    config.parse(yaml.safe_dump(raw))
    raw["image"]["explainers"]["deepfaith"]["singles"] = 0.2
    with pytest.raises(
        config.ConfigError, match=r"image\.explainers\.deepfaith\.singles = 0\.2: needs singles in tasks\.digits_cnn"
    ):
        config.parse(yaml.safe_dump(raw))


def test_an_unknown_module_is_refused_with_those_there_are(raw: dict[str, Any]) -> None:
    raw["image"]["explainers"]["deepfaith"]["module"] = "magic"
    with pytest.raises(config.ConfigError, match=r"image\.explainers\.deepfaith: .*'magic'.*'fastshap'"):
        config.parse(yaml.safe_dump(raw))


def test_key_given_twice_is_refused() -> None:
    with pytest.raises(config.ConfigError, match="key 'seed' is given twice"):
        config.parse("seed: 0\nseed: 1\n")


@pytest.mark.parametrize("text", ["", "- 1\n", "just words", "a: [1"])
def test_not_a_mapping(text: str) -> None:
    with pytest.raises(config.ConfigError):
        config.parse(text)


def test_exponent_without_dot_is_a_number(raw: dict[str, Any]) -> None:
    text = yaml.safe_dump(raw).replace(f"min_prob: {raw['metrics']['min_prob']}", "min_prob: 1e-3")
    assert config.parse(text).metrics.min_prob == 1e-3


def test_methods_keep_the_order_of_the_file(raw: dict[str, Any]) -> None:
    methods = raw["image"]["methods"]
    raw["image"]["methods"] = dict(reversed(methods.items()))
    assert config.parse(yaml.safe_dump(raw, sort_keys=False)).image.methods.names() == list(reversed(methods))


def test_values_cannot_be_changed(raw: dict[str, Any]) -> None:
    params = config.parse(yaml.safe_dump(raw))
    with pytest.raises(ValueError, match="frozen"):
        params.seed = 3  # type: ignore[misc]


def sections(model: type[BaseModel], seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    """All sections below a section."""
    if model in seen:
        return seen
    seen.add(model)
    for field in model.model_fields.values():
        todo = [field.annotation]
        while todo:
            kind = todo.pop()
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                sections(kind, seen)
            todo += list(getattr(kind, "__args__", ()))
    return seen


def test_no_value_has_a_default() -> None:
    """This earns config.py its exemption from the deps of stages: all that changes behaviour stands in params.yaml."""
    found = sections(config.Params, set())
    assert len(found) > 20
    for section in found - {config.Methods}:  # a method left out is a column left out, not a value
        optional = [name for name, field in section.model_fields.items() if not field.is_required()]
        assert not optional, f"{section.__name__}: {optional}"
    assert all(field.default is None for field in config.Methods.model_fields.values())
    assert all(section.model_config["extra"] == "forbid" for section in found)


def test_error_is_quick_and_before_torch(tmp_path: Path, raw: dict[str, Any]) -> None:
    (tmp_path / "params.yaml").write_text(put(raw, "curate.quantile", 1.7))
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "faithline.config"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert time.perf_counter() - start < 5
    assert done.returncode == 1
    assert "curate.quantile = 1.7: Input should be less than 0.5" in done.stderr
    for heavy in ("torch", "polars", "pyarrow", "numpy"):
        assert f" {heavy}\n" not in done.stderr


# ------------------------------------------------------------------------------------------------------- kinds of sections

IMAGES = {
    "train": 9,
    "supervised": 3,
    "validation": 2,
    "test": 2,
    "augmented": 0,
    "path": "photos",
    "image_size": 64,
    "patch": 16,
}
TIMM = {
    "epochs": 0,
    "batch": 2,
    "learning_rate": 0.1,
    "weight_decay": 0.0,
    "dropout": 0.0,
    "layers": ["norm"],
    "architecture": "a",
}
CHECKPOINT = {"path": "a.safetensors", "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("section", "more", "kind"),
    [
        ("dataset", {}, config.DatasetSettings),
        ("dataset", {"path": "a.csv"}, config.TableFileSettings),
        ("dataset", {"path": "a", "length": 9, "min_count": 2}, config.TextFileSettings),
        ("dataset", {"path": "a", "image_size": 64, "patch": 16}, config.ImageFolderSettings),
        ("target", {}, config.TargetSettings),
        ("target", {"checkpoint": None}, config.CheckpointTargetSettings),
        ("target", {"checkpoint": CHECKPOINT, "architecture": "lstm"}, config.TextTargetSettings),
    ],
)
def test_the_keys_tell_the_kind(raw: dict[str, Any], section: str, more: dict[str, Any], kind: type) -> None:
    given = {**raw["tasks"]["digits_cnn"][section], **more}
    params = config.parse(put(raw, f"tasks.digits_cnn.{section}", given))
    assert type(getattr(params.tasks["digits_cnn"], section)) is kind
    assert getattr(params.tasks["digits_cnn"], section).model_dump() == given


def test_a_model_of_timm_has_no_width(raw: dict[str, Any]) -> None:
    params = config.parse(put(raw, "tasks.digits_cnn.target", {**TIMM, "checkpoint": CHECKPOINT}))
    assert type(params.tasks["digits_cnn"].target) is config.TimmTargetSettings
    del (pretrained := dict(TIMM))["architecture"]
    params = config.parse(put(raw, "tasks.digits_cnn.target", pretrained))
    assert type(params.tasks["digits_cnn"].target) is config.TrainingSettings
    assert config.target_settings({**TIMM, "checkpoint": CHECKPOINT}).architecture == "a"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("section", "given", "message"),
    [
        ("dataset", {**IMAGES, "patch": 15}, r"tasks.digits_cnn.dataset: image_size \(64\) must be a multiple of patch \(15\)"),
        ("dataset", {**IMAGES, "path": ""}, r"tasks.digits_cnn.dataset.path = '': String should have at least 1"),
        ("dataset", {**IMAGES, "length": 3}, r"tasks.digits_cnn.dataset.length = 3: Extra inputs are not permitted"),
        (
            "target",
            {**TIMM, "checkpoint": None},
            r"tasks.digits_cnn.target: epochs = 0 without a checkpoint would explain random",
        ),
        ("target", {**TIMM, "checkpoint": {**CHECKPOINT, "sha256": "12"}}, r"tasks.digits_cnn.target.checkpoint.sha256 = '12': "),
        ("target", TIMM, r"tasks.digits_cnn.target.checkpoint: Field required"),
        ("target", 5, r"tasks.digits_cnn.target = 5: Input should be a valid dictionary"),
        ("dataset", None, r"tasks.digits_cnn.dataset = None: Input should be a valid dictionary"),
        ("target", {**TIMM, "width": 3, "depth": 1, "checkpoint": None}, r"target.architecture = 'a': Input should be 'lstm' or"),
    ],
)
def test_what_a_kind_does_not_allow(raw: dict[str, Any], section: str, given: Any, message: str) -> None:
    with pytest.raises(config.ConfigError, match=message):
        config.parse(put(raw, f"tasks.digits_cnn.{section}", given))


def test_a_variant_of_the_sampler_obeys_its_rules_too(raw: dict[str, Any]) -> None:
    """Each sampler is checked, not the first alone: the trained score model has no variance to give."""
    raw["fud"]["image"]["variants"] = {"learned": {"variance": "learned_range"}, "odd": {"langevin_levels": [5, 50]}}
    with pytest.raises(config.ConfigError) as caught:
        config.parse(yaml.safe_dump(raw))
    assert "variants.learned.variance = learned_range: the trained score model learns none" in str(caught.value)
    assert "langevin_levels fall" in str(caught.value)
