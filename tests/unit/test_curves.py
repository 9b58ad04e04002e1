"""Sweeps: counts, ranks, states by hand, one evaluation a distinct state, and the way to Parquet and back."""

from dataclasses import fields
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import Tensor

from faithline.artifacts import read_table, write_table
from faithline.bank import ExactTable, Masks, all_keep_sets
from faithline.masking import Outcome
from faithline.metrics.curves import (
    Sweeps,
    from_frame,
    planned_passes,
    relevance_ranks,
    removal_counts,
    sweep,
    to_frame,
)


class Counting:
    """A game that remembers which coalitions it played; value = a hash-like function of the kept features."""

    def __init__(self, valid: Tensor, offset: float = 0.0) -> None:
        self.valid = valid
        self.offset = offset
        self.played: list[tuple[int, tuple[bool, ...]]] = []
        self.calls = 0

    def value(self, rows: Tensor, keep: Tensor) -> Tensor:
        weight = 2.0 ** -torch.arange(1, keep.shape[1] + 1)
        return ((keep & self.valid[rows]) * weight).sum(1) + rows + self.offset

    def __call__(self, rows: Tensor, keep: Tensor) -> Outcome:
        self.calls += 1
        self.played += [(row, tuple(kept)) for row, kept in zip(rows.tolist(), keep.tolist(), strict=True)]
        value = self.value(rows, keep)
        return Outcome(value, (value - rows) > 0.4)

    def clean(self) -> Tensor:
        rows = torch.arange(len(self.valid))
        return self.value(rows, torch.ones_like(self.valid))

    def singles(self) -> Masks:
        batch, n = self.valid.shape
        keep = ~torch.eye(n, dtype=torch.bool)[None] | ~self.valid[:, None]
        values = self.value(torch.arange(batch).repeat_interleave(n), keep.flatten(0, 1)).reshape(batch, n)
        empty = self.value(torch.arange(batch), ~self.valid)
        return Masks(keep, values, self.clean(), empty, self.valid)


def _valid(sizes: list[int], n: int) -> Tensor:
    return torch.arange(n) < torch.tensor(sizes)[:, None]


def _ranks(valid: Tensor, seed: int = 0) -> Tensor:
    maps = torch.randn(valid.shape, generator=torch.Generator().manual_seed(seed))
    return relevance_ranks(maps, valid, torch.arange(len(valid)), 0)


def _same(a: Sweeps, b: Sweeps) -> None:
    for field in fields(Sweeps):
        assert torch.equal(getattr(a, field.name).nan_to_num(-9), getattr(b, field.name).nan_to_num(-9)), field.name


# ------------------------------------------------------------------------------------------------------- counts and ranks


def test_counts_by_hand() -> None:
    counts = removal_counts(_valid([8, 6, 2, 1], 8), 4)
    assert counts.tolist() == [[0, 2, 4, 6, 8], [0, 2, 3, 5, 6], [0, 1, 1, 2, 2], [0, 0, 1, 1, 1]]


def test_counts_refuse_a_sample_without_features() -> None:
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        removal_counts(_valid([3, 0], 3), 4)
    with pytest.raises(ValueError, match="steps = 0"):
        removal_counts(_valid([3], 3), 0)


def test_rank_0_is_most_relevant_and_padding_is_last() -> None:
    maps = torch.tensor([[0.1, -5.0, 3.0, 0.0, 9.0]])
    ranks = relevance_ranks(maps, _valid([4], 5), torch.tensor([7]), 0)
    assert ranks.tolist() == [[1, 3, 0, 2, 4]]


def test_ties_are_broken_at_random_by_sample_and_seed_only() -> None:
    valid, ids = _valid([5] * 4000, 5), torch.arange(4000)
    maps = torch.tensor([1.0, 0.0, 1.0, 1.0, -1.0]).repeat(4000, 1)
    ranks = relevance_ranks(maps, valid, ids, 0)
    assert bool((ranks[:, 1] == 3).all())
    assert bool((ranks[:, 4] == 4).all())
    share = torch.stack([(ranks[:, [0, 2, 3]] == place).double().mean(0) for place in range(3)])
    assert bool(((share - 1 / 3).abs() < 0.03).all())  # 4 standard errors
    part = torch.tensor([31, 5, 3999])
    assert torch.equal(relevance_ranks(maps[part], valid[part], ids[part], 0), ranks[part])
    assert not torch.equal(relevance_ranks(maps, valid, ids, 1), ranks)
    padded = torch.cat([maps, torch.zeros(4000, 3)], 1)
    assert torch.equal(relevance_ranks(padded, _valid([5] * 4000, 8), ids, 0)[:, :5], ranks)


def test_ranks_refuse_a_map_that_is_not_finite_except_on_padding() -> None:
    maps = torch.tensor([[1.0, 2.0, torch.nan], [1.0, torch.inf, 0.0]])
    with pytest.raises(ValueError, match=r"1 maps are not finite \(rows \[1\]\)"):
        relevance_ranks(maps, _valid([2, 2], 3), torch.arange(2), 0)


# ---------------------------------------------------------------------------------------------------------------- sweeps


def test_states_by_hand() -> None:
    # Additive game, effects 1, 2, 4, 8 (/ 16), map in the same order: most relevant = feature 3.
    every = all_keep_sets(4)
    table = ExactTable((every * torch.tensor([1.0, 2, 4, 8])).sum(1)[None] / 16, torch.ones(1, 16, dtype=torch.bool))
    valid = torch.ones(1, 4, dtype=torch.bool)
    ranks = relevance_ranks(torch.tensor([[1.0, 2, 4, 8]]), valid, torch.tensor([0]), 0)
    curves = sweep(table.evaluate, ranks, valid, table.values[:, -1], 2, insertion=None, singles=None, empty=None)
    assert (curves.morf * 16).tolist() == [[15, 3, 0]]
    assert (curves.lerf * 16).tolist() == [[15, 12, 0]]
    assert (curves.insertion * 16).tolist() == [[0, 12, 15]]
    assert (curves.chunk * 16).tolist() == [[3, 12]]
    curves = sweep(table.evaluate, ranks, valid, table.values[:, -1], 4, insertion=None, singles=None, empty=None)
    assert (curves.morf * 16).tolist() == [[15, 7, 3, 1, 0]]
    assert (curves.lerf * 16).tolist() == [[15, 14, 12, 8, 0]]
    assert (curves.chunk * 16).tolist() == [[7, 11, 13, 14]]


SIZES = [[9, 9, 9], [4, 4], [9, 5, 4, 3, 2, 1], [12, 7]]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("steps", [1, 4, 5])
@pytest.mark.parametrize("own_insertion", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_check_31_planned_passes_are_the_passes(sizes: list[int], steps: int, own_insertion: bool, given: bool) -> None:
    valid = _valid(sizes, 12)
    game, start = Counting(valid), Counting(valid, offset=0.5)
    singles = game.singles()
    sweep(
        game,
        _ranks(valid),
        valid,
        game.clean(),
        steps,
        insertion=start if own_insertion else None,
        singles=singles if given else None,
        empty=singles.empty if given else None,
    )
    planned = planned_passes(valid, steps, own_insertion=own_insertion, singles=given, empty=given)
    assert len(game.played) + len(start.played) == planned
    assert game.calls == 1
    assert start.calls == own_insertion
    # The shared design's column: 3T a map (here both a game of its own for insertion and wide chunks cost T each).
    extra = int(own_insertion) + int(not given or max(sizes) > steps)
    assert planned <= len(sizes) * steps * (2 + extra)
    if given and steps > 1 and max(sizes) <= steps:
        assert len(set(game.played)) == len(game.played) or min(sizes) < 3


def test_no_state_from_an_end_is_played_twice() -> None:
    valid = _valid([9, 5, 3], 9)
    game = Counting(valid)
    singles = game.singles()
    sweep(game, _ranks(valid), valid, game.clean(), 9, insertion=None, singles=singles, empty=singles.empty)
    assert len(set(game.played)) == len(game.played) == 2 * (8 + 4 + 2)
    full = [(row, (True,) * 9) for row in range(3)]
    assert not set(full) & set(game.played)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("steps", [1, 4, 5, 30])
def test_values_from_the_bank_are_the_values_of_the_model(sizes: list[int], steps: int) -> None:
    valid = _valid(sizes, 12)
    game = Counting(valid)
    singles = game.singles()
    played = sweep(game, _ranks(valid), valid, game.clean(), steps, insertion=None, singles=None, empty=None)
    read = sweep(game, _ranks(valid), valid, game.clean(), steps, insertion=None, singles=singles, empty=singles.empty)
    for name in ("counts", "morf", "lerf", "insertion", "chunk"):
        assert torch.equal(getattr(played, name).nan_to_num(-9), getattr(read, name).nan_to_num(-9)), name
    inside = played.counts < played.counts[:, -1:]
    assert torch.equal(played.morf_top[inside], read.morf_top[inside])
    assert torch.equal(played.lerf_top[inside], read.lerf_top[inside])


def test_check_10_insertion_is_lerf_backwards_when_the_removal_is_the_same() -> None:
    valid = _valid([9, 5, 3, 1], 9)
    game = Counting(valid)
    for steps in (1, 4, 6, 9, 20):
        free = sweep(game, _ranks(valid), valid, game.clean(), steps, insertion=None, singles=None, empty=None)
        paid = sweep(game, _ranks(valid), valid, game.clean(), steps, insertion=game, singles=None, empty=None)
        assert torch.equal(free.insertion, free.lerf.flip(1))
        assert torch.equal(free.insertion, paid.insertion)


def test_insertion_of_its_own_starts_from_the_other_input_and_ends_at_the_clean_one() -> None:
    valid = _valid([6], 6)
    game, start = Counting(valid), Counting(valid, offset=0.5)
    curves = sweep(game, _ranks(valid), valid, game.clean(), 3, insertion=start, singles=None, empty=None)
    assert curves.insertion[0, 0] == 0.5
    assert torch.equal(curves.insertion[:, -1], game.clean())
    assert torch.allclose(curves.insertion[:, 1:-1], curves.lerf.flip(1)[:, 1:-1] + 0.5)


def test_first_choice_flags_are_those_of_the_states() -> None:
    valid = _valid([7, 3], 7)
    game = Counting(valid)
    curves = sweep(game, _ranks(valid), valid, game.clean(), 7, insertion=None, singles=None, empty=None)
    expected = curves.morf - torch.arange(2)[:, None] > 0.4
    assert torch.equal(curves.morf_top, expected)
    assert torch.equal(curves.lerf_top, curves.lerf - torch.arange(2)[:, None] > 0.4)


def test_a_sample_does_not_depend_on_its_batch() -> None:
    valid = _valid([9, 5, 3], 9)
    maps = torch.randn(3, 9, generator=torch.Generator().manual_seed(1))
    game = Counting(valid)
    ids = torch.tensor([11, 4, 8])
    together = sweep(game, relevance_ranks(maps, valid, ids, 0), valid, game.clean(), 4, insertion=None, singles=None, empty=None)
    for row in range(3):
        one = slice(row, row + 1)
        alone = sweep(
            lambda rows, keep, row=row: game(rows + row, keep),
            relevance_ranks(maps[one], valid[one], ids[one], 0),
            valid[one],
            game.clean()[one],
            4,
            insertion=None,
            singles=None,
            empty=None,
        )
        _same(Sweeps(*(getattr(together, f.name)[one] for f in fields(Sweeps))), alone)


# ---------------------------------------------------------------------------------------------------------------- frames


def test_frame_and_back(tmp_path: Path) -> None:
    valid = _valid([9, 5, 3], 9)
    game = Counting(valid)
    curves = sweep(game, _ranks(valid), valid, game.clean(), 6, insertion=None, singles=None, empty=None)
    ids = torch.tensor([30, 10, 20])
    frame = to_frame(ids, ["train", "train", "test"], curves)
    assert frame.schema == {
        "sample_id": pl.Int64,
        "split": pl.String,
        "sweep": pl.String,
        "step": pl.Int32,
        "fraction": pl.Float32,
        "value": pl.Float32,
        "top": pl.Boolean,
    }
    assert frame.height == 3 * 3 * 7 + (6 + 5 + 3)  # chunks without a feature have no row
    assert frame.filter(pl.col("sample_id") == 20)["split"].unique().to_list() == ["test"]
    step = frame.filter((pl.col("sample_id") == 30) & (pl.col("sweep") == "morf") & (pl.col("step") == 2))
    assert step["fraction"].to_list() == pytest.approx([3 / 9])
    step = frame.filter((pl.col("sample_id") == 30) & (pl.col("sweep") == "insertion") & (pl.col("step").is_in([0, 1, 6])))
    assert step["fraction"].to_list() == pytest.approx([0, 1 / 9, 1])  # 5/6 of 9 features is 7.5, so 8 are gone and 1 is back
    assert frame.filter(pl.col("top").is_null())["sweep"].unique().sort().to_list() == ["chunk", "insertion"]
    write_table(tmp_path / "curves.parquet", frame)
    again = read_table(tmp_path / "curves.parquet")
    _same(from_frame(again.sample(fraction=1.0, shuffle=True, seed=0), ids, valid), curves)
    part = torch.tensor([2, 0])
    _same(from_frame(again, ids[part], valid[part]), Sweeps(*(getattr(curves, f.name)[part] for f in fields(Sweeps))))


def test_frame_with_a_gap_is_refused() -> None:
    valid = _valid([4, 4], 4)
    game = Counting(valid)
    curves = sweep(game, _ranks(valid), valid, game.clean(), 4, insertion=None, singles=None, empty=None)
    frame = to_frame(torch.tensor([1, 2]), ["test", "test"], curves)
    for name in ("morf", "lerf", "insertion", "chunk"):
        gap = frame.filter(~((pl.col("sample_id") == 2) & (pl.col("sweep") == name) & (pl.col("step") == 3)))
        with pytest.raises(ValueError, match=r"1 samples have no whole curve \(ids \[2\]\)"):
            from_frame(gap, torch.tensor([1, 2]), valid)
    with pytest.raises(ValueError, match=r"ids \[3\]"):
        from_frame(frame, torch.tensor([1, 3]), valid)
    with pytest.raises(ValueError, match="twice"):
        from_frame(frame, torch.tensor([1, 1]), valid)
