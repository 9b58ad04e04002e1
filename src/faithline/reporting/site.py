"""The report as files. This is the single writer of the leaderboard, the findings, the plots, the gallery and the page."""

import csv
import io
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from faithline.artifacts import publish, write_json, write_text
from faithline.config import Params
from faithline.metrics.catalogue import METRICS
from faithline.reporting import findings, fud_findings, fud_section, gallery, html, leaderboard, results
from faithline.reporting.figures import COLOURS, Series, band
from faithline.reporting.findings import Finding
from faithline.reporting.results import Inputs, TaskResults
from faithline.seeding import numpy_generator

SWEEPS = ("morf", "lerf", "insertion")


def write(params: Params, root: str | Path = ".") -> None:
    """Read all results and write `reports/{leaderboard,findings}.json`, `plots/`, `gallery/`, `index.html` and `README.md`.

    Nothing is written before everything has been read and drawn. Equal inputs give equal bytes.

    Args:
        params: The validated params.
        root: Folder that holds `params.yaml`, `data/`, `models/` and `reports/`.

    Raises:
        ArtifactError: If an input is missing, damaged, left over from an earlier params file, or breaks a reporting rule.
    """
    root = Path(root)
    inputs = results.read(params, root)
    found = [*findings.findings(inputs), *fud_findings.findings(inputs)]
    curves = {task: _curves(inputs, task) for task in inputs.tasks}
    galleries = {task: gallery.build(inputs.tasks[task], params) for task in inputs.tasks}
    shown = [task for task in inputs.tasks if galleries[task].entries]
    sheets = {task: gallery.contact_sheet(galleries[task], inputs.tasks[task].samples) for task in shown}
    page = html.page(inputs, found, curves, galleries)
    reports = root / "reports"
    with publish(reports / "plots") as folder:
        write_text(folder / "leaderboard.csv", _leaderboard_csv(inputs))
        write_text(folder / "curves.csv", _curves_csv(curves))
    with publish(reports / "gallery") as folder:
        for task, sheet in sheets.items():
            (folder / f"{task}.png").write_bytes(sheet)
    write_json(reports / "leaderboard.json", leaderboard.document(inputs))
    write_json(reports / "findings.json", findings.document(found))
    write_text(reports / "README.md", readme(inputs, found))
    write_text(reports / "index.html", page)


def drawn(task: TaskResults, params: Params) -> list[str]:
    """The handful of candidates whose curves are drawn: explainers, best prior, reference method, best reference, random map."""
    evaluation = task.evaluation
    explainers = leaderboard.of_role(evaluation, "explainer")
    priors = leaderboard.of_role(evaluation, "supervision", "baseline")
    # The oracle has scores only: take the best reference that has curves.
    references = (name for name in leaderboard.of_role(evaluation, "reference") if task.curves(name) is not None)
    wanted = [*explainers[:3], *priors[:1], params.report.reference, *islice(references, 1), "random"]
    return [name for name in dict.fromkeys(wanted) if name in evaluation.candidates][:COLOURS]


def _curves(inputs: Inputs, task: str) -> dict[str, list[Series]]:
    """Series by sweep, with the same bootstrap draws for each candidate."""
    params, known = inputs.params, inputs.tasks[task]
    series: dict[str, list[Series]] = {sweep: [] for sweep in SWEEPS}
    for style, name in enumerate(drawn(known, params)):
        frame = known.curves(name)
        if frame is None:
            continue
        for sweep in SWEEPS:
            line = band(
                frame,
                sweep,
                steps=params.tasks[task].game.steps,
                draws=params.evaluate.bootstrap,
                confidence=params.evaluate.confidence,
                generator=numpy_generator(params.seed, "report", "bands", task),
            )
            if line is not None:
                series[sweep].append(Series(name, style, line["x"], line["mean"], line["low"], line["high"]))
    return series


# -------------------------------------------------------------------------------------------------------------------- csv


def _csv(rows: Sequence[Sequence[object]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in rows:
        writer.writerow([f"{value:.6g}" if isinstance(value, float) else "" if value is None else value for value in row])
    return buffer.getvalue()


def _leaderboard_csv(inputs: Inputs) -> str:
    metrics = [name for name in METRICS if name in inputs.params.evaluate.metrics]
    rows: list[Sequence[object]] = [
        ["candidate", "task", "role", "mean_rank", "family_rank", "mean_rank_without_fe_mc", "passes", *metrics]
    ]
    for task, known in inputs.tasks.items():
        for name in leaderboard.ordered(known.evaluation.candidates):
            row = known.evaluation.candidates[name]
            ranks = [row.mean_rank, row.family_rank, row.mean_rank_without_fe_mc]
            means = [row.metrics[metric].mean for metric in metrics]
            rows.append([name, task, row.role, *ranks, leaderboard.whole(row.passes), *means])
    return _csv(rows)


def _curves_csv(curves: dict[str, dict[str, list[Series]]]) -> str:
    rows: list[Sequence[object]] = [["task", "candidate", "sweep", "fraction", "value"]]
    for task, sweeps in curves.items():
        for sweep, lines in sweeps.items():
            for line in lines:
                rows += [[task, line.label, sweep, x, y] for x, y in zip(line.x, line.mean, strict=True)]
    return _csv(rows)


# --------------------------------------------------------------------------------------------------------------- markdown


def _markdown(text: object) -> str:
    """A cell of a Markdown table: nothing in it can end the cell, start HTML or a link."""
    plain = " ".join(str(text).split())
    for character in "\\`*_|[]<>":
        plain = plain.replace(character, "&lt;" if character == "<" else "&gt;" if character == ">" else "\\" + character)
    return plain


def _table(rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(_markdown(cell) for cell in row) + " |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(lines)


def readme(inputs: Inputs, found: Sequence[Finding]) -> str:
    """`reports/README.md`: the leaderboards and findings for GitHub."""
    metrics = [name for name in METRICS if name in inputs.params.evaluate.metrics]
    confidence = f"{inputs.params.evaluate.confidence:.0%}"
    parts = [
        "# Results",
        "Made by `dvc repro report`; do not edit. The full report is [index.html](index.html): one file, download and open it.",
    ]
    for task, known in inputs.tasks.items():
        evaluation = known.evaluation
        scores = ", ".join(f"{key} {leaderboard.number(evaluation.target.get(key))}" for key in ("accuracy", "auc"))
        columns = leaderboard.columns(metrics, ceiling=evaluation.ceiling is not None)
        table: list[Sequence[object]] = [["candidate", "role", *(f"{column.heading} {column.arrow}" for column in columns)]]
        for row in leaderboard.rows(evaluation, metrics):
            name = f"{row.name} (= {row.duplicate_of})" if row.duplicate_of else row.name
            cells = [cell.text + (f" ({cell.small})" if cell.small else "") for cell in row.cells]
            table.append([name, row.role, *cells])
        parts += [
            f"## {task}",
            " ".join(_markdown(sentence) for sentence in leaderboard.answer(known)),
            f"Target: {scores}; {evaluation.n_test} test samples, {evaluation.n_features} features. "
            f"Means with {confidence} bootstrap intervals.",
            _table(table),
            *(f"{_markdown(name)} not applicable: {_markdown(reason)}" for name, reason in sorted(known.misfits.items())),
        ]
    for task, judged in inputs.fud.items():
        headings, groups = fud_section.ranking(judged.results)
        judged_rows: list[Sequence[object]] = [
            ["candidate", "role", *(f"{heading.heading} {heading.arrow}".strip() for heading in headings)]
        ]
        for candidate in (candidate for _, _, members in groups for candidate in members):
            texts = [cell.text + (f" ({cell.small})" if cell.small else "") for cell in candidate.cells]
            judged_rows.append([candidate.name, candidate.role, *texts])
        parts += [
            f"## {task}, in distribution (FUD)",
            " ".join(_markdown(sentence) for sentence in fud_section.answer(judged.results)),
            _table(judged_rows),
        ]
    parts.append("## Findings")
    parts.append(
        _table([["claim", "source", "verdict", "evidence"], *[[f.claim, f.source, f.verdict, f.evidence] for f in found]])
    )
    return "\n\n".join(parts) + "\n"
