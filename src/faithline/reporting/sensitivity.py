"""How DeepFaith answers to its constants, as curves, and what it does without its parts, as a table."""

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from faithline.metrics.catalogue import METRICS
from faithline.reporting.figures import COLOURS, Series, value_chart
from faithline.reporting.leaderboard import higher_is_better, number, range_text
from faithline.reporting.records import Interval
from faithline.reporting.results import Sensitivity, VariedFactor, VariedRun


@dataclass(frozen=True)
class Measure:
    """One number of a run: its heading, which way is better (an arrow, or nothing), and where it stands."""

    heading: str
    arrow: str
    of: Callable[[VariedRun], Interval]


@dataclass(frozen=True)
class Panel:
    """A constant and a chart a measure, each with its heading."""

    factor: VariedFactor
    charts: tuple[tuple[Measure, Markup], ...]


@dataclass(frozen=True)
class AblationRow:
    """One variant on one task: a number and its interval a measure."""

    meaning: str
    task: str
    cells: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Study:
    """All that the page shows of a sensitivity study; `legend` has a line a task."""

    measures: tuple[Measure, ...]
    panels: tuple[Panel, ...]
    ablations: tuple[AblationRow, ...]
    legend: tuple[Series, ...]
    sizes: tuple[VariedRun, ...]


def study(results: Sensitivity) -> Study:
    """The charts and the table of `reports/sensitivity/results.json`."""
    tasks = list(dict.fromkeys(row.task for row in results.rows))
    measures = _measures(results)
    return Study(
        measures=measures,
        panels=tuple(
            Panel(
                factor,
                tuple(
                    (measure, _chart(results, factor, measure, tasks))
                    for measure in measures
                    if _varies(results, factor, measure)
                ),
            )
            for factor in results.factors
        ),
        ablations=tuple(
            AblationRow(ablation.meaning, row.task, tuple(_cell(measure.of(row)) for measure in measures))
            for ablation in results.ablations
            for row in results.rows
            if row.factor == "ablation" and row.value == ablation.name
        ),
        legend=tuple(Series(task, style % COLOURS, (), ()) for style, task in enumerate(tasks)),
        sizes=tuple({row.task: row for row in results.rows}.values()),
    )


def _measures(results: Sensitivity) -> tuple[Measure, ...]:
    up, down = "\N{UPWARDS ARROW}", "\N{DOWNWARDS ARROW}"
    metrics = [name for name in METRICS if all(name in row.metrics for row in results.rows)]
    return (
        Measure("mean rank", down, lambda row: row.mean_rank),
        *(Measure(name.upper(), up if higher_is_better(name) else down, _metric(name)) for name in metrics),
        # The share of all maps that curation lets teach is counted, not estimated: it has no interval.
        Measure("maps kept", "", lambda row: Interval(mean=row.taught, low=None, high=None)),
    )


def _metric(name: str) -> Callable[[VariedRun], Interval]:
    return lambda row: row.metrics[name]


def _varies(results: Sensitivity, factor: VariedFactor, measure: Measure) -> bool:
    """Whether a measure has an interval or answers to a factor: a count that does not is the same on all charts."""
    rows = [row for row in results.rows if row.factor == factor.name]
    return any(measure.of(row).low is not None for row in rows) or len({(row.task, measure.of(row).mean) for row in rows}) > len(
        {row.task for row in rows}
    )


def _chart(results: Sensitivity, factor: VariedFactor, measure: Measure, tasks: list[str]) -> Markup:
    lines = []
    for style, task in enumerate(tasks):
        found = {float(row.value): measure.of(row) for row in results.rows if row.factor == factor.name and row.task == task}
        x = sorted(value for value in found if found[value].mean is not None)
        mean, low, high = ([getattr(found[value], end) for value in x] for end in ("mean", "low", "high"))
        banded = None not in (*low, *high)
        lines.append(Series(task, style % COLOURS, x, mean, low if banded else (), high if banded else ()))
    return value_chart(
        lines,
        mark=factor.preset,
        title=f"{measure.heading} by {factor.symbol}",
        x_label=factor.symbol,
        y_label="",
    )


def _cell(interval: Interval) -> tuple[str, str]:
    return number(interval.mean), range_text(interval)
