"""Maps to look at: a few test samples chosen by rule, every shown candidate on the same scale beside the input.

A map is divided by its own 99th percentile of absolute value (its maximum, for texts and tables), never shifted: 0 stays 0, and
all maps of a row share the scale -1 to 1. Candidates differ in units, so a common raw scale would leave most maps blank.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from faithline.config import Params
from faithline.dataset import Samples, Split
from faithline.reporting.leaderboard import of_role
from faithline.reporting.results import TaskResults
from faithline.seeding import numpy_generator

POSITIVE, NEGATIVE = np.array([197, 60, 10]), np.array([15, 94, 170])
"""Supports the explained class / speaks against it: vermilion and blue, told apart by colour-blind readers too."""
MAX_SIDE = 128
"""Largest side of an image in the page, in pixels."""
LABEL = 18
"""Longest feature name on a contact sheet, in characters."""
MAX_COLUMNS_OF_TABLE = 12
"""Largest number of table features shown for a sample; those with the largest attributions are taken."""


@dataclass(frozen=True)
class Sample:
    """One row of the gallery.

    Attributes:
        sample_id: Position in the dataset.
        rule: Why it was chosen.
        label: True class; empty where it is not known.
        predicted: Explained class, the target's own top-1.
        prob: Its probability.
        correct: Whether the target is right.
    """

    sample_id: int
    rule: str
    label: str
    predicted: str
    prob: float
    correct: bool


@dataclass(frozen=True)
class Picture:
    """An image cell: a PNG as a data URI (empty if the map is not finite) and what it shows."""

    name: str
    uri: str
    alt: str


@dataclass(frozen=True)
class Tokens:
    """A text row of one candidate: each word with its weight in [-1, 1]; empty if the map is not finite."""

    name: str
    words: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Bars:
    """A table feature: its name, its value, and a weight in [-1, 1] a candidate (None if the map is not finite)."""

    feature: str
    value: str
    weights: tuple[float | None, ...]


@dataclass(frozen=True)
class Entry:
    """A sample with what its modality shows: pictures, token rows, or bars."""

    sample: Sample
    pictures: tuple[Picture, ...] = ()
    texts: tuple[Tokens, ...] = ()
    bars: tuple[Bars, ...] = ()
    hidden: int = 0
    """Table features that are not shown."""


@dataclass(frozen=True)
class Gallery:
    """A task's gallery: candidates in column order and one entry a sample."""

    modality: str
    candidates: tuple[str, ...]
    entries: tuple[Entry, ...]
    maps: Mapping[str, np.ndarray]
    """Scaled maps of the chosen samples by candidate, (samples, *map_shape); NaN where a map is not finite."""


def shown(results: TaskResults, params: Params) -> list[str]:
    """Candidates in the gallery: on images all that are no duplicates, elsewhere a short list that fits a screen."""
    evaluation = results.evaluation
    explainers = of_role(evaluation, "explainer")
    priors = of_role(evaluation, "supervision", "baseline")
    references = of_role(evaluation, "refined", "reference")
    controls = of_role(evaluation, "control")
    if evaluation.modality == "image":
        return [*explainers, *references, *priors, *controls]
    wanted = [*explainers, *references, *priors[:2], params.report.reference, *priors[-1:], "random"]
    return [name for name in dict.fromkeys(wanted) if name in evaluation.candidates]


def build(results: TaskResults, params: Params) -> Gallery:
    """Choose the samples, scale the maps and draw every cell; the samples of the gallery split where there are any, else of test.

    Samples of a data set that may not be shown are never drawn: a task without others has an empty gallery.
    """
    split: Split = "gallery" if len(results.samples.index("gallery")) else "test"
    if split == "test" and not results.samples.showable:
        return Gallery(results.evaluation.modality, (), (), {})
    found = {name: pair for name in shown(results, params) if (pair := results.maps(name, split)) is not None}
    if not found:
        return Gallery(results.evaluation.modality, (), (), {})
    ids = results.samples.index(split).numpy()
    raw = {name: _aligned(ids, *pair) for name, pair in found.items()}
    chosen = choose(results, params, ids, raw)
    positions = np.searchsorted(ids, [sample.sample_id for sample in chosen])
    scaled = {name: scale(maps[positions], results.evaluation.modality) for name, maps in raw.items()}
    draw = {"image": _pictures, "text": _texts, "table": _bars}[results.evaluation.modality]
    entries = tuple(
        draw(results.samples, sample, {name: maps[i] for name, maps in scaled.items()}) for i, sample in enumerate(chosen)
    )
    return Gallery(results.evaluation.modality, tuple(scaled), entries, scaled)


def _aligned(wanted: np.ndarray, ids: np.ndarray, maps: np.ndarray) -> np.ndarray:
    """Maps of the wanted samples, NaN where a candidate has none (`evaluate` leaves out what is not finite); ids ascend."""
    found = np.full((len(wanted), *maps.shape[1:]), np.nan, dtype=np.float32)
    rows = np.searchsorted(ids, wanted).clip(max=len(ids) - 1)
    there = ids[rows] == wanted
    found[there] = maps[rows[there]]
    return found


def choose(results: TaskResults, params: Params, ids: np.ndarray, maps: Mapping[str, np.ndarray]) -> list[Sample]:
    """`report.gallery` samples by rule: drawn at random, the explainer's best and worst INF, and the most disagreement.

    Samples without scores, as those of the gallery split, are drawn at random or for their disagreement.

    Args:
        results: The task.
        params: For the number and the seed.
        ids: Samples to choose from, ascending.
        maps: Maps of those samples by candidate.
    """
    metric = "inf" if "inf" in params.evaluate.metrics else params.evaluate.metrics[0]
    explainer = results.explainer or next(iter(maps))
    score = results.scores.filter((pl.col("candidate") == explainer) & (pl.col("metric") == metric)).drop_nulls("value")
    by_score = score.filter(pl.col("sample_id").is_in(ids.tolist())).sort("value", "sample_id")["sample_id"].to_list()
    alike = agreement([results.samples.features.to_features(torch.from_numpy(m)).numpy() for m in _informed(results, maps)])
    queues = {
        "drawn at random": numpy_generator(params.seed, "report", "gallery", results.name).permutation(ids).tolist(),
        f"highest {metric.upper()} of {explainer}": by_score[::-1],
        f"lowest {metric.upper()} of {explainer}": by_score,
        "candidates disagree most": ids[np.argsort(alike, kind="stable")].tolist(),
    }
    rules = [rule for rule, queue in queues.items() if queue]
    chosen: dict[int, str] = {}
    for turn in range(min(params.report.gallery, len(ids))):
        rule = rules[turn] if turn < len(rules) else rules[0]
        fresh = [sample for sample in queues[rule] if sample not in chosen]
        if fresh:
            chosen[int(fresh[0])] = rule
    order = sorted(chosen, key=lambda sample: (rules.index(chosen[sample]), sample))
    targets = {row[0]: (row[1], row[2]) for row in results.predictions.select("sample_id", "target", "prob").iter_rows()}
    names = results.samples.class_names
    samples = []
    for sample in order:
        label = int(results.samples.label[sample])
        target, prob = targets[sample]
        known = "" if label < 0 else names[label]
        samples.append(Sample(sample, chosen[sample], known, names[target], float(prob), label == target))
    return samples


def _informed(results: TaskResults, maps: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    rows = results.evaluation.candidates
    return [m for name, m in maps.items() if rows[name].role != "control"] or list(maps.values())


def agreement(maps: Sequence[np.ndarray]) -> np.ndarray:
    """Mean cosine over pairs of candidates for each sample, (B,); a map that is zero or not finite agrees with nothing (0)."""
    stack = np.stack([np.nan_to_num(m.reshape(len(m), -1), nan=0, posinf=0, neginf=0) for m in maps]).astype(np.float64)
    norm = np.linalg.norm(stack, axis=2, keepdims=True)
    unit = np.divide(stack, norm, out=np.zeros_like(stack), where=norm > 0)
    count = len(maps)
    if count < 2:
        return np.zeros(stack.shape[1])
    own: np.ndarray = (unit**2).sum(2).sum(0)
    together: np.ndarray = (unit.sum(0) ** 2).sum(1)
    return (together - own) / (count * (count - 1))


def scale(maps: np.ndarray, modality: str) -> np.ndarray:
    """Divide each map by its own magnitude and clip to [-1, 1]; a map that is not finite becomes NaN, an all-zero map stays 0."""
    flat = np.abs(maps.reshape(len(maps), -1)).astype(np.float64)
    finite = np.isfinite(flat).all(1)
    flat[~finite] = 0
    size = np.quantile(flat, 0.99, axis=1) if modality == "image" else flat.max(1)
    size = np.where(size > 0, size, np.maximum(flat.max(1), 1e-30))
    shape = (-1,) + (1,) * (maps.ndim - 1)
    values = np.clip(np.where(np.isfinite(maps), maps, 0) / size.reshape(shape), -1, 1)
    return np.where(finite.reshape(shape), values, np.nan)


# ----------------------------------------------------------------------------------------------------------------- images


def grey(samples: Samples, sample: int) -> np.ndarray:
    """The input as a grey picture in [0, 1], (H, W), normalisation undone; over its own range where that is unknown."""
    x = samples.x[sample].double()
    if "mean" not in samples.preprocessing:
        low, high = x.min(), x.max()
        return ((x - low) / (high - low).clamp(min=1e-12)).mean(0).numpy()
    mean = torch.tensor(samples.preprocessing["mean"], dtype=torch.float64).reshape(-1, 1, 1)
    std = torch.tensor(samples.preprocessing["std"], dtype=torch.float64).reshape(-1, 1, 1)
    return (x * std + mean).mean(0).clamp(0, 1).numpy()


def overlay(picture: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """Heat over a pale picture: colour by sign, opacity by size. uint8 (H, W, 3)."""
    base = 255 - 95 * picture[..., None].repeat(3, axis=2)
    strength = np.abs(heat)[..., None] ** 0.8 * 0.92
    colour = np.where(heat[..., None] >= 0, POSITIVE, NEGATIVE)
    return np.round(base * (1 - strength) + colour * strength).astype(np.uint8)


def png_uri(pixels: np.ndarray) -> str:
    """A PNG as a data URI; small pictures stay at their own size and the page enlarges them."""
    image = Image.fromarray(pixels)
    if max(image.size) > MAX_SIDE:
        factor = MAX_SIDE / max(image.size)
        image = image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BOX)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _pictures(samples: Samples, sample: Sample, maps: Mapping[str, np.ndarray]) -> Entry:
    base = grey(samples, sample.sample_id)
    own = np.round(255 * base).astype(np.uint8)
    cells = [Picture("input", png_uri(own), f"input, sample {sample.sample_id}, true class {sample.label or 'not known'}")]
    for name, values in maps.items():
        alt = f"map of {name} for class {sample.predicted}, sample {sample.sample_id}"
        cells.append(Picture(name, png_uri(overlay(base, _fit(values, base.shape))) if np.isfinite(values).all() else "", alt))
    return Entry(sample, pictures=tuple(cells))


def _fit(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A map at the size of its picture (nearest neighbour, so that patches keep their edges)."""
    if values.shape == shape:
        return values
    rows = np.arange(shape[0]) * values.shape[0] // shape[0]
    columns = np.arange(shape[1]) * values.shape[1] // shape[1]
    return values[rows][:, columns]


# ---------------------------------------------------------------------------------------------------------- texts, tables


def words(samples: Samples, sample: int) -> list[str]:
    """Tokens of a text without its padding; their ids where the task gives no vocabulary."""
    ids = samples.x[sample]
    present = ids[samples.features.valid(ids[None])[0]].tolist()
    vocabulary = samples.preprocessing.get("vocabulary")
    return [vocabulary[i] if vocabulary else f"#{i}" for i in present]


def _texts(samples: Samples, sample: Sample, maps: Mapping[str, np.ndarray]) -> Entry:
    ids = samples.x[sample.sample_id]
    valid = samples.features.valid(ids[None])[0].numpy()
    tokens = words(samples, sample.sample_id)
    rows = []
    for name, values in maps.items():
        weights = values[valid]
        finite = bool(np.isfinite(weights).all())
        rows.append(Tokens(name, tuple(zip(tokens, weights.tolist(), strict=True)) if finite else ()))
    return Entry(sample, texts=tuple(rows))


def top_columns(maps: Mapping[str, np.ndarray]) -> list[int]:
    """Features of one table sample to show: those with the largest mean absolute weight, in the order of the table."""
    weight = np.nan_to_num(np.stack(list(maps.values()))).__abs__().mean(0)
    order = np.argsort(-weight, kind="stable")[:MAX_COLUMNS_OF_TABLE]
    return sorted(order.tolist())


def _bars(samples: Samples, sample: Sample, maps: Mapping[str, np.ndarray]) -> Entry:
    columns = samples.features.n
    mean, std = samples.preprocessing.get("mean", [0.0] * columns), samples.preprocessing.get("std", [1.0] * columns)
    rows = []
    for i in top_columns(maps):
        value = float(samples.x[sample.sample_id, i]) * std[i] + mean[i]
        weights = tuple(float(m[i]) if np.isfinite(m[i]) else None for m in maps.values())
        rows.append(Bars(samples.feature_names[i], f"{value:.4g}".replace("-", "\N{MINUS SIGN}"), weights))
    return Entry(sample, bars=tuple(rows), hidden=len(mean) - len(rows))


# ---------------------------------------------------------------------------------------------------------- contact sheet


def contact_sheet(gallery: Gallery, samples: Samples) -> bytes:
    """All entries of a task as one PNG, for `dvc plots diff`: pictures, or heat maps of candidates x features."""
    figure = _picture_sheet(gallery, samples) if gallery.modality == "image" else _matrix_sheet(gallery, samples)
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    # matplotlib would write its own version into the file, which would change its bytes with every upgrade.
    figure.savefig(buffer, format="png", metadata={"Software": None}, bbox_inches="tight")
    return buffer.getvalue()


def _picture_sheet(gallery: Gallery, samples: Samples) -> Figure:
    names = ("input", *gallery.candidates)
    height, width = samples.features.shape[1:]
    sheet = np.full((len(gallery.entries) * (height + 2), len(names) * (width + 2), 3), 255, dtype=np.uint8)
    for i, entry in enumerate(gallery.entries):
        base = grey(samples, entry.sample.sample_id)
        cells = [np.round(255 * base[..., None].repeat(3, axis=2)).astype(np.uint8)]
        for name in gallery.candidates:
            values = gallery.maps[name][i]
            shown = np.isfinite(values).all()
            cells.append(overlay(base, _fit(values, base.shape)) if shown else np.full((height, width, 3), 230, dtype=np.uint8))
        for j, cell in enumerate(cells):
            sheet[i * (height + 2) : i * (height + 2) + height, j * (width + 2) : j * (width + 2) + width] = cell
    figure = Figure(figsize=(0.95 * len(names), 0.95 * max(1, len(gallery.entries))), dpi=90)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.imshow(sheet, interpolation="nearest", aspect="auto")
    ax.xaxis.tick_top()
    centres = [j * (width + 2) + width / 2 for j in range(len(names))]
    ax.set_xticks(centres, names, fontsize=8, rotation=30, ha="left", parse_math=False)
    rows = [i * (height + 2) + height / 2 for i in range(len(gallery.entries))]
    ax.set_yticks(rows, [str(entry.sample.sample_id) for entry in gallery.entries], fontsize=8)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return figure


def _matrix_sheet(gallery: Gallery, samples: Samples) -> Figure:
    count = max(1, len(gallery.entries))
    figure = Figure(figsize=(9, 2.7 * count), dpi=90)
    figure.subplots_adjust(hspace=1.1)
    axes = figure.subplots(count, 1, squeeze=False)
    for i, entry in enumerate(gallery.entries):
        ax = axes[i, 0]
        if gallery.modality == "text":
            keep = np.flatnonzero(samples.features.valid(samples.x[entry.sample.sample_id][None])[0].numpy())
            names = words(samples, entry.sample.sample_id)
        else:
            keep = np.arange(samples.features.n)
            names = list(samples.feature_names)
        matrix = np.stack([gallery.maps[name][i][keep] for name in gallery.candidates])
        ax.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
        labels = [name if len(name) <= LABEL else name[: LABEL - 1] + "\N{HORIZONTAL ELLIPSIS}" for name in names]
        ax.set_xticks(range(len(names)), labels, rotation=50, ha="right", rotation_mode="anchor", fontsize=7, parse_math=False)
        ax.set_yticks(range(len(gallery.candidates)), gallery.candidates, fontsize=7, parse_math=False)
        title = f"{entry.sample.sample_id}: {entry.sample.predicted} ({entry.sample.rule})"
        ax.set_title(title, fontsize=8, loc="left", parse_math=False)
    return figure
