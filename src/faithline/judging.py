"""Judge maps of some samples: their sweeps (which call the model) and their ten scores (which do not)."""

from dataclasses import dataclass, field

import polars as pl
import torch
from torch import Tensor

from faithline.bank import ExactTable, Masks
from faithline.config import MetricSettings
from faithline.errors import ArtifactError
from faithline.masking import MaskedModel, Outcome
from faithline.metrics import curves, ten
from faithline.metrics.curves import Evaluate, Sweeps

BLOCK = 256
"""Samples swept at once; bounds memory and changes no value."""


@dataclass(frozen=True)
class Judge:
    """The game of some samples with everything that does not depend on a map.

    Attributes:
        game: v(keep).
        insertion: The game that insertion starts in, or None for the same.
        x: Inputs (B, ...).
        target: Explained classes (B,).
        sample_ids: int64 (B,).
        bernoulli: Evaluation masks for INF.
        fixed_size: Evaluation masks for FC.
        singles: Values without each feature alone, for FE and MC.
        table: All 2^n values where the task is exact; then no sweep calls the model.
        steps: Points of a sweep.
        metrics: Conventions.
        seed: Root seed, for ties.
    """

    game: MaskedModel
    insertion: MaskedModel | None
    x: Tensor
    target: Tensor
    sample_ids: Tensor
    bernoulli: Masks
    fixed_size: Masks
    singles: Masks
    table: ExactTable | None
    steps: int
    metrics: MetricSettings
    seed: int
    valid: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "valid", self.game.features.valid(self.x))

    def take(self, rows: Tensor) -> "Judge":
        """The judge of some of the samples."""
        return Judge(
            self.game,
            self.insertion,
            self.x[rows],
            self.target[rows],
            self.sample_ids[rows],
            self.bernoulli.take(rows),
            self.fixed_size.take(rows),
            self.singles.take(rows),
            None if self.table is None else ExactTable(self.table.values[rows], self.table.top[rows]),
            self.steps,
            self.metrics,
            self.seed,
        )

    def ranks(self, maps: Tensor) -> Tensor:
        """Place of each feature in each map (B, n), ties broken by the seed."""
        return curves.relevance_ranks(maps, self.valid, self.sample_ids, self.seed)

    def sweep(self, maps: Tensor) -> Sweeps:
        """Sweep one finite map a sample, (B, n)."""
        parts = [self.take(rows)._sweep(maps[rows]) for rows in torch.arange(len(self.x)).split(BLOCK)]
        return Sweeps(*(torch.cat([getattr(part, name) for part in parts]) for name in Sweeps.__dataclass_fields__))

    def _sweep(self, maps: Tensor) -> Sweeps:
        return curves.sweep(
            self._evaluate(self.game) if self.table is None else self.table.evaluate,
            self.ranks(maps),
            self.valid,
            self.singles.full,
            self.steps,
            insertion=None if self.insertion is None else self._evaluate(self.insertion),
            singles=self.singles,
            empty=self.singles.empty,
        )

    def _evaluate(self, game: MaskedModel) -> Evaluate:
        def play(rows: Tensor, keep: Tensor) -> Outcome:
            return game.evaluate(self.x, rows, keep, self.target)

        return play

    def score(self, maps: Tensor, sweeps: Sweeps) -> dict[str, Tensor]:
        """Ten metrics of one finite map a sample, (B,) each, NaN where undefined; no model call."""
        return ten.score(
            maps,
            self.ranks(maps),
            sweeps,
            bernoulli=self.bernoulli,
            fixed_size=self.fixed_size,
            convention=self.metrics.convention,
            mc_absolute=self.metrics.mc_absolute,
            min_prob=self.metrics.min_prob,
        )

    def score_stored(self, maps: Tensor, finite: Tensor, frame: pl.DataFrame, names: list[str]) -> Tensor:
        """Chosen metrics of maps whose sweeps are stored, (B, M); NaN where the map is not finite.

        Args:
            maps: (B, n).
            finite: Which maps have a sweep, bool (B,).
            frame: Their curves (`curves.to_frame`).
            names: Metrics.
        """
        scores = torch.full((len(maps), len(names)), torch.nan)
        rows = finite.nonzero()[:, 0]
        if len(rows):
            some = self.take(rows)
            try:
                sweeps = curves.from_frame(frame, some.sample_ids, some.valid)
            except ValueError as error:
                raise ArtifactError(f"stored curves do not fit the task: {error}; remove them and run `dvc repro`") from error
            scored = some.score(maps[rows], sweeps)
            scores[rows] = torch.stack([scored[name] for name in names], 1)
        return scores
