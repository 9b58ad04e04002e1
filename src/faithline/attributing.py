"""One prior method on one task, shard by shard: maps as they are stored, with what is not finite marked."""

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import pyarrow as pa
import torch
from torch import Tensor

from faithline.artifacts import maps_column
from faithline.attributions.query import Query
from faithline.attributions.run import attribute_by_name, load_method
from faithline.bank import Bank, Masks, Use
from faithline.config import MAX_EXACT_FEATURES, MethodSettings
from faithline.errors import ArtifactError
from faithline.seeding import derive
from faithline.workspace import Workspace

BACKGROUND_ROWS = 64
"""Training inputs that a method which averages over real data may draw from; `config.MAX_BACKGROUND_ROWS` says so in advance."""


@dataclass(frozen=True)
class Job:
    """Everything one `attribute` job needs."""

    workspace: Workspace
    method: str
    settings: MethodSettings

    @cached_property
    def module(self) -> ModuleType:
        """The method's own module; loaded by name, so that a job depends on no other method."""
        return load_method(self.method)

    @cached_property
    def sample_ids(self) -> Tensor:
        """Supervised, test and gallery samples for a supervising method, test and gallery samples for the others."""
        samples = self.workspace.samples
        return samples.explained() if self.settings.role == "supervision" else samples.unseen()

    @cached_property
    def bank(self) -> Bank | None:
        """The use of the mask bank the method reads."""
        return self.workspace.bank(self.module.MASKS[0]) if self.module.MASKS else None

    @cached_property
    def background(self) -> Tensor:
        """Real inputs from the training split, the same for every shard."""
        train = self.workspace.samples.index("train")
        generator = torch.Generator().manual_seed(derive(self.workspace.params.seed, "background", self.workspace.task))
        return self.workspace.samples.x[train[torch.randperm(len(train), generator=generator)[:BACKGROUND_ROWS]]]

    def uses(self) -> list[Use]:
        """Uses of the bank that decide the result."""
        return [self.module.MASKS[0]] if self.module.MASKS else []

    def metadata(self) -> dict[str, str]:
        """Schema metadata of the parts."""
        return {**self.workspace.metadata(), "method": self.method, "role": self.settings.role}

    def rows(self, span: range) -> pa.Table:
        """Maps of a range of samples.

        Raises:
            ArtifactError: If too many maps are not finite (`curate.max_non_finite_fraction`), or an exact method meets too
                many features.
        """
        workspace, ids = self.workspace, self.sample_ids[span.start : span.stop]
        x, explained = workspace.samples.x[ids], workspace.explained[ids]
        masks = None
        if self.module.MASKS:
            law = self.module.MASKS[1]
            known = self.bank is not None and (law not in ("all", "table") or "all" in self.bank.laws())
            if law == "all" and not known:
                raise ArtifactError(
                    f"{self.method} needs the exact table of {workspace.task}: "
                    f"set tasks.{workspace.task}.bank.exact=true (at most {MAX_EXACT_FEATURES} features)"
                )
            if self.bank is not None and known:
                masks = self.bank.masks(ids, "all" if law == "table" else law)
        seeds = torch.tensor([derive(workspace.params.seed, self.method, workspace.task, i) for i in ids.tolist()])
        before = workspace.game.passes
        maps = attribute_by_name(self.method, Query(workspace.game, x, explained, masks, self.background, seeds), self.settings)
        passes = workspace.game.passes - before
        features = workspace.samples.features
        if maps.shape[1:] == (features.n,) and features.kind == "image":
            maps = features.to_map(maps)
        finite = torch.isfinite(maps.flatten(1)).all(1)
        limit = workspace.params.curate.max_non_finite_fraction
        if (share := 1 - float(finite.float().mean())) > limit:
            raise ArtifactError(
                f"{self.method}: {share:.1%} of the maps of samples {span.start}-{span.stop - 1} are not finite "
                f"(limit {limit:.1%}, curate.max_non_finite_fraction)"
            )
        maps = torch.where(finite.reshape(-1, *[1] * (maps.ndim - 1)), maps, 0.0)
        return pa.table(
            {
                "sample_id": pa.array(ids.numpy(), pa.int64()),
                "split": pa.array(workspace.samples.split[ids.numpy()].tolist(), pa.string()),
                "label": pa.array(workspace.samples.label[ids].numpy(), pa.int32()),
                "target": pa.array(explained.numpy(), pa.int32()),
                "prob": pa.array(workspace.prob[ids].numpy(), pa.float32()),
                "attribution": maps_column(maps),
                "finite": pa.array(finite.numpy(), pa.bool_()),
                # Model calls of one explanation: those made here, and those the bank made for the masks it was handed.
                "passes": pa.array([passes / len(ids) + self._masks_read(masks)] * len(ids), pa.float32()),
            }
        )

    def _masks_read(self, masks: Masks | None) -> int:
        """Coalitions of the bank that one explanation uses: a method's own `masks` setting, else all that it is handed."""
        return 0 if masks is None else int(getattr(self.settings, "masks", masks.keep.shape[1]))
