"""The mask bank: laws, seeds, packing, exact tables, and what it costs."""

import numpy as np
import pytest
import torch
from torch import nn

from faithline import bank
from faithline.artifacts import write_table
from faithline.config import BankSettings
from faithline.errors import ArtifactError
from faithline.masking import Baseline, MaskedModel, column_features, token_features


def settings(
    *, exact: bool = False, fitting: int = 20, training: int = 12, evaluation: int = 16, laws: tuple[str, ...] = ("bernoulli",)
) -> BankSettings:
    return BankSettings(
        exact=exact,
        fitting=fitting,
        training=training,
        training_laws=list(laws),
        evaluation=evaluation,
        reference=30,
        fixed_size_fraction=0.4,
    )


def table_game(n: int = 5) -> MaskedModel:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(n, 8), nn.Tanh(), nn.Linear(8, 3))
    return MaskedModel(model, column_features(n), Baseline.zero(), max_batch=64)


def open_written(table, folder, sha: str = "abc", n: int = 5) -> bank.Bank:
    write_table(folder / "part-00000.parquet", table, {"target_sha256": sha, "n_features": str(n)})
    return bank.open_bank(folder, "abc")


def test_bernoulli_keeps_half_of_the_features_and_all_of_the_padding():
    valid = np.array([True] * 8 + [False] * 4)
    keep = bank.draw("bernoulli", valid, 4000, 0.3, np.random.default_rng(0))
    assert keep[:, 8:].all()
    np.testing.assert_allclose(keep[:, :8].mean(0), 0.5, atol=4 * 0.5 / 4000**0.5)


def test_fixed_size_removes_the_stated_share_of_real_features():
    valid = np.array([True] * 10 + [False] * 3)
    keep = bank.draw("fixed_size", valid, 500, 0.3, np.random.default_rng(0))
    assert ((~keep).sum(1) == 3).all()
    removed = (~keep)[:, :10].mean(0)
    np.testing.assert_allclose(removed, 0.3, atol=4 * (0.3 * 0.7 / 500) ** 0.5)


def test_fixed_size_removes_at_least_one_feature():
    assert ((~bank.draw("fixed_size", np.array([True, True]), 5, 0.01, np.random.default_rng(0))).sum(1) == 1).all()


def test_shapley_kernel_sizes_follow_the_kernel_and_masks_come_in_complements():
    m, count = 6, 20000
    keep = bank.draw("shapley_kernel", np.ones(m, dtype=bool), count, 0.3, np.random.default_rng(0))
    assert (keep[0::2] == ~keep[1::2]).all()
    sizes = np.bincount(keep.sum(1), minlength=m + 1)[1:m] / count
    kernel = 1 / (np.arange(1, m) * (m - np.arange(1, m)))
    np.testing.assert_allclose(sizes, kernel / kernel.sum(), atol=0.015)


def test_singles_remove_one_real_feature_each():
    valid = np.array([True, True, False])
    keep = bank.draw("singles", valid, 0, 0.3, np.random.default_rng(0))
    assert (keep == np.array([[False, True, True], [True, False, True], [True, True, True]])).all()


def test_all_keep_sets_are_in_index_order_and_bounded():
    keep = bank.all_keep_sets(3)
    assert keep[5].tolist() == [True, False, True]
    with pytest.raises(ValueError, match="exact tables stop at 14"):
        bank.all_keep_sets(15)


def test_values_are_those_of_the_game_and_survive_the_file(tmp_path):
    game = table_game()
    x, ids = torch.randn(3, 5), torch.tensor([4, 7, 9])
    target = game.predict(x)[1]
    before = game.passes
    opened = open_written(bank.compute(game, x, target, ids, "evaluation", settings(), seed=1, task="t"), tmp_path)
    # 1 clean + 1 empty + evaluation Bernoulli + evaluation fixed size + n singles, once a sample
    assert game.passes - before == 3 * (2 + 16 + 16 + 5)
    masks = opened.masks(torch.tensor([9, 4]), "fixed_size")
    rows = torch.tensor([2, 0])
    assert torch.equal(masks.values, game.values(x[rows], masks.keep, target[rows]))
    assert torch.equal(masks.full, game.values(x[rows], torch.ones(2, 1, 5, dtype=torch.bool), target[rows])[:, 0])
    assert torch.equal(masks.empty, game.values(x[rows], torch.zeros(2, 1, 5, dtype=torch.bool), target[rows])[:, 0])
    assert torch.equal(masks.effects, masks.full[:, None] - masks.values)


def test_check_29_uses_never_share_masks_and_a_sample_keeps_its_own():
    game = table_game(12)
    x = torch.randn(4, 12)
    target = game.predict(x)[1]
    ids = torch.arange(4)
    drawn = {use: bank.compute(game, x, target, ids, use, settings(), seed=1, task="t") for use in bank.USES}
    first = {use: table.filter(table["law"].to_numpy() == "bernoulli")["keep"][0].as_py() for use, table in drawn.items()}
    prefixes = [value[:15] for value in first.values()]
    assert len(set(prefixes)) == len(prefixes)
    alone = bank.compute(game, x[2:3], target[2:3], ids[2:3], "fitting", settings(), seed=1, task="t")
    together = drawn["fitting"].filter(drawn["fitting"]["sample_id"].to_numpy() == 2)
    assert alone["keep"].to_pylist() == together["keep"].to_pylist()
    assert alone["values"].to_pylist() == together["values"].to_pylist()


def test_exact_tasks_call_the_model_once_a_keep_set_and_enumerate_every_law(tmp_path):
    game = table_game(4)
    x = torch.randn(2, 4)
    target = game.predict(x)[1]
    ids = torch.tensor([0, 1])
    before = game.passes
    opened = open_written(bank.compute(game, x, target, ids, "evaluation", settings(exact=True), seed=1, task="t"), tmp_path, n=4)
    assert game.passes - before == 2 * 2**4
    assert opened.masks(ids, "bernoulli").keep.shape == (2, 16, 4)
    assert opened.masks(ids, "fixed_size").keep.shape == (2, 6, 4)  # C(4, 2): round(0.4 * 4) = 2 features go
    table = opened.table(ids)
    assert table is not None
    keep = torch.rand(7, 4) < 0.5
    rows = torch.tensor([0, 1, 1, 0, 1, 0, 0])
    looked_up, played = table.evaluate(rows, keep), game.evaluate(x, rows, keep, target)
    assert torch.equal(looked_up.value, played.value)
    assert torch.equal(looked_up.top, played.top)


@pytest.mark.parametrize("exact", [False, True])
def test_more_laws_for_training_leave_the_bernoulli_masks_as_they_were(exact: bool):
    """Not one bit of a mask or of a value moves when explainers that learn from other masks are added."""
    game = table_game(6)
    x, ids = torch.randn(5, 6), torch.arange(5)
    target = game.predict(x)[1]
    laws = ("bernoulli", "shapley_kernel", "singles")
    alone = bank.compute(game, x, target, ids, "training", settings(exact=exact), seed=1, task="t")
    before = game.passes
    made = bank.compute(game, x, target, ids, "training", settings(exact=exact, laws=laws), seed=1, task="t")
    assert game.passes - before == 5 * (2**6 if exact else 2 + 12 + 12 + 6)
    assert alone["law"].to_pylist() == ["bernoulli"] * 5
    assert made["law"].to_pylist() == list(laws) * 5
    assert made.filter(made["law"].to_numpy() == "bernoulli").equals(alone)
    kernel = made.filter(made["law"].to_numpy() == "shapley_kernel")
    assert [len(values) for values in kernel["values"].to_pylist()] == [12] * 5  # drawn also where all sets are known


def test_text_masks_leave_padding_alone():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(9, 4, padding_idx=0)
            self.head = nn.Linear(4, 2)

        def forward(self, ids):
            return self.head(self.embedding(ids).sum(1))

    torch.manual_seed(0)
    game = MaskedModel(Bag(), token_features(6, 0), Baseline.token("mask", 1), max_batch=32)
    x = torch.tensor([[3, 4, 5, 0, 0, 0]])
    made = bank.compute(game, x, torch.tensor([0]), torch.tensor([0]), "evaluation", settings(), seed=0, task="t")
    empty = made["empty"][0].as_py()
    with torch.no_grad():
        hole = game.model(torch.tensor([[1, 1, 1, 0, 0, 0]])).softmax(1)[0, 0]
    assert empty == pytest.approx(float(hole), abs=1e-6)


def test_a_bank_of_another_model_is_refused(tmp_path):
    game = table_game()
    made = bank.compute(game, torch.randn(1, 5), torch.tensor([0]), torch.tensor([0]), "fitting", settings(), seed=1, task="t")
    with pytest.raises(ArtifactError, match="made for another model"):
        open_written(made, tmp_path, sha="another")


def test_a_sample_without_masks_is_named(tmp_path):
    game = table_game()
    made = bank.compute(game, torch.randn(1, 5), torch.tensor([0]), torch.tensor([3]), "fitting", settings(), seed=1, task="t")
    opened = open_written(made, tmp_path)
    with pytest.raises(ArtifactError, match=r"no bernoulli masks of samples \[8\]"):
        opened.masks(torch.tensor([3, 8]), "bernoulli")
    with pytest.raises(ValueError, match="99 masks asked for"):
        opened.masks(torch.tensor([3]), "bernoulli").first(99)
