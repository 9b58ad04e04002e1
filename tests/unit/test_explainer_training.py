"""Training an explainer on small games with known answers, resuming it, and saving and loading it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from faithline.artifacts import file_sha256
from faithline.bank import Law, Masks, draw
from faithline.config import LAW_OF_MODULE, DeepFaithSettings, ExplainerSettings
from faithline.dataset import Samples
from faithline.errors import ArtifactError
from faithline.explainers import deepfaith, train
from faithline.explainers.deepfaith import losses
from faithline.explainers.load import load_explainer, save_explainer, state_sha256
from faithline.explainers.target_features import raw_view, view
from faithline.explainers.train import TrainedExplainer, train_explainer
from faithline.explainers.training_set import Pairs, TrainingSet
from faithline.masking import Baseline, MaskedModel, column_features, token_features

N = 6
SHARED: dict[str, Any] = {
    "inputs": "target_features",
    "augmented": False,
    "width": 32,
    "depth": 2,
    "heads": 2,
    "dropout": 0.0,
    "epochs": 30,
    "batch": 32,
    "learning_rate": 0.01,
    "weight_decay": 0.01,
    "warmup_fraction": 0.1,
    "precision": "fp32",
    "devices": 1,
    "seed_offset": 0,
}
OWN: dict[str, dict[str, Any]] = {
    "deepfaith": {
        "head": "signed",
        "objective": "full",
        "singles": 0.0,
        "ema": 0.0,
        "masks_per_step": 16,
        "alpha": {"epsilon": 1e-3, "window": 2, "tau_decay": 2, "reset_factor": 10},
    },
    "fastshap": {"masks_per_step": 16},
    "vit_shapley": {"masks_per_step": 16, "surrogate": {"epochs": 2, "batch": 32, "learning_rate": 1e-3}},
    "cxplain": {},
    "l2x": {"subset": 2, "temperature": 0.5},
    "vert": {"sparsity": 0.1, "copy_learning_rate": 1e-3},
}
MODULES = sorted(OWN)


def _settings(module: str = "deepfaith", **changes: Any) -> ExplainerSettings:
    return TypeAdapter(ExplainerSettings).validate_python({"module": module, **SHARED, **OWN[module], **changes})


class Additive:
    """A game whose value is the logit of a linear model: removing column i costs exactly `weight[c, i] * x_i`."""

    def __init__(self, train_samples: int = 256, test_samples: int = 64) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(N, 8, bias=False), nn.Linear(8, 2, bias=False))
        self.game = MaskedModel(model, column_features(N), Baseline.zero(), output="logit", max_batch=512)
        count = train_samples + 2 * test_samples
        split = np.array(["train"] * train_samples + ["validation"] * test_samples + ["test"] * test_samples)
        x = torch.randn(count, N)
        self.samples = Samples(
            x=x,
            label=torch.zeros(count, dtype=torch.int64),
            split=split,
            supervised=split == "train",
            features=self.game.features,
            class_names=("a", "b"),
            feature_names=tuple("abcdef"),
            preprocessing={},
            source="",
        )
        _, target = self.game.predict(x)
        self.delta = (model[1].weight @ model[0].weight).detach()[target] * x
        laws: tuple[Law, ...] = ("bernoulli", "shapley_kernel", "singles")
        self.bank = {law: self._play(law, target) for law in laws}
        self.masks = self.bank["bernoulli"]

    def _play(self, law: Law, target: Tensor) -> Masks:
        x, rng = self.samples.x, np.random.default_rng(0)
        valid = torch.ones(len(x), N, dtype=torch.bool)
        keep = torch.from_numpy(np.stack([draw(law, row, 24, 0.5, rng) for row in valid.numpy()]))
        ends = torch.stack([torch.ones(len(x), N), torch.zeros(len(x), N)], 1).bool()
        values = self.game.values(x, torch.cat([ends, keep], 1), target)
        values = values.clone()  # one made in inference mode could not be changed by a test
        return Masks(keep, values[:, 2:], values[:, 0], values[:, 1], valid)

    def masks_for(self, settings: ExplainerSettings) -> Masks:
        """What the module learns from."""
        law = LAW_OF_MODULE.get(settings.module)
        return self.masks.first(0) if law is None else self.bank[law]

    def pairs(self, count: int, noise: float = 0.0) -> Pairs:
        """True effects of the first `count` training samples, or noisy ones, as curated maps."""
        maps = self.delta[:count] + noise * torch.randn(count, N, generator=torch.Generator().manual_seed(1))
        return Pairs(torch.arange(count), maps, torch.ones(count))

    def train(self, scratch: Path, settings: ExplainerSettings, pairs: Pairs, **changes: Any) -> TrainedExplainer:
        ids, validation = self.samples.index("train"), self.samples.index("validation")
        arguments: dict[str, Any] = {
            "layers": ["0"],
            "train_ids": ids,
            "train_masks": self.masks_for(settings).take(ids),
            "validation_ids": validation,
            "validation_masks": self.masks.take(validation),
            "selection_masks": self.masks_for(settings).take(validation),
            "pairs": pairs,
            "settings": settings,
            "seed": 0,
            "scratch": scratch,
        }
        return train_explainer(self.game, self.samples, **{**arguments, **changes})

    def test_scores(self, trained: TrainedExplainer, settings: ExplainerSettings, folder: Path) -> Tensor:
        """Maps of the test split, from the files."""
        folder.mkdir(exist_ok=True)
        save_explainer(folder, trained, self.game, settings, target_sha256="0" * 64)
        return load_explainer(folder, self.game.model)(self.samples.x[self.samples.index("test")])

    def test_correlation(self, trained: TrainedExplainer, folder: Path) -> float:
        """Mean correlation of maps with the true effects on the test split."""
        scores = self.test_scores(trained, _settings(), folder)
        return float(_rowwise(scores, self.delta[self.samples.index("test")]).mean())


def _rowwise(a: Tensor, b: Tensor) -> Tensor:
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


@pytest.fixture(scope="module")
def additive() -> Additive:
    return Additive()


def test_local_correlation_alone_recovers_an_additive_target(additive: Additive, tmp_path: Path) -> None:
    """Spec check 28, first half. The masks are sums over sets, the answer is the effect of each feature."""
    trained = additive.train(tmp_path / "s", _settings(objective="local"), additive.pairs(0))
    assert additive.test_correlation(trained, tmp_path / "e") > 0.99
    assert all(row["pattern"] is None and row["alpha"] == 0 for row in trained.history)


def test_full_objective_beats_imitation_of_noisy_maps(additive: Additive, tmp_path: Path) -> None:
    """Spec check 28, second half: with wrong labels, the bank corrects what imitation alone cannot."""
    noisy = additive.pairs(64, noise=1.5)
    full = additive.train(tmp_path / "f", _settings(), noisy)
    pattern = additive.train(tmp_path / "p", _settings(objective="pattern"), noisy)
    ours, theirs = additive.test_correlation(full, tmp_path / "e"), additive.test_correlation(pattern, tmp_path / "q")
    assert ours > theirs + 0.02
    alphas = [row["alpha"] for row in full.history]
    assert alphas[0] == 1.0
    assert 0.5 in alphas
    assert {row["alpha"] for row in pattern.history} == {1.0}


def test_imitation_overfits_exact_labels(tmp_path: Path) -> None:
    """Spec check 27: 32 samples with exact labels, L_PC below 1e-3."""
    small = Additive(train_samples=32)
    trained = small.train(tmp_path, _settings(objective="pattern", epochs=150, batch=16), small.pairs(32))
    assert min(float(row["pattern"] or 1) for row in trained.history) < 1e-3


@pytest.mark.parametrize("module", MODULES)
def test_training_never_plays_the_game(module: str, additive: Additive, tmp_path: Path) -> None:
    """Clean passes are counted; not one masked input reaches the target, and what the bank supplied is counted too."""
    before = additive.game.passes
    trained = additive.train(tmp_path / "a", _settings(module, epochs=2), additive.pairs(40))
    answers = (
        256 + 64 if module in ("l2x", "vert", "vit_shapley") else 0
    )  # who learns from the target's output asks for it once more
    assert additive.game.passes - before == trained.info["clean_passes"] == 256 + 64 + answers
    masks = {"cxplain": N, "l2x": 0, "vert": 0, "vit_shapley": 0}.get(module, 24)
    assert trained.info["training_passes"] == {
        "bank": (256 + 64) * (masks + 2 if masks else 0),
        "clean": trained.info["clean_passes"],
        # Fine-tuning sees each training sample once an epoch, then come v(all), v(none) and the bank's masks of all; VerT's copy
        # sees each input twice an epoch.
        "surrogate": {"vit_shapley": 256 * 2 + (256 + 64) * (2 + 24), "vert": 2 * 2 * (256 + 64)}.get(module, 0),
    }
    before = additive.game.passes
    raw = additive.train(tmp_path / "b", _settings(module, epochs=1, inputs="raw"), additive.pairs(40))
    assert additive.game.passes - before == raw.info["clean_passes"] == answers
    assert raw.layers is None


@pytest.mark.parametrize("module", MODULES)
def test_the_best_epoch_is_kept(module: str, additive: Additive, tmp_path: Path) -> None:
    """Each by its own loss on the validation samples; of DeepFaith that is best INF."""
    trained = additive.train(tmp_path, _settings(module, epochs=8), additive.pairs(40))
    assert [row["epoch"] for row in trained.history] == list(range(1, 9))
    key = "validation_local" if module == "deepfaith" else "validation_loss"
    losses = [float(row[key] or 0) for row in trained.history]
    best = int(np.argmin(losses))
    assert (losses == [row["validation_local"] for row in trained.history]) == (module == "deepfaith")
    assert trained.info["best_epoch"] == 1 + best
    inf = [float(row["validation_inf"] or 0) for row in trained.history]
    assert trained.info["validation_inf"] == inf[best]
    assert inf[best] == max(inf) or module != "deepfaith"
    own = {"local", "pattern", "alpha"} if module == "deepfaith" else {"loss", "validation_loss"}
    for row in trained.history:
        assert {key for key in ("loss", "validation_loss", "local", "pattern", "alpha") if row[key] is not None} == own


@pytest.mark.parametrize(("module", "own"), [*((module, {}) for module in MODULES), ("deepfaith", {"ema": 0.9})])
def test_a_killed_run_resumes_to_the_same_bytes(module: str, own: dict[str, Any], additive: Additive, tmp_path: Path) -> None:
    """Dropout, mask draws, alpha, optimiser, best weights, running mean, predictor, surrogate: everything comes back."""
    settings = _settings(module, epochs=12, dropout=0.2, **own)
    pairs = additive.pairs(100)

    def bytes_of(trained: TrainedExplainer, name: str) -> str:
        (tmp_path / name).mkdir()
        save_explainer(tmp_path / name, trained, additive.game, settings, target_sha256="0" * 64)
        return file_sha256(tmp_path / name / "model.safetensors")

    whole = additive.train(tmp_path / "whole", settings, pairs)
    scratch = tmp_path / "killed"
    for victim in (7, 11):

        def kill(row: train.Row, victim: int = victim) -> None:
            if row["epoch"] == victim:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            additive.train(scratch, settings, pairs, live=kill)
    # What a kill in the middle of a save leaves behind must not matter.
    (scratch / "partial").mkdir()
    seen: list[train.Row] = []
    resumed = additive.train(scratch, settings, pairs, live=seen.append)
    assert [row["epoch"] for row in seen] == [11, 12]
    assert resumed.history == whole.history
    assert resumed.info == whole.info
    assert bytes_of(resumed, "r") == bytes_of(whole, "w")
    assert sorted(p.name for p in scratch.glob("epoch-*")) == ["epoch-00005", "epoch-00010"]


def test_a_running_mean_of_the_weights_is_what_is_kept(
    additive: Additive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one step an epoch, the weights of epoch e are d times those before it plus (1 - d) times the trained ones."""
    trained: list[dict[str, torch.Tensor]] = []
    real = train.AveragedModel.update_parameters

    def record(average: Any, model: Any) -> None:
        trained.append({name: value.detach().clone() for name, value in model.named_parameters()})
        real(average, model)

    monkeypatch.setattr(train.AveragedModel, "update_parameters", record)
    settings = _settings(epochs=4, batch=256, ema=0.7, objective="local")
    found = additive.train(tmp_path, settings, additive.pairs(0))
    mean = trained[0]
    for weights in trained[1 : found.info["best_epoch"]]:
        mean = {name: 0.7 * mean[name] + 0.3 * weights[name] for name in mean}
    assert len(trained) == 4
    for name, value in found.network.named_parameters():
        torch.testing.assert_close(value, mean[name])
    assert any(not torch.equal(mean[name], trained[-1][name]) for name in mean)


def test_another_seed_is_another_run(additive: Additive, tmp_path: Path) -> None:
    first, other = (additive.train(tmp_path / str(seed), _settings(epochs=1), additive.pairs(40), seed=seed) for seed in (0, 1))
    assert first.history != other.history


def test_only_two_checkpoints_are_kept(additive: Additive, tmp_path: Path) -> None:
    additive.train(tmp_path, _settings(epochs=21), additive.pairs(40))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["epoch-00015", "epoch-00020"]


@pytest.mark.parametrize("module", ["deepfaith", "fastshap", "cxplain"])
def test_a_loss_that_is_not_finite_names_its_samples(module: str, tmp_path: Path) -> None:
    broken = Additive(train_samples=64)
    settings = _settings(module, **({"masks_per_step": 24} if module != "cxplain" else {}))
    broken.masks_for(settings).values[17, 3] = torch.nan
    with pytest.raises(ArtifactError, match=r"not finite in epoch 1, samples \[17\]"):
        broken.train(tmp_path, settings, broken.pairs(64))


def test_a_map_that_is_not_finite_names_its_sample(tmp_path: Path) -> None:
    broken = Additive(train_samples=64)
    pairs = broken.pairs(64)
    pairs.maps[5, 0] = torch.inf
    with pytest.raises(ArtifactError, match=r"samples \[5\]"):
        broken.train(tmp_path, _settings(), pairs)


def test_what_cannot_be_learnt_is_refused(additive: Additive, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="curation kept none"):
        additive.train(tmp_path, _settings(), additive.pairs(0))
    with pytest.raises(ArtifactError, match="torchrun --standalone --nproc-per-node 2"):
        additive.train(tmp_path, _settings(devices=2), additive.pairs(4))
    stranger = Pairs(torch.tensor([3, 300]), torch.randn(2, N), torch.ones(2))
    with pytest.raises(ArtifactError, match=r"samples \[300\], which do not train"):
        additive.train(tmp_path, _settings(), stranger)
    constant = Masks(
        additive.masks.keep, torch.ones_like(additive.masks.values), torch.ones(384), torch.ones(384), additive.masks.valid
    )
    for settings in (_settings(objective="local"), _settings("fastshap"), _settings("cxplain")):
        with pytest.raises(ArtifactError, match="nothing to learn"):
            additive.train(tmp_path, settings, additive.pairs(0), train_masks=constant.take(torch.arange(256)))


# --------------------------------------------------------------------------------------------------------- single removals


def test_single_removals_alone_recover_additive_effects(additive: Additive, tmp_path: Path) -> None:
    """With `singles: 1.0` random masks have no weight, and the effects of single removals are the map itself."""
    ids = additive.samples.index("train")
    keep = (~torch.eye(N, dtype=torch.bool)).expand(len(ids), -1, -1)
    full = additive.masks.full[ids]
    singles = Masks(keep, full[:, None] - additive.delta[ids], full, additive.masks.empty[ids], additive.masks.valid[ids])
    settings = _settings(objective="local", singles=1.0)
    blind = replace(additive.masks, values=additive.masks.values.flip(1))  # values that belong to other masks
    trained = additive.train(tmp_path / "s", settings, additive.pairs(0), train_masks=blind.take(ids), train_singles=singles)
    assert additive.test_correlation(trained, tmp_path / "f") > 0.99
    assert float(trained.history[-1]["singles"] or 1) < 0.01
    without = additive.train(tmp_path / "w", settings, additive.pairs(0))
    reads = {name: result.info["training_passes"]["bank"] for name, result in (("with", trained), ("without", without))}
    assert reads["with"] - reads["without"] == len(ids) * N, "what the bank was asked for is counted"


def test_weights_of_the_three_losses_sum_to_one() -> None:
    for objective in ("full", "pattern", "local"):
        settings = _settings(objective=objective, singles=0.25)
        assert isinstance(settings, DeepFaithSettings)
        weights = deepfaith.weights(settings, 0.6)
        assert sum(weights) == pytest.approx(1)
        assert weights[1] * 3 == pytest.approx(weights[2])
        assert weights[0] == {"full": 0.6, "pattern": 1.0, "local": 0.0}[objective]


# ------------------------------------------------------------------------------------------------------------ training set


def _training_set(rows: int, labelled: list[int]) -> TrainingSet:
    """Row r has sample id 10 r, and label maps that all hold the number 10 r."""
    ids = torch.arange(rows) * 10
    x = torch.arange(rows).float()[:, None].expand(rows, 3).contiguous()
    keep = torch.rand(rows, 8, 3) < 0.5
    full = ids + 0.5
    values = full[:, None] - keep.float() @ torch.tensor([1.0, 2, 4])
    masks = Masks(keep, values, full, ids + 0.25, torch.ones(rows, 3).bool())
    sample_ids = torch.tensor(labelled) * 10
    pairs = Pairs(sample_ids, sample_ids[:, None].float().expand(-1, 3), 1.0 / (1 + sample_ids))
    return TrainingSet(ids, raw_view(column_features(3), x), masks, pairs, torch.device("cpu"))


def test_batches_keep_samples_masks_and_maps_together() -> None:
    """Every row once an epoch, every pair with its own row, every effect with its own mask."""
    labelled = [7, 2, 7, 30, 2, 7]  # several maps a sample, in no order
    data = _training_set(40, labelled)
    seen, owners = [], []
    for batch in data.batches(10, 5, torch.Generator().manual_seed(0), 0, 1):
        seen += batch.sample_ids.tolist()
        assert torch.equal(batch.view.local[:, 0, 0] * 10, batch.sample_ids.float())
        assert torch.equal(batch.effects, (~batch.removed).float() @ torch.tensor([1.0, 2, 4]))
        assert batch.removed.shape == (10, 5, 3)
        owners += batch.sample_ids[batch.owner].tolist()
        assert batch.maps[:, 0].tolist() == batch.sample_ids[batch.owner].tolist()
        torch.testing.assert_close(batch.weight, 1.0 / (1 + batch.sample_ids[batch.owner]))
        assert len(losses(torch.rand(10, 3), batch)[0].loss.value) == len(batch.owner)
        assert torch.equal(batch.rows * 10, batch.sample_ids)
        assert torch.equal(batch.full, batch.sample_ids + 0.5)
        assert torch.equal(batch.empty, batch.sample_ids + 0.25)
    assert sorted(seen) == [10 * row for row in range(40)]
    assert sorted(owners) == sorted(10 * row for row in labelled)


def test_rows_with_maps_are_spread_over_batches() -> None:
    """A sixth of the rows has maps: every batch gets its share, whatever the draw."""
    data = _training_set(120, list(range(20)))
    for seed in range(5):
        counts = [len(batch.owner) for batch in data.batches(30, 4, torch.Generator().manual_seed(seed), 0, 1)]
        assert all(4 <= count <= 6 for count in counts)


def test_ranks_share_one_batch() -> None:
    data = _training_set(12, [1, 2, 3])
    whole = next(data.batches(6, 4, torch.Generator().manual_seed(0), 0, 1))
    parts = [next(data.batches(6, 4, torch.Generator().manual_seed(0), rank, 2)) for rank in range(2)]
    for rank, part in enumerate(parts):
        assert torch.equal(part.sample_ids, whole.sample_ids[rank::2])
        assert torch.equal(part.removed, whole.removed[rank::2])


# ------------------------------------------------------------------------------------------------------------ save and load


@pytest.fixture(scope="module")
def saved(additive: Additive, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainedExplainer]:
    return _saved("deepfaith", additive, tmp_path_factory)


def _saved(module: str, additive: Additive, factory: pytest.TempPathFactory) -> tuple[Path, TrainedExplainer]:
    folder = factory.mktemp("saved")
    settings = _settings(module, epochs=2)
    trained = additive.train(factory.mktemp("scratch"), settings, additive.pairs(40))
    save_explainer(folder, trained, additive.game, settings, target_sha256="f" * 64)
    return folder, trained


@pytest.mark.parametrize("module", MODULES)
def test_a_loaded_explainer_gives_the_trained_scores(
    module: str, additive: Additive, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, trained = _saved(module, additive, tmp_path_factory)
    assert sorted(p.name for p in folder.iterdir()) == ["model.json", "model.safetensors"]
    info = json.loads((folder / "model.json").read_text())
    assert info["target_sha256"] == "f" * 64
    assert info["settings"]["module"] == module
    x = additive.samples.x[:50]
    explainer = load_explainer(folder, additive.game.model, max_batch=16)
    scores = explainer(x)
    # One clean pass, no padding, no second look; efficient scores cost v(all) and v(none) besides.
    assert info["passes"] == (3 if module in ("fastshap", "vit_shapley") else 1)
    assert explainer.game.passes == 50 * info["passes"]
    expected = trained.network(*view(additive.game, x, trained.layers))
    if info["efficient"]:
        total = (additive.masks.full - additive.masks.empty)[:50]
        torch.testing.assert_close(scores.sum(1), total, atol=1e-5, rtol=0)
        scores, expected = (part - part.mean(1, keepdim=True) for part in (scores, expected))
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)
    # Spec check 15.
    whole = explainer(x)
    torch.testing.assert_close(torch.cat([explainer(row) for row in x.split(7)]), whole, atol=1e-5, rtol=0)
    torch.testing.assert_close(load_explainer(folder, additive.game.model)(x), whole, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match=r"shape \(4,\)"):
        explainer(torch.randn(2, 4))


def test_another_target_is_refused(additive: Additive, saved: tuple[Path, TrainedExplainer]) -> None:
    """One weight that differs in its last bit is another model."""
    other = nn.Sequential(nn.Linear(N, 8, bias=False), nn.Linear(8, 2, bias=False))
    other.load_state_dict(additive.game.model.state_dict())
    load_explainer(saved[0], other)
    with torch.no_grad():
        other[0].weight[0, 0] = torch.nextafter(other[0].weight[0, 0], torch.tensor(10.0))
    with pytest.raises(ArtifactError, match="explains another model"):
        load_explainer(saved[0], other)


def test_state_hash_sees_names_shapes_and_types() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    first = state_sha256(model)
    assert state_sha256(model.to(memory_format=torch.channels_last)) == first  # type: ignore[call-overload]
    model[1].num_batches_tracked += 1
    assert state_sha256(model) != first
    linear = nn.Linear(2, 3, bias=False)
    turned = nn.Linear(3, 2, bias=False)
    turned.load_state_dict({"weight": linear.weight.detach().reshape(2, 3)})
    assert state_sha256(linear) != state_sha256(turned)
    assert state_sha256(nn.Sequential(linear)) != state_sha256(linear)


def test_damaged_files_are_named(additive: Additive, saved: tuple[Path, TrainedExplainer], tmp_path: Path) -> None:
    weights, info = (saved[0] / "model.safetensors").read_bytes(), (saved[0] / "model.json").read_text()

    def refused(match: str) -> None:
        with pytest.raises(ArtifactError, match=match):
            load_explainer(tmp_path, additive.game.model)

    refused("model.json is missing")
    (tmp_path / "model.json").write_text(info)
    refused("model.safetensors is missing")
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    refused("not a whole safetensors file")
    (tmp_path / "model.safetensors").write_bytes(weights[:-4] + b"\0\0\0\0")
    refused("not the file that model.json names")
    (tmp_path / "model.safetensors").write_bytes(weights)
    (tmp_path / "model.json").write_text(info.replace('"width": 32', '"width": 16'))
    refused("weights and model.json disagree")
    (tmp_path / "model.json").write_text("{}")
    refused("does not describe an explainer")


def test_texts_train_end_to_end(tmp_path: Path) -> None:
    """A text task by both roads: token ids, and the target's features at the tokens; padding never scores."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(12, 4, padding_idx=0)
            self.head = nn.Linear(4, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.embedding(ids).sum(1))

    torch.manual_seed(0)
    game = MaskedModel(Words(), token_features(5, 0), Baseline.token("pad", 0), output="logit", max_batch=64)
    x = torch.randint(1, 12, (96, 5))
    x[::3, 3:] = 0
    valid = x != 0
    _, target = game.predict(x)
    keep = (torch.rand(96, 16, 5) < 0.5) | ~valid[:, None]
    values = game.values(x, torch.cat([torch.ones(96, 1, 5, dtype=torch.bool), keep], 1), target)
    masks = Masks(keep, values[:, 1:], values[:, 0], values[:, 0], valid)
    split = np.array(["train"] * 64 + ["validation"] * 32)
    samples = Samples(x, target, split, split == "train", game.features, ("a", "b"), (), {}, "")
    ways = (_settings(inputs="raw", head="sigmoid", epochs=8, objective="local"), _settings(epochs=8, objective="local"))
    for number, settings in enumerate((*ways, _settings("fastshap", epochs=8), _settings("l2x", epochs=8))):
        trained = train_explainer(
            game,
            samples,
            layers=["embedding"],
            train_ids=torch.arange(64),
            train_masks=masks.take(torch.arange(64)).first(0 if settings.module == "l2x" else 16),
            validation_ids=torch.arange(64, 96),
            validation_masks=masks.take(torch.arange(64, 96)),
            selection_masks=masks.take(torch.arange(64, 96)).first(0 if settings.module == "l2x" else 16),
            pairs=Pairs(torch.empty(0, dtype=torch.int64), torch.empty(0, 5), torch.empty(0)),
            settings=settings,
            seed=0,
            scratch=tmp_path / str(number),
        )
        key = "local" if settings.module == "deepfaith" else "loss"
        assert float(trained.history[-1][key] or 1) < float(trained.history[0][key] or 0)
        (tmp_path / "e").mkdir(exist_ok=True)
        save_explainer(tmp_path / "e", trained, game, settings, target_sha256="0" * 64)
        scores = load_explainer(tmp_path / "e", game.model)(x)
        assert (scores[~valid] == 0).all()


# -------------------------------------------------------------------------------------------------------------------- ranks

_RANKS = """
import os
import sys
from pathlib import Path
import torch
from tests.unit.test_explainer_training import Additive, _settings
from faithline.artifacts import write_tensors
torch.set_num_threads(1)
folder, devices, module = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
game = Additive()
trained = game.train(folder / "scratch", _settings(module, epochs=6, devices=devices), game.pairs(100))
if int(os.environ["RANK"]) == 0:
    write_tensors(folder / "w.safetensors", trained.network.state_dict())
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
"""


@pytest.mark.extended
@pytest.mark.parametrize("module", MODULES)
def test_two_ranks_train_what_one_trains(module: str, tmp_path: Path) -> None:
    """One global batch whatever the number of processes: close between 1 and 2 ranks, the same bytes at 2 and 2.

    L2X draws its relaxed subsets anew on each rank, so only the bytes of equal runs are compared.
    """
    from safetensors.torch import load_file

    script = tmp_path / "ranks.py"
    script.write_text(_RANKS)
    for name, devices in (("one", 1), ("two", 2), ("again", 2)):
        folder = tmp_path / name
        folder.mkdir()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices)]
        environment = {"PYTHONPATH": "src:.", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "FAITHLINE_DEVICE": "cpu"}
        subprocess.run([*command, str(script), str(folder), str(devices), module], check=True, env=environment, timeout=300)
    one, two = load_file(tmp_path / "one/w.safetensors"), load_file(tmp_path / "two/w.safetensors")
    for key, value in one.items() if module != "l2x" else ():
        torch.testing.assert_close(two[key], value, atol=1e-4, rtol=1e-3)
    assert file_sha256(tmp_path / "two/w.safetensors") == file_sha256(tmp_path / "again/w.safetensors")
