"""How DeepFaith answers to its constants and does without its parts: the grid, its DVC experiments, one file of what they say.

`make sensitivity` runs this in a checkout of its own, whose `params.yaml` is `params/sensitivity.yaml` and whose results of that
are committed:

    python -m faithline.sensitivity queue           # `dvc exp run --queue -S ...` for each variant that has not finished yet
    dvc exp run --run-all
    python -m faithline.sensitivity collect FILE    # what the report reads
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from faithline import config
from faithline.artifacts import write_json
from faithline.config import Params
from faithline.errors import ArtifactError, run_stage

Value = float | int | str
Changes = dict[str, Value]
"""Values by dotted key, as `dvc exp run -S` takes them."""

EXPLAINER = "deepfaith"
METRICS = ("inf", "del", "ins")


@dataclass(frozen=True)
class Factor:
    """A constant and the values it takes, one at a time, while all others stay at the preset's.

    Attributes:
        name: First part of the names of its experiments.
        symbol: What the paper calls it.
        meaning: The same in words.
        keys: Keys of params.yaml that get the value, with `{task}` and `{modality}` for each of the preset's tasks.
        values: Ascending; the preset's is one of them.
    """

    name: str
    symbol: str
    meaning: str
    keys: tuple[str, ...]
    values: tuple[float | int, ...]


@dataclass(frozen=True)
class Ablation:
    """The preset without some of its parts: values by key, with `{task}` and `{modality}` as in `Factor`."""

    name: str
    meaning: str
    changes: tuple[tuple[str, Value], ...]


ALPHA = "{modality}.explainers.deepfaith.alpha"
FACTORS = (
    Factor(
        "k",
        "k",
        "masks a sample: as many in the training bank as in a step",
        ("{modality}.explainers.deepfaith.masks_per_step", "tasks.{task}.bank.training"),
        (8, 16, 32, 64),
    ),
    Factor(
        "delta",
        "\N{GREEK SMALL LETTER DELTA}",
        "cosine from which a map is a duplicate",
        ("curate.cosine",),
        (0.4, 0.6, 0.8, 1.0),
    ),
    Factor("p", "p", "quantile that a map must pass in every metric", ("curate.quantile",), (0.0, 0.1, 0.2, 0.3)),
    Factor(
        "epsilon",
        "\N{GREEK SMALL LETTER EPSILON}",
        "variance of the pattern loss below which it has settled",
        (f"{ALPHA}.epsilon",),
        (1e-5, 1e-4, 1e-3),
    ),
    Factor("e", "e", "epochs over which that variance is taken", (f"{ALPHA}.window",), (2, 4, 8)),
    Factor(
        "c",
        "C",
        "epochs in which alpha decays, and how many times \N{GREEK SMALL LETTER EPSILON} resets it",
        (f"{ALPHA}.tau_decay", f"{ALPHA}.reset_factor"),
        (1, 4, 16),
    ),
)
OBJECTIVE = "{modality}.explainers.deepfaith.objective"
ABLATIONS = (
    Ablation("full", "full objective, de-duplication and filter", ()),
    Ablation("pattern", "PC only: imitates the curated maps", ((OBJECTIVE, "pattern"),)),
    Ablation("local", "LC only: the objective itself, no map to imitate", ((OBJECTIVE, "local"),)),
    Ablation("dedup", "de-duplication only: no filter (p = 0)", (("curate.quantile", 0.0),)),
    Ablation("filter", "filter only: no de-duplication (\N{GREEK SMALL LETTER DELTA} = 1)", (("curate.cosine", 1.0),)),
    Ablation("leader", "of near-duplicates the best-ranked stays, not the first", (("curate.leader", "best_mean_rank"),)),
    Ablation("weights", "the kept maps of a sample weighed by their ranks", (("curate.weights", "rank"),)),
    Ablation("soft", "no filter, all maps weighed by their ranks", (("curate.quantile", 0.0), ("curate.weights", "rank"))),
)


@dataclass(frozen=True)
class Point:
    """A row of the result: where it belongs, and the experiment that answers (None: the preset's own run)."""

    factor: str
    value: Value
    experiment: str | None


def changes(pairs: tuple[tuple[str, Value], ...], params: Params) -> Changes:
    """Values by key for every task of the preset."""
    places = [{"task": name, "modality": task.modality} for name, task in params.tasks.items()]
    return {key.format(**place): value for key, value in pairs for place in places}


def preset_value(factor: Factor, params: Params) -> Value:
    """What a factor is in the preset.

    Raises:
        ArtifactError: If the preset has no such key, has several values for it, or has one that the factor does not take.
    """
    values = params.model_dump()
    found = {_at(values, key) for key in changes(tuple((key, 0) for key in factor.keys), params)}
    if len(found) != 1 or not found <= set(factor.values):
        raise ArtifactError(f"the preset has {factor.symbol} = {sorted(map(str, found))}: must be one of {factor.values}")
    return found.pop()


def plan(params: Params) -> tuple[dict[str, Changes], list[Point]]:
    """The experiments by name, each set of values once, and the rows that they answer.

    Raises:
        ArtifactError: If the preset is not on the grid.
    """
    experiments: dict[str, Changes] = {}
    points: list[Point] = []

    def add(factor: str, value: Value, wanted: Changes) -> None:
        name = next((known for known, other in experiments.items() if other == wanted), f"{factor}-{value}")
        if wanted:
            experiments[name] = wanted
        points.append(Point(factor, value, name if wanted else None))

    for factor in FACTORS:
        preset = preset_value(factor, params)
        for value in factor.values:
            pairs = () if value == preset else tuple((key, value) for key in factor.keys)
            add(factor.name, value, changes(pairs, params))
    for ablation in ABLATIONS:
        add("ablation", ablation.name, changes(ablation.changes, params))
    return experiments, points


def varied(params: Params, wanted: Changes) -> Params:
    """The preset with some values changed.

    Raises:
        ArtifactError: If a key is not there.
        ConfigError: If the schema refuses the result.
    """
    values = params.model_dump(exclude_none=True)
    for key, value in wanted.items():
        _at(values, key)
        parent, _, leaf = key.rpartition(".")
        _at(values, parent)[leaf] = value
    return config.parse(yaml.safe_dump(values, sort_keys=False), ", ".join(f"{key}={value}" for key, value in wanted.items()))


def _at(values: Mapping[str, Any], key: str) -> Any:
    place: Any = values
    for part in key.split("."):
        if not isinstance(place, Mapping) or part not in place:
            raise ArtifactError(f"the preset has no {key}")
        place = place[part]
    return place


def queue(params: Params) -> None:
    """Queue each variant that has not finished on this commit; what an interrupted or failed call left behind goes first."""
    from dvc.cli import main as dvc

    experiments, _ = plan(params)
    for wanted in experiments.values():
        varied(params, wanted)  # every fault before any work
    finished = _finished()
    _succeed(dvc(["queue", "stop", "--kill"]), "dvc queue stop --kill")  # a worker outlives the call that started it
    _succeed(dvc(["queue", "remove", "--queued", "--failed"]), "dvc queue remove")
    for name, wanted in experiments.items():
        if name not in finished:
            words = [word for key, value in wanted.items() for word in ("-S", f"{key}={value}")]
            _succeed(dvc(["exp", "run", "--queue", "--name", name, *words, "evaluate"]), f"dvc exp run --queue --name {name}")


def collect(params: Params, out: Path) -> None:
    """Write what all variants say into one file, or nothing.

    Raises:
        ArtifactError: If an experiment is missing; the message names all that are.
    """
    from dvc.api import DVCFileSystem

    experiments, points = plan(params)
    finished = _finished()
    if missing := [name for name in experiments if name not in finished]:
        raise ArtifactError(
            f"{len(missing)} of {len(experiments)} experiments have no result: {', '.join(missing)}; nothing was written. "
            f"In {Path.cwd()}, `dvc queue status` and `dvc queue logs {missing[0]}` say why"
        )
    revisions: dict[str | None, str] = {None: "HEAD", **{name: finished[name] for name in experiments}}
    numbers: dict[str | None, dict[str, Any]] = {}
    for name, revision in revisions.items():
        files = DVCFileSystem(rev=revision)
        numbers[name] = {task: _numbers(files.read_text, task) for task in params.tasks}
    write_json(out, document(params, points, numbers))


def document(params: Params, points: Sequence[Point], numbers: Mapping[str | None, Mapping[str, Any]]) -> dict[str, Any]:
    """The result: what was varied, and a row for each value and task.

    Args:
        params: The preset.
        points: All rows.
        numbers: What each experiment (None: the preset's run) says of each task.
    """
    return {
        "params_sha256": params.sha256(),
        "confidence": params.evaluate.confidence,
        "factors": [
            {
                "name": factor.name,
                "symbol": factor.symbol,
                "meaning": factor.meaning,
                "keys": list(factor.keys),
                "preset": preset_value(factor, params),
            }
            for factor in FACTORS
        ],
        "ablations": [{"name": ablation.name, "meaning": ablation.meaning} for ablation in ABLATIONS],
        "rows": [
            {"factor": point.factor, "value": point.value, "task": task, **numbers[point.experiment][task]}
            for point in points
            for task in params.tasks
        ],
    }


def _numbers(read_text: Callable[[str], str], task: str) -> dict[str, Any]:
    """What a run says of DeepFaith on a task: mean rank, metrics, and the share of the prior maps that teach."""
    evaluation = json.loads(read_text(f"reports/evaluation/{task}.json"))
    counts = json.loads(read_text(f"reports/curate/{task}.json"))["methods"].values()
    row = evaluation["candidates"][EXPLAINER]
    ends = {"mean": "mean_rank", "low": "mean_rank_low", "high": "mean_rank_high"}
    return {
        "n_test": evaluation["n_test"],
        "candidates": sum(found["role"] not in ("refined", "reference") for found in evaluation["candidates"].values()),
        "mean_rank": {end: row[key] for end, key in ends.items()},
        "metrics": {name: {end: row["metrics"][name][end] for end in ends} for name in METRICS},
        "taught": sum(found["taught"] for found in counts) / sum(found["maps"] for found in counts),
    }


def _finished() -> dict[str, str]:
    """Commits of the experiments that finished on this commit, by name."""
    from dvc.repo import Repo

    with Repo() as repo:
        return {name: rev for found in repo.experiments.ls().values() for name, rev in found if rev is not None}


def _succeed(status: int, command: str) -> None:
    if status:
        raise SystemExit(f"error: `{command}` ended with {status}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["queue"]:
            run_stage(lambda: queue(config.load()))
        case ["collect", file]:
            run_stage(lambda: collect(config.load(), Path(file)))
        case _:
            sys.exit("usage: python -m faithline.sensitivity queue | collect FILE")
