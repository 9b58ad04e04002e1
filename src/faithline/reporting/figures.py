"""Charts as inline SVG: a few hundred bytes a line, sharp at any size, coloured by the page's own light and dark theme.

matplotlib's SVG would carry fixed colours and each letter as a path; these carry class names (`s0`, `s1`, ...) that the style
sheet colours. Every text is escaped, every number has a fixed format, so equal inputs give equal bytes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from markupsafe import Markup, escape

from faithline.reporting.leaderboard import Comparison

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 14, 14, 44
COLOURS = 8
"""Line styles the style sheet knows."""


@dataclass(frozen=True)
class Series:
    """A line, with a band where `low` and `high` are given.

    Attributes:
        label: Name in the legend and the tooltip.
        style: Which colour and dash of the style sheet, 0 to COLOURS - 1.
        x: Positions, ascending.
        mean: Values.
        low: Lower end of the band, or empty.
        high: Upper end of the band, or empty.
    """

    label: str
    style: int
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Point:
    """A labelled point of a scatter chart; `kind` is a class of the style sheet."""

    label: str
    kind: str
    x: float
    y: float


@dataclass(frozen=True)
class Difference:
    """A row of a forest chart: a mean difference with its interval and what it shows."""

    label: str
    mean: float
    low: float
    high: float
    shows: Comparison


def band(
    curves: pl.DataFrame, sweep: str, *, steps: int, draws: int, confidence: float, generator: np.random.Generator
) -> dict[str, list[float]] | None:
    """Mean curve of a sweep over samples with a bootstrap interval.

    Sweeps of texts have as many steps as the text has tokens, so each is read at `steps` + 1 even fractions (linear in between; a
    fraction that the sweep itself has is read exactly).

    Args:
        curves: sample_id, sweep, fraction, value (see `TaskResults.curves`).
        sweep: Which one.
        steps: Number of intervals of the grid.
        draws: Bootstrap draws of the samples.
        confidence: Coverage of the band.
        generator: Equal generators draw equal samples, which makes the bands of candidates comparable.

    Returns:
        `x`, `mean`, `low`, `high` (each steps + 1 long), or None if there is no such sweep.
    """
    grid = np.linspace(0, 1, steps + 1)
    frame = curves.filter((pl.col("sweep") == sweep) & pl.col("value").is_not_null()).sort("sample_id", "fraction")
    lines = [
        np.interp(grid, part["fraction"].to_numpy(), part["value"].to_numpy())
        for _, part in frame.group_by("sample_id", maintain_order=True)
    ]
    if not lines:
        return None
    values = np.stack(lines).astype(np.float64)
    count = len(values)
    weights = generator.multinomial(count, np.full(count, 1 / count), size=draws) / count
    tail = (1 - confidence) / 2
    low, high = np.quantile(weights @ values, [tail, 1 - tail], axis=0)
    return {"x": grid.tolist(), "mean": values.mean(0).tolist(), "low": low.tolist(), "high": high.tolist()}


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that span low to high, about `count` of them."""
    span = high - low or 1.0
    raw = span / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    found = []
    while first * step <= high + 1e-9 * span:
        found.append(first * step)
        first += 1
    return found


def _label(value: float) -> str:
    return f"{value:.6g}".replace("-", "\N{MINUS SIGN}")


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


@dataclass(frozen=True)
class _Frame:
    """A plot area: where a value lies, its grid lines and its axis labels."""

    x: Callable[[float], float]
    y: Callable[[float], float]
    parts: list[str]


def _frame(
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    x_ticks: Sequence[tuple[float, str]],
    y_ticks: Sequence[tuple[float, str]],
    labels: tuple[str, str],
    *,
    flip: bool = False,
) -> _Frame:
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(value: float) -> float:
        return LEFT + (value - x_range[0]) / ((x_range[1] - x_range[0]) or 1) * width

    def y(value: float) -> float:
        share = (value - y_range[0]) / ((y_range[1] - y_range[0]) or 1)
        return TOP + (share if flip else 1 - share) * height

    parts = []
    for value, text in y_ticks:
        parts.append(f'<path class="rule" d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for value, text in x_ticks:
        parts.append(f'<path class="rule" d="M{x(value):.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(
            f'<text class="tick" x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(text)}</text>'
        )
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    middle = LEFT + width / 2
    parts.append(f'<text class="label" x="{middle:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(labels[0])}</text>')
    centre = TOP + height / 2
    parts.append(
        f'<text class="label" transform="translate(12 {centre:.1f}) rotate(-90)" text-anchor="middle">{escape(labels[1])}</text>'
    )
    return _Frame(x, y, parts)


def _svg(title: str, parts: Sequence[str], height: int = HEIGHT, width: int = WIDTH) -> Markup:
    return Markup(  # noqa: S704 (every text in `parts` went through escape)
        f'<svg class="chart" role="img" viewBox="0 0 {width} {height}" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    mark: float | None = None,
) -> Markup:
    """Lines with bands over a shared x axis; a dashed line marks one of its values.

    The legend is the page's, once for a group of charts (see `Series.style`).
    """
    xs = [value for line in series for value in line.x]
    ys = [value for line in series for value in (*line.mean, *line.low, *line.high)]
    if not ys:
        return Markup("")
    x_range = (min(xs), max(xs))
    low, high = y_range or (min(ys), max(ys))
    pad = 0.0 if y_range else 0.05 * ((high - low) or 1.0)
    y_range = (low - pad, high + pad)
    frame = _frame(
        x_range,
        y_range,
        [(value, _label(value)) for value in ticks(*x_range)],
        [(value, _label(value)) for value in ticks(*y_range)],
        (x_label, y_label),
    )
    parts = list(frame.parts)
    if mark is not None:
        parts.append(f'<path class="mark" d="M{frame.x(mark):.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
    for line in series:
        if line.low:
            edge = [(frame.x(x), frame.y(y)) for x, y in zip(line.x, line.high, strict=True)]
            edge += [(frame.x(x), frame.y(y)) for x, y in reversed(list(zip(line.x, line.low, strict=True)))]
            parts.append(f'<path class="band s{line.style}" d="{_path(edge)}Z"/>')
    for line in series:
        points = [(frame.x(x), frame.y(y)) for x, y in zip(line.x, line.mean, strict=True)]
        if len(points) == 1:
            parts.append(f'<circle class="dot s{line.style}" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3"/>')
        parts.append(f'<path class="line s{line.style}" d="{_path(points)}"><title>{escape(line.label)}</title></path>')
    return _svg(title, parts)


def value_chart(series: Sequence[Series], *, mark: float, title: str, x_label: str, y_label: str) -> Markup:
    """Lines through a few measured values of x, each a dot with its interval; a dashed line marks one of the values.

    The x axis names these values only. It is logarithmic where all are positive and the largest is over 5 times the smallest.
    """
    values = sorted({x for line in series for x in line.x})
    ends = [value for line in series for value in (*line.mean, *line.low, *line.high)]
    if not ends:
        return Markup("")
    logarithmic = values[0] > 0 and values[-1] / values[0] > 5

    def place(value: float) -> float:
        return math.log10(value) if logarithmic else value

    pad = 0.06 * (place(values[-1]) - place(values[0]) or 1.0)
    room = 0.05 * ((max(ends) - min(ends)) or 1.0)
    y_range = (min(ends) - room, max(ends) + room)
    frame = _frame(
        (place(values[0]) - pad, place(values[-1]) + pad),
        y_range,
        [(place(value), _label(value)) for value in values],
        [(value, _label(value)) for value in ticks(*y_range)],
        (x_label, y_label),
    )
    parts = [*frame.parts, f'<path class="mark" d="M{frame.x(place(mark)):.1f} {TOP}V{HEIGHT - BOTTOM}"/>']
    for index, line in enumerate(series):
        # Lines of several tasks share their values of x: a small shift keeps intervals apart.
        xs = [frame.x(place(x)) + 4 * (index - (len(series) - 1) / 2) for x in line.x]
        points = [(x, frame.y(y)) for x, y in zip(xs, line.mean, strict=True)]
        parts.append(
            f'<g class="s{line.style}"><title>{escape(line.label)}</title><path class="line s{line.style}" d="{_path(points)}"/>'
        )
        for x, bottom, top in zip(xs, line.low, line.high, strict=bool(line.low)):
            parts.append(f'<path class="whisker" d="M{x:.1f} {frame.y(bottom):.1f}V{frame.y(top):.1f}"/>')
        for (x, y), value, mean in zip(points, line.x, line.mean, strict=True):
            tip = f"{line.label}: {_label(mean)} at {_label(value)}"
            parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{escape(tip)}</title></circle>')
        parts.append("</g>")
    return _svg(title, parts)


def cost_chart(points: Sequence[Point], *, title: str, y_label: str) -> Markup:
    """Quality against passes: x is logarithmic with its own place for 0; y has the best (lowest) rank on top."""
    if not points:
        return Markup("")

    def place(passes: float) -> float:
        return math.log10(passes) if passes >= 1 else -0.6

    top = max(1, math.ceil(max(place(point.x) for point in points)))
    decades = [(float(power), f"{10**power:,}") for power in range(top + 1)]
    x_ticks = [(-0.6, "0"), *decades] if any(point.x < 1 for point in points) else decades
    x_range = (x_ticks[0][0] - 0.15, top + 0.25)
    ranks = [point.y for point in points]
    y_range = (min(ranks) - 0.6, max(ranks) + 0.6)
    frame = _frame(
        x_range,
        y_range,
        x_ticks,
        [(value, _label(value)) for value in ticks(*y_range)],
        ("passes of the target per explanation", y_label),
        flip=True,
    )
    parts = list(frame.parts)
    placed: list[tuple[float, float, float]] = []
    for point in sorted(points, key=lambda item: (item.y, item.x, item.label)):
        x, y = frame.x(place(point.x)), frame.y(point.y)
        text = escape(point.label)
        length = 5.6 * len(point.label)
        left = x + 8 + length > WIDTH - 2
        start = x - 8 - length if left else x + 8
        line = y + 3.5
        # Move the label down until it covers no other; a thin line leads back to its point.
        while any(abs(line - other) < 12 and start < end and begin < start + length for begin, end, other in placed):
            line += 1.5
        placed.append((start, start + length, line))
        if abs(line - y - 3.5) > 4:
            parts.append(f'<path class="lead" d="M{x:.1f} {y:.1f}L{(x - 6 if left else x + 6):.1f} {line - 3:.1f}"/>')
        anchor = "end" if left else "start"
        parts.append(
            f'<circle class="dot {escape(point.kind)}" cx="{x:.1f}" cy="{y:.1f}" r="4.5">'
            f"<title>{text}: {_label(point.x)} passes, {point.y:.2f}</title></circle>"
            f'<text class="name" x="{(x - 8 if left else x + 8):.1f}" y="{line:.1f}" text-anchor="{anchor}">{text}</text>'
        )
    return _svg(title, parts)


def forest_chart(rows: Sequence[Difference], *, title: str, x_label: str) -> Markup:
    """One row a candidate: mean difference, interval and the line of no difference; left of it the explainer ranks better."""
    if not rows:
        return Markup("")
    margin, line = 150, 22
    height = TOP + line * len(rows) + BOTTOM
    low = min(0.0, *(row.low for row in rows))
    high = max(0.0, *(row.high for row in rows))
    pad = 0.06 * ((high - low) or 1)
    low, high = low - pad, high + pad

    def x(value: float) -> float:
        return margin + (value - low) / (high - low) * (WIDTH - RIGHT - margin)

    bottom = height - BOTTOM
    parts = []
    for value in ticks(low, high):
        kind = "axis" if abs(value) < 1e-9 else "rule"
        parts.append(f'<path class="{kind}" d="M{x(value):.1f} {TOP}V{bottom}"/>')
        parts.append(f'<text class="tick" x="{x(value):.1f}" y="{bottom + 16}" text-anchor="middle">{_label(value)}</text>')
    for index, row in enumerate(rows):
        y = TOP + line * (index + 0.5)
        tip = f"{row.label}: {row.mean:+.2f} [{row.low:+.2f}, {row.high:+.2f}], {row.shows}".replace("-", "\N{MINUS SIGN}")
        parts.append(
            f'<g class="{row.shows}"><title>{escape(tip)}</title>'
            f'<text class="name" x="{margin - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(row.label)}</text>'
            f'<path class="whisker" d="M{x(row.low):.1f} {y:.1f}H{x(row.high):.1f}"/>'
            f'<circle class="dot" cx="{x(row.mean):.1f}" cy="{y:.1f}" r="4"/></g>'
        )
    parts.append(f'<text class="label" x="{WIDTH / 2:.1f}" y="{height - 8}" text-anchor="middle">{escape(x_label)}</text>')
    return _svg(title, parts, height)
