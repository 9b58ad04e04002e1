"""The objectives of FastSHAP, CXPlain, L2X and ViT-Shapley, against closed forms and on games whose answer is known."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from scipy import stats
from tests.conftest import run_stage_script
from tests.unit.test_explainer_training import MODULES, OWN, Additive, _settings
from torch import Tensor, nn

from faithline import explaining
from faithline.artifacts import file_sha256
from faithline.attributions.exact_shapley import attribute as exact_shapley
from faithline.attributions.query import Query
from faithline.bank import Masks, all_keep_sets
from faithline.config import LAW_OF_MODULE, MethodSettings
from faithline.dataset import Samples
from faithline.explainers import cxplain, fastshap, l2x, vert, vit_shapley
from faithline.explainers.target_features import View, view
from faithline.explainers.train import TrainedExplainer, train_explainer
from faithline.explainers.training_set import Batch, Pairs
from faithline.masking import Baseline, MaskedModel, column_features, token_features

NO_PAIRS = (torch.empty(0, dtype=torch.int64), torch.empty(0, 0), torch.empty(0))


def batch_of(masks: Masks) -> Batch:
    """All samples and masks of a bank as one batch, without curated maps."""
    count, n = len(masks.full), masks.keep.shape[2]
    empty = torch.empty(count, 0)
    view = View(torch.empty(count, n, 0), empty, torch.zeros(count).long(), masks.valid)
    rows = torch.arange(count)
    return Batch(
        rows, rows, view, ~masks.keep, masks.effects, masks.full, masks.empty, view.valid.float(), rows[:0], empty, torch.empty(0)
    )


class Curved:
    """A perceptron with interactions on n columns, and all 2^n values of some rows."""

    def __init__(self, n: int, rows: int) -> None:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(n, 16), nn.Tanh(), nn.Linear(16, 2))
        with torch.no_grad():
            model[0].weight.mul_(2)
        self.game = MaskedModel(model, column_features(n), Baseline.zero(), max_batch=256)
        self.x = torch.randn(rows, n)
        self.target = self.game.predict(self.x)[1]
        keep = all_keep_sets(n).expand(rows, -1, -1)
        values = self.game.values(self.x, keep, self.target).clone()
        self.every = Masks(keep, values, values[:, -1], values[:, 0], torch.ones(rows, n, dtype=torch.bool))
        query = Query(self.game, self.x, self.target, masks=self.every, background=None, seeds=torch.arange(rows))
        self.shapley = exact_shapley(query, MethodSettings(role="reference"))

    def kernel_masks(self) -> Masks:
        """Every proper keep set as often as the Shapley kernel weighs it, for n = 4 or 5 (where the ratios are whole)."""
        n = self.x.shape[1]
        sizes = self.every.keep[0].sum(1).tolist()
        weights = [0.0 if s in (0, n) else 1 / (math.comb(n, s) * s * (n - s)) for s in sizes]
        least = min(weight for weight in weights if weight)
        times = torch.tensor([round(weight / least) for weight in weights])
        which = torch.repeat_interleave(torch.arange(len(sizes)), times)
        return Masks(self.every.keep[:, which], self.every.values[:, which], self.every.full, self.every.empty, self.every.valid)


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


# ----------------------------------------------------------------------------------------------------------------- FastSHAP


def test_shapley_values_are_the_minimum_of_the_fastshap_loss() -> None:
    """With every keep set weighed by the kernel, the gradient vanishes at the exact Shapley values, wherever they are shifted."""
    curved = Curved(4, 5)
    batch = batch_of(curved.kernel_masks())
    scores = (curved.shapley + torch.tensor([[0.0], [1.0], [-2.0], [0.3], [5.0]])).requires_grad_(True)
    (term,) = fastshap.losses(scores, batch)
    term.loss.value.sum().backward()
    assert scores.grad is not None
    assert scores.grad.abs().max() < 1e-6
    torch.testing.assert_close(fastshap.normalise(scores.detach(), batch.full - batch.empty, batch.view.valid), curved.shapley)
    other = fastshap.losses(curved.shapley + 0.05 * torch.randn(5, 4), batch)[0].loss.value
    assert bool((other > term.loss.value).all())


def test_fastshap_trained_to_convergence_gives_exact_shapley_values(tmp_path: Path) -> None:
    curved = Curved(5, 4)
    masks = curved.kernel_masks()
    rows = torch.arange(4).repeat(16)  # sixteen steps an epoch
    settings = {"epochs": 30, "batch": 4, "learning_rate": 0.005, "masks_per_step": masks.keep.shape[1]}
    trained = _train(curved.game, curved.x[rows], masks.take(rows), tmp_path, module="fastshap", **settings)
    raw = trained.network(*view(curved.game, curved.x, ["0"])).detach()
    total = curved.every.full - curved.every.empty
    phi = fastshap.normalise(raw, total, curved.every.valid)
    torch.testing.assert_close(phi.sum(1), total, atol=1e-6, rtol=0)
    assert float(_correlation(phi, curved.shapley).min()) > 0.999


def test_normalisation_spreads_what_is_missing_over_real_features_only() -> None:
    valid = torch.tensor([[True, True, False], [True, True, True]])
    scores = torch.tensor([[1.0, 2.0, 0.0], [0.0, 3.0, 0.0]])
    found = fastshap.normalise(scores, torch.tensor([5.0, 0.0]), valid)
    torch.testing.assert_close(found, torch.tensor([[2.0, 3.0, 0.0], [-1.0, 2.0, -1.0]]))


def test_total_value_asks_for_both_ends_once() -> None:
    curved = Curved(5, 7)
    before = curved.game.passes
    torch.testing.assert_close(fastshap.total_value(curved.game, curved.x), curved.every.full - curved.every.empty)
    assert curved.game.passes - before == 2 * 7


@pytest.mark.parametrize("kind", ["mean", "background"])
def test_efficient_scores_remember_how_features_are_removed(kind: str, additive: Additive, tmp_path: Path) -> None:
    """The baseline's values travel with the weights; a saved explainer needs the target and nothing else."""
    rows = torch.randn(3, 6)
    baseline = Baseline.mean(rows[0]) if kind == "mean" else Baseline.background(rows)
    settings = _settings("fastshap", epochs=1)
    own = Additive.__new__(Additive)
    own.__dict__ = {**additive.__dict__, "game": additive.game.with_baseline(baseline)}
    trained = own.train(tmp_path / "s", settings, own.pairs(0))
    scores = own.test_scores(trained, settings, tmp_path / "e")
    test = own.samples.x[own.samples.index("test")]
    torch.testing.assert_close(scores.sum(1), fastshap.total_value(own.game, test), atol=1e-5, rtol=0)
    assert trained.info["training_passes"]["bank"] == baseline.copies * (256 + 64) * 26


@pytest.fixture(scope="module")
def additive() -> Additive:
    return Additive()


# ------------------------------------------------------------------------------------------------------------------ CXPlain


def test_cxplain_loss_is_the_divergence_from_the_share_of_the_loss() -> None:
    """By hand: v(all) = .8, without the features .4, .8 and .9; the loss grows by log 2, 0 and less than 0."""
    keep = ~torch.eye(3, dtype=torch.bool).expand(2, 3, 3)
    values = torch.tensor([[0.4, 0.8, 0.9], [0.5, 0.5, 0.6]])
    masks = Masks(keep, values, torch.tensor([0.8, 0.5]), torch.zeros(2), torch.ones(2, 3, dtype=torch.bool))
    scores = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.3, 0.5]])
    loss = cxplain.losses(scores, batch_of(masks), output="prob")[0].loss
    assert loss.defined.tolist() == [True, False]  # nothing to tell where no removal harms
    assert loss.value.tolist() == [pytest.approx(np.log(2)), 0.0]
    growth = cxplain.loss_growth(masks.full, masks.effects, "prob")
    torch.testing.assert_close(growth[0], torch.tensor([2.0, 1.0, 0.8 / 0.9]).log())
    torch.testing.assert_close(cxplain.loss_growth(masks.full, masks.effects, "logit"), masks.effects)
    shuffled = Masks(keep[:, [2, 0, 1]], values[:, [2, 0, 1]], masks.full, masks.empty, masks.valid)
    torch.testing.assert_close(cxplain.losses(scores, batch_of(shuffled), output="prob")[0].loss.value, loss.value)


def test_cxplain_recovers_the_ranking_of_effects(tmp_path: Path) -> None:
    """Effects that hurt the prediction have no share of the loss: they rank below all that help, in no order."""
    additive = Additive(train_samples=512)
    settings = _settings("cxplain", epochs=40)
    trained = additive.train(tmp_path / "s", settings, additive.pairs(0))
    scores = additive.test_scores(trained, settings, tmp_path / "e")
    torch.testing.assert_close(scores.sum(1), torch.ones(len(scores)))
    effects = additive.delta[additive.samples.index("test")].clamp(min=0)
    rank = [float(stats.spearmanr(a, b).statistic) for a, b in zip(scores, effects, strict=True) if (b > 0).sum() > 1]
    assert np.mean(rank) > 0.85
    assert float((scores.argmax(1) == effects.argmax(1)).float().mean()) > 0.9


# ---------------------------------------------------------------------------------------------------------------------- L2X


def _two_of_ten() -> tuple[MaskedModel, Tensor, Masks]:
    """A target whose answer depends on columns 3 and 7; the masks serve INF alone, which neither L2X nor VerT learns from."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 2))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].weight[0, 3], model[0].weight[0, 7] = 4.0, 4.0
    game = MaskedModel(model, column_features(10), Baseline.zero(), max_batch=512)
    x = torch.randn(640, 10)
    keep = torch.rand(640, 24, 10) < 0.5
    return (
        game,
        x,
        Masks(keep, keep[:, :, [3, 7]].sum(2).float(), torch.full((640,), 2.0), torch.zeros(640), torch.ones(640, 10).bool()),
    )


def test_a_relaxed_subset_is_a_maximum_of_draws() -> None:
    torch.manual_seed(0)
    scores = torch.tensor([[4.0, 0.0, 0.0, 9.0], [0.0, 0.0, 0.0, 0.0]])
    valid = torch.tensor([[True, True, True, False], [True, True, True, True]])
    mask = torch.stack([l2x.sample_subset(scores, valid, 2, 0.5) for _ in range(400)])
    assert (mask >= 0).all()
    assert (mask <= 1).all()
    assert (mask[:, 0, 3] == 0).all()  # the highest score of all, but no feature
    assert float(mask.sum(2).max()) <= 2 + 1e-5
    assert mask[:, 0, 0].mean() > 0.9
    torch.testing.assert_close(mask[:, 1].mean(0), mask[:, 1].mean().expand(4), atol=0.05, rtol=0)
    sharp = l2x.sample_subset(scores, valid, 2, 1e-3)
    assert set(sharp.round(decimals=3).flatten().tolist()) <= {0.0, 1.0}


def test_l2x_selects_the_features_that_matter(tmp_path: Path) -> None:
    """Of ten columns the target's answer depends on two: on unseen rows they have the highest scores."""
    game, x, masks = _two_of_ten()
    size = {"width": 32, "depth": 1, "inputs": "raw", "augmented": False, "learning_rate": 0.005}
    trained = _train(game, x, masks, tmp_path, module="l2x", epochs=30, batch=64, count=512, **size)
    scores = trained.network(*view(game, x[512:], None)).detach()
    chosen = scores.topk(2, dim=1).indices.sort(1).values
    assert float((chosen == torch.tensor([3, 7])).all(1).float().mean()) > 0.9
    assert float(trained.history[-1]["loss"] or 1) < 0.5 * float(trained.history[0]["loss"] or 0)


def test_the_predictor_sees_nothing_of_what_is_masked() -> None:
    torch.manual_seed(0)
    settings = _settings("l2x")
    valid = torch.tensor([[True, True, True, False]])
    mask = torch.tensor([[1.0, 0.0, 1.0, 1.0]])
    for seen, other, tokens in (
        (torch.randn(1, 4, 3), torch.randn(1, 4, 3), 0),
        (torch.tensor([[3, 4, 5, 0]]), torch.tensor([[8, 9, 5, 7]]), 12),
    ):
        raw = View(seen, torch.empty(1, 0), torch.zeros(1).long(), valid)
        predictor = l2x.Predictor(raw, tokens, 2, settings).eval()
        changed = torch.where(torch.tensor([False, True, False, True]).reshape(1, 4, *[1] * (seen.ndim - 2)), other, seen)
        torch.testing.assert_close(predictor(changed, valid, mask), predictor(seen, valid, mask))
        assert not torch.allclose(predictor(other, valid, mask), predictor(seen, valid, mask))


# --------------------------------------------------------------------------------------------------------------------- VerT


def test_vert_keeps_the_columns_that_the_answer_needs(tmp_path: Path) -> None:
    """On unseen rows the mask lets through what matters and little else, and the target itself stays as it was."""
    game, x, masks = _two_of_ten()
    before = {name: tensor.clone() for name, tensor in game.model.state_dict().items()}
    size = {"width": 32, "depth": 1, "augmented": False, "learning_rate": 0.005, "sparsity": 0.5, "copy_learning_rate": 1e-4}
    trained = _train(game, x, masks, tmp_path, module="vert", epochs=30, batch=64, count=512, **size)
    mask = trained.network(*view(game, x[512:], ["0"])).detach()
    assert 0 <= float(mask.min()) <= float(mask.max()) <= 1
    others = [i for i in range(10) if i not in (3, 7)]
    assert float(mask[:, others].mean()) < 0.1
    # A column near 0 is no loss: what matters is kept where there is something to keep.
    assert float(mask[:, [3, 7]][x[512:][:, [3, 7]].abs() > 0.5].mean()) > 0.5
    for name, tensor in game.model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_the_tuned_copy_answers_as_the_target_until_it_learns() -> None:
    """A mask of ones changes nothing, a mask of zeros gives the removed input, in every modality; the copy stays in eval mode."""
    game, x, _ = _two_of_ten()
    tuned = vert.TunedCopy(game).train()
    assert not tuned.model.training
    whole, full = tuned(x[:5], torch.ones(5, 10))
    none = tuned(x[:5], torch.zeros(5, 10))[1]
    wanted = game.predict(x[:5])[0].softmax(1)
    torch.testing.assert_close(whole, wanted)
    torch.testing.assert_close(full, wanted)
    torch.testing.assert_close(none, game.predict(torch.zeros(5, 10))[0].softmax(1))
    text = TinyText()
    game = MaskedModel(text, token_features(6, 0), Baseline.token("pad", 0), max_batch=64)
    ids = torch.tensor([[3, 4, 5, 6, 0, 0], [2, 2, 9, 8, 7, 1]])
    whole, full = vert.TunedCopy(game)(ids, torch.ones(2, 6))
    torch.testing.assert_close(whole, full)
    kept = torch.tensor([[1.0, 0, 1, 0, 1, 1], [0, 0, 0, 1, 1, 1]])
    removed = torch.where(kept.bool(), ids, 0)
    torch.testing.assert_close(vert.TunedCopy(game)(ids, kept)[1][1], text(removed).softmax(1)[1])


class TinyText(nn.Module):
    """Mean of embeddings over every position, so that a removed token and a masked embedding mean the same."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(12, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, 3)."""
        return self.head(self.embedding(ids).mean(1))


def test_the_loss_of_vert_by_hand() -> None:
    """Size of the mask over real features, drift of the copy, and what masking costs it, each by its weight."""
    answers = (torch.tensor([[0.7, 0.3]]), torch.tensor([[0.4, 0.6]]))

    class Tuned(nn.Module):
        def forward(self, _x: Tensor, _mask: Tensor) -> tuple[Tensor, Tensor]:
            return answers

    batch = batch_of(
        Masks(
            torch.ones(1, 1, 4).bool(),
            torch.zeros(1, 1),
            torch.ones(1),
            torch.zeros(1),
            torch.tensor([[True, True, True, False]]),
        )
    )
    check = vert.Verification(Tuned(), torch.zeros(1, 4), torch.tensor([[0.9, 0.1]]), sparsity=2.0)
    loss = check.losses(torch.tensor([[0.5, 1.0, 0.0, 0.0]]), batch)[0].loss
    assert loss.value.tolist() == [pytest.approx(2.0 * 1.5 / 3 + 0.4 + 0.6)]


def test_passes_of_the_copy_are_those_it_makes(tmp_path: Path) -> None:
    game, x, masks = _two_of_ten()
    counted: list[vert.TunedCopy] = []
    real = vert.TunedCopy
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vert, "TunedCopy", lambda game: counted.append(real(game)) or counted[0])
        trained = _train(game, x, masks, tmp_path, module="vert", epochs=3, batch=100, count=512, width=16)
    assert counted[0].game.passes == trained.info["training_passes"]["surrogate"] == 3 * 2 * (500 + 128)


# -------------------------------------------------------------------------------------------------------------- ViT-Shapley


def test_the_surrogate_learns_to_answer_masked_inputs_and_leaves_the_target_alone() -> None:
    curved = Curved(6, 64)
    before = {name: tensor.clone() for name, tensor in curved.game.model.state_dict().items()}
    passes = curved.game.passes
    x = curved.x + 1  # the removed value, 0, lies off the data: the target has never been asked about it
    probabilities = curved.game.predict(x)[0].softmax(1)
    settings = _settings("vit_shapley", surrogate={"epochs": 60, "batch": 16, "learning_rate": 5e-3}).surrogate
    surrogate, divergence = vit_shapley.fit_surrogate(curved.game, x, probabilities, settings, seed=0)
    assert curved.game.passes - passes == 64  # the clean inputs above
    assert surrogate.passes == 64 * 60
    assert divergence[-5:].mean() < 0.8 * divergence[:5].mean()
    for name, tensor in curved.game.model.state_dict().items():
        assert torch.equal(tensor, before[name])
    again = vit_shapley.fit_surrogate(curved.game, x, probabilities, settings, seed=0)
    assert torch.equal(divergence, again[1])
    # What it was asked: the same masks, in place of the target's values.
    few = curved.every.first(10)
    values = vit_shapley.values_with_ends(surrogate, x, few.keep, probabilities.argmax(1))
    assert surrogate.passes == 64 * (60 + 2 + 10)
    masks = vit_shapley.with_values(few, values)
    assert torch.equal(masks.keep, few.keep)
    assert not torch.allclose(masks.values, few.values)
    # keep set 0 is the empty one, of which the surrogate has a value of its own too.
    torch.testing.assert_close(masks.values[:, 0], masks.empty)


def test_without_fine_tuning_the_surrogate_is_the_target() -> None:
    curved = Curved(5, 9)
    probabilities = curved.game.predict(curved.x)[0].softmax(1)
    settings = _settings("vit_shapley", surrogate={"epochs": 1, "batch": 16, "learning_rate": 1e-12}).surrogate
    surrogate, _ = vit_shapley.fit_surrogate(curved.game, curved.x, probabilities, settings, seed=0)
    values = vit_shapley.values_with_ends(surrogate, curved.x, curved.every.keep, curved.target)
    found = vit_shapley.with_values(curved.every, values)
    torch.testing.assert_close(found.values, curved.every.values)
    torch.testing.assert_close(found.full, curved.every.full)
    torch.testing.assert_close(found.empty, curved.every.empty)


def test_every_number_of_kept_features_is_equally_likely_and_padding_stays() -> None:
    valid = torch.tensor([[True] * 4 + [False] * 2]).expand(4000, 6)
    keep = vit_shapley.uniform_size_masks(valid, torch.Generator().manual_seed(0))
    assert keep[:, 4:].all()
    share = keep[:, :4].sum(1).bincount(minlength=5) / 4000
    torch.testing.assert_close(share, torch.full((5,), 0.2), atol=0.03, rtol=0)
    torch.testing.assert_close(keep[:, :4].float().mean(0), torch.full((4,), 0.5), atol=0.03, rtol=0)


# --------------------------------------------------------------------------------------------------------------------- bank


@pytest.mark.parametrize("module", MODULES)
def test_each_module_learns_from_the_law_that_the_schema_asks_for(module: str) -> None:
    """`config.LAW_OF_MODULE` lets a run stop before it starts; what is read decides."""

    class Bank:
        def masks(self, sample_ids: Tensor, law: str) -> Masks:
            read.append(law)
            return Masks(*(torch.zeros(2, 5, 3) if i == 0 else torch.zeros(2, 5) for i in range(5)))

    read: list[str] = []
    bank: Any = Bank()
    found = explaining.training_masks(bank, torch.arange(2), _settings(module))
    assert found.keep.shape[1] == (0 if module in ("l2x", "vert") else 5)
    assert read == [LAW_OF_MODULE.get(module, "bernoulli")]


def _train(
    game: MaskedModel, x: Tensor, masks: Masks, scratch: Path, *, module: str, count: int | None = None, **changes: Any
) -> TrainedExplainer:
    """Train on the first `count` rows, validated on the rest; on all rows by default."""
    rows = torch.arange(len(x))
    train, validation = (rows, rows) if count is None else (rows[:count], rows[count:])
    split = np.array(["train"] * len(x))
    samples = Samples(x, torch.zeros(len(x)).long(), split, split == "train", game.features, ("a", "b"), (), {}, "")
    settings = _settings(module, **{"width": 128, "batch": len(x), "weight_decay": 0.0, **changes})
    own = masks.take(train)
    return train_explainer(
        game,
        samples,
        layers=["0"],
        train_ids=train,
        train_masks=own.first(0) if module in ("l2x", "vert") else own,
        validation_ids=validation,
        validation_masks=masks.take(validation),
        selection_masks=masks.take(validation).first(0) if module in ("l2x", "vert") else masks.take(validation),
        pairs=Pairs(*NO_PAIRS),
        settings=settings,
        seed=0,
        scratch=scratch,
    )


@pytest.mark.extended
@pytest.mark.parametrize("modality", ["image", "table", "text"])
def test_every_module_runs_through_the_stages(modality: str, world: Path) -> None:
    """From the bank to the tables of a task: each explainer is a row with its cost, trained and tested."""
    task = f"tiny_{modality}"
    params = yaml.safe_load((world / "params.yaml").read_text())
    section = params[modality]
    first = section["explainers"]["deepfaith"]
    own = ("module", "head", "objective", "singles", "ema", "masks_per_step", "alpha")
    shared = {key: first[key] for key in first if key not in own}
    for module in MODULES:
        if module != "deepfaith":
            section["explainers"][module] = {"module": module, **shared, **OWN[module]}
    section["explainers"]["deepfaith_seed1"] = {**first, "seed_offset": 1}
    params["tasks"][task]["bank"]["training_laws"] = ["bernoulli", "shapley_kernel", "singles"]
    params["tasks"] = {task: params["tasks"][task]}
    for other in {"image", "table", "text"} - {modality}:
        params[other]["tasks"] = []
    params["fud"]["table"]["tasks"], params["fud"]["image"]["tasks"] = [], []
    (world / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    (world / "benchmarks").mkdir()
    (world / "benchmarks/results.json").write_text("{}\n")
    (world / "reports/snapshots").mkdir(parents=True)
    jobs = [("bank", task), *(("attribute", task, method) for method in section["methods"]), ("curves", task), ("curate", task)]
    jobs += [("explain", task, name) for name in section["explainers"]]
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    try:
        for job in [*jobs, ("evaluate", task), ("report",)]:
            run_stage_script(world, *job)
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.set_num_threads(threads)
    rows = json.loads((world / f"reports/evaluation/{task}.json").read_text())["candidates"]
    for name in section["explainers"]:
        info = json.loads((world / f"models/explainers/{task}/{name}/model.json").read_text())
        assert rows[name]["role"] == "explainer"
        assert rows[name]["training_passes"] == info["training_passes"]
        assert rows[name]["passes"] == info["passes"] == (3 if name in ("fastshap", "vit_shapley") else rows[name]["passes"])
        assert rows[name]["mean_rank"] is not None
    assert rows["vit_shapley"]["training_passes"]["surrogate"] > 0
    assert rows["vert"]["training_passes"]["surrogate"] > 0
    weights = [world / f"models/explainers/{task}/{name}/model.safetensors" for name in ("deepfaith", "deepfaith_seed1")]
    assert file_sha256(weights[0]) != file_sha256(weights[1])
