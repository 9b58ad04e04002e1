"""`faithline check | compose | explain | score`. Nothing heavy is imported before a command needs it."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from faithline import config

if TYPE_CHECKING:
    import polars as pl

app = typer.Typer(
    help="Attributions that are measured, explainers that are trained to be faithful.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: loading the formatter would double the time it takes
)

ParamsFile = Annotated[Path, typer.Option("--params", help="Params file.")]


@app.command()
def check(params: ParamsFile = Path("params.yaml")) -> None:
    """Validate a params file: every fault at once, each with its key, its value and the rule."""
    loaded = config.load(params)
    sections = [loaded.table, loaded.text, loaded.image]
    jobs = sum(len(section.tasks) * (len(section.methods.names()) + len(section.explainers)) for section in sections)
    typer.echo(f"{params}: valid ({len(loaded.tasks)} tasks, {jobs} columns of methods and explainers)")


@app.command()
def compose(
    entry: Annotated[Path, typer.Argument(help="Entry of one task: params/tasks/NAME.yaml.")],
    scale: Annotated[Path, typer.Option("--scale", help="Complete params file that gives everything else.")] = Path(
        "params/paper.yaml"
    ),
) -> None:
    """Print a params file for one task: everything of a scale, with the task in the place of its tasks."""
    from faithline import presets

    try:
        typer.echo(presets.compose_files(scale, entry), nl=False)
    except (config.ConfigError, OSError) as error:
        raise SystemExit(f"error: {error}") from error


@app.command()
def explain(
    explainer: Annotated[Path, typer.Argument(help="Folder of a trained explainer: models/explainers/TASK/NAME.")],
    files: Annotated[list[Path], typer.Argument(help="Images, texts (one document a file), or CSV tables.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for pictures and numbers.")],
    params: ParamsFile = Path("params.yaml"),
) -> None:
    """Explain your own files with a trained explainer, in one forward pass. Run it in the root of the repository."""
    loaded = config.load(params)
    task = _known(explainer.resolve().parent.name, loaded)

    from faithline.errors import run_stage

    def work() -> None:
        from faithline import explanations, inputs, seeding, workspace
        from faithline.explainers.load import load_explainer

        seeding.setup(loaded.seed)
        opened = workspace.open_workspace(task, loaded)
        read = inputs.read_files(files, opened.samples)
        network = load_explainer(explainer, opened.target.model)
        for path in explanations.write(explanations.explain(read, opened.game, network), opened.samples, out):
            typer.echo(path)

    run_stage(work)


@app.command()
def score(
    task: Annotated[str, typer.Argument(help="Task of params.yaml.")],
    maps: Annotated[Path, typer.Argument(help=".parquet or .npz with sample_id and attribution, for test samples.")],
    name: Annotated[str, typer.Option(help="What to call these maps.")] = "mine",
    out: Annotated[Path | None, typer.Option("--out", help="Per-sample scores (default: MAPS.scores.parquet).")] = None,
    params: ParamsFile = Path("params.yaml"),
) -> None:
    """Score your own maps with the ten metrics, beside the reference method on the same samples."""
    loaded = config.load(params)
    _known(task, loaded)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise SystemExit(f"error: --name {name!r}: use lower-case letters, digits and _")
    path = out or maps.with_suffix(".scores.parquet")

    from faithline.errors import run_stage

    def work() -> None:
        from faithline import artifacts, seeding, submission, workspace

        seeding.setup(loaded.seed)
        opened = workspace.open_workspace(task, loaded)
        sample_ids, own = submission.read_submission(maps, opened)
        scored = submission.score_submission(opened, name, sample_ids, own)
        compared = submission.compare(opened, scored)
        artifacts.write_table(path, scored, opened.metadata())
        _print_table(compared, name, loaded.report.reference, f"{task}, {len(sample_ids)} test samples")
        typer.echo(f"per-sample scores: {path}")

    run_stage(work)


def _known(task: str, loaded: config.Params) -> str:
    if task not in loaded.tasks:
        raise SystemExit(f"error: no task {task!r} in the params file; it has {sorted(loaded.tasks)}")
    return task


def _print_table(compared: "pl.DataFrame", name: str, reference: str, title: str) -> None:
    """Means with intervals; a difference whose interval excludes 0 is marked as better or worse."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.width = max(console.width, 110)  # a narrow pipe would cut the intervals off
    table = Table(title=title, caption="mean [bootstrap interval]; the difference is paired; null: maps without this metric")
    for column in ("metric", name, reference, "difference", "verdict", "null"):
        table.add_column(column, justify="left" if column in ("metric", "verdict") else "right")
    for row in compared.to_dicts():
        arrow = "\N{UPWARDS ARROW}" if row["direction"] == "higher" else "\N{DOWNWARDS ARROW}"
        table.add_row(
            f"{row['metric']} {arrow}",
            *(
                _interval(row[f"{word}_mean"], row[f"{word}_low"], row[f"{word}_high"])
                for word in ("own", "reference", "difference")
            ),
            _verdict(row["difference_low"], row["difference_high"], higher=row["direction"] == "higher"),
            str(row["own_null"]),
        )
    console.print(table)


def _interval(mean: float | None, low: float | None, high: float | None) -> str:
    return "undefined" if mean is None or low is None or high is None else f"{mean:.3f} \\[{low:.3f}, {high:.3f}]"


def _verdict(low: float | None, high: float | None, *, higher: bool) -> str:
    if low is None or high is None or low <= 0 <= high:
        return "open"
    return "better" if (low > 0) == higher else "worse"
