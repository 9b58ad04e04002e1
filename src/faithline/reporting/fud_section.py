"""What the page says of a task that FUD judges: the answer in words, charts, pictures and tables, all from stored numbers."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup
from PIL import Image

from faithline.metrics.catalogue import METRICS
from faithline.reporting import cards
from faithline.reporting.figures import COLOURS, Series, line_chart
from faithline.reporting.fud_results import QUALITY, Evidence, FudResults, FudTask
from faithline.reporting.gallery import png_uri
from faithline.reporting.leaderboard import Cell, Column, Comparison, Row, compare, interval_text, listing, number, range_text
from faithline.reporting.records import Interval
from faithline.reporting.results import ROLES

UP, DOWN = "\N{UPWARDS ARROW}", "\N{DOWNWARDS ARROW}"
DRAWN = 3
"""Methods whose curves are drawn, best first."""
SWITCH = 0.05
"""Share of steps that remain when a chain enters the distribution, in the paper's words."""
RIVALS = {
    "ins_del": "INS/DEL (black)",
    "ins_del_blur": "INS/DEL (blur)",
    "sensitivity_n": "Sensitivity-N",
    "infid": "INFID",
    "road": "ROAD",
}
"""Metrics whose pictures are compared with FUD's."""
PUBLISHED = ("ins_del", "sensitivity_n", "infid")
"""Those that the paper compares with."""
OTHERS = {
    "black_lerf": "insertion, black",
    "black_morf": "deletion, black",
    "blur_lerf": "insertion, blur",
    "blur_morf": "deletion, blur",
    "road_lerf": "ROAD, LeRF",
    "road_morf": "ROAD, MoRF",
    "sensitivity_n": "Sensitivity-N",
    "infid_noise": "INFID, noise",
    "infid_square": "INFID, squares",
}


@dataclass(frozen=True)
class Neighbours:
    """Two methods next to each other in the ranking."""

    first: str
    second: str
    difference: str
    separated: bool
    needed: str


@dataclass(frozen=True)
class Frame:
    """A picture of a film, as a data URI, with the confidence printed under it."""

    uri: str
    alt: str
    prob: str


@dataclass(frozen=True)
class Film:
    """One image: by row (candidate, what removed pixels become) the clean picture and a frame a level."""

    sample_id: int
    rows: tuple[tuple[str, str, tuple[Frame, ...]], ...]


@dataclass(frozen=True)
class Section:
    """All that the page shows of a task under FUD."""

    name: str
    results: FudResults
    answer: tuple[str, ...]
    columns: tuple[Column, ...]
    groups: tuple[tuple[str, str, tuple[Row, ...]], ...]
    neighbours: tuple[Neighbours, ...]
    curves: Markup
    legend: tuple[Series, ...]
    levels: tuple[str, ...]
    films: tuple[Film, ...]
    loss: Markup
    sheets: Mapping[str, str]
    evidence_columns: tuple[Column, ...]
    evidence: tuple[tuple[str, str, tuple[Row, ...]], ...]
    own_settings: bool
    by_level: Markup
    level_legend: tuple[Series, ...]
    chain: Markup
    smooth_columns: tuple[Column, ...]
    smooth: tuple[tuple[str, str, tuple[Row, ...]], ...]
    agreement: tuple[tuple[str, str, str, int], ...]
    samplers: tuple[tuple[str, ...], ...]
    cost: tuple[tuple[str, str], ...]


def section(task: FudTask, benchmarks: Mapping[str, Mapping[str, Any]]) -> Section:
    """Everything of one task; parts that its file lacks are empty."""
    results = task.results
    columns, groups = ranking(results)
    lines = _lines(results)
    by_level = _by_level(results)
    return Section(
        name=task.name,
        results=results,
        answer=tuple(answer(results)),
        columns=columns,
        groups=groups,
        neighbours=_neighbours(results),
        curves=line_chart(
            lines,
            title=f"Confidence by kept fraction, {task.name}",
            x_label=f"fraction of {'pixels' if results.kind == 'image' else 'columns'} kept, most important first",
            y_label="confidence in the class",
        ),
        legend=tuple(lines),
        levels=tuple(f"{level:.0%}" for level in results.levels),
        films=_films(results, task.films),
        loss=_loss(results, task.name),
        sheets=_sheets(task.films),
        evidence_columns=_evidence_columns(results),
        evidence=_evidence(results),
        own_settings=not all(item.published for item in results.settings_of_quality.values()),
        by_level=line_chart(
            by_level,
            title=f"Energy AUROC by kept fraction, {task.name}",
            x_label="fraction of pixels kept",
            y_label="energy AUROC",
        ),
        level_legend=tuple(by_level),
        chain=_chain(results, task.name),
        smooth_columns=_SMOOTH,
        smooth=_smooth(results),
        agreement=_agreement(results),
        samplers=_samplers(results),
        cost=_cost(results, benchmarks),
    )


# ------------------------------------------------------------------------------------------------------------------ words


def answer(results: FudResults) -> list[str]:
    """Three plain sentences; `better`, `above` and their like only where an interval excludes 0."""
    ranked = results.of_role()
    if not ranked:
        return ["No method was judged."]
    return [_best(results, ranked), _against_chance(results, ranked), *_in_distribution(results)]


def _best(results: FudResults, ranked: Sequence[str]) -> str:
    best, score = ranked[0], results.methods[ranked[0]].score
    apart = [name for name in ranked[1:] if shown(_difference(results, best, name)) == "better"]
    together = [name for name in ranked[1:] if name not in apart]
    text = f"Of {len(ranked)} methods {best} has the highest mean confidence, {number(score.mean)} ({range_text(score)})"
    if not together:
        return text + (", and it is above every other method." if apart else ".")
    return text + f", but it cannot be told from {listing(together)}{_of_images(results)}."


def _of_images(results: FudResults) -> str:
    return "" if results.images is None else f" on {results.images} {'images' if results.kind == 'image' else 'rows'}"


def _difference(results: FudResults, first: str, second: str) -> Interval | None:
    pair = results.pair(first, second)
    return None if pair is None else pair.difference


def shown(interval: Interval | None, *, higher: bool = True) -> Comparison:
    """What an interval shows; one that is not there shows nothing."""
    return "undecided" if interval is None else compare(interval, higher=higher)


_STANDS: dict[Comparison, str] = {
    "better": "keeps more of the class than",
    "worse": "keeps less of the class than",
    "undecided": "cannot be told from",
}


def _against_chance(results: FudResults, ranked: Sequence[str]) -> str:
    best = ranked[0]
    row = results.methods[best]
    parts = []
    for interval, rival in (
        (row.above_random, "a random order"),
        (row.above_matched_random, "random orders as smooth as its own"),
    ):
        if interval is not None:
            parts.append(f"{_STANDS[shown(interval)]} {rival} ({interval_text(interval, 3)})")
    text = f"{best} {' and '.join(parts)}." if parts else ""
    against = {name: above for name in ranked if (above := results.methods[name].above_matched_random) is not None}
    if against:
        higher = [name for name, interval in against.items() if shown(interval) == "better"]
        lower = [name for name, interval in against.items() if shown(interval) == "worse"]
        text += f" {len(higher)} of {len(against)} methods stand above random orders as smooth as their own"
        text += f"; {listing(lower)} below." if lower else "."
    return text.strip()


def _in_distribution(results: FudResults) -> list[str]:
    own = results.evidence.get("fud")
    if own is None:
        return []
    auroc = own.intervals.get("auroc")
    if auroc is None or auroc.low is None or auroc.high is None:
        return [
            f"An energy detector tells FUD's pictures from clean ones with AUROC {number(own.auroc)}; its interval is missing."
        ]
    found = f"AUROC {number(own.auroc)} ({range_text(auroc)}; 0.5 is chance)"
    if auroc.low > 0.5:
        text = f"The removals are not fully in-distribution: an energy detector tells them from clean pictures with {found}"
    elif auroc.high < 0.5:
        text = f"An energy detector takes the removals for more typical than clean pictures: {found}"
    else:
        text = f"An energy detector cannot tell the removals from clean pictures: {found}"
    groups: dict[Comparison, list[str]] = {"better": [], "worse": [], "undecided": []}
    for name, label in RIVALS.items():
        if name in results.evidence:
            groups[shown(results.evidence[name].minus_fud.get("auroc"))].append(label)
    words = (
        ("better", "they are harder to detect than those of"),
        ("worse", "easier to detect than those of"),
        ("undecided", "not separable from those of"),
    )
    parts = [f"{phrase} {listing(groups[key])}" for key, phrase in words if groups[key]]  # type: ignore[index]
    return [text + ("; " + ", ".join(parts) if parts else "") + "."]


# --------------------------------------------------------------------------------------------------------------- ranking


def _cell(
    interval: Interval | None, digits: int = 3, peers: Sequence[Interval | None] = (), *, higher: bool | None = None
) -> Cell:
    if interval is None:
        return Cell("")
    means = [peer.mean for peer in peers if peer is not None and peer.mean is not None]
    text, small = number(interval.mean, digits), range_text(interval, digits)
    if higher is None or interval.mean is None or not means or min(means) == max(means):
        return Cell(text, small)
    share = (interval.mean - min(means)) / (max(means) - min(means))
    share = min(1.0, max(0.0, share if higher else 1 - share))
    best = interval.mean == (max(means) if higher else min(means))
    return Cell(text, small, heat=share, best=best)


_RANKED: tuple[tuple[Column, str, int, bool | None], ...] = (
    (Column("score", "score", UP, "Mean confidence of the class over the kept fractions"), "score", 3, True),
    (
        Column("matched", "above matched random", UP, "Paired difference to random maps with the map's own smoothness"),
        "above_matched_random",
        3,
        True,
    ),
    (Column("random", "above random", UP, "Paired difference to a random order of single pixels"), "above_random", 3, True),
    (
        Column("calibrated", "calibrated", UP, "0 = matched random, 1 = on each image the best method of this table"),
        "calibrated",
        2,
        True,
    ),
    (Column("tau", "tau", UP, "Kendall's tau of kept fraction and confidence: 1 = it falls with every removal"), "tau", 2, True),
    (Column("rises", "rises", DOWN, "Share of removals after which the confidence is higher than before"), "rises", 2, False),
    (Column("rank", "mean rank", DOWN, "Mean over images of the rank by score, controls included"), "mean_rank", 2, False),
    (
        Column("second", "second classifier", "", "Mean confidence of an independent classifier on the same pictures"),
        "second_score",
        3,
        None,
    ),
    (Column("odds", "log-odds", UP, "Mean of log p / (1 - p): what probabilities near 0 and 1 hide"), "log_odds", 2, True),
)
"""Columns of the ranking, each with the attribute of a method that fills it, its digits, and whether higher is better."""


def ranking(results: FudResults) -> tuple[tuple[Column, ...], tuple[tuple[str, str, tuple[Row, ...]], ...]]:
    """Columns that some candidate fills, and rows by role, highest score first."""

    def reader(attribute: str) -> Callable[[str], Interval | None]:
        return lambda name: getattr(results.methods[name], attribute)

    wanted = [(column, reader(attribute), digits, higher) for column, attribute, digits, higher in _RANKED]
    unguided = _unguided(results)
    title = "Without the anti-class term; of images the first ones only"
    wanted.append((Column("unguided", "score at s = 0", UP, title), unguided.get, 3, True))
    ranked = results.of_role()
    used = [entry for entry in wanted if any(entry[1](name) is not None for name in results.methods)]
    groups = []
    for role in ROLES:
        rows = tuple(
            Row(
                name, role, tuple(_cell(of(name), digits, [of(peer) for peer in ranked], higher=up) for _, of, digits, up in used)
            )
            for name in results.of_role(role)
        )
        if role == "control":  # controls are shaded on no scale: they are what methods are read against
            rows = tuple(replace(row, cells=tuple(replace(cell, heat=None, best=False) for cell in row.cells)) for row in rows)
        if rows:
            groups.append((*cards.ROLES[role], rows))
    return tuple(column for column, *_ in used), tuple(groups)


def _unguided(results: FudResults) -> Mapping[str, Interval]:
    """Scores without the anti-class term: those of the sampler that lacks it, or each method's own."""
    for name, item in results.samplers.items():
        if name != "main" and item.changes.get("scale") == 0:
            return item.scores
    return {name: row.unguided_score for name, row in results.methods.items() if row.unguided_score is not None}


def _neighbours(results: FudResults) -> tuple[Neighbours, ...]:
    ranked = results.of_role()
    found = []
    for first, second in pairwise(ranked):
        pair = results.pair(first, second)
        if pair is not None:
            needed = "\N{EN DASH}" if pair.images_needed is None else f"{pair.images_needed:,}"
            found.append(Neighbours(first, second, interval_text(pair.difference, 3), pair.separated, needed))
    return tuple(found)


# ---------------------------------------------------------------------------------------------------------------- charts


def _lines(results: FudResults) -> list[Series]:
    if not results.levels:
        return []
    ranked = results.of_role()
    wanted = [(name, results.methods[name].curve) for name in ranked[:DRAWN]]
    if len(ranked) > DRAWN:
        wanted.append((f"{ranked[-1]} (lowest)", results.methods[ranked[-1]].curve))
    if "random" in results.methods:
        wanted.append(("random", results.methods["random"].curve))
    if ranked:
        best = results.methods[ranked[0]]
        wanted.append((f"random as smooth as {ranked[0]}", best.matched_curve))
        wanted.append((f"second classifier, {ranked[0]}", best.second_curve))
    return [_series(label, style % COLOURS, results.levels, curve) for style, (label, curve) in enumerate(wanted) if curve]


def _series(label: str, style: int, levels: Sequence[float], curve: Sequence[Interval]) -> Series:
    points = sorted(zip(levels, curve, strict=True), key=lambda point: point[0])
    known = [(x, item) for x, item in points if item.mean is not None]
    banded = all(item.low is not None and item.high is not None for _, item in known)
    x, mean = [x for x, _ in known], [item.mean or 0.0 for _, item in known]
    low = [item.low or 0.0 for _, item in known] if banded else []
    high = [item.high or 0.0 for _, item in known] if banded else []
    return Series(label, style, x, mean, low, high)


def _by_level(results: FudResults) -> list[Series]:
    found: list[Series] = []
    for name, label in {"fud": "FUD", **RIVALS}.items():
        item = results.evidence.get(name)
        if item is not None and item.auroc_by_level:
            points = sorted((float(level), value) for level, value in item.auroc_by_level.items())
            found.append(Series(label, len(found) % COLOURS, [x for x, _ in points], [y for _, y in points]))
    return found


def _chain(results: FudResults, name: str) -> Markup:
    if results.chain is None or not results.chain.steps:
        return Markup("")
    steps = sorted(results.chain.steps, key=lambda step: step.remaining)
    x = [step.remaining for step in steps]
    lows, highs = [step.low for step in steps if step.low is not None], [step.high for step in steps if step.high is not None]
    banded = len(lows) == len(highs) == len(x)
    lines = [
        Series("noisy sample", 0, x, [step.auroc_sample for step in steps], lows if banded else (), highs if banded else ()),
        Series("clean image it aims at", 1, x, [step.auroc_aim for step in steps]),
    ]
    return line_chart(
        lines,
        title=f"Energy AUROC along the chain, {name}",
        x_label="share of steps that remain (the chain runs from right to left)",
        y_label="energy AUROC",
        mark=SWITCH,
    )


def _loss(results: FudResults, name: str) -> Markup:
    if results.score_model is None or not results.score_model.history:
        return Markup("")
    rows = results.score_model.history
    lines = [
        Series(label, style, [row["step"] for row in rows if key in row], [row[key] for row in rows if key in row])
        for style, (key, label) in enumerate((("loss", "training loss"), ("validation_loss", "validation loss")))
    ]
    return line_chart(
        [line for line in lines if line.x],
        title=f"Loss of the score model, {name}",
        x_label="step of training",
        y_label="mean squared error of the noise",
    )


# -------------------------------------------------------------------------------------------------------------- pictures


def _uri(data: bytes) -> str:
    return png_uri(np.asarray(Image.open(io.BytesIO(data))))


def _films(results: FudResults, films: pl.DataFrame | None) -> tuple[Film, ...]:
    if films is None:
        return ()
    made: dict[tuple[str, int, str, str], tuple[float, bytes]] = {
        (kind, sample, candidate, f"{level:g}"): (prob, data)
        for kind, sample, candidate, level, prob, data in films.select(
            "kind", "sample_id", "candidate", "level", "prob", "png"
        ).iter_rows()
        if kind in ("image", "fud", "black")
    }

    def frame(kind: str, sample: int, candidate: str, level: float) -> Frame:
        prob, data = made[kind, sample, candidate, f"{level:g}"]
        words = {"image": "clean image", "fud": f"{candidate}, {level:.0%} kept, the rest regenerated"}
        alt = words.get(kind, f"{candidate}, {level:.0%} kept, the rest black") + f", sample {sample}"
        return Frame(_uri(data), alt, number(prob, 2))

    candidates = list(dict.fromkeys(key[2] for key in made if key[0] == "fud"))
    found = []
    for sample in dict.fromkeys(key[1] for key in made if key[0] == "image"):
        clean = frame("image", sample, "", 1.0)
        rows = tuple(
            (candidate, words, (clean, *(frame(kind, sample, candidate, level) for level in results.levels)))
            for candidate in candidates
            for kind, words in (("fud", "regenerated"), ("black", "black"))
        )
        found.append(Film(sample, rows))
    return tuple(found)


def _sheets(films: pl.DataFrame | None) -> dict[str, str]:
    """Data URIs by kind, at their own size."""
    if films is None:
        return {}
    return {
        kind: "data:image/png;base64," + base64.b64encode(data).decode()
        for kind, data in films.select("kind", "png").iter_rows()
        if kind in ("sheet", "training")
    }


# -------------------------------------------------------------------------------------------------------------- evidence


def _evidence_columns(results: FudResults) -> tuple[Column, ...]:
    columns = [
        Column("images", "pictures", "", "How many pictures were looked at; VSI sees at most 72 of them"),
        Column("auroc", "energy AUROC", DOWN, "How well the target's energy tells them from clean pictures; 0.5 is chance"),
        Column("fpr95", "FPR95", UP, "Share that passes for clean where 95 % of clean pictures do"),
        Column("auroc_neighbours", "neighbour AUROC", DOWN, "A detector by nearest neighbours in the target's features"),
    ]
    for name, higher in QUALITY.items():
        setting = results.settings_of_quality.get(name)
        own = setting is not None and not setting.published
        label = name.upper().replace("_", "-") + ("*" if own else "")
        columns.append(
            Column(name, label, UP if higher else DOWN, "Likeness to the clean picture" + (", own settings" if own else ""))
        )
    return tuple(columns)


def _evidence(results: FudResults) -> tuple[tuple[str, str, tuple[Row, ...]], ...]:
    if "fud" not in results.evidence:
        return ()
    known = {name: results.evidence[name] for name in ("fud", *RIVALS) if name in results.evidence}
    directions = {"auroc": False, "fpr95": True, "auroc_neighbours": False, **QUALITY}

    def row(name: str, label: str, item: Evidence) -> Row:
        cells = [Cell(f"{item.images:,}")]
        for key, higher in directions.items():
            peers = [interval_of(other, key) for other in known.values()]
            cells.append(replace(_cell(interval_of(item, key), 2 if key == "psnr" else 3, peers, higher=higher), heat=None))
        return Row(label, "explainer" if name == "fud" else "baseline", tuple(cells))

    groups = [
        ("FUD", "", (row("fud", "FUD", known["fud"]),)),
        ("Metrics it is compared with", "", tuple(row(name, RIVALS[name], known[name]) for name in RIVALS if name in known)),
    ]
    if (both := results.hard_vs_soft) is not None:
        blank = [Cell("")] * 4
        rows = tuple(
            Row(f"{kind} mask", "baseline", (*blank, *(_plain(values.get(key), key) for key in QUALITY)))
            for kind, values in (("hard", both.hard), ("soft", both.soft))
        )
        groups.append((f"Hard and soft masks, {both.kept:.0%} kept by {both.method}", "", rows))
    return tuple(groups)


def _plain(value: float | None, key: str) -> Cell:
    return Cell(number(value, 2 if key == "psnr" else 3))


def interval_of(item: Evidence, key: str) -> Interval | None:
    """A number of a set of pictures with its interval, if it has one."""
    value = getattr(item, key)
    return item.intervals.get(key, Interval(mean=value, low=None, high=None)) if value is not None else None


_SMOOTH = (
    Column("tau", "tau, FUD", UP, "Kendall's tau of kept fraction and confidence"),
    Column("black_tau", "tau, black fill", UP, "The same when the same pixels turn black"),
    Column("tau_above_black", "difference", UP, "Paired difference, FUD minus black fill"),
    Column("rises", "rises, FUD", DOWN, "Share of removals after which the confidence is higher than before"),
    Column("black_rises", "rises, black fill", DOWN, "The same when the same pixels turn black"),
    Column("rises_above_black", "difference", DOWN, "Paired difference, FUD minus black fill"),
)


def _smooth(results: FudResults) -> tuple[tuple[str, str, tuple[Row, ...]], ...]:
    groups = []
    for role in ROLES:
        rows = []
        for name in results.of_role(role):
            row = results.methods[name]
            if "black_tau" in row.rivals:
                values = {"tau": row.tau, "rises": row.rises, **row.rivals}
                rows.append(Row(name, role, tuple(_cell(values.get(column.key), 2) for column in _SMOOTH)))
        if rows:
            groups.append((*cards.ROLES[role], tuple(rows)))
    return tuple(groups)


def _agreement(results: FudResults) -> tuple[tuple[str, str, str, int], ...]:
    names = [name for name in METRICS if name in results.agreement] + [name for name in OTHERS if name in results.agreement]
    names += [name for name in sorted(results.agreement) if name not in names]
    found = []
    for name in names:
        item = results.agreement[name]
        label = name.upper() if name in METRICS else OTHERS.get(name, name)
        found.append((label, number(item.kendall, 2), number(item.spearman, 2), item.methods))
    return tuple(found)


def _samplers(results: FudResults) -> tuple[tuple[str, ...], ...]:
    """Name, what is otherwise, calls, gradients, dose, tau with the main sampler, contrast, loss of contrast against main."""
    found = []
    for name, item in results.samplers.items():
        changes = "; ".join(f"{key} = {value}" for key, value in sorted(item.changes.items())) or "\N{EN DASH}"
        contrast = "\N{EN DASH}" if item.contrast is None else interval_text(item.contrast, 3)
        below = (
            "\N{EN DASH}" if item.contrast_below_main is None or name == "main" else interval_text(item.contrast_below_main, 3)
        )
        tau = number(item.kendall_tau_with_main, 2)
        found.append((name, changes, f"{item.calls:,}", f"{item.gradients:,}", number(item.dose), tau, contrast, below))
    return tuple(found)


def _cost(results: FudResults, benchmarks: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    made = results.conventions
    if results.kind != "image" or "calls" not in made:
        return ()
    each = len(results.levels) * int(made.get("draws", 1))
    facts = [
        ("calls of the score model a picture", f"{made['calls']:,}"),
        ("gradients of the target a picture", f"{made.get('gradients', 0):,}"),
        ("pictures a map", f"{each:,}"),
        ("calls a map", f"{made['calls'] * each:,}"),
        ("gradients a map", f"{made.get('gradients', 0) * each:,}"),
    ]
    if (reference := results.reference) is not None:
        facts += [
            ("Kendall tau with the reference sampler", number(reference.kendall_tau, 2)),
            ("pairs it separates that agree", number(reference.separated_pairs_agreement, 2)),
            ("calls against the reference", number(reference.call_ratio, 3)),
        ]
    for name, row in sorted(benchmarks.items()):
        if "fud" in name and "ours" in row:
            facts.append((f"{name}, measured", f"{row['ours']:.3g} {row.get('unit', '')}".strip()))
    return tuple(facts)
