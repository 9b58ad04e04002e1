"""What FUD says of a task, as the report reads it: `reports/fud/<task>.json` and, of images, `reports/fud/<task>.parquet`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl
from pydantic import Field

from faithline.artifacts import read_table
from faithline.config import Params
from faithline.reporting.records import Interval, Record

FILMS = {
    "kind": pl.String,
    "sample_id": pl.Int64,
    "candidate": pl.String,
    "level": pl.Float64,
    "prob": pl.Float64,
    "png": pl.Binary,
}
"""One row a picture; `kind`: `image`, `fud`, `black`, `sheet` (of the score model), `training`."""
QUALITY: dict[str, bool] = {
    "psnr": True,
    "ssim": True,
    "ms_ssim": True,
    "fsim": True,
    "gmsd": False,
    "haarpsi": True,
    "vsi": True,
}
"""Metrics of image quality, and whether higher is better."""


class FudMethod(Record):
    """One candidate; `rivals` holds the metrics that FUD is compared with. Curves are in the order of the levels."""

    role: Literal["explainer", "supervision", "baseline", "control", "reference"]
    score: Interval
    tau: Interval | None = None
    rises: Interval | None = None
    mean_rank: Interval | None = None
    log_odds: Interval | None = None
    second_score: Interval | None = None
    unguided_score: Interval | None = None
    matched_random: Interval | None = None
    above_matched_random: Interval | None = None
    calibrated: Interval | None = None
    above_random: Interval | None = None
    curve: tuple[Interval, ...] = ()
    matched_curve: tuple[Interval, ...] = ()
    second_curve: tuple[Interval, ...] = ()
    rivals: dict[str, Interval] = Field(default_factory=dict)


class Pair(Record):
    """A paired difference of two scores, first minus second, and how many images would separate them."""

    first: str
    second: str
    difference: Interval
    separated: bool
    images_needed: int | None


class Evidence(Record):
    """How in-distribution the pictures of a metric are; `minus_fud` are paired differences, rival minus FUD."""

    images: int
    auroc: float
    fpr95: float
    auroc_neighbours: float
    psnr: float | None = None
    ssim: float | None = None
    ms_ssim: float | None = None
    fsim: float | None = None
    gmsd: float | None = None
    haarpsi: float | None = None
    vsi: float | None = None
    auroc_by_level: dict[str, float] = Field(default_factory=dict)
    intervals: dict[str, Interval] = Field(default_factory=dict)
    minus_fud: dict[str, Interval] = Field(default_factory=dict)


class QualitySetting(Record):
    """Whether a metric of image quality has the settings of its paper, and why it is not there."""

    published: bool
    unavailable: str


class Sampler(Record):
    """A sampler on the first images; `contrast`: methods above the random order."""

    changes: dict[str, Any]
    calls: int
    gradients: int
    dose: float
    scores: dict[str, Interval]
    kendall_tau_with_main: float | None
    contrast: Interval | None = None
    contrast_below_main: Interval | None = None


class Agreement(Record):
    """Rank correlations of the methods by FUD and by another metric."""

    kendall: float | None
    spearman: float | None
    methods: int


class HardSoft(Record):
    """Picture quality of hard and of soft masks."""

    method: str
    kept: float
    hard: dict[str, float | None]
    soft: dict[str, float | None]
    hard_minus_soft: dict[str, Interval] = Field(default_factory=dict)


class ChainStep(Record):
    """A step of a chain: energy AUROC of the noisy sample, and of the clean image that it aims at."""

    remaining: float
    auroc_sample: float
    auroc_aim: float
    low: float | None = None
    high: float | None = None


class Chain(Record):
    """A chain on its way, and where its AUROC has come half of the way down."""

    steps: list[ChainStep]
    fall: Interval | None = None
    half_way: Interval | None = None
    images: int


class Second(Record):
    """What the second classifier loses beside the target, and the ratio."""

    clean_confidence: Interval
    target_fall: Interval
    second_fall: Interval
    share: Interval


class Frechet(Record):
    """Distance of sampled and of training images from validation images, in the target's features."""

    samples: float
    training_images: float
    images: int


class ScoreModel(Record):
    """The score model."""

    settings: dict[str, Any]
    size: int
    parameters: int
    frechet: Frechet
    history: tuple[dict[str, float], ...] = ()
    second_classifier: dict[str, Any] | None = None


class Reference(Record):
    """Agreement with a reference of many more calls."""

    kendall_tau: float | None
    separated_pairs_agreement: float | None
    call_ratio: float


class FudResults(Record):
    """`reports/fud/<task>.json`; tables have no evidence and no experiments."""

    kind: Literal["image", "table"] = "image"
    methods: dict[str, FudMethod]
    pairs: list[Pair]
    conventions: dict[str, Any]
    images: int | None = None
    levels: tuple[float, ...] = ()
    target: dict[str, float | None] = Field(default_factory=dict)
    empty_confidence: float | None = None
    score_model: ScoreModel | None = None
    samplers: dict[str, Sampler] = Field(default_factory=dict)
    evidence: dict[str, Evidence] = Field(default_factory=dict)
    settings_of_quality: dict[str, QualitySetting] = Field(default_factory=dict)
    agreement: dict[str, Agreement] = Field(default_factory=dict)
    hard_vs_soft: HardSoft | None = None
    chain: Chain | None = None
    second: Second | None = None
    reference: Reference | None = None

    def of_role(self, *roles: str) -> list[str]:
        """Candidates of some roles (all but controls where none is named), highest score first."""
        found = [name for name, row in self.methods.items() if (row.role in roles if roles else row.role != "control")]
        return sorted(found, key=lambda name: (-(self.methods[name].score.mean or 0.0), name))

    def pair(self, first: str, second: str) -> Pair | None:
        """First minus second, whichever way round it is stored."""
        for pair in self.pairs:
            if (pair.first, pair.second) == (first, second):
                return pair
            if (pair.second, pair.first) == (first, second):
                return pair.model_copy(update={"first": first, "second": second, "difference": negative(pair.difference)})
        return None


def negative(interval: Interval) -> Interval:
    """Of the difference the other way round."""
    mean, low, high = (None if value is None else -value for value in (interval.mean, interval.high, interval.low))
    return Interval(mean=mean, low=low, high=high)


@dataclass(frozen=True)
class FudTask:
    """A judged task; `films` has pictures of images, and is None for a table."""

    name: str
    results: FudResults
    films: pl.DataFrame | None


def fud_tasks(params: Params) -> Sequence[str]:
    """Tasks that params have judged by FUD, in the order of `tasks`."""
    judged = {*params.fud.image.tasks, *params.fud.table.tasks}
    return [task for task in params.tasks if task in judged]


def read_films(root: Path, task: str) -> pl.DataFrame:
    """Pictures of an image task.

    Raises:
        ArtifactError: If the file is missing or damaged.
    """
    return read_table(root / "reports/fud" / f"{task}.parquet", FILMS)
