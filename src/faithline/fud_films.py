"""What a reader sees of a task's removals: a few images level by level, and what the score model makes of pure noise.

One small file beside the scores, so that the report needs neither all samples nor the score model.
"""

import io
from collections.abc import Mapping, Sequence

import polars as pl
import torch
from PIL import Image
from torch import Tensor

from faithline import fud, fud_sampling, score_models
from faithline.artifacts import read_tensors
from faithline.fud_sampling import MAIN, Stage
from faithline.metrics import insertion_deletion

FILMED = 3
"""Images: the first that every filmed map orders."""

COLUMNS = 16
"""Of a sheet."""

SHOWN = 64
"""Images of a sheet."""

SIDE = 64
"""Largest side of one image of a sheet, in pixels."""

SCHEMA = {
    "kind": pl.String,
    "sample_id": pl.Int64,
    "candidate": pl.String,
    "level": pl.Float64,
    "prob": pl.Float64,
    "png": pl.Binary,
}
"""`kind`: `image` (the clean image), `fud`, `black` (removed pixels are 0), `sheet` (samples of pure noise), `training`."""


def films(stage: Stage, frames: Mapping[str, pl.DataFrame], maps: Mapping[str, Tensor]) -> pl.DataFrame:
    """Clean images, their removals by every named candidate, in-distribution and to black, and two sheets: a table of `SCHEMA`.

    A task whose samples may not be shown has no pictures.

    Args:
        stage: The task.
        frames: Samples by candidate, `fud_sampling.COLUMNS`.
        maps: Maps of the judged images by candidate, (I, h, w).
    """
    if not stage.opened.samples.showable:
        return pl.DataFrame(schema=SCHEMA)
    usable = torch.stack([fud_sampling.orders_something(own) for own in maps.values()]).all(0)
    chosen = usable & (usable.cumsum(0) <= FILMED)
    part = stage.choose(chosen)
    ids, levels = list(part.scene.image_ids), tuple(stage.settings.levels)
    images, target = part.scene.pixels, part.scene.targets.cpu()
    predict = fud_sampling.predictor(part)
    clean = fud.confidence(predict(images).double(), target)
    rows = [_rows("image", ids, "", [1.0], clean[:, None], images[:, None])]
    for name, frame in frames.items():
        own = frame.filter(
            (pl.col("ordering") == "own") & (pl.col("sampler") == MAIN) & (pl.col("draw") == 0) & pl.col("sample_id").is_in(ids)
        )
        named = own.select(pl.lit("fud").alias("kind"), "sample_id", pl.lit(name).alias("candidate"), "level", "prob", "png")
        keep = fud_sampling.keep_masks(part, maps[name][chosen], levels)
        filled = insertion_deletion.removal_images(images, torch.zeros_like(images), keep)
        prob = fud.confidence(predict(filled.flatten(0, 1)).double(), target.repeat_interleave(len(levels)))
        rows += [named, _rows("black", ids, name, levels, prob.reshape(len(ids), -1), filled)]
    samples = stage.opened.samples
    made = read_tensors(score_models.folder_of(stage.opened.task) / "sheet.safetensors")["pixels"][:SHOWN].float() / 255
    real = score_models.pixels(samples.x[samples.index("train")[: len(made)]], samples)
    rows.append(
        pl.DataFrame(
            {"kind": ["sheet", "training"], "png": [sheet(made), sheet(real)]},
            schema={"kind": pl.String, "png": pl.Binary},
        ).select(
            "kind",
            *(pl.lit(None, dtype=SCHEMA[column]).alias(column) for column in ("sample_id", "candidate", "level", "prob")),
            "png",
        )
    )
    return pl.concat(rows)


def _rows(kind: str, ids: Sequence[int], name: str, levels: Sequence[float], prob: Tensor, images: Tensor) -> pl.DataFrame:
    """Rows of (I, F) confidences and (I, F, C, S, S) images."""
    count = len(ids) * len(levels)
    columns = {
        "kind": [kind] * count,
        "sample_id": [image for image in ids for _ in levels],
        "candidate": [name] * count,
        "level": list(levels) * len(ids),
        "prob": prob.flatten().double().tolist(),
        "png": [fud_sampling.png(image) for image in images.flatten(0, 1)],
    }
    return pl.DataFrame(columns, schema=SCHEMA)


def sheet(images: Tensor) -> bytes:
    """Images (N, C, S, S) in [0, 1] in rows of `COLUMNS`, as one PNG; large ones are made smaller."""
    side = min(images.shape[-1], SIDE)
    columns = min(COLUMNS, len(images))
    mode = "L" if images.shape[1] == 1 else "RGB"
    picture = Image.new(mode, (columns * (side + 1), -(-len(images) // columns) * (side + 1)))
    for place, image in enumerate(images):
        tile = Image.open(io.BytesIO(fud_sampling.png(image))).resize((side, side), Image.Resampling.BOX)
        picture.paste(tile, (place % columns * (side + 1), place // columns * (side + 1)))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
