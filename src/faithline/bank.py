"""The mask bank: random coalitions of each sample and their values, computed once and shared by all that needs them.

Masks do not depend on any attribution map. The same rows therefore serve LIME, KernelSHAP and Banzhaf fits (`fitting`,
`reference`), the losses of explainers (`training`) and the correlation metrics (`evaluation`). Each use and each law draws from
its own seed, so that no map is judged by the masks it was fitted on, and one more law changes no mask of the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import pyarrow as pa
import torch
from torch import Tensor

from faithline.artifacts import read_metadata, read_table
from faithline.config import MAX_EXACT_FEATURES, BankSettings
from faithline.dataset import Samples
from faithline.errors import ArtifactError
from faithline.masking import MaskedModel, Outcome
from faithline.seeding import numpy_generator

Use = Literal["fitting", "training", "evaluation", "reference"]
Law = Literal["bernoulli", "fixed_size", "shapley_kernel", "singles", "all"]
USES: tuple[Use, ...] = ("fitting", "training", "evaluation", "reference")

LAWS: dict[Use, tuple[Law, ...]] = {
    "fitting": ("bernoulli", "shapley_kernel"),
    "evaluation": ("bernoulli", "fixed_size", "singles"),
    "reference": ("bernoulli",),
}
"""Laws of each use; those of `training` depend on which explainers are trained (`bank.training_laws`)."""

COLUMNS = {
    "sample_id": pl.Int64,
    "law": pl.String,
    "keep": pl.Binary,
    "top": pl.Binary,
    "values": pl.List(pl.Float32),
    "valid": pl.Binary,
    "full": pl.Float32,
    "empty": pl.Float32,
}


@dataclass(frozen=True)
class Masks:
    """Coalitions of B samples and their values.

    Attributes:
        keep: Features that stay, bool (B, S, n); True at positions that are no feature (padding).
        values: v(keep), float32 (B, S).
        full: v(all features), (B,).
        empty: v(no feature), (B,).
        valid: Which positions are features, bool (B, n).
    """

    keep: Tensor
    values: Tensor
    full: Tensor
    empty: Tensor
    valid: Tensor

    @property
    def effects(self) -> Tensor:
        """Delta(removed) = v(all) - v(keep), (B, S): how much the value falls when the other features go."""
        return self.full[:, None] - self.values

    def take(self, rows: Tensor) -> "Masks":
        """The same for some of the samples."""
        return Masks(self.keep[rows], self.values[rows], self.full[rows], self.empty[rows], self.valid[rows])

    def first(self, count: int) -> "Masks":
        """The first `count` masks of each sample.

        Raises:
            ValueError: If there are fewer.
        """
        if count > self.keep.shape[1]:
            raise ValueError(f"{count} masks asked for, the bank holds {self.keep.shape[1]} a sample")
        return Masks(self.keep[:, :count], self.values[:, :count], self.full, self.empty, self.valid)


@dataclass(frozen=True)
class ExactTable:
    """All 2^n values of B samples: every coalition is a look-up at index `sum_i keep_i * 2^i`.

    Attributes:
        values: v of every keep set, float32 (B, 2^n).
        top: Whether the explained class is still the first choice, bool (B, 2^n).
    """

    values: Tensor
    top: Tensor

    @property
    def n(self) -> int:
        """Number of features."""
        return self.values.shape[1].bit_length() - 1

    def evaluate(self, rows: Tensor, keep: Tensor) -> Outcome:
        """Look up Q coalitions, as `MaskedModel.evaluate` would compute them; no model call."""
        index = keep.long() @ (2 ** torch.arange(self.n))
        return Outcome(self.values[rows, index], self.top[rows, index])


def all_keep_sets(n: int) -> Tensor:
    """Every keep set of n features in index order, bool (2^n, n).

    Raises:
        ValueError: If n is above 14.
    """
    if n > MAX_EXACT_FEATURES:
        raise ValueError(f"{n} features: exact tables stop at {MAX_EXACT_FEATURES}")
    return (torch.arange(2**n)[:, None] >> torch.arange(n)) % 2 == 1


# -------------------------------------------------------------------------------------------------------------- mask laws


def draw(law: Law, valid: np.ndarray, count: int, fraction: float, generator: np.random.Generator) -> np.ndarray:
    """Keep masks of one sample, bool (count, n); positions that are no feature always stay.

    Args:
        law: `bernoulli`: each feature stays with probability 1/2. `fixed_size`: round(fraction * features) go, at least one.
            `shapley_kernel`: sizes as KernelSHAP weighs them, p(s) proportional to 1/(s (m - s)), in complementary pairs.
            `singles`: all but one feature, for each position in turn (count is then n).
        valid: Which positions are features, bool (n,).
        count: Number of masks.
        fraction: Share of features that `fixed_size` removes.
        generator: Source of randomness.
    """
    positions = np.flatnonzero(valid)
    m = len(positions)
    if law == "singles":
        keep = ~np.eye(len(valid), dtype=bool)
        return keep | ~valid
    keep = np.ones((count, len(valid)), dtype=bool)
    if law == "bernoulli":
        keep[:, positions] = generator.random((count, m)) < 0.5
    elif law == "fixed_size":
        size = min(max(1, round(fraction * m)), m)
        gone = generator.random((count, m)).argsort(1)[:, :size]
        np.put_along_axis(keep, positions[gone], False, axis=1)
    elif law == "shapley_kernel":
        if m > 1:
            half = (count + 1) // 2
            sizes = np.arange(1, m)
            weights = 1.0 / (sizes * (m - sizes))
            drawn = generator.choice(sizes, size=half, p=weights / weights.sum())
            ranks = generator.random((half, m)).argsort(1).argsort(1)
            stays = ranks < drawn[:, None]
            keep[:, positions] = np.stack([stays, ~stays], axis=1).reshape(2 * half, m)[:count]
    else:
        raise ValueError(f"law {law!r} is not drawn")
    return keep


def _sample_masks(
    use: Use, law: Law, valid: np.ndarray, settings: BankSettings, seed: int, task: str, sample_id: int
) -> np.ndarray:
    generator = numpy_generator(seed, "bank", task, use, law, sample_id)
    if settings.exact and law in ("bernoulli", "fixed_size") and use != "fitting":
        every = all_keep_sets(len(valid)).numpy()
        if law == "bernoulli":
            return every
        size = min(max(1, round(settings.fixed_size_fraction * len(valid))), len(valid))
        return every[(~every).sum(1) == size]
    return draw(law, valid, getattr(settings, use), settings.fixed_size_fraction, generator)


# ------------------------------------------------------------------------------------------------------------- computing


def samples_of(use: Use, samples: Samples) -> Tensor:
    """Which samples need masks for a use, as ascending ids."""
    if use == "training":
        return torch.cat([samples.learned(augmented=True), samples.index("validation")]).sort().values
    return samples.unseen() if use == "reference" else samples.explained()


def compute(
    game: MaskedModel,
    x: Tensor,
    target: Tensor,
    sample_ids: Tensor,
    use: Use,
    settings: BankSettings,
    *,
    seed: int,
    task: str,
) -> pa.Table:
    """Draw the masks of one use for some samples and play them, all in one stream of model batches.

    With `settings.exact` the model sees each of the 2^n keep sets once and every mask is a look-up; `evaluation` then also
    stores the table itself (law `all`), and `bernoulli` and `fixed_size` are enumerated instead of drawn, LIME's aside.

    Args:
        game: The game.
        x: Inputs of these samples (B, ...).
        target: Their explained classes (B,).
        sample_ids: Their ids (B,); masks depend on nothing else.
        use: What the masks are for.
        settings: Counts.
        seed: Root seed.
        task: Name of the task.

    Returns:
        One row a (sample, law), in the order of samples, then laws.
    """
    valid = game.features.valid(x).cpu().numpy()
    laws: list[Law] = [*settings.training_laws] if use == "training" else [*LAWS[use]]
    per_sample = [
        [_sample_masks(use, law, valid[i], settings, seed, task, int(sample_id)) for law in laws]
        for i, sample_id in enumerate(sample_ids)
    ]
    ends = np.ones((2, game.features.n), dtype=bool)
    if settings.exact:
        every = all_keep_sets(game.features.n)
        rows = torch.arange(len(x)).repeat_interleave(len(every))
        outcome = game.evaluate(x, rows, every.repeat(len(x), 1), target)
        table = ExactTable(outcome.value.reshape(len(x), -1), outcome.top.reshape(len(x), -1))
        evaluate: Callable[[Tensor, Tensor], Outcome] = table.evaluate
        if use == "evaluation":
            laws.append("all")
            for masks in per_sample:
                masks.append(every.numpy())
    else:

        def evaluate(rows: Tensor, keep: Tensor) -> Outcome:
            return game.evaluate(x, rows, keep, target)

    blocks: list[np.ndarray] = []
    for i, masks in enumerate(per_sample):
        ends[1] = ~valid[i]
        blocks += [ends.copy(), *masks]
    lengths = [sum(len(m) for m in masks) + 2 for masks in per_sample]
    rows = torch.arange(len(x)).repeat_interleave(torch.tensor(lengths))
    outcome = evaluate(rows, torch.from_numpy(np.concatenate(blocks)))
    value, top = outcome.value.numpy(), outcome.top.numpy()

    columns: dict[str, list[object]] = {name: [] for name in COLUMNS}
    at = 0
    for i, sample_id in enumerate(sample_ids.tolist()):
        full, empty = float(value[at]), float(value[at + 1])
        at += 2
        for law, keep in zip(laws, per_sample[i], strict=True):
            columns["sample_id"].append(sample_id)
            columns["law"].append(law)
            columns["keep"].append(np.packbits(keep).tobytes())
            columns["top"].append(np.packbits(top[at : at + len(keep)]).tobytes())
            columns["values"].append(value[at : at + len(keep)])
            columns["valid"].append(np.packbits(valid[i]).tobytes())
            columns["full"].append(full)
            columns["empty"].append(empty)
            at += len(keep)
    types = [
        pa.int64(), pa.string(), pa.binary(), pa.binary(), pa.list_(pa.float32()), pa.binary(), pa.float32(), pa.float32(),
    ]  # fmt: skip
    return pa.table({name: pa.array(column, type=kind) for (name, column), kind in zip(columns.items(), types, strict=True)})


# --------------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Bank:
    """One use of a task's bank, opened for reading (`open_bank`)."""

    frame: pl.DataFrame
    n: int
    folder: Path

    def laws(self) -> set[str]:
        """Laws that are stored."""
        return set(self.frame["law"].unique())

    def _rows(self, sample_ids: Tensor, law: Law) -> pl.DataFrame:
        wanted = pl.DataFrame({"sample_id": sample_ids.numpy()})
        found = wanted.join(
            self.frame.filter(pl.col("law") == law), on="sample_id", how="left", maintain_order="left", validate="m:1"
        )
        if found["full"].null_count():
            lacking = found.filter(pl.col("full").is_null())["sample_id"].to_list()
            raise ArtifactError(f"{self.folder} has no {law} masks of samples {lacking[:10]} ({len(lacking)} in all)")
        return found

    def masks(self, sample_ids: Tensor, law: Law) -> Masks:
        """The masks of a law for these samples, in their order.

        Raises:
            ArtifactError: If a sample has none.
        """
        rows = self._rows(sample_ids, law)
        values = np.stack(rows["values"].to_list()) if len(rows) else np.empty((0, 0), dtype=np.float32)
        return Masks(
            keep=torch.from_numpy(self._unpack(rows["keep"], values.shape[1], self.n)),
            values=torch.from_numpy(values.astype(np.float32)),
            full=torch.from_numpy(rows["full"].to_numpy().copy()),
            empty=torch.from_numpy(rows["empty"].to_numpy().copy()),
            valid=torch.from_numpy(self._unpack(rows["valid"], 1, self.n)[:, 0]),
        )

    def table(self, sample_ids: Tensor) -> ExactTable | None:
        """All 2^n values of these samples, or None where the task is not exact."""
        if "all" not in self.laws():
            return None
        rows = self._rows(sample_ids, "all")
        values = np.stack(rows["values"].to_list()).astype(np.float32)
        top = self._unpack(rows["top"], 1, values.shape[1])[:, 0]
        return ExactTable(torch.from_numpy(values), torch.from_numpy(top))

    @staticmethod
    def _unpack(column: pl.Series, masks: int, n: int) -> np.ndarray:
        packed = np.stack([np.frombuffer(item, dtype=np.uint8) for item in column.to_list()])
        return np.unpackbits(packed, axis=1, count=masks * n).reshape(len(column), masks, n).astype(bool)


def open_bank(folder: str | Path, target_sha256: str) -> Bank:
    """Open one use of a bank, `data/bank/<task>/<use>`.

    Raises:
        ArtifactError: If it is missing, damaged, or was made for another model.
    """
    metadata = read_metadata(folder)
    if metadata.get("target_sha256") != target_sha256:
        raise ArtifactError(
            f"{folder} was made for another model (sha256 {metadata.get('target_sha256', 'not recorded')[:12]}, "
            f"the target is {target_sha256[:12]}): run `dvc repro bank`"
        )
    return Bank(read_table(folder, COLUMNS), int(metadata["n_features"]), Path(folder))
