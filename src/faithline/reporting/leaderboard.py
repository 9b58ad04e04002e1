"""Who ranks where: `leaderboard.json`, the answer in words, and the rows of every table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from faithline.metrics.catalogue import METRICS
from faithline.reporting.records import Interval
from faithline.reporting.results import (
    ROLES,
    CandidateResult,
    Evaluation,
    Inputs,
    RankDifference,
    Role,
    TaskResults,
    TrainingPasses,
)

Comparison = Literal["better", "worse", "undecided"]
RANKED: tuple[Role, ...] = ("explainer", "supervision", "baseline", "control")
"""Roles among which the best value of a column is marked, controls included; references are shown, never beaten."""


def higher_is_better(metric: str) -> bool:
    """Direction of a metric, from the catalogue."""
    return METRICS[metric].direction == "higher"


def compare(difference: Interval, *, higher: bool) -> Comparison:
    """What a paired difference shows: `better` or `worse` only where its interval excludes 0, otherwise `undecided`.

    Args:
        difference: First minus second, with the ends of its interval.
        higher: Whether a higher value is better (metrics may be; ranks are not).
    """
    if difference.low is None or difference.high is None or difference.low <= 0 <= difference.high:
        return "undecided"
    return "better" if (difference.low > 0) == higher else "worse"


def shows(versus: RankDifference) -> Comparison:
    """What a comparison of the explainer shows: `better` or `worse` only where it holds after Holm's correction."""
    return compare(versus.mean_rank_difference, higher=False) if versus.separable else "undecided"


def against(evaluation: Evaluation, names: Iterable[str]) -> dict[Comparison, list[str]]:
    """The headline explainer against other candidates: names by what the comparison shows (`shows`)."""
    groups: dict[Comparison, list[str]] = {"better": [], "worse": [], "undecided": []}
    for name in names:
        if name in evaluation.versus:
            groups[shows(evaluation.versus[name])].append(name)
    return groups


def of_role(evaluation: Evaluation, *roles: Role) -> list[str]:
    """Candidates of some roles that are no duplicates of another row, best mean rank first."""
    rows = evaluation.candidates
    return [name for name in ordered(rows) if rows[name].role in roles and rows[name].duplicate_of is None]


def ordered(candidates: Mapping[str, CandidateResult]) -> list[str]:
    """Names by role, then mean rank (undefined last), then name."""

    def key(name: str) -> tuple[int, float, str]:
        row = candidates[name]
        return ROLES.index(row.role), float("inf") if row.mean_rank is None else row.mean_rank, name

    return sorted(candidates, key=key)


def document(inputs: Inputs) -> dict[str, Any]:
    """`reports/leaderboard.json`, the stable machine-readable result."""
    return {"tasks": {name: task_document(results.evaluation) for name, results in inputs.tasks.items()}}


def task_document(evaluation: Evaluation) -> dict[str, Any]:
    """A task's part of `leaderboard.json`."""
    runner_up = evaluation.runner_up
    return {
        "target": {key: evaluation.target.get(key) for key in ("accuracy", "auc")},
        "n_test": evaluation.n_test,
        "candidates": {
            name: {
                "role": row.role,
                "mean_rank": row.mean_rank,
                "family_rank": row.family_rank,
                "metrics": {metric: summary.model_dump() for metric, summary in row.metrics.items()},
                "passes": whole(row.passes),
                "training_passes": None if row.training_passes is None else row.training_passes.model_dump(),
                "changes": row.changes,
                "versus": evaluation.versus[name].model_dump() if name in evaluation.versus else None,
            }
            for name, row in evaluation.candidates.items()
        },
        "runner_up": None
        if runner_up is None
        else {
            "candidate": runner_up.candidate,
            "mean_rank_difference": runner_up.mean_rank_difference.model_dump(),
            "without_fe_mc": runner_up.without_fe_mc.model_dump(),
        },
    }


def whole(number: float | None) -> float | int | None:
    """A count as an integer where it is one (passes of a text are a mean over lengths)."""
    return int(number) if number is not None and float(number).is_integer() else number


# ------------------------------------------------------------------------------------------------------------------ words


def interval_text(interval: Interval, digits: int = 2) -> str:
    """`-0.41 [-0.60, -0.22]`, with a true minus sign."""
    if interval.mean is None:
        return "undefined"
    text = f"{interval.mean:+.{digits}f}"
    if interval.low is not None and interval.high is not None:
        text += f" [{interval.low:+.{digits}f}, {interval.high:+.{digits}f}]"
    return text.replace("-", "\N{MINUS SIGN}")


def listing(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def answer(results: TaskResults) -> list[str]:
    """The answer for one task in plain sentences; "better" only where it holds after Holm's correction (`shows`)."""
    evaluation = results.evaluation
    runner_up = evaluation.runner_up
    if runner_up is None:
        return ["No explainer was trained for this task, so there is nothing to compare with the prior methods."]
    name, rank = runner_up.explainer, evaluation.candidates[runner_up.explainer].mean_rank
    control = evaluation.candidates[runner_up.candidate].role == "control"
    rival = f"the best {'rival, the control' if control else 'prior method,'} {runner_up.candidate}"
    verdict = {
        "better": f"is better than {rival}",
        "worse": f"is worse than {rival}",
        "undecided": f"cannot be told apart from {rival}",
    }[shows(runner_up)]
    shown = "undefined" if rank is None else f"{rank:.2f}"
    first = (
        f"{name} (mean rank {shown}; 1 is best) {verdict}: the paired difference in mean rank is "
        f"{interval_text(runner_up.mean_rank_difference)}{_p_text(runner_up)}."
    )
    return [first, _counts(evaluation, name)]


def _p_text(versus: RankDifference) -> str:
    if versus.p_holm is None:
        return ""
    p = "p < 0.001" if versus.p_holm < 0.001 else f"p = {versus.p_holm:.3f}"
    return f", {p} after Holm's correction"


_WORDS: dict[Comparison, str] = {"better": "better than", "worse": "worse than", "undecided": "not separable from"}


def _counts(evaluation: Evaluation, name: str) -> str:
    priors = of_role(evaluation, "supervision", "baseline")
    groups = against(evaluation, priors)
    parts = [f"better than {len(groups['better'])} of {len(priors)} prior methods"]
    if groups["worse"]:
        parts.append(f"worse than {listing(groups['worse'])}")
    if groups["undecided"]:
        parts.append(f"not separable from {listing(groups['undecided'])}")
    controls = against(evaluation, of_role(evaluation, "control"))
    for shown, words in _WORDS.items():
        if names := controls[shown]:
            parts.append(f"{words} the control{'s' if len(names) > 1 else ''} {listing(names)}")
    return f"Over all comparisons {name} is {'; '.join(parts)}."


# ----------------------------------------------------------------------------------------------------------------- tables


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Attributes:
        text: The number, or a dash where it is undefined.
        small: Its interval, or nothing.
        heat: How good it is within its column among the ranked roles, 0 (worst) to 1 (best); None = not shaded.
        best: Whether it is the best of its column among the ranked roles.
        null: How many samples have no defined value.
    """

    text: str
    small: str = ""
    heat: float | None = None
    best: bool = False
    null: int = 0


@dataclass(frozen=True)
class Row:
    """One candidate of a table."""

    name: str
    role: str
    cells: tuple[Cell, ...]
    duplicate_of: str | None = None


@dataclass(frozen=True)
class Column:
    """One column of a table: its key, heading, arrow and one explaining sentence."""

    key: str
    heading: str
    arrow: str
    title: str


def columns(metrics: Sequence[str], *, ceiling: bool) -> list[Column]:
    """Columns of a full leaderboard, in order; `ceiling` = with INF over R(x)."""
    lower = "lower is better"
    found = [
        Column(
            "mean_rank", "mean rank", "\N{DOWNWARDS ARROW}", f"Mean over samples and metrics of the rank in the pool; {lower}"
        ),
        Column("family_rank", "family rank", "\N{DOWNWARDS ARROW}", f"Ranks averaged within four families first; {lower}"),
        Column(
            "mean_rank_without_fe_mc",
            "rank w/o FE, MC",
            "\N{DOWNWARDS ARROW}",
            f"Mean rank without FE and MC, which single-feature ablation wins by definition; {lower}",
        ),
    ]
    if ceiling:
        title = "Mean INF divided by the mean ceiling R(x); higher is better"
        found.append(Column("inf_over_ceiling", "INF / R", "\N{UPWARDS ARROW}", title))
    for metric in metrics:
        up = higher_is_better(metric)
        arrow = "\N{UPWARDS ARROW}" if up else "\N{DOWNWARDS ARROW}"
        found.append(Column(metric, metric.upper(), arrow, "higher is better" if up else lower))
    return [
        *found,
        Column("passes", "passes", "\N{DOWNWARDS ARROW}", "Evaluations of the target model per explanation"),
        Column(
            "training_passes",
            "passes to train",
            "",
            "Evaluations of the target model that training used: values read from the bank and clean inputs; those of a "
            "surrogate in small print. The maps that DeepFaith imitates are paid for by the prior methods",
        ),
    ]


def rows(evaluation: Evaluation, metrics: Sequence[str]) -> list[Row]:
    """Rows of a task's leaderboard, with the ceiling R(x) as the last reference."""
    keys = [column.key for column in columns(metrics, ceiling=evaluation.ceiling is not None)]
    table = {name: {key: _value(evaluation, name, key) for key in keys} for name in ordered(evaluation.candidates)}
    pool = of_role(evaluation, *RANKED)
    found = []
    for name, values in table.items():
        row = evaluation.candidates[name]
        cells = []
        for key in keys:
            peers = [value for peer in pool if (value := table[peer][key]) is not None]
            cell = _cell(key, values[key], peers if name in pool else [])
            if key in row.metrics:
                summary = row.metrics[key]
                cell = replace(cell, small=range_text(summary), null=summary.null)
            elif key == "training_passes" and row.training_passes is not None and row.training_passes.surrogate:
                cell = replace(cell, small=f"and {row.training_passes.surrogate:,} of a surrogate")
            elif key == "mean_rank":
                spread = Interval(mean=row.mean_rank, low=row.mean_rank_low, high=row.mean_rank_high)
                cell = replace(cell, small=range_text(spread, 2))
            cells.append(cell)
        found.append(Row(name, row.role, tuple(cells), row.duplicate_of))
    ceiling = evaluation.ceiling or Interval(mean=None, low=None, high=None)
    inf = Cell(number(ceiling.mean), range_text(ceiling) or "too many features")
    found.append(Row("ceiling R(x)", "reference", tuple(inf if key == "inf" else Cell("") for key in keys)))
    return found


def lead(task: Mapping[str, Any]) -> str:
    """How far the first explainer of a task of `leaderboard.json` is ahead of the best of the others, or nothing without one."""
    runner_up = task["runner_up"]
    if runner_up is None:
        return ""
    text = f"The first explainer against {runner_up['candidate']}, the best of the others: "
    text += f"{interval_text(Interval.model_validate(runner_up['mean_rank_difference']))} in mean rank"
    if runner_up.get("without_fe_mc") is not None:
        text += f", {interval_text(Interval.model_validate(runner_up['without_fe_mc']))} without FE and MC"
    return text + "; below 0 the explainer is ahead."


@dataclass(frozen=True)
class Variant:
    """An explainer beside the first of its modality.

    Attributes:
        name: Of the explainer.
        changes: What it has otherwise, `key = value` each; empty for the first.
        mean_rank: In the pool.
        difference: The first minus this one in mean rank: below 0 the first is better. Empty for the first.
        shows: What the difference shows for the first after Holm's correction; None for the first.
        metrics: Mean INF, DEL and INS as text, as far as the run has them.
        training_passes: Evaluations of the target that training read, and those of a copy of it where there is one.
    """

    name: str
    changes: tuple[str, ...]
    mean_rank: str
    difference: str
    shows: Comparison | None
    metrics: tuple[str, ...]
    training_passes: str


VARIANT_METRICS = ("inf", "del", "ins")


def variants(task: Mapping[str, Any]) -> list[Variant]:
    """The explainers of a task of `leaderboard.json`: the first, then the others by mean rank; none if there is but one."""
    known = {name: row for name, row in task["candidates"].items() if row.get("changes") is not None}
    if len(known) < 2:
        return []
    found = []
    for name, row in sorted(known.items(), key=lambda item: (item[1]["versus"] is not None, item[1]["mean_rank"] or 0, item[0])):
        versus = None if row["versus"] is None else RankDifference.model_validate(row["versus"])
        found.append(
            Variant(
                name=name,
                changes=tuple(f"{key} = {value}" for key, value in row["changes"].items()),
                mean_rank=number(row["mean_rank"], 2),
                difference="" if versus is None else interval_text(versus.mean_rank_difference),
                shows=None if versus is None else shows(versus),
                metrics=tuple(number(row["metrics"].get(metric, {}).get("mean")) for metric in VARIANT_METRICS),
                training_passes=_training_passes(TrainingPasses.model_validate(row["training_passes"])),
            )
        )
    return found


def _training_passes(passes: TrainingPasses) -> str:
    text = f"{passes.bank + passes.clean:,}"
    return text + f" and {passes.surrogate:,} of a copy" if passes.surrogate else text


def snapshot_rows(task: Mapping[str, Any], metrics: Sequence[str]) -> list[Row]:
    """Rows of a task of another scale, from its `leaderboard.json`: mean rank, family rank, metrics, passes."""
    candidates = {
        name: CandidateResult.model_validate({**row, "mean_rank_without_fe_mc": None})
        for name, row in sorted(task["candidates"].items())
    }
    keys = ["mean_rank", "family_rank", *metrics, "passes"]
    found = []
    for name in ordered(candidates):
        row = candidates[name]
        cells = []
        for key in keys:
            if key in metrics:
                summary = row.metrics.get(key)
                cells.append(
                    Cell("\N{EN DASH}") if summary is None else Cell(number(summary.mean), range_text(summary), null=summary.null)
                )
            else:
                cells.append(_cell(key, getattr(row, key), []))
        found.append(Row(name, row.role, tuple(cells)))
    return found


def _value(evaluation: Evaluation, name: str, key: str) -> float | None:
    row = evaluation.candidates[name]
    if key == "inf_over_ceiling":
        return evaluation.inf_over_ceiling.get(name)
    if key in row.metrics:
        return row.metrics[key].mean
    if key == "training_passes":
        return None if row.training_passes is None else row.training_passes.bank + row.training_passes.clean
    found: float | None = getattr(row, key, None)
    return found


def _cell(key: str, value: float | None, peers: Sequence[float]) -> Cell:
    if value is None:
        return Cell("\N{EN DASH}")
    if key in ("passes", "training_passes"):
        return Cell(f"{value:,.0f}" if value >= 10 or float(value).is_integer() else f"{value:.1f}")
    ranks = "rank" in key
    text = number(value, 2 if ranks else 3)
    low, high = min(peers, default=value), max(peers, default=value)
    if not peers or low == high:
        return Cell(text)
    up = key == "inf_over_ceiling" or (not ranks and higher_is_better(key))
    share = (value - low) / (high - low)
    return Cell(text, heat=share if up else 1 - share, best=value == (high if up else low))


def number(value: float | None, digits: int = 3) -> str:
    """A number with a true minus sign, or a dash where it is undefined."""
    if value is None:
        return "\N{EN DASH}"
    text = f"{value:.{digits}f}"
    # -0.0004 at three digits is 0.000, not a negative zero.
    return text.replace("-", "\N{MINUS SIGN}") if float(text) else text.removeprefix("-")


def range_text(interval: Interval, digits: int = 3) -> str:
    """`0.41 to 0.60`, or nothing where the interval is undefined."""
    if interval.low is None or interval.high is None:
        return ""
    return f"{number(interval.low, digits)} to {number(interval.high, digits)}"
