"""Means with intervals and paired differences of FUD's scores, as every task's result file has them."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from faithline.config import Params
from faithline.metrics import ranking


def interval(values: Tensor, params: Params) -> list[dict[str, Any]]:
    """Means over samples of each column with the run's bootstrap; an undefined number is None."""
    evaluate, seed = params.evaluate, params.seed
    found = ranking.interval(values, repeats=evaluate.bootstrap, confidence=evaluate.confidence, seed=seed).rows()
    return [{key: None if isinstance(value, float) and value != value else value for key, value in row.items()} for row in found]


def pairs(scores: Mapping[str, Tensor], params: Params) -> list[dict[str, Any]]:
    """Paired differences of scores (I,) of every two candidates, and how many samples would separate them."""
    names: Sequence[tuple[str, str]] = list(combinations(scores, 2))
    differences = torch.stack([scores[a] - scores[b] for a, b in names], 1)
    z = float(torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor((1 + params.evaluate.confidence) / 2)))
    rows = []
    for (a, b), row, column in zip(names, interval(differences, params), differences.T, strict=True):
        apart = row["low"] is not None and not row["low"] <= 0 <= row["high"]
        known = column[~column.isnan()]
        needed = None
        if len(known) > 1 and float(known.mean()) != 0:
            needed = math.ceil((z * float(known.std()) / float(known.mean())) ** 2)
        rows.append({"first": a, "second": b, "difference": row, "separated": apart, "images_needed": needed})
    return rows
