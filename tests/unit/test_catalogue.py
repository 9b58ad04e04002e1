"""The catalogue names the ten metrics, their directions and their families."""

import typing

from faithline.config import Metric as ConfigMetric
from faithline.metrics.catalogue import METRICS, families, signs


def test_names_are_those_of_params() -> None:
    assert list(METRICS) == list(typing.get_args(ConfigMetric))


def test_only_deletion_and_positive_perturbation_are_lower_better() -> None:
    assert [name for name, metric in METRICS.items() if metric.direction == "lower"] == ["del", "pos"]
    assert signs(["fc", "del", "pos", "ins"]).tolist() == [1.0, -1.0, -1.0, 1.0]


def test_families_are_those_of_the_shared_evaluations() -> None:
    grouped = families(list(METRICS))
    assert [set(names) for names in grouped.values()] == [
        {"fc", "inf"},
        {"fe", "mc"},
        {"rp", "del", "pos", "irof"},
        {"ins", "neg"},
    ]
    assert families(["del", "fc"]) == {"subsets": ["fc"], "most_relevant_first": ["del"]}
