"""Target models: networks, seeded training, saving, loading and what is refused."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
import torch.nn.functional as F
from captum.attr import DeepLift
from sklearn.metrics import roc_auc_score
from torch import nn

from faithline import targets
from faithline.artifacts import file_sha256, read_json, read_table
from faithline.config import BaselineSettings, TaskSettings
from faithline.dataset import Samples
from faithline.errors import ArtifactError
from faithline.masking import ClassValues, column_features, patch_features, token_features
from faithline.targets import MLP, SmallCNN, TextTransformer

USER_TASK = '''
"""A task outside the package."""
import numpy as np, torch
from torch import nn
from faithline.dataset import Samples
from faithline.masking import column_features
MODALITY = "table"
CLASSES = 3
def load_samples(settings, seed):
    x = torch.randn(90, 4, generator=torch.Generator().manual_seed(seed))
    split = np.array(["train", "validation", "test"])[np.arange(90) % 3]
    label = torch.bucketize(x[:, 0] + x[:, 1], torch.tensor([-0.7, 0.7]))
    return Samples(x, label, split, split == "train", column_features(4), ("a", "b", "c"), ("p", "q", "r", "s"), {}, "made")
def build_target(settings, samples):
    return nn.Sequential(nn.Linear(4, settings.width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(settings.width, CLASSES))
'''


def settings(source: str | Path, epochs: int = 5, modality: str = "table") -> TaskSettings:
    return TaskSettings.model_validate(
        {
            "modality": modality,
            "source": str(source),
            "dataset": {"train": 30, "supervised": 30, "validation": 30, "test": 30, "augmented": 0},
            "target": {
                "epochs": epochs,
                "batch": 8,
                "learning_rate": 0.02,
                "weight_decay": 0.01,
                "dropout": 0.2,
                "width": 16,
                "depth": 1,
                "layers": ["0"],
            },
            "game": {"baseline": "zero", "insertion_baseline": "same", "output": "prob", "steps": 4, "max_batch": 32},
            "bank": {
                "exact": False,
                "fitting": 8,
                "training": 8,
                "training_laws": ["bernoulli"],
                "evaluation": 8,
                "reference": 8,
                "fixed_size_fraction": 0.5,
            },
        }
    )


BASELINES = BaselineSettings.model_validate({"blur": {"sigma": 1.0}, "noise": {"std": 0.5}, "background": {"rows": 6}})


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def source(tmp_path, monkeypatch) -> str:
    """A user's task file; the current folder is its folder, since params name files relative to it."""
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "own.py").write_text(USER_TASK)
    monkeypatch.chdir(tmp_path)
    return "user/own.py"


def train(task: TaskSettings, seed: int = 0) -> tuple[nn.Module, Samples, list[dict[str, float]]]:
    samples = targets.load_samples(task, 0)
    model = targets.build_model(task, samples, seed)
    return model, samples, targets.train_target(model, samples, task.target, seed)


def save(source: str, folder: str = "target", seed: int = 0) -> Samples:
    task = settings(source)
    model, samples, history = train(task, seed)
    targets.save_target(folder, model, samples, task, seed, history)
    return samples


# --------------------------------------------------------------------------------------------------------------- networks


def networks() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    torch.manual_seed(0)
    ids = torch.randint(1, 20, (3, 9))
    ids[1, 4:] = 0
    text = TextTransformer(20, 9, 2, width=16, depth=2, heads=2, dropout=0.5, token_dropout=0.5, pad_id=0)
    return {
        "table": (MLP(6, 3, width=8, depth=2, dropout=0.5), torch.randn(3, 6)),
        "image": (SmallCNN(1, 28, 10, width=4, depth=4, dropout=0.5), torch.rand(3, 1, 28, 28)),
        "text": (text, ids),
    }


@pytest.mark.parametrize("kind", ["table", "image", "text"])
def test_networks_give_logits_and_are_deterministic_in_eval_only(kind):
    model, x = networks()[kind]
    classes = {"table": 3, "image": 10, "text": 2}[kind]
    assert model.eval()(x).shape == (3, classes)
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


@pytest.mark.parametrize("kind", ["table", "image", "text"])
def test_every_relu_and_softmax_is_used_once_a_forward(kind):
    model, x = networks()[kind]
    calls: dict[str, int] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.ReLU | nn.Softmax):
            module.register_forward_hook(lambda *_, name=name: calls.__setitem__(name, calls.get(name, 0) + 1))
    model.eval()(x)
    assert calls
    assert set(calls.values()) == {1}


@pytest.mark.parametrize("kind", ["table", "image"])
def test_deeplift_is_complete_on_the_networks(kind):
    model, x = networks()[kind]
    baseline = torch.zeros_like(x)
    maps = DeepLift(ClassValues(model.eval(), "logit")).attribute(x, baseline, target=1)
    difference = (model(x) - model(baseline))[:, 1]
    torch.testing.assert_close(maps.flatten(1).sum(1), difference, atol=1e-4, rtol=1e-3)


def test_the_named_parts_are_what_explainers_expect():
    found = networks()
    table, x = found["table"]
    torch.testing.assert_close(table.eval().head(table.body(x)), table(x))
    image, pixels = found["image"]
    assert image.eval().features(pixels).shape == (3, 8, 7, 7)
    text, _ = found["text"]
    assert [module for module in text.modules() if isinstance(module, nn.Embedding)] == [text.embedding]
    assert float(text.embedding.weight[0].detach().abs().sum()) == 0


def test_the_feature_map_of_small_images_is_not_halved_below_7():
    assert SmallCNN(3, 8, 2, width=4, depth=3, dropout=0.0).features(torch.rand(2, 3, 8, 8)).shape[2:] == (8, 8)
    assert SmallCNN(3, 64, 2, width=4, depth=4, dropout=0.0).features(torch.rand(2, 3, 64, 64)).shape[2:] == (8, 8)


def test_padding_changes_nothing_and_an_empty_text_is_finite():
    model, _ = networks()["text"]
    model.eval()
    short = torch.tensor([[5, 6, 7, 0, 0]])
    torch.testing.assert_close(model(short), model(F.pad(short, (0, 4))))
    torch.testing.assert_close(model(short), model(short[:, :3]))
    assert torch.isfinite(model(torch.zeros(2, 9, dtype=torch.int64))).all()


# --------------------------------------------------------------------------------------------------------------- training


def test_one_batch_of_training_moves_the_weights_and_lowers_the_loss(source):
    task = settings(source, epochs=1)
    samples = targets.load_samples(task, 0)
    model = targets.build_model(task, samples, 0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rows = samples.index("train")

    def loss() -> float:
        return F.cross_entropy(model.eval()(samples.x[rows]), samples.label[rows]).item()

    start = loss()
    one_step = task.target.model_copy(update={"batch": len(rows)})
    history = targets.train_target(model, samples, one_step, 0)
    assert len(history) == 1
    assert loss() < start
    assert all(not torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_training_learns_and_records_each_epoch(source):
    model, samples, history = train(settings(source, epochs=12))
    assert [row["epoch"] for row in history] == list(range(1, 13))
    assert history[-1]["train_loss"] < history[0]["train_loss"]
    assert not model.training
    best = max(row["validation_accuracy"] for row in history)
    assert best > 0.65
    rows = samples.index("validation")  # the weights kept are those of the best validation epoch
    assert float((model(samples.x[rows]).argmax(1) == samples.label[rows]).double().mean()) == pytest.approx(best)


def test_no_epochs_keep_the_weights_that_the_task_file_builds(source):
    model, samples, history = train(settings(source, epochs=0))
    built = targets.build_model(settings(source), samples, 0)
    assert history == []
    assert all(torch.equal(value, built.state_dict()[name]) for name, value in model.state_dict().items())


def test_the_same_seed_gives_the_same_bytes_whatever_was_drawn_before(source):
    save(source, "first")
    torch.rand(17)
    save(source, "second")
    for name in ("model.safetensors", "model.json", "predictions.parquet"):
        assert Path("first", name).read_bytes() == Path("second", name).read_bytes()
    save(source, "third", seed=1)
    assert file_sha256("first/model.safetensors") != file_sha256("third/model.safetensors")


def test_training_leaves_the_global_generator_alone(source):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(settings(source, epochs=1))
    assert torch.equal(torch.rand(3), expected)


def test_a_loss_that_is_not_finite_stops_the_training(source):
    task = settings(source)
    samples = targets.load_samples(task, 0)
    model = targets.build_model(task, samples, 0)
    nn.init.constant_(model[0].weight, float("nan"))
    with pytest.raises(ArtifactError, match="loss is not finite in epoch 1"):
        targets.train_target(model, samples, task.target, 0)


# ---------------------------------------------------------------------------------------------------- saving and loading


def test_a_loaded_target_is_the_saved_one(source):
    task = settings(source)
    model, samples, history = train(task)
    targets.save_target("target", model, samples, task, 0, history)
    target = targets.load_target("target", samples)
    assert not target.model.training
    assert torch.equal(target.model(samples.x), model(samples.x))
    assert target.sha256 == file_sha256("target/model.safetensors")
    assert target.info["source_sha256"] == file_sha256(source)
    assert target.info["settings"] == task.target.model_dump()
    assert len(target.info["history"]) == 5


def test_the_record_holds_test_accuracy_auc_and_every_prediction(source):
    samples = save(source)
    info = read_json("target/model.json")
    model = targets.load_target("target", samples).model
    with torch.no_grad():
        prob = model(samples.x).softmax(1)
    test = samples.index("test")
    hits = (prob.argmax(1) == samples.label)[test]
    assert info["accuracy"] == pytest.approx(float(hits.double().mean()), abs=1e-5)
    expected = np.mean([roc_auc_score(samples.label[test] == c, prob[test, c]) for c in range(3)])
    assert info["auc"] == pytest.approx(expected, abs=1e-5)
    assert info["majority"] == pytest.approx(float(torch.bincount(samples.label[test]).max()) / 30, abs=1e-5)
    assert (info["n_test"], info["classes"]) == (30, 3)
    table = read_table("target/predictions.parquet", {"sample_id": pl.Int64, "target": pl.Int32, "prob": pl.Float32})
    assert table["sample_id"].to_list() == list(range(90))
    assert table["target"].to_list() == prob.argmax(1).tolist()
    torch.testing.assert_close(torch.from_numpy(table["prob"].to_numpy().copy()), prob.max(1).values)


def test_a_checkpoint_with_another_class_count_is_refused(source):
    samples = save(source)
    more = replace(samples, class_names=tuple("abcdefghij"))
    with pytest.raises(ArtifactError, match="checkpoint has 3 classes, task has 10"):
        targets.load_target("target", more)


def test_a_checkpoint_for_other_inputs_is_refused(source):
    samples = save(source)
    wider = replace(samples, x=torch.randn(90, 6), features=column_features(6))
    with pytest.raises(ArtifactError, match=r"checkpoint takes inputs of shape \[4\], task has \[6\]"):
        targets.load_target("target", wider)


def test_a_task_file_that_builds_another_network_is_refused_and_named(source):
    samples = save(source)
    Path(source).write_text(USER_TASK.replace("Linear(4, settings.width)", "Linear(4, 5)").replace("settings.width, C", "5, C"))
    with pytest.raises(ArtifactError, match=r"own\.py has changed since.*0\.weight is \[16, 4\] in the checkpoint, \[5, 4\]"):
        targets.load_target("target", samples)


def test_weights_of_another_run_are_refused(source):
    samples = save(source)
    save(source, "other", seed=1)
    Path("other/model.safetensors").replace("target/model.safetensors")
    with pytest.raises(ArtifactError, match=r"is not the file that model\.json names"):
        targets.load_target("target", samples)


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
def test_a_missing_or_truncated_file_is_named(source, name):
    samples = save(source)
    path = Path("target", name)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ArtifactError, match=name):
        targets.load_target("target", samples)
    path.unlink()
    with pytest.raises(ArtifactError, match=f"{name} is missing"):
        targets.load_target("target", samples)


def test_a_target_that_gives_nan_is_not_saved(source):
    task = settings(source)
    model, samples, history = train(task)
    nn.init.constant_(model[3].bias, float("nan"))
    with pytest.raises(ArtifactError, match="NaN or infinity for 90 samples"):
        targets.save_target("target", model, samples, task, 0, history)
    assert not Path("target").exists()


# -------------------------------------------------------------------------------------------------------------- task files


def test_a_task_name_without_a_file_is_refused():
    with pytest.raises(ArtifactError, match=r"task file user/gone\.py is missing"):
        targets.load_task_module("user/gone.py")


def test_a_file_without_the_three_names_is_refused(source):
    Path("user/half.py").write_text("MODALITY = 'table'\n")
    with pytest.raises(ArtifactError, match=r"half\.py lacks load_samples, build_target: it must define"):
        targets.load_task_module("user/half.py")
    Path("user/other.py").write_text("def load_samples(s, n): ...\ndef build_target(s, n): ...\n")
    with pytest.raises(ArtifactError, match=r"other\.py lacks MODALITY"):
        targets.load_task_module("user/other.py")


def test_a_modality_that_disagrees_is_refused(source):
    Path("user/image.py").write_text(USER_TASK.replace('MODALITY = "table"', 'MODALITY = "image"'))
    with pytest.raises(ArtifactError, match=r"MODALITY is 'image', params\.yaml says modality: table"):
        targets.load_samples(settings("user/image.py"), 0)
    with pytest.raises(ArtifactError, match="features are of kind 'table', MODALITY is 'image'"):
        targets.load_samples(settings("user/image.py", modality="image"), 0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("CLASSES = 3", "CLASSES = 4", "the model gives 4 classes, the task has 3"),
        ("nn.Linear(4,", "nn.Linear(7,", r"the model does not take inputs of shape \(4,\)"),
        ("CLASSES))", "CLASSES), nn.Unflatten(1, (1, 3)))", r"must give logits of shape \(B, 3\)"),
    ],
)
def test_a_model_that_does_not_fit_the_task_is_refused_before_training(source, old, new, message):
    Path(source).write_text(USER_TASK.replace(old, new))
    task = settings(source)
    with pytest.raises(ArtifactError, match=message):
        targets.build_model(task, targets.load_samples(task, 0), 0)


# ------------------------------------------------------------------------------------------------------------------ games


def test_the_game_of_a_task_has_its_removal_and_measures(source):
    samples = save(source)
    target = targets.load_target("target", samples)
    game_settings = settings(source).game.model_copy(update={"baseline": "mean", "output": "logodds"})
    game = targets.build_game(target, samples, game_settings, BASELINES, 0)
    assert (game.model, game.output, game.max_batch) == (target.model, "logodds", 32)
    torch.testing.assert_close(game.baseline.values, samples.x[samples.index("train")].mean(0))
    assert targets.insertion_game(game, samples, game_settings, BASELINES, 0) is None
    same_words = game_settings.model_copy(update={"insertion_baseline": "mean"})
    assert targets.insertion_game(game, samples, same_words, BASELINES, 0) is None


def test_the_insertion_game_shares_the_model_and_counts_each_pass_once(source):
    samples = save(source)
    target = targets.load_target("target", samples)
    game_settings = settings(source).game.model_copy(update={"insertion_baseline": "noise"})
    game = targets.build_game(target, samples, game_settings, BASELINES, 0)
    insertion = targets.insertion_game(game, samples, game_settings, BASELINES, 0)
    assert insertion is not None
    assert (game.baseline.kind, insertion.baseline.kind) == ("zero", "noise")
    insertion.predict(samples.x)
    assert game.passes == insertion.passes == 90


def test_seeded_baselines_depend_on_the_seed_alone(source):
    samples = targets.load_samples(settings(source), 0)
    for kind in ("noise", "background"):
        first, again, other = (targets.make_baseline(kind, samples, BASELINES, seed) for seed in (0, 0, 1))
        assert torch.equal(first.values, again.values)
        assert not torch.equal(first.values, other.values)
    train_rows = {tuple(row) for row in samples.x[samples.index("train")].tolist()}
    rows = targets.make_baseline("background", samples, BASELINES, 0)
    assert rows.copies == 6
    assert {tuple(row) for row in rows.values.tolist()} <= train_rows
    many = BASELINES.model_copy(update={"background": BASELINES.background.model_copy(update={"rows": 31})})
    with pytest.raises(ArtifactError, match="the task has 30 training samples"):
        targets.make_baseline("background", samples, many, 0)


def test_image_and_text_baselines(source):
    table = targets.load_samples(settings(source), 0)
    image = replace(table, x=torch.rand(90, 3, 8, 8), features=patch_features(8, 4))
    assert targets.make_baseline("mean", image, BASELINES, 0).values is None  # each image's own mean colour
    assert targets.make_baseline("blur", image, BASELINES, 0).sigma == 1.0
    text = replace(table, features=token_features(4, 2), preprocessing={"vocabulary": ["the", "<unk>", "<pad>"]})
    assert targets.make_baseline("pad", text, BASELINES, 0).token_id == 2
    assert targets.make_baseline("mask", text, BASELINES, 0).token_id == 1
    with pytest.raises(ArtifactError, match="needs the token <unk>"):
        targets.make_baseline("mask", replace(text, preprocessing={"vocabulary": ["the"]}), BASELINES, 0)


# ----------------------------------------------------------------------------------------------------------------- stages


def test_the_stages_make_a_target_from_a_task_and_fail_in_one_line(world):
    names = {path.name for path in (world / "models/target/tiny_table").iterdir()}
    assert names == {"model.safetensors", "model.json", "predictions.parquet"}
    (world / "data/tasks/tiny_table/inputs.safetensors").unlink()
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, str(root / "stages/target.py"), "tiny_table"],
        capture_output=True,
        text=True,
        env={"PATH": "", "PYTHONPATH": str(root / "src")},
    )
    assert result.returncode == 1
    assert "inputs.safetensors is missing" in result.stderr
    assert "Traceback" not in result.stderr
    assert json.loads((world / "models/target/tiny_table/model.json").read_text())["classes"] == 2  # the old one stays


# --------------------------------------------------------------------------------------- checkpoints, kinds, more classes


def with_target(source, **changes: object) -> TaskSettings:
    raw = settings(source).model_dump()
    return TaskSettings.model_validate({**raw, "target": {**raw["target"], **changes}})


CHECKPOINT_TASK = (
    USER_TASK
    + """
from faithline.config import CheckpointTargetSettings
TARGET_SETTINGS = CheckpointTargetSettings
"""
)


def test_a_checkpoint_gives_the_weights_and_no_epoch_changes_them(source):
    samples = save(source)
    Path(source).write_text(CHECKPOINT_TASK)
    given = {"path": "target/model.safetensors", "sha256": file_sha256("target/model.safetensors")}
    task = with_target(source, checkpoint=given, epochs=0)
    model = targets.build_model(task, samples, 3)
    assert targets.train_target(model, samples, task.target, 3) == []
    assert not model.training
    info = targets.save_target("again", model, samples, task, 3, [])
    assert info["sha256"] == given["sha256"]
    Path("target/model.safetensors").unlink()
    assert targets.load_target("again", samples).info["settings"]["checkpoint"] == given  # not read again
    with pytest.raises(ArtifactError, match=r"checkpoint target/model\.safetensors is missing"):
        targets.build_model(task, samples, 3)


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("target", {"checkpoint": None}, "`target` in params.yaml has checkpoint, which it does not read"),
        ("target", {"checkpoint": None, "architecture": "lstm"}, "has architecture, checkpoint, which it does not read"),
        ("dataset", {"path": "a.csv"}, "`dataset` in params.yaml has path, which it does not read"),
    ],
)
def test_keys_that_the_task_file_does_not_read_are_refused(source, section, changes, message):
    raw = settings(source).model_dump()
    task = TaskSettings.model_validate({**raw, section: {**raw[section], **changes}})
    with pytest.raises(ArtifactError, match=message):
        targets.load_samples(task, 0)


def test_keys_that_the_task_file_misses_are_named(source):
    Path(source).write_text(CHECKPOINT_TASK)
    with pytest.raises(ArtifactError, match=r"user/own\.py: `target` in params.yaml lacks checkpoint"):
        targets.load_samples(settings(source), 0)


def test_auc_is_taken_over_the_classes_that_are_there(source):
    task = settings(source, epochs=1)
    model, samples, _ = train(task)
    model[3] = nn.Linear(16, 5)
    wider = replace(samples, class_names=tuple("abcde"), complete=False)
    info = targets.save_target("wider", model, wider, task, 0, [])
    test = samples.index("test")
    with torch.no_grad():
        prob = model(samples.x[test]).softmax(1)
    expected = np.mean([roc_auc_score(samples.label[test] == c, prob[:, c]) for c in range(3)])
    assert info["auc"] == pytest.approx(expected, abs=1e-6)
    single = replace(wider, label=torch.zeros_like(wider.label))
    assert targets.save_target("single", model, single, task, 0, [])["auc"] is None
