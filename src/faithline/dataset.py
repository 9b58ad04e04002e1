"""One task's samples, frozen: inputs, labels, splits, features and how a raw file becomes an input."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from torch import Tensor

from faithline.artifacts import publish, read_json, read_table, read_tensors, write_json, write_table, write_tensors
from faithline.errors import ArtifactError
from faithline.masking import Features

Split = Literal["train", "validation", "test", "gallery", "augmented"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
"""The splits of a data set. `gallery` samples come from elsewhere, are explained to be looked at, and count in no number;
`augmented` ones are made of training samples (augmentation.py), and only explainers learn from them."""


@dataclass(frozen=True)
class Samples:
    """All that a task file gives and every later stage reads.

    Attributes:
        x: Inputs as the target takes them: float32 (N, C, H, W), int64 token ids (N, L), or float32 (N, n).
        label: True class, int64 (N,); -1 for an augmented sample, and for a gallery sample of no known class.
        split: `train`, `validation`, `test`, `gallery` or `augmented` of each sample, (N,) of str.
        supervised: Training samples that the prior methods explain, bool (N,).
        features: How an input is cut.
        class_names: One a class.
        feature_names: One a column of a table; empty elsewhere.
        preprocessing: How a raw file becomes an input, JSON-able:
            image {"size", "channels", "mean": [..], "std": [..]} (pixels in [0, 1] first);
            text {"vocabulary": [...]} (index = token id; "<pad>" and "<unk>" among them; lower-cased word tokens);
            table {"mean": [..], "std": [..]} in the order of feature_names.
            An image may add {"resize": short side in pixels before the centre crop, bicubic}.
        source: Where the data comes from and under which licence, one sentence.
        showable: Whether the report may show test samples. Where it may not, it shows gallery samples, or none.
        complete: Whether every class must have training and test samples; False where the model brings its classes with it.
    """

    x: Tensor
    label: Tensor
    split: np.ndarray
    supervised: np.ndarray
    features: Features
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    preprocessing: dict[str, Any]
    source: str
    showable: bool = True
    complete: bool = True

    def index(self, split: Split, *, supervised: bool = False) -> Tensor:
        """Positions (= sample ids) of a split, ascending; of its supervised samples only, where asked."""
        chosen = self.split == split
        return torch.from_numpy(np.flatnonzero(chosen & self.supervised if supervised else chosen))

    def learned(self, *, augmented: bool) -> Tensor:
        """Positions that an explainer learns from: training samples, with the augmented ones or without, ascending."""
        return torch.from_numpy(np.flatnonzero(np.isin(self.split, ("train", "augmented") if augmented else ("train",))))

    def explained(self) -> Tensor:
        """Positions that supervising prior methods explain: supervised training, test and gallery samples, ascending."""
        return torch.from_numpy(np.flatnonzero(self.supervised | np.isin(self.split, ("test", "gallery"))))

    def scored(self) -> Tensor:
        """Positions whose maps are measured: the explained ones without the gallery, ascending."""
        return torch.from_numpy(np.flatnonzero(self.supervised | (self.split == "test")))

    def unseen(self) -> Tensor:
        """Positions that all methods explain and no explainer learns from: test and gallery samples, ascending."""
        return torch.from_numpy(np.flatnonzero(np.isin(self.split, ("test", "gallery"))))


def check(samples: Samples) -> None:
    """Refuse samples that would fail later, or worse, would not.

    Raises:
        ArtifactError: NaN or infinite inputs, a constant column, a class without samples, labels out of range, an empty split,
            or an input shape that is not the features'. The message names rows, columns and classes.
    """
    x, label = samples.x, samples.label
    if tuple(x.shape[1:]) != samples.features.shape:
        raise ArtifactError(f"inputs have shape {tuple(x.shape[1:])}, the features say {samples.features.shape}")
    if not (len(x) == len(label) == len(samples.split) == len(samples.supervised)):
        raise ArtifactError("x, label, split and supervised differ in length")
    if x.is_floating_point():
        bad = (~torch.isfinite(x.flatten(1))).any(1).nonzero()[:, 0].tolist()
        if bad:
            raise ArtifactError(f"{len(bad)} inputs hold NaN or infinity (first rows: {bad[:10]}): drop or impute them")
    for split in SPLITS:
        if not len(samples.index(split)):
            raise ArtifactError(f"split {split} is empty")
    if samples.features.kind == "table":
        train = x[samples.index("train")]
        constant = [samples.feature_names[i] for i in range(x.shape[1]) if bool((train[:, i] == train[0, i]).all())]
        if constant:
            raise ArtifactError(f"columns {constant} are constant over the training split: remove them")
    if samples.features.kind == "text":
        empty = (~samples.features.valid(x)).all(1).nonzero()[:, 0].tolist()
        if empty:
            raise ArtifactError(f"{len(empty)} texts have no token (first rows: {empty[:10]}): drop them")
    classes = len(samples.class_names)
    known = label[torch.from_numpy(np.isin(samples.split, SPLITS) | (label.numpy() != -1))]
    if int(known.min()) < 0 or int(known.max()) >= classes:
        raise ArtifactError(f"labels lie in [{int(known.min())}, {int(known.max())}], but there are {classes} classes")
    for split in SPLITS if samples.complete else ():
        counts = torch.bincount(label[samples.index(split)], minlength=classes)
        lacking = [samples.class_names[i] for i in (counts == 0).nonzero()[:, 0].tolist()]
        if lacking and split != "validation":
            raise ArtifactError(f"classes {lacking} have no {split} sample: take more samples or fewer classes")
    if bool((samples.supervised & (samples.split != "train")).any()):
        raise ArtifactError("only training samples may be supervised")


def freeze(samples: Samples, out: str | Path) -> None:
    """Check the samples and write them to a folder: `inputs.safetensors`, `samples.parquet`, `task.json`."""
    check(samples)
    features = samples.features
    with publish(out) as folder:
        write_tensors(folder / "inputs.safetensors", {"x": samples.x, "label": samples.label})
        write_table(
            folder / "samples.parquet",
            pl.DataFrame(
                {
                    "sample_id": np.arange(len(samples.x), dtype=np.int64),
                    "split": samples.split.astype(str),
                    "supervised": samples.supervised.astype(bool),
                    "label": samples.label.to(torch.int32).numpy(),
                }
            ),
        )
        write_json(
            folder / "task.json",
            {
                "features": {
                    "kind": features.kind,
                    "shape": list(features.shape),
                    "rows": features.rows,
                    "columns": features.columns,
                    "pad_id": features.pad_id,
                },
                "class_names": list(samples.class_names),
                "feature_names": list(samples.feature_names),
                "preprocessing": samples.preprocessing,
                "source": samples.source,
                # Written where they say something: a task without them keeps the bytes it always had.
                **({} if samples.showable else {"showable": False}),
                **({} if samples.complete else {"complete": False}),
            },
        )


def read(folder: str | Path) -> Samples:
    """Read a frozen task (see `freeze`).

    Raises:
        ArtifactError: If a file is missing or damaged.
    """
    folder = Path(folder)
    info = read_json(folder / "task.json")
    table = read_table(folder / "samples.parquet", {"sample_id": pl.Int64, "split": None, "supervised": pl.Boolean})
    tensors = read_tensors(folder / "inputs.safetensors")
    return Samples(
        x=tensors["x"],
        label=tensors["label"],
        split=table["split"].to_numpy().astype(str),
        supervised=table["supervised"].to_numpy(),
        features=Features(**{**info["features"], "shape": tuple(info["features"]["shape"])}),
        class_names=tuple(info["class_names"]),
        feature_names=tuple(info["feature_names"]),
        preprocessing=info["preprocessing"],
        source=info["source"],
        showable=info.get("showable", True),
        complete=info.get("complete", True),
    )


def assign_splits(
    groups: np.ndarray, counts: dict[Split, int], supervised: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split samples so that no group (film, distinct row) is in two splits; what is too much is left out.

    Args:
        groups: Group of each sample (N,); use `np.arange(N)` where samples are independent.
        counts: Wanted samples of each split; test is filled first, then validation, then train.
        supervised: How many training samples the prior methods explain.
        generator: Draws the order of groups.

    Returns:
        Positions of the chosen samples in the original order, split of each, supervised flag of each.

    Raises:
        ArtifactError: If the data has fewer samples than were asked for; the message says how many each split could get.
    """
    names, inverse, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = generator.permutation(len(names))
    split_of_group = np.full(len(names), "", dtype="<U10")
    position = 0
    for wanted in ("test", "validation", "train"):
        filled = 0
        while filled < counts[wanted] and position < len(order):
            split_of_group[order[position]] = wanted
            filled += sizes[order[position]]
            position += 1
    split = split_of_group[inverse]
    # The last group of a split may overshoot: drop its surplus, at random so that order in the file does not matter.
    for name in SPLITS:
        members = generator.permutation(np.flatnonzero(split == name))
        split[members[counts[name] :]] = ""
    found = {name: int((split == name).sum()) for name in SPLITS}
    short = {name: number for name, number in found.items() if number < counts[name]}
    if short:
        wanted = ", ".join(f"{name}: {counts[name]} (there are {number})" for name, number in short.items())
        raise ArtifactError(f"the data has {len(groups)} samples, too few for dataset {wanted}")
    chosen = np.flatnonzero(split != "")
    split = split[chosen]
    train = np.flatnonzero(split == "train")
    flags = np.zeros(len(chosen), dtype=bool)
    flags[generator.permutation(train)[:supervised]] = True
    return chosen, split, flags


def assign_official(
    official: np.ndarray, groups: np.ndarray, counts: dict[Split, int], supervised: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Splits of data that comes with a test part: test samples are drawn from that, all others from the rest.

    Groups (patients) of the official test part are left out of training and validation, and none of the others is in both.

    Args:
        official: `train` or `test` of each sample (N,).
        groups: Group of each sample (N,).
        counts: Wanted samples of each split.
        supervised: How many training samples the prior methods explain.
        generator: Draws samples.

    Returns:
        Positions of the chosen samples in the original order, split of each, supervised flag of each.

    Raises:
        ArtifactError: If a part has fewer samples than were asked for.
    """
    test = np.flatnonzero(official == "test")
    if len(test) < counts["test"]:
        raise ArtifactError(f"the official test part has {len(test)} samples, too few for dataset test: {counts['test']}")
    rest = np.flatnonzero((official == "train") & ~np.isin(groups, groups[test]))
    drawn, split, flags = assign_splits(groups[rest], {**counts, "test": 0}, supervised, generator)
    chosen = np.concatenate([rest[drawn], generator.permutation(test)[: counts["test"]]])
    split = np.concatenate([split, np.full(counts["test"], "test", dtype=split.dtype)])
    flags = np.concatenate([flags, np.zeros(counts["test"], dtype=bool)])
    order = np.argsort(chosen)
    return chosen[order], split[order], flags[order]
