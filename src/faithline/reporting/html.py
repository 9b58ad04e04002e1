"""The page: one file that works offline on a desk and on a phone, without scripts; everything from outside is escaped."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from faithline.config import dotted
from faithline.metrics.catalogue import METRICS
from faithline.reporting import cards, fud_section, sensitivity
from faithline.reporting.figures import Difference, Point, Series, cost_chart, forest_chart, line_chart
from faithline.reporting.findings import Finding
from faithline.reporting.gallery import Gallery
from faithline.reporting.leaderboard import (
    Column,
    Comparison,
    Row,
    Variant,
    answer,
    columns,
    compare,
    higher_is_better,
    interval_text,
    lead,
    number,
    of_role,
    ordered,
    rows,
    shows,
    snapshot_rows,
    task_document,
    variants,
)
from faithline.reporting.results import ROLES, Inputs, TaskResults


@dataclass(frozen=True)
class Training:
    """How one explainer was trained: its losses with alpha, and its validation INF."""

    name: str
    settings: dict[str, Any]
    losses: Markup
    validation: Markup


@dataclass(frozen=True)
class PairedCell:
    """A paired difference to the reference method in one metric, and what it shows."""

    text: str
    shows: Comparison


@dataclass(frozen=True)
class Section:
    """All that the page shows of a task."""

    results: TaskResults
    answer: tuple[str, ...]
    lead: str
    columns: tuple[Column, ...]
    groups: tuple[tuple[str, str, tuple[Row, ...]], ...]
    forest: Markup
    variants: tuple[Variant, ...]
    cost: Markup
    deletion: Markup
    preservation: Markup
    insertion: Markup
    legend: tuple[Series, ...]
    paired: tuple[tuple[str, tuple[PairedCell, ...]], ...]
    training: tuple[Training, ...]
    gallery: Gallery


def page(
    inputs: Inputs, found: Sequence[Finding], curves: dict[str, dict[str, list[Series]]], galleries: dict[str, Gallery]
) -> str:
    """`reports/index.html`.

    Args:
        inputs: Everything that was read.
        found: Findings in words.
        curves: Series by task and sweep.
        galleries: Gallery by task.
    """
    environment = Environment(
        loader=PackageLoader("faithline.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.filters["breakable"] = breakable
    environment.filters["interval"] = interval_text
    metrics = [name for name in METRICS if name in inputs.params.evaluate.metrics]
    snapshots = [
        (
            snapshot,
            [
                (task, result, _grouped(snapshot_rows(result, metrics)), lead(result), variants(result))
                for task, result in sorted(snapshot.leaderboard["tasks"].items())
            ],
        )
        for snapshot in inputs.snapshots
    ]
    text = environment.get_template("index.html").render(
        inputs=inputs,
        sections=[_section(inputs, task, metrics, curves[task], galleries[task]) for task in inputs.tasks],
        judged=[fud_section.section(task, inputs.benchmarks) for task in inputs.fud.values()],
        findings=found,
        snapshots=snapshots,
        snapshot_columns=[column for column in columns(metrics, ceiling=False) if column.key != "mean_rank_without_fe_mc"],
        study=sensitivity.study(inputs.sensitivity) if inputs.sensitivity else None,
        metrics=[(name, METRICS[name]) for name in metrics],
        cards=cards,
        used=_used(inputs),
        confidence=f"{inputs.params.evaluate.confidence:.0%}",
    )
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip()) + "\n"


def breakable(name: str) -> Markup:
    """A name that a narrow column may break after an underscore."""
    return Markup("_<wbr>").join(name.split("_"))


def _used(inputs: Inputs) -> list[str]:
    """Names of all candidates of the run, each once, in the order of the texts."""
    names = {name for results in inputs.tasks.values() for name in results.evaluation.candidates}
    return [name for name in (*cards.METHODS, *cards.CONTROLS) if name in names]


def _grouped(table: Sequence[Row]) -> tuple[tuple[str, str, tuple[Row, ...]], ...]:
    groups = []
    for role in ROLES:
        members = tuple(row for row in table if row.role == role)
        if members:
            groups.append((*cards.ROLES[role], members))
    return tuple(groups)


def _section(inputs: Inputs, task: str, metrics: Sequence[str], curves: dict[str, list[Series]], gallery: Gallery) -> Section:
    results = inputs.tasks[task]
    output = str(results.evaluation.conventions.get("output", "value"))

    def chart(sweep: str, title: str, x_label: str) -> Markup:
        return line_chart(curves[sweep], title=f"{title}, {task}", x_label=x_label, y_label=f"{output} of the explained class")

    legend = {line.label: line for lines in curves.values() for line in lines}
    return Section(
        results=results,
        answer=tuple(answer(results)),
        lead=lead(task_document(results.evaluation)),
        columns=tuple(columns(metrics, ceiling=results.evaluation.ceiling is not None)),
        groups=_grouped(rows(results.evaluation, metrics)),
        forest=_forest(results),
        variants=tuple(variants(task_document(results.evaluation))),
        cost=_cost(results),
        deletion=chart("morf", "Deletion", "fraction removed, most relevant first"),
        preservation=chart("lerf", "Preservation", "fraction removed, least relevant first"),
        insertion=chart("insertion", "Insertion", "fraction put back, most relevant first"),
        legend=tuple(legend.values()),
        paired=_paired(results, metrics, inputs.params.report.reference),
        training=tuple(_training(results, name) for name in results.explainers),
        gallery=gallery,
    )


def _forest(results: TaskResults) -> Markup:
    versus = results.evaluation.versus
    names = [name for name in ordered(results.evaluation.candidates) if name in versus]
    names += [name for name in sorted(versus) if name not in names]
    found = []
    for name in names:
        difference = versus[name].mean_rank_difference
        if difference.mean is not None and difference.low is not None and difference.high is not None:
            shown = shows(versus[name])
            found.append(Difference(name, difference.mean, difference.low, difference.high, shown))
    return forest_chart(
        found,
        title=f"{results.explainer} against each candidate, {results.name}",
        x_label=f"difference in mean rank (left of 0: {results.explainer} is ahead)",
    )


def _cost(results: TaskResults) -> Markup:
    candidates = results.evaluation.candidates
    points = [
        Point(name, f"role-{row.role}", row.passes, row.mean_rank)
        for name in of_role(results.evaluation, *ROLES)
        if (row := candidates[name]).passes is not None and row.mean_rank is not None
    ]
    return cost_chart(points, title=f"Mean rank against passes, {results.name}", y_label="mean rank (best on top)")


def _paired(results: TaskResults, metrics: Sequence[str], reference: str) -> tuple[tuple[str, tuple[PairedCell, ...]], ...]:
    table = []
    for name in ordered(results.evaluation.candidates):
        differences = results.evaluation.candidates[name].difference
        if name == reference or not differences:
            continue
        cells = []
        for metric in metrics:
            if metric not in differences:
                cells.append(PairedCell("\N{EN DASH}", "undecided"))
                continue
            difference = differences[metric]
            cells.append(PairedCell(interval_text(difference, 3), compare(difference, higher=higher_is_better(metric))))
        table.append((name, tuple(cells)))
    return tuple(table)


def _training(results: TaskResults, name: str) -> Training:
    history = results.histories[name]

    def line(column: str, label: str, style: int) -> list[Series]:
        known = history.filter(pl.col(column).is_not_null())
        if known.is_empty():
            return []
        return [Series(label, style, known["epoch"].cast(pl.Float64).to_list(), known[column].cast(pl.Float64).to_list())]

    losses = [*line("pattern", "pattern loss", 0), *line("local", "local loss", 1), *line("alpha", "alpha", 2)]
    losses += [*line("loss", "loss", 4), *line("validation_loss", "validation loss", 5)]
    validation = line("validation_inf", "validation INF", 3)
    return Training(
        name,
        dotted(results.explainers[name].get("settings", {})),
        line_chart(
            losses,
            title=f"Losses of {name}" if history["alpha"].is_null().all() else f"Losses and alpha of {name}",
            x_label="epoch",
            y_label="loss" if history["alpha"].is_null().all() else "loss, alpha",
        ),
        line_chart(validation, title=f"Validation INF of {name}", x_label="epoch", y_label="INF on validation samples"),
    )
