"""What explainers learn from: views, masks of the bank with their values, and curated prior maps, batch by batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from faithline.bank import Masks
from faithline.errors import ArtifactError
from faithline.explainers.losses import Loss
from faithline.explainers.target_features import View


@dataclass(frozen=True)
class Pairs:
    """The curated pairs Z = {(x, s)}: prior maps worth imitating, several or none a sample.

    Attributes:
        sample_ids: Sample of each pair, int64 (P,).
        maps: Signed prior maps, float32 (P, n).
        weight: Weight of each pair in L_PC, float32 (P,).
    """

    sample_ids: Tensor
    maps: Tensor
    weight: Tensor


class Batch(NamedTuple):
    """One step's share of the training set.

    Attributes:
        sample_ids: int64 (R,).
        rows: Their places in the training set, int64 (R,).
        view: What the explainer sees.
        removed: Features taken away by the masks of this step, bool (R, k, n).
        effects: Fall of the value under each mask, (R, k).
        full: v(all features), (R,).
        empty: v(no feature), (R,).
        single_effects: Fall of the value when each feature alone is removed, (R, n); zeros where the bank was not asked.
        owner: Row of the batch that each pair belongs to, int64 (P,).
        maps: Prior maps of the pairs, (P, n).
        weight: Weights of the pairs, (P,).
    """

    sample_ids: Tensor
    rows: Tensor
    view: View
    removed: Tensor
    effects: Tensor
    full: Tensor
    empty: Tensor
    single_effects: Tensor
    owner: Tensor
    maps: Tensor
    weight: Tensor


class Term(NamedTuple):
    """One loss of an objective on a batch; a step descends on the weighted mean of its defined values.

    Attributes:
        loss: Values and where they are defined, (V,).
        weight: Weight of each value in the mean, (V,).
        owner: Row of the batch that each value belongs to, int64 (V,).
    """

    loss: Loss
    weight: Tensor
    owner: Tensor


def by_row(loss: Loss) -> Term:
    """The term of a loss that has one value a row of the batch, all of equal weight."""
    return Term(loss, torch.ones_like(loss.value), torch.arange(len(loss.value), device=loss.value.device))


class TrainingSet:
    """Views, masks and curated maps of the training samples, in memory on one device."""

    def __init__(
        self, sample_ids: Tensor, view: View, masks: Masks, pairs: Pairs, device: torch.device, singles: Masks | None = None
    ) -> None:
        """Group the pairs by sample.

        Args:
            sample_ids: Ascending (N,).
            view: What the explainer sees of them.
            masks: Their masks.
            pairs: Curated maps of some of them.
            device: Where all of it goes.
            singles: Their `singles` masks, for a loss that is about single removals too.

        Raises:
            ArtifactError: If a pair belongs to no training sample.
        """
        order = pairs.sample_ids.argsort(stable=True)
        owner = torch.searchsorted(sample_ids, pairs.sample_ids[order]).clamp(max=len(sample_ids) - 1)
        strangers = sample_ids[owner] != pairs.sample_ids[order]
        if bool(strangers.any()):
            raise ArtifactError(
                f"curated maps of samples {pairs.sample_ids[order][strangers].unique()[:10].tolist()}, which do not train"
            )
        self._pairs_of = torch.bincount(owner, minlength=len(sample_ids))
        self._first_pair = (self._pairs_of.cumsum(0) - self._pairs_of).to(device)
        self._maps, self._weight = pairs.maps[order].to(device), pairs.weight[order].to(device)
        self.sample_ids = sample_ids
        self._view = view.to(device)
        self._keep, self._effects = masks.keep.to(device), masks.effects.to(device)
        self._full, self._empty = masks.full.to(device), masks.empty.to(device)
        self._singles = torch.zeros_like(view.valid, dtype=torch.float32) if singles is None else singles.effects
        self._singles = self._singles.to(device)
        self._device = device

    def order(self, generator: torch.Generator) -> Tensor:
        """Every row once in random order, with the rows that have curated maps spread evenly, so that each batch has some."""
        position = torch.empty(len(self.sample_ids))
        for group in (self._pairs_of > 0, self._pairs_of == 0):
            size = int(group.sum())
            position[group] = (torch.randperm(size, generator=generator) + torch.rand(size, generator=generator)) / max(size, 1)
        return position.argsort(stable=True)

    def batches(self, rows: int, masks: int, generator: torch.Generator, rank: int, ranks: int) -> Iterator[Batch]:
        """One epoch: batches of `rows` rows over all ranks, each with `masks` random masks a row; a short rest is left out.

        Every rank draws the same and takes its share, so that a step does not depend on the number of ranks.
        """
        order = self.order(generator)
        for chosen in order.split(rows):
            if len(chosen) < rows <= len(order):
                return
            available = self._keep.shape[1]
            which = torch.rand(len(chosen), available, generator=generator).argsort(1)[:, :masks]
            mine, which = chosen[rank::ranks], which[rank::ranks].to(self._device)
            yield self._batch(mine, which)

    def in_order(self, rows: int) -> Iterator[Batch]:
        """Every row once with all its masks, `rows` at a time."""
        masks = torch.arange(self._keep.shape[1], device=self._device)
        for chosen in torch.arange(len(self.sample_ids)).split(rows):
            yield self._batch(chosen, masks.expand(len(chosen), -1))

    def _batch(self, rows: Tensor, which: Tensor) -> Batch:
        counts = self._pairs_of[rows]
        owner = torch.repeat_interleave(counts).to(self._device)
        within = torch.arange(len(owner)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        sample_ids, rows = self.sample_ids[rows], rows.to(self._device)
        pairs = self._first_pair[rows][owner] + within.to(self._device)
        return Batch(
            sample_ids=sample_ids,
            rows=rows,
            view=self._view.take(rows),
            removed=~self._keep[rows[:, None], which],
            effects=self._effects[rows[:, None], which],
            full=self._full[rows],
            empty=self._empty[rows],
            single_effects=self._singles[rows],
            owner=owner,
            maps=self._maps[pairs],
            weight=self._weight[pairs],
        )
