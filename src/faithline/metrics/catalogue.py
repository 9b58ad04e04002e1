"""What the ten faithfulness metrics are: direction, family and range as data, read by curation, ranking and the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

Direction = Literal["higher", "lower"]
Family = Literal["subsets", "chunks", "most_relevant_first", "least_relevant_first"]


@dataclass(frozen=True)
class Metric:
    """One faithfulness metric.

    Attributes:
        title: Full name.
        direction: Which way is more faithful.
        family: Metrics of one family are read off the same model evaluations, so they are not independent votes.
        low: Smallest possible value for probabilities.
        high: Largest possible value for probabilities.
        meaning: One line a reader of the report understands.
        source: Paper it comes from.
    """

    title: str
    direction: Direction
    family: Family
    low: float
    high: float
    meaning: str
    source: str


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "fc": Metric(
            "Faithfulness Correlation",
            "higher",
            "subsets",
            -1.0,
            1.0,
            "Correlation of a random subset's summed attribution with the drop when it is removed; subsets of one size.",
            "Bhatt et al., IJCAI 2020",
        ),
        "fe": Metric(
            "Faithfulness Estimate",
            "higher",
            "chunks",
            -1.0,
            1.0,
            "Correlation of attribution with the drop when each chunk of features, by rank, is removed alone.",
            "Alvarez-Melis and Jaakkola, NeurIPS 2018",
        ),
        "mc": Metric(
            "Monotonicity Correlation",
            "higher",
            "chunks",
            -1.0,
            1.0,
            "Rank correlation of attribution with the squared relative change when each chunk is removed alone.",
            "Nguyen and Martinez, 2020",
        ),
        "inf": Metric(
            "Infidelity (correlation form)",
            "higher",
            "subsets",
            -1.0,
            1.0,
            "Correlation of a random subset's summed attribution with the drop when it is removed; subsets of any size.",
            "Yeh et al., NeurIPS 2019; correlation form: DeepFaith, 2025",
        ),
        "rp": Metric(
            "Region Perturbation",
            "higher",
            "most_relevant_first",
            -1.0,
            1.0,
            "Mean drop while features are removed, most relevant first.",
            "Samek et al., TNNLS 2017 (AOPC)",
        ),
        "ins": Metric(
            "Insertion",
            "higher",
            "least_relevant_first",
            0.0,
            1.0,
            "Area under the value while features are put back into an empty input, most relevant first.",
            "Petsiuk et al., BMVC 2018",
        ),
        "del": Metric(
            "Deletion",
            "lower",
            "most_relevant_first",
            0.0,
            1.0,
            "Area under the value while features are removed, most relevant first.",
            "Petsiuk et al., BMVC 2018",
        ),
        "neg": Metric(
            "Negative perturbation",
            "higher",
            "least_relevant_first",
            0.0,
            1.0,
            "Area under the value while features are removed, least relevant first; frozen once the class changes.",
            "Chefer et al., CVPR 2021; frozen form: DeepFaith, 2025",
        ),
        "pos": Metric(
            "Positive perturbation",
            "lower",
            "most_relevant_first",
            0.0,
            1.0,
            "Area under the value while features are removed, most relevant first; frozen once the class changes.",
            "Chefer et al., CVPR 2021; frozen form: DeepFaith, 2025",
        ),
        "irof": Metric(
            "IROF (area over the relative curve)",
            "higher",
            "most_relevant_first",
            float("-inf"),
            1.0,
            "Area over the value relative to the clean input while features are removed, most relevant first.",
            "Rieger and Hansen, 2020",
        ),
    }
)
"""Name -> metric, in the order every table has."""


def families(names: Sequence[str]) -> dict[Family, list[str]]:
    """The given metrics by family, both in catalogue order."""
    grouped: dict[Family, list[str]] = {}
    for name, metric in METRICS.items():
        if name in names:
            grouped.setdefault(metric.family, []).append(name)
    return grouped


def signs(names: Sequence[str]) -> Tensor:
    """+1 where higher is better, -1 where lower is, float64 (len(names),): multiply scores by it and higher is always better.

    Raises:
        KeyError: If a name is no metric.
    """
    return torch.tensor([1.0 if METRICS[name].direction == "higher" else -1.0 for name in names], dtype=torch.float64)
