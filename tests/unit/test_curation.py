"""De-duplication and the quantile filter on hand-made maps and scores (checks 24 and 25 of the spec)."""

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from faithline.artifacts import read_table, write_json, write_table
from faithline.curation import (
    NON_FINITE,
    deduplicate,
    index_frame,
    mean_place,
    quantile_filter,
    summary,
    teaching_weights,
)

NAN = float("nan")


def _unit(degrees: float) -> list[float]:
    return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]


def _finite(maps: torch.Tensor) -> torch.Tensor:
    return torch.ones(maps.shape[:2], dtype=torch.bool)


# -------------------------------------------------------------------------------------------------------- de-duplication


def test_check_24_chain_keeps_its_ends() -> None:
    maps = torch.tensor([[_unit(0), _unit(40), _unit(80)]])  # cos 40 = .77, cos 80 = .17
    assert deduplicate(maps, _finite(maps), 0.6).tolist() == [[0, 0, 2]]


def test_check_24_order_decides_who_leads() -> None:
    maps = torch.tensor([[_unit(40), _unit(0), _unit(80)]])
    assert deduplicate(maps, _finite(maps), 0.6).tolist() == [[0, 0, 0]]


def test_threshold_is_inclusive_signed_and_free_of_scale() -> None:
    maps = torch.tensor([[[1.0, 0.0], [0.6e6, 0.8e6], [-1.0, 0.0], [1e-6, 0.0]]])
    assert deduplicate(maps, _finite(maps), 0.6).tolist() == [[0, 0, 2, 0]]
    assert deduplicate(maps, _finite(maps), 0.61).tolist() == [[0, 1, 2, 0]]
    assert deduplicate(maps, _finite(maps), 1.0).tolist() == [[0, 1, 2, 0]]


def test_unusable_maps_go_first_and_lead_nobody() -> None:
    maps = torch.tensor([[[0.0, 0.0], [NAN, 1.0], [1.0, 0.0], [math.inf, 0.0], [1.0, 0.1], [1.0, 0.2]]])
    finite = _finite(maps)
    finite[0, 2] = False  # the method itself says so
    assert deduplicate(maps, finite, 0.6).tolist() == [[NON_FINITE, NON_FINITE, NON_FINITE, NON_FINITE, 4, 4]]


def test_places_decide_who_leads_and_equals_keep_the_order_of_the_list() -> None:
    maps = torch.tensor([[_unit(0), _unit(40), _unit(80)]]).expand(3, -1, -1)
    place = torch.tensor([[2.0, 1.0, 3.0], [1.0, 1.0, 1.0], [3.0, 2.0, 1.0]])
    assert deduplicate(maps, _finite(maps), 0.6, place).tolist() == [[1, 1, 1], [0, 0, 2], [0, 2, 2]]


def test_unusable_maps_lead_nobody_wherever_they_stand() -> None:
    maps = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [1.0, 0.1]]])
    place = torch.tensor([[torch.inf, 2.0, 1.0]])
    assert deduplicate(maps, _finite(maps), 0.6, place).tolist() == [[NON_FINITE, 2, 2]]
    assert deduplicate(maps, _finite(maps), 0.6, -place).tolist() == [[NON_FINITE, 1, 1]]


def test_mean_places_share_ties_and_put_the_undefined_last() -> None:
    scores = torch.tensor([[[0.9, 0.1], [0.9, 0.5], [NAN, 0.3], [0.1, 0.2]]])  # DEL: lower is better
    alive = torch.tensor([[True, True, True, False]])
    assert mean_place(scores, alive, ["inf", "del"]).tolist() == [[(1.5 + 1) / 2, (1.5 + 3) / 2, (3 + 2) / 2, math.inf]]


def test_weights_of_a_sample_sum_to_one_and_favour_the_better_map() -> None:
    kept = torch.tensor([[True, False, True], [False, False, False]])
    place = torch.tensor([[1.0, 2.0, 4.0], [1.0, torch.inf, 2.0]])
    assert teaching_weights(kept, place, "equal").tolist() == [[0.5, 0.0, 0.5], [0.0, 0.0, 0.0]]
    assert teaching_weights(kept, place, "rank").tolist() == [[0.8, 0.0, 0.2], [0.0, 0.0, 0.0]]


def test_samples_of_a_batch_agree_with_a_plain_walk() -> None:
    maps = torch.randn(50, 9, 3, generator=torch.Generator().manual_seed(0))
    found = deduplicate(maps, _finite(maps), 0.6)
    unit = maps / maps.norm(dim=2, keepdim=True)
    for row in range(50):
        leaders: list[int] = []
        for k in range(9):
            leader = next((j for j in leaders if float(unit[row, j] @ unit[row, k]) >= 0.6), k)
            assert found[row, k] == leader
            if leader == k:
                leaders.append(k)


# ---------------------------------------------------------------------------------------------------------------- filter


def _filter(scores: list[list[float]], metrics: list[str], quantile: float, on_empty: str = "drop") -> list[bool]:
    table = torch.tensor([scores])
    kept, _ = quantile_filter(table, torch.ones(table.shape[:2], dtype=torch.bool), metrics, quantile, on_empty)
    return kept[0].tolist()


def test_check_25_thresholds_are_numpy_quantiles_in_the_direction_of_the_metric() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(40, 9, 2, generator=generator, dtype=torch.float64)
    alive = torch.rand(40, 9, generator=generator) < 0.7
    kept, _ = quantile_filter(scores, alive, ["fc", "del"], 0.13, "drop")
    for row in range(40):
        living = scores[row][alive[row]].numpy()
        low, high = np.quantile(living[:, 0], 0.13), np.quantile(living[:, 1], 0.87)
        expected = alive[row].numpy() & (scores[row, :, 0].numpy() >= low) & (scores[row, :, 1].numpy() <= high)
        assert kept[row].tolist() == expected.tolist()


def test_check_25_ties_at_the_threshold_pass() -> None:
    assert _filter([[0.1], [0.1], [0.1], [0.5]], ["fc"], 0.2) == [True] * 4
    assert _filter([[0.1], [0.2], [0.3], [0.4], [0.5], [0.6]], ["fc"], 0.2) == [False] + [True] * 5
    assert _filter([[0.1], [0.2], [0.3], [0.4], [0.5], [0.6]], ["del"], 0.2) == [True] * 5 + [False]


def test_check_25_one_nan_fails_its_metric_and_moves_no_threshold() -> None:
    scores = [[0.1, 1.0], [0.2, 1.0], [NAN, 1.0], [0.3, 1.0]]
    assert _filter(scores, ["fc", "ins"], 0.4) == [False, True, False, True]
    undefined = [[NAN, 1.0], [NAN, 2.0], [NAN, 3.0]]
    assert _filter(undefined, ["fc", "ins"], 0.4) == [False, True, True]  # fc is skipped


def test_check_25_nothing_left() -> None:
    # Each map is worst in one metric. Places, 1 = best: (1, 3, 2), (3, 2, 1), (2, 1, 3) -> all 2; then the first wins.
    scores = [[0.9, 0.1, 0.5], [0.1, 0.5, 0.1], [0.5, 0.9, 0.9]]
    assert _filter(scores, ["fc", "ins", "del"], 0.2) == [False] * 3
    assert _filter(scores, ["fc", "ins", "del"], 0.2, "best_mean_rank") == [True, False, False]
    scores[2][2] = 0.05  # the last is best in two
    assert _filter(scores, ["fc", "ins", "del"], 0.45, "best_mean_rank") == [False, False, True]
    # An undefined score ranks last, so it cannot win the fall-back.
    scores = [[NAN, 0.9, 0.2], [0.2, 0.1, 0.9], [NAN, 0.5, 0.1]]
    assert _filter(scores, ["fc", "ins", "rp"], 0.4) == [False] * 3
    assert _filter(scores, ["fc", "ins", "rp"], 0.4, "best_mean_rank") == [False, True, False]


def test_check_25_a_lone_survivor_passes() -> None:
    assert _filter([[0.1, 0.9]], ["fc", "del"], 0.2) == [True]
    table = torch.tensor([[[0.9], [0.1], [0.5]]])
    alive = torch.tensor([[False, True, False]])
    kept, passed = quantile_filter(table, alive, ["fc"], 0.2, "best_mean_rank")
    assert kept.tolist() == passed.tolist() == [[False, True, False]]


def test_sample_without_any_map_keeps_none() -> None:
    kept, passed = quantile_filter(torch.full((1, 3, 1), NAN), torch.zeros(1, 3, dtype=torch.bool), ["fc"], 0.2, "best_mean_rank")
    assert not kept.any()
    assert not passed.any()


# ----------------------------------------------------------------------------------------------------------------- index


@pytest.fixture
def index() -> pl.DataFrame:
    leader = torch.tensor([[0, 0, 2, NON_FINITE], [0, 1, 2, 3], [NON_FINITE, NON_FINITE, NON_FINITE, NON_FINITE]])
    passed = torch.tensor([[True, False, True, False], [False] * 4, [False] * 4])
    kept = passed.clone()
    kept[1, 2] = True  # saved by on_empty
    weight = teaching_weights(kept, torch.ones(3, 4), "equal")
    return index_frame(torch.tensor([7, 3, 9]), ["a", "b", "c", "d"], leader, kept, passed, weight)


def test_index_says_what_became_of_each_map(index: pl.DataFrame, tmp_path: Path) -> None:
    assert index.schema == {
        "sample_id": pl.Int64,
        "method": pl.String,
        "kept": pl.Boolean,
        "reason": pl.String,
        "duplicate_of": pl.String,
        "weight": pl.Float32,
    }
    rows = {(row["sample_id"], row["method"]): row for row in index.to_dicts()}
    assert rows[7, "a"] == {"sample_id": 7, "method": "a", "kept": True, "reason": "kept", "duplicate_of": None, "weight": 0.5}
    assert (rows[7, "b"]["reason"], rows[7, "b"]["duplicate_of"]) == ("duplicate", "a")
    assert (rows[7, "d"]["reason"], rows[7, "d"]["weight"]) == ("non_finite", 0.0)
    assert (rows[3, "c"]["kept"], rows[3, "c"]["reason"], rows[3, "c"]["weight"]) == (True, "below_quantile", 1.0)
    assert rows[3, "a"]["reason"] == "below_quantile"
    weights = index.group_by("sample_id").agg(pl.col("weight").sum()).sort("sample_id")
    assert weights["weight"].to_list() == [1.0, 1.0, 0.0]
    write_table(tmp_path / "index.parquet", index)
    assert read_table(tmp_path / "index.parquet").equals(index)


def test_summary_counts(index: pl.DataFrame, tmp_path: Path) -> None:
    counts = summary(index)
    assert counts["methods"]["a"] == {
        "maps": 3, "taught": 1, "kept": 1, "non_finite": 1, "duplicate": 0, "below_quantile": 1,
    }  # fmt: skip
    assert counts["methods"]["c"]["taught"] == 2
    assert counts["methods"]["b"]["duplicate"] == 1
    assert counts["samples"] == 3
    assert counts["mean_unique"] == pytest.approx(6 / 3)
    assert counts["mean_kept"] == pytest.approx(3 / 3)
    assert counts["on_empty"] == {"count": 1, "rate": pytest.approx(1 / 3), "saved": 1}
    assert counts["lost"] == 1
    write_json(tmp_path / "curate.json", counts)
