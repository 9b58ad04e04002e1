"""What the report is made from: the files of earlier stages, read once, checked, refused with a clear error."""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import polars as pl
from pydantic import Field, ValidationError

from faithline import dataset
from faithline.artifacts import read_json, read_table
from faithline.config import Params
from faithline.dataset import Samples, Split
from faithline.errors import ArtifactError
from faithline.maps import read_misfit
from faithline.reporting.fud_results import FudResults, FudTask, fud_tasks, read_films
from faithline.reporting.records import Interval, Record

Role = Literal["explainer", "refined", "supervision", "baseline", "control", "reference"]
ROLES: tuple[Role, ...] = ("explainer", "refined", "supervision", "baseline", "control", "reference")
LIBRARIES = ("captum", "numpy", "polars", "scikit-learn", "scipy", "torch")


Parsed = TypeVar("Parsed", bound=Record)


class Summary(Interval):
    """A metric of a candidate over the test split: `n` defined values, `null` undefined ones."""

    n: int
    null: int


class TrainingPasses(Record):
    """Model evaluations that training an explainer used: values read from the bank, clean inputs, a surrogate's own."""

    bank: int
    clean: int
    surrogate: int


class CandidateResult(Record):
    """One row of a task's leaderboard."""

    role: Role
    mean_rank: float | None
    mean_rank_low: float | None = None
    mean_rank_high: float | None = None
    family_rank: float | None
    mean_rank_without_fe_mc: float | None
    metrics: dict[str, Summary]
    difference: dict[str, Interval] = Field(default_factory=dict)
    passes: float | None
    training_passes: TrainingPasses | None = None
    changes: dict[str, Any] | None = None
    duplicate_of: str | None = None


class RankDifference(Record):
    """Explainer minus another candidate, per-sample mean ranks: below 0 the explainer ranks better.

    `p_holm` is adjusted over all comparisons of the explainer; None where nothing was tested (refined maps, references).
    `separable` = the interval excludes 0 and the adjusted p value is small enough. `without_fe_mc`: over the other metrics only.
    """

    mean_rank_difference: Interval
    without_fe_mc: Interval
    p_holm: float | None
    separable: bool


class RunnerUp(RankDifference):
    """The explainer of the headline against the best candidate that is not an explainer."""

    explainer: str
    candidate: str


class Evaluation(Record):
    """`reports/evaluation/<task>.json`."""

    task: str
    modality: Literal["image", "text", "table"]
    n_test: int
    n_features: int
    target: dict[str, float | None]
    conventions: dict[str, Any]
    candidates: dict[str, CandidateResult]
    runner_up: RunnerUp | None
    versus: dict[str, RankDifference]
    ceiling: Summary | None
    inf_over_ceiling: dict[str, float | None]


class MethodCounts(Record):
    """What became of one method's maps: `taught` maps teach, the others are counts per reason and add up to `maps`."""

    maps: int
    taught: int
    kept: int
    below_quantile: int
    duplicate: int
    non_finite: int


class EmptyCounts(Record):
    """Samples none of whose maps passed the filter, and how many of them kept their best map after all."""

    count: int
    rate: float
    saved: int


class Curation(Record):
    """`reports/curate/<task>.json`."""

    methods: dict[str, MethodCounts]
    samples: int
    mean_unique: float
    mean_kept: float
    on_empty: EmptyCounts
    lost: int


class Snapshot(Record):
    """JSON results of the pipeline at another scale, kept in git under `reports/snapshots/<name>/`."""

    name: str
    params_sha256: str
    leaderboard: dict[str, Any]
    findings: list[dict[str, str]]


class VariedFactor(Record):
    """A constant that `make sensitivity` varied: what the paper calls it, what it is, and its value in the preset."""

    name: str
    symbol: str
    meaning: str
    preset: float


class Ablated(Record):
    """A variant without some parts of DeepFaith."""

    name: str
    meaning: str


class VariedRun(Record):
    """What one variant says of one task; `factor` is `ablation` and `value` its name where no constant was varied."""

    factor: str
    value: float | str
    task: str
    n_test: int
    candidates: int
    mean_rank: Interval
    metrics: dict[str, Interval]
    taught: float


class Sensitivity(Record):
    """`reports/sensitivity/results.json`: DeepFaith with one value changed at a time."""

    params_sha256: str
    confidence: float
    factors: list[VariedFactor]
    ablations: list[Ablated]
    rows: list[VariedRun]


@dataclass(frozen=True)
class TaskResults:
    """All that is known about one task.

    Attributes:
        name: The task.
        evaluation: Leaderboard rows, ranks, intervals.
        curation: Counts per method and reason (`reports/curate/<task>.json`).
        samples: The frozen dataset.
        target: `model.json` of the explained model.
        predictions: sample_id, target (explained class), prob.
        scores: sample_id, candidate, metric, value (null = undefined).
        methods: Prior methods in the order of `params.yaml`; their files lie in other folders than the other candidates'.
        misfits: Why each prior method that is missing from `methods` does not fit the target.
        explainers: `model.json` of each trained explainer.
        histories: Training curves of each trained explainer.
        root: Folder that holds `data/`, `models/` and `reports/`.
    """

    name: str
    evaluation: Evaluation
    curation: Curation
    samples: Samples
    target: dict[str, Any]
    predictions: pl.DataFrame
    scores: pl.DataFrame
    methods: tuple[str, ...]
    misfits: dict[str, str]
    explainers: dict[str, dict[str, Any]]
    histories: dict[str, pl.DataFrame]
    root: Path

    @property
    def explainer(self) -> str | None:
        """The explainer of the headline: the one that `evaluate` compares with everything."""
        return self.evaluation.runner_up.explainer if self.evaluation.runner_up else None

    def curves(self, candidate: str) -> pl.DataFrame | None:
        """Sweeps of a candidate on the test split (sample_id, sweep, step, fraction, value), or None where it has none.

        Raises:
            ArtifactError: If a prior method or an explainer lacks its file, or a file is damaged.
        """
        folder = self.root / ("data/curves" if candidate in self.methods else "data/evaluation") / self.name
        path = (folder if candidate in self.methods else folder / "curves") / f"{candidate}.parquet"
        if candidate not in self.methods and candidate not in self.explainers and not path.exists():
            return None
        columns = {"sample_id": pl.Int64, "split": None, "sweep": None, "step": None, "fraction": None, "value": None}
        return read_table(path, columns).filter(pl.col("split") == "test")

    def maps(self, candidate: str, split: Split) -> tuple[np.ndarray, np.ndarray] | None:
        """Sample ids (B,) and maps (B, *map_shape) of a candidate on a split, by ascending id; None where it has none."""
        columns = {"sample_id": pl.Int64, "attribution": None}
        if candidate in self.methods:
            path = self.root / "data/attributions" / self.name / candidate
            frame = read_table(path, columns | {"split": None, "finite": pl.Boolean})
        else:
            path = self.root / "data/evaluation" / self.name / "maps.parquet"
            frame = read_table(path, columns | {"candidate": None}).filter(pl.col("candidate") == candidate)
        frame = frame.filter(pl.col("sample_id").is_in(self.samples.index(split).tolist()))
        if frame.is_empty():
            return None
        frame = frame.sort("sample_id")
        maps = np.array(frame["attribution"].to_numpy(), dtype=np.float32)
        if "finite" in frame.columns:
            # A map that is not finite is stored as zeros; zeros would be shown as a verdict.
            maps[~frame["finite"].to_numpy()] = np.nan
        return frame["sample_id"].to_numpy(), maps


@dataclass(frozen=True)
class Inputs:
    """Everything the report shows.

    Attributes:
        params: The validated `params.yaml`.
        params_sha256: SHA-256 of its values (comments and layout left out, as DVC leaves them out).
        versions: Version of each library that moves numbers.
        tasks: Results by task, in the order of `params.yaml`.
        fud: What FUD says, by judged task, in the order of `params.yaml`.
        benchmarks: Timings (`benchmarks/results.json`), empty where the file is not there.
        snapshots: Results at other scales.
        sensitivity: Results with one value changed at a time, None where nobody made them.
    """

    params: Params
    params_sha256: str
    versions: dict[str, str]
    tasks: dict[str, TaskResults]
    fud: dict[str, FudTask]
    benchmarks: dict[str, dict[str, Any]]
    snapshots: tuple[Snapshot, ...]
    sensitivity: Sensitivity | None


def read(params: Params, root: str | Path) -> Inputs:
    """Read all inputs.

    Args:
        params: The validated params.
        root: Folder that holds `params.yaml`, `data/`, `models/`, `reports/`.

    Raises:
        ArtifactError: If a file is missing or damaged, breaks a reporting rule, or belongs to a task, method or explainer that
            `params.yaml` no longer names (the message gives the command that removes it).
    """
    root = Path(root)
    refuse_leftovers(params, root)
    benchmarks = root / "benchmarks/results.json"
    sensitivity = root / "reports/sensitivity/results.json"
    return Inputs(
        params=params,
        params_sha256=params.sha256(),
        versions={name: version(name) for name in LIBRARIES},
        tasks={name: _read_task(params, root, name) for name in params.tasks},
        fud={name: _read_fud(root, name) for name in fud_tasks(params)},
        benchmarks=read_json(benchmarks) if benchmarks.exists() else {},
        snapshots=tuple(_read_snapshot(folder) for folder in sorted((root / "reports/snapshots").glob("*/"))),
        sensitivity=_parse(Sensitivity, sensitivity, "make sensitivity") if sensitivity.exists() else None,
    )


def refuse_leftovers(params: Params, root: Path) -> None:
    """Stop if a folder that a stage reads as a whole holds results that `params.yaml` no longer names.

    `dvc repro` does not remove what a dropped task, method or explainer once wrote, and a report that lists it would be wrong.

    Raises:
        ArtifactError: With all such paths and the command that removes them.
    """
    tasks = list(params.tasks)
    allowed: list[tuple[str, Sequence[str]]] = [
        ("reports/evaluation", [f"{task}.json" for task in tasks]),
        ("reports/curate", [f"{task}.json" for task in tasks]),
        ("reports/metrics", [f"{task}.json" for task in tasks]),
        ("reports/fud", [f"{task}.{kind}" for task in fud_tasks(params) for kind in ("json", "parquet")] + ["README.md"]),
    ]
    allowed += [(folder, tasks) for folder in ("data/evaluation", "data/attributions", "data/curves", "models/explainers")]
    for task in tasks:
        section = params.modality(task)
        allowed += [
            (f"data/attributions/{task}", section.methods.names()),
            (f"data/curves/{task}", [f"{name}.parquet" for name in section.methods.names()]),
            (f"models/explainers/{task}", list(section.explainers)),
        ]
    left = [
        path.relative_to(root).as_posix()
        for folder, names in allowed
        for path in sorted((root / folder).glob("*"))
        if path.name not in names and not path.name.startswith(".") and path.suffix not in (".partial", ".tmp")
    ]
    if left:
        raise ArtifactError(
            f"params.yaml no longer names what made {', '.join(left)}; nothing was written. "
            f"Remove with: rm -r -- {' '.join(shlex.quote(path) for path in left)}"
        )


def _read_task(params: Params, root: Path, task: str) -> TaskResults:
    section = params.modality(task)
    path = root / "reports/evaluation" / f"{task}.json"
    evaluation = _parse(Evaluation, path, "evaluate")
    explainers = root / "models/explainers" / task
    target = root / "models/target" / task
    model = read_json(target / "model.json")
    maps = root / "data/attributions" / task
    found = {name: read_misfit(maps / name, str(model.get("sha256"))) for name in section.methods.names()}
    misfits = {name: reason for name, reason in found.items() if reason is not None}
    check_rules(params, task, evaluation, path, misfits)
    history = dict.fromkeys(("epoch", "loss", "validation_loss", "pattern", "local", "alpha", "validation_inf"))
    return TaskResults(
        name=task,
        evaluation=evaluation,
        curation=_parse(Curation, root / "reports/curate" / f"{task}.json", "curate"),
        samples=dataset.read(root / "data/tasks" / task),
        target=model,
        predictions=read_table(target / "predictions.parquet", {"sample_id": pl.Int64, "target": None, "prob": None}),
        scores=read_table(
            root / "data/evaluation" / task / "scores.parquet",
            {"sample_id": pl.Int64, "candidate": None, "metric": None, "value": None},
        ),
        methods=tuple(name for name in section.methods.names() if name not in misfits),
        misfits=misfits,
        explainers={name: read_json(explainers / name / "model.json") for name in section.explainers},
        histories={name: read_table(explainers / name / "history.parquet", history) for name in section.explainers},
        root=root,
    )


def _read_fud(root: Path, task: str) -> FudTask:
    found = _parse(FudResults, root / "reports/fud" / f"{task}.json", "fud_score")
    return FudTask(task, found, read_films(root, task) if found.kind == "image" else None)


def _parse(record: type[Parsed], path: Path, stage: str) -> Parsed:
    try:
        return record.model_validate(read_json(path))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in error.errors())
        raise ArtifactError(f"{path} is not a result of `{stage}` ({faults}): remove it and run `dvc repro`") from error


def check_rules(params: Params, task: str, evaluation: Evaluation, path: Path, misfits: Collection[str]) -> None:
    """Refuse a table that would not be honest (specification 4.5, check 32).

    Every configured candidate that fits the target and every control is a row, those of `misfits` are none, every metric is
    there with an interval or with its count of undefined values, the family-weighted rank stands beside the mean rank, and the
    INF ceiling is reported where the game is enumerated.

    Raises:
        ArtifactError: With every fault.
    """
    section = params.modality(task)
    controls = [name for name in params.evaluate.controls if evaluation.modality == "image" or name not in ("edge", "centre")]
    wanted = [*section.methods.names(), *section.explainers, *section.refinements, *controls]
    faults = [f"no row for {name}" for name in wanted if name not in evaluation.candidates and name not in misfits]
    faults += [f"a row for {name}, which does not fit" for name in misfits if name in evaluation.candidates]
    if evaluation.ceiling is None and params.tasks[task].bank.exact and "inf" in params.evaluate.metrics:
        faults.append("no ceiling R(x)")
    for name, row in evaluation.candidates.items():
        faults += [f"{name} lacks metric {metric}" for metric in params.evaluate.metrics if metric not in row.metrics]
        if row.mean_rank is not None and row.family_rank is None:
            faults.append(f"{name} has a mean rank but no family rank")
        for metric, summary in row.metrics.items():
            known = [value is not None for value in (summary.mean, summary.low, summary.high)]
            if summary.n and not all(known):
                faults.append(f"{name}.{metric} has {summary.n} values but no mean or interval")
    if faults:
        raise ArtifactError(f"{path} breaks the reporting rules: {'; '.join(faults)}. Run `dvc repro evaluate@{task}`")


def _read_snapshot(folder: Path) -> Snapshot:
    info = read_json(folder / "snapshot.json")
    findings = folder / "findings.json"
    record = {
        **info,
        "leaderboard": read_json(folder / "leaderboard.json"),
        "findings": read_json(findings) if findings.exists() else [],
    }
    try:
        return Snapshot.model_validate(record)
    except ValidationError as error:
        raise ArtifactError(f"{folder / 'snapshot.json'} must hold name and params_sha256: run `make snapshot` again") from error
