"""Candidates of a leaderboard: who is ranked against whom, the oracle, and the sign of a difference."""

import pytest
import torch

from faithline import config, evaluation
from faithline.evaluation import Candidate

METRICS = ["inf", "del"]


def candidate(role: str, inf: list[float], deletion: list[float], attribution: list[list[float]] | None = None) -> Candidate:
    scores = torch.stack([torch.tensor(inf), torch.tensor(deletion)], 1)
    maps = None if attribution is None else torch.tensor(attribution)
    return Candidate(role, maps, scores, 1.0)


@pytest.fixture
def candidates() -> dict[str, Candidate]:
    # DEL is better when lower: "good" wins both metrics on sample 0, "bad" on sample 1.
    return {
        "good": candidate("supervision", [0.9, 0.1], [0.1, 0.9], [[1.0, 0.0], [0.0, 1.0]]),
        "bad": candidate("supervision", [0.2, 0.8], [0.8, 0.2], [[0.0, 1.0], [1.0, 0.0]]),
        "mine": candidate("explainer", [0.5, 0.5], [0.5, 0.5], [[1.0, 1.0], [1.0, 1.0]]),
        "best": candidate("reference", [1.0, 1.0], [0.0, 0.0], [[2.0, 1.0], [2.0, 1.0]]),
    }


def test_references_are_ranked_but_move_nobody(candidates):
    ranks, _ = evaluation.rank_candidates(candidates, METRICS)
    assert ranks[:, 3].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    without = {name: item for name, item in candidates.items() if name != "best"}
    alone, _ = evaluation.rank_candidates(without, METRICS)
    assert torch.equal(ranks[:, :3], alone)
    assert ranks[:, 0].tolist() == [[1.0, 1.0], [3.0, 3.0]]


def test_a_copy_is_merged_within_its_role_only(candidates):
    candidates["copy"] = candidate("supervision", [0.9, 0.1], [0.1, 0.9], [[3.0, 0.0], [0.0, 3.0]])
    candidates["control_copy"] = candidate("control", [0.9, 0.1], [0.1, 0.9], [[3.0, 0.0], [0.0, 3.0]])
    _, duplicate_of = evaluation.rank_candidates(candidates, METRICS)
    names = list(candidates)
    assert duplicate_of[names.index("copy")] == names.index("good")
    assert duplicate_of[names.index("control_copy")] is None


def test_the_oracle_takes_the_best_prior_of_each_sample_and_no_other_role(candidates):
    ranks, _ = evaluation.rank_candidates(candidates, METRICS)
    oracle = evaluation.oracle_scores(candidates, ranks, METRICS)
    torch.testing.assert_close(oracle, torch.tensor([[0.9, 0.1], [0.8, 0.2]]))


def test_a_negative_rank_difference_means_the_explainer_is_better(candidates):
    params = config.load("params/smoke.yaml")
    candidates["mine"] = candidate("explainer", [0.95, 0.95], [0.05, 0.05], [[1.0, 1.0], [1.0, 1.0]])
    ranks, _ = evaluation.rank_candidates(candidates, METRICS)
    mean = evaluation.ranking.mean_rank(ranks, METRICS)
    versus = evaluation.rank_differences(mean, mean + 1, candidates, list(candidates), [None] * 4, "mine", params)
    assert versus["good"]["mean_rank_difference"]["mean"] == pytest.approx(-1.5)  # ranks 1, 1 against 2, 3
    assert versus["median_prior"]["mean_rank_difference"]["mean"] == pytest.approx(-1.5)
    assert versus["best"]["mean_rank_difference"]["mean"] == pytest.approx(0.0)  # nobody of the pool beats either


def test_refined_maps_are_ranked_but_move_nobody_and_are_not_tested(candidates):
    params = config.load("params/smoke.yaml")
    candidates["refined"] = candidate("refined", [0.99, 0.99], [0.01, 0.01], [[3.0, 1.0], [3.0, 1.0]])
    ranks, _ = evaluation.rank_candidates(candidates, METRICS)
    del (alone := dict(candidates))["refined"]
    assert torch.equal(ranks[:, :4], evaluation.rank_candidates(alone, METRICS)[0])
    assert ranks[:, 4].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    mean = evaluation.ranking.mean_rank(ranks, METRICS)
    versus = evaluation.rank_differences(mean, mean, candidates, list(candidates), [None] * 5, "mine", params)
    assert versus["refined"]["p_holm"] is None
    assert versus["good"]["p_holm"] is not None


def test_the_difference_without_fe_and_mc_is_that_of_the_other_ranks(candidates):
    params = config.load("params/smoke.yaml")
    mean = torch.tensor([[1.0, 2.0, 3.0, 1.0], [1.0, 2.0, 3.0, 1.0]])
    other = torch.tensor([[5.0, 2.0, 1.0, 1.0], [4.0, 2.0, 1.0, 1.0]])
    versus = evaluation.rank_differences(mean, other, candidates, list(candidates), [None] * 4, "mine", params)
    assert versus["good"]["mean_rank_difference"]["mean"] == pytest.approx(2)
    assert versus["good"]["without_fe_mc"]["mean"] == pytest.approx(-3.5)


def test_changes_are_dotted_and_a_rival_is_named_by_its_module():
    first = config.load("params/full.yaml").image.explainers
    own = dict(list(first.items())[:1])
    name, settings = next(iter(own.items()))
    slower = settings.model_copy(update={"epochs": 99, "alpha": settings.alpha.model_copy(update={"window": 7})})
    found = {name: settings, "slower": slower, "again": settings, "rival": first["fastshap"]}
    assert evaluation.changes(found, "slower") == {"epochs": 99, "alpha.window": 7}
    assert evaluation.changes(found, "again") == evaluation.changes(found, name) == {}
    assert evaluation.changes(found, "rival") == {"module": "fastshap"}


def _ahead(names: list[str], roles: list[str], wins: list[int]) -> tuple[dict[str, Candidate], torch.Tensor]:
    """Forty samples; "mine" has rank 2, and each other candidate rank 3 on its number of samples, rank 1 on the others."""
    mean = torch.ones(40, len(names), dtype=torch.float64)
    mean[:, 0] = 2
    for k, count in enumerate(wins, start=1):
        mean[:count, k] = 3
    items = {name: Candidate(role, None, torch.empty(40, 0), 1.0) for name, role in zip(names, roles, strict=True)}
    return items, mean


def test_p_values_are_corrected_over_all_that_is_compared_and_claims_follow_them():
    """An interval that excludes 0 claims nothing by itself; references are no test, a duplicate is no test of its own."""
    params = config.load("params/smoke.yaml")
    names = ["mine", "close", "far", "copy_of_far", "rival", "exact", "noise"]
    roles = ["explainer", "supervision", "supervision", "supervision", "explainer", "reference", "control"]
    items, mean = _ahead(names, roles, [28, 40, 40, 40, 40, 20])
    duplicates = [None, None, None, 2, None, None, None]
    versus = evaluation.rank_differences(mean, mean, items, names, duplicates, "mine", params)
    assert list(versus) == [*names[1:], "median_prior"]
    raw = evaluation.ranking.wilcoxon(mean[:, :1] - mean)
    close, far = float(raw[1]), float(raw[2])
    # The family: close, far, rival, noise and the median prior, which equals far; three have the least p value.
    assert versus["far"]["p_holm"] == pytest.approx(5 * far)
    assert versus["copy_of_far"]["p_holm"] == versus["far"]["p_holm"]
    assert versus["close"]["p_holm"] == pytest.approx(2 * close)
    assert versus["exact"]["p_holm"] is None
    assert not versus["exact"]["separable"]
    assert versus["rival"]["separable"]
    assert versus["noise"]["p_holm"] == pytest.approx(1)
    assert not versus["noise"]["separable"]
    # The close one holds alone (p .011) and its interval excludes 0; twice that is just within .05, more comparisons are not.
    assert close < 0.05 < 5 * close
    assert versus["close"]["mean_rank_difference"]["high"] < 0
    assert versus["close"]["separable"]
    more = [f"rival_{k}" for k in range(6)]
    items, mean = _ahead([*names, *more], [*roles, *["control"] * 6], [28, 40, 40, 40, 40, 20, *[21] * 6])
    versus = evaluation.rank_differences(mean, mean, items, [*names, *more], [*duplicates, *[None] * 6], "mine", params)
    assert versus["close"]["p_holm"] > 0.05
    assert versus["close"]["mean_rank_difference"]["high"] < 0
    assert not versus["close"]["separable"]


def test_the_score_table_is_in_order_and_null_where_undefined(candidates):
    candidates["mine"].scores[0, 0] = torch.nan
    frame = evaluation.score_frame(torch.tensor([4, 9]), candidates, METRICS)
    row = frame.filter((frame["sample_id"] == 4) & (frame["candidate"] == "mine"))
    assert row["metric"].to_list() == METRICS
    assert row["value"].to_list() == [None, pytest.approx(0.5)]
    assert frame["value"].is_nan().sum() == 0
