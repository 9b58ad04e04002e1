"""Explanations of a user's own files as something to look at: heat maps over images, coloured words, bars; and the numbers."""

import html
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from faithline.artifacts import maps_column, write_json, write_table, write_text
from faithline.dataset import Samples
from faithline.inputs import Inputs
from faithline.masking import MaskedModel
from faithline.reporting.gallery import NEGATIVE, POSITIVE, overlay, scale

PICTURE_SIDE = 256
"""Smallest side of a written picture, in pixels; small images are enlarged by whole factors."""

Explainer = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Explanations:
    """B inputs with their explanations.

    Attributes:
        inputs: What was read.
        target: Explained class, the model's own first choice, int64 (B,).
        prob: Its probability (B,).
        attribution: Per feature, float32 (B, n); 0 at padding.
    """

    inputs: Inputs
    target: Tensor
    prob: Tensor
    attribution: Tensor


def explain(inputs: Inputs, game: MaskedModel, explainer: Explainer) -> Explanations:
    """Ask the model for its choice and the explainer for its reasons."""
    logits, target = game.predict(inputs.x)
    prob = logits.softmax(1).gather(1, target[:, None])[:, 0]
    attribution = explainer(inputs.x).detach().cpu().float()
    attribution = torch.where(game.features.valid(inputs.x).cpu(), attribution, 0.0)
    return Explanations(inputs, target.cpu(), prob.cpu(), attribution)


def write(found: Explanations, samples: Samples, out: Path) -> list[Path]:
    """Write one picture (images, tables) or page (texts) an input, `attributions.parquet` and `attributions.json`.

    Files of the same names are replaced one by one, each whole; others in the folder stay.

    Args:
        found: Explanations.
        samples: The task.
        out: Folder.

    Returns:
        The files written.
    """
    kind = samples.features.kind
    drawings: dict[str, Callable[[Explanations, Samples, int, np.ndarray], str | bytes]]
    drawings = {"image": _picture, "text": _page, "table": _bars}
    draw = drawings[kind]
    suffix = ".html" if kind == "text" else ".png"
    shown = scale(samples.features.to_map(found.attribution).numpy(), kind)
    made = [(out / f"{name}{suffix}", draw(found, samples, i, shown[i])) for i, name in enumerate(found.inputs.names)]
    for path, content in made:
        if isinstance(content, str):
            write_text(path, content)
        else:
            _write_bytes(path, content)
    classes = [samples.class_names[int(target)] for target in found.target]
    write_table(
        out / "attributions.parquet",
        pa.table(
            {
                "name": pa.array(found.inputs.names, pa.string()),
                "target": pa.array(found.target.numpy(), pa.int32()),
                "class": pa.array(classes, pa.string()),
                "prob": pa.array(found.prob.numpy(), pa.float32()),
                "attribution": maps_column(found.attribution),
            }
        ),
    )
    write_json(
        out / "attributions.json",
        [
            {
                "name": name,
                "class": classes[i],
                "prob": float(found.prob[i]),
                "features": _feature_names(found, samples, i),
                "attribution": found.attribution[i][: len(_feature_names(found, samples, i))].tolist(),
            }
            for i, name in enumerate(found.inputs.names)
        ],
    )
    return [*(path for path, _ in made), out / "attributions.parquet", out / "attributions.json"]


def _write_bytes(path: Path, content: bytes) -> None:
    """Write a picture whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _feature_names(found: Explanations, samples: Samples, i: int) -> list[str]:
    """What the features of an input are called: words, columns, or `row,column` of a patch."""
    if samples.features.kind == "text":
        return list(found.inputs.shown[i])
    if samples.features.kind == "table":
        return list(samples.feature_names)
    return [f"{row},{column}" for row in range(samples.features.rows) for column in range(samples.features.columns)]


def _title(found: Explanations, samples: Samples, i: int) -> str:
    return f"{found.inputs.names[i]}: {samples.class_names[int(found.target[i])]} ({float(found.prob[i]):.0%})"


def _picture(found: Explanations, samples: Samples, i: int, heat: np.ndarray) -> bytes:  # noqa: ARG001 (all draw alike)
    """The image in grey below its map: vermilion supports the class, blue speaks against it."""
    pixels = Image.fromarray(overlay(found.inputs.shown[i].mean(2), heat))
    factor = max(1, -(-PICTURE_SIDE // min(pixels.size)))
    buffer = io.BytesIO()
    pixels.resize((pixels.width * factor, pixels.height * factor), Image.Resampling.NEAREST).save(buffer, "PNG")
    return buffer.getvalue()


def _page(found: Explanations, samples: Samples, i: int, weights: np.ndarray) -> str:
    """The words on a background of their weight; the number shows under the pointer."""
    spans = []
    for word, weight, value in zip(found.inputs.shown[i], weights, found.attribution[i].tolist(), strict=False):
        red, green, blue = POSITIVE if weight >= 0 else NEGATIVE
        style = f"background:rgba({red},{green},{blue},{abs(float(weight)) * 0.8:.2f})"
        spans.append(f'<span style="{style}" title="{value:+.4g}">{html.escape(word)}</span>')
    title = html.escape(_title(found, samples, i))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        "<style>body{font:18px/2 system-ui,sans-serif;max-width:44em;margin:2em auto;padding:0 1em}"
        "span{padding:.15em .25em;border-radius:.2em}</style></head>\n"
        f"<body><h1>{title}</h1>\n<p>{' '.join(spans)}</p>\n"
        "<p>Vermilion supports the class, blue speaks against it; the strongest word is at full colour.</p></body></html>\n"
    )


def _bars(found: Explanations, samples: Samples, i: int, weights: np.ndarray) -> bytes:  # noqa: ARG001 (all draw alike)
    """A bar a column, the strongest on top, with the column's value."""
    values = found.attribution[i].numpy()
    order = np.argsort(np.abs(values), kind="stable")
    names = [f"{samples.feature_names[k]} = {found.inputs.shown[i][k]:.4g}" for k in order]
    figure = Figure(figsize=(7, 0.9 + 0.28 * len(order)), dpi=120, layout="constrained")
    axes = figure.subplots()
    colours: list[Any] = [tuple((POSITIVE if values[k] >= 0 else NEGATIVE) / 255) for k in order]
    axes.barh(range(len(order)), values[order], color=colours)
    axes.set_yticks(range(len(order)), names, fontsize=8, parse_math=False)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("attribution (right: supports the class)")
    axes.set_title(_title(found, samples, i), fontsize=10, parse_math=False)
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
