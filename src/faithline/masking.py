"""The game: a model, an input cut into n features, and a way of removing features. Everything else is a function of its values.

`v(keep) = value of the explained class when only the features in keep are left`. A keep mask is True where a feature *stays*.
`MaskedModel` is the only owner of the target model: no metric, explainer or sampler calls the model by another road.
"""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Output = Literal["prob", "logit", "logodds"]


# ---------------------------------------------------------------------------------------------------------------- features


@dataclass(frozen=True)
class Features:
    """How one input is cut into n features.

    Attributes:
        kind: `image` (patches of a grid), `text` (token positions) or `table` (columns).
        shape: Shape of one input without the batch axis: (C, H, W), (L,) or (n,).
        rows: Patch rows of an image; 1 elsewhere.
        columns: Patch columns of an image; n elsewhere.
        pad_id: Token id that marks a position as empty (text); empty positions are never features.
    """

    kind: Literal["image", "text", "table"]
    shape: tuple[int, ...]
    rows: int
    columns: int
    pad_id: int = -1

    @property
    def n(self) -> int:
        """Number of features (of the longest input, for text)."""
        return self.rows * self.columns

    @property
    def map_shape(self) -> tuple[int, ...]:
        """Shape of a stored attribution map: the pixels of an image, the features elsewhere."""
        return self.shape[1:] if self.kind == "image" else (self.n,)

    def valid(self, x: Tensor) -> Tensor:
        """Which features exist, bool (B, n): all but the padded tail of a text."""
        if self.kind == "text":
            return x != self.pad_id
        return torch.ones(x.shape[0], self.n, dtype=torch.bool, device=x.device)

    def expand(self, weight: Tensor) -> Tensor:
        """Spread one number per feature over the input: (Q, n) -> (Q, 1, H, W) for images, unchanged elsewhere."""
        if self.kind != "image":
            return weight
        grid = weight.reshape(-1, 1, self.rows, self.columns)
        height, width = self.shape[1] // self.rows, self.shape[2] // self.columns
        return grid.repeat_interleave(height, dim=2).repeat_interleave(width, dim=3)

    def to_features(self, maps: Tensor) -> Tensor:
        """Sum a stored map within each feature: (B, *map_shape) -> (B, n). Sums keep completeness."""
        if self.kind != "image":
            return maps
        area = (self.shape[1] // self.rows) * (self.shape[2] // self.columns)
        return (F.adaptive_avg_pool2d(maps[:, None], (self.rows, self.columns)) * area).flatten(1)

    def to_map(self, attribution: Tensor) -> Tensor:
        """Spread a feature's attribution evenly over its pixels: (B, n) -> (B, *map_shape); inverse of `to_features`."""
        if self.kind != "image":
            return attribution
        area = (self.shape[1] // self.rows) * (self.shape[2] // self.columns)
        return self.expand(attribution / area)[:, 0]


def patch_features(image_size: int, patch: int, channels: int = 3) -> Features:
    """Square patches of `patch` pixels of a square image; image_size must be a multiple of patch."""
    if image_size % patch:
        raise ValueError(f"patch = {patch}: must divide image_size = {image_size}")
    side = image_size // patch
    return Features("image", (channels, image_size, image_size), side, side)


def token_features(length: int, pad_id: int) -> Features:
    """Token positions of a text padded to `length` with `pad_id`."""
    return Features("text", (length,), 1, length, pad_id)


def column_features(n: int) -> Features:
    """Columns of a table."""
    return Features("table", (n,), 1, n)


# --------------------------------------------------------------------------------------------------------------- baselines


@dataclass(frozen=True)
class Baseline:
    """What a removed feature becomes. Build one with the class methods, not with the constructor."""

    kind: Literal["zero", "mean", "blur", "noise", "background", "pad", "mask"]
    values: Tensor | None = field(default=None, compare=False)
    sigma: float = 0.0
    token_id: int = -1

    @classmethod
    def zero(cls) -> "Baseline":
        """0 in the units of the (normalised) input."""
        return cls("zero")

    @classmethod
    def mean(cls, values: Tensor | None = None) -> "Baseline":
        """A given mean input (table: the training mean, which must be given), or each image's own mean colour without one."""
        return cls("mean", values)

    @classmethod
    def blur(cls, sigma: float) -> "Baseline":
        """The image itself, blurred by a Gaussian of `sigma` pixels."""
        return cls("blur", sigma=sigma)

    @classmethod
    def noise(cls, std: float, shape: tuple[int, ...], generator: torch.Generator) -> "Baseline":
        """One fixed input of Gaussian noise, the same for all samples."""
        return cls("noise", torch.randn(shape, generator=generator) * std)

    @classmethod
    def background(cls, rows: Tensor) -> "Baseline":
        """The average over R real inputs `rows` (R, ...): the marginal expectation; R passes a mask."""
        return cls("background", rows)

    @classmethod
    def token(cls, kind: Literal["pad", "mask"], token_id: int) -> "Baseline":
        """A token id: the pad token takes a word away, a mask (unknown) token leaves a hole of known position."""
        return cls(kind, token_id=token_id)

    @property
    def copies(self) -> int:
        """Passes a mask."""
        return self.values.shape[0] if self.kind == "background" and self.values is not None else 1

    def replacement(self, x: Tensor) -> Tensor:
        """What the features of x become: (B, ...) -> (B, copies, ...), of x's dtype."""
        if self.kind in ("pad", "mask"):
            return torch.full_like(x, self.token_id)[:, None]
        if self.kind == "zero":
            return torch.zeros_like(x)[:, None]
        if self.kind == "blur":
            return _gaussian_blur(x, self.sigma)[:, None]
        if self.kind == "mean" and self.values is None and x.ndim == 4:
            return x.mean(dim=tuple(range(2, x.ndim)), keepdim=True).expand_as(x)[:, None]
        if self.values is None:
            raise ValueError(f"baseline {self.kind} needs values")
        values = self.values.to(x)
        if self.kind != "background":
            values = values.expand(x.shape[1:])[None]
        return values[None].expand(x.shape[0], *values.shape)


def _gaussian_blur(x: Tensor, sigma: float) -> Tensor:
    radius = max(1, math.ceil(3 * sigma))
    radius = min(radius, x.shape[-1] - 1, x.shape[-2] - 1)  # reflection cannot reach further than the image
    weights = [math.exp(-(offset**2) / (2 * sigma**2)) for offset in range(-radius, radius + 1)]
    padded = F.pad(x, (radius,) * 4, mode="reflect")
    # Shifted copies are summed one by one: convolution kernels round differently for other batch sizes, sums of tensors do not.
    for axis in (3, 2):
        size = padded.shape[axis] - 2 * radius
        blurred = torch.zeros_like(padded.narrow(axis, 0, size))
        for start, weight in enumerate(weights):
            blurred += padded.narrow(axis, start, size) * (weight / sum(weights))
        padded = blurred
    return padded


# -------------------------------------------------------------------------------------------------------------- the game


def class_value(logits: Tensor, target: Tensor, output: Output) -> Tensor:
    """The value of class `target` in `logits` (Q, classes) -> (Q,): probability, logit or log-odds, in float32."""
    logits = logits.float()
    own = logits.gather(1, target[:, None])[:, 0]
    if output == "logit":
        return own
    if output == "prob":
        return logits.softmax(1).gather(1, target[:, None])[:, 0]
    others = logits.scatter(1, target[:, None], -torch.inf).logsumexp(1)
    return own - others


class ClassValues(nn.Module):
    """The target with its output as gradient methods see it: (inputs, *extra) -> (B, classes), probabilities or logits."""

    def __init__(self, network: nn.Module, output: Literal["prob", "logit"]) -> None:
        super().__init__()
        self.network = network
        # A module, not a function, so that DeepLIFT's rescale rule sees the softmax.
        self.head: nn.Module = nn.Softmax(dim=1) if output == "prob" else nn.Identity()

    def forward(self, inputs: Tensor, *extra: Tensor) -> Tensor:
        """Values of all classes."""
        return self.head(self.network(inputs, *extra))


class FromEmbeddings(nn.Module):
    """A text model as a function of its token embeddings: (embedded (B, L, D), ids (B, L)) -> logits.

    cuDNN has no backward pass of a recurrent layer in eval mode, so a model with one runs without cuDNN here.
    """

    def __init__(self, model: nn.Module, embedding: nn.Embedding) -> None:
        super().__init__()
        self.model = model
        self.recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
        # Kept in a tuple: registering it here would list the embedding's weights twice.
        self._embedding = (embedding,)

    def forward(self, embedded: Tensor, ids: Tensor) -> Tensor:
        """Run the model on the ids (they tell it what is padding) with its embeddings replaced."""
        handle = self._embedding[0].register_forward_hook(lambda _module, _args, _output: embedded)
        cudnn = torch.backends.cudnn.enabled
        torch.backends.cudnn.enabled = cudnn and not self.recurrent
        try:
            return self.model(ids)
        finally:
            torch.backends.cudnn.enabled = cudnn
            handle.remove()


@dataclass(frozen=True)
class GradientView:
    """The game as a differentiable function, for captum and input gradients.

    Attributes:
        module: (inputs, *extra) -> (B, classes).
        inputs: What is differentiated: x itself, or the embeddings of a text (B, L, D).
        baseline: The removed input in the same space and shape as `inputs` (the first copy of a background).
        extra: Further arguments of `module`; captum repeats them with the inputs.
    """

    module: ClassValues
    inputs: Tensor
    baseline: Tensor
    extra: tuple[Tensor, ...]


@dataclass
class _PassCounter:
    """Counts model evaluations; one for all games of a model."""

    total: int = 0

    def __call__(self, _module: nn.Module, _args: object, output: Tensor) -> None:
        """Forward hook of the model."""
        self.total += output.shape[0]


@dataclass(frozen=True)
class Outcome:
    """What the model says of Q masked inputs.

    Attributes:
        value: Value of the explained class, float32 (Q,).
        top: Whether the explained class is still the model's first choice, bool (Q,).
    """

    value: Tensor
    top: Tensor


def _check_background(baseline: Baseline, max_batch: int) -> None:
    if baseline.copies > max_batch:
        raise ValueError(f"max_batch = {max_batch}: must be at least the {baseline.copies} rows of the background")


class MaskedModel:
    """The cooperative game v(keep) of one target model; the only owner of that model.

    Every batch that reaches the model through `predict`, `evaluate` and `values` has exactly `max_batch` rows (the last is
    padded), so that a value does not depend, to the last bit, on batch size, batch mates or order.

    Attributes:
        model: The target, in eval mode with frozen weights: inputs -> logits (B, classes).
        features: How inputs are cut.
        baseline: What removed features become.
        output: What `values` measures.
        max_batch: Rows of every batch: the one knob that bounds memory.
    """

    def __init__(
        self, model: nn.Module, features: Features, baseline: Baseline, *, output: Output = "prob", max_batch: int = 4096
    ) -> None:
        _check_background(baseline, max_batch)
        self.model = model.eval().requires_grad_(False)
        self.features = features
        self.baseline = baseline
        self.output: Output = output
        self.max_batch = max_batch
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        if features.kind == "image":
            self.model.to(memory_format=torch.channels_last)  # 2-3x faster convolutions on CPU and GPU
        self._counter = _PassCounter()
        self._hook = model.register_forward_hook(self._counter)

    @property
    def passes(self) -> int:
        """Model evaluations so far by any road, gradient methods included (a hook counts them; padding does not count)."""
        return self._counter.total

    def with_baseline(self, baseline: Baseline) -> "MaskedModel":
        """The same game with another removal; both share the model and its pass counter (`passes` of either counts both)."""
        _check_background(baseline, self.max_batch)
        game = copy.copy(self)
        game.baseline = baseline
        return game

    def close(self) -> None:
        """Take the counting hook off the model (for all games that share it)."""
        self._hook.remove()

    def _logits(self, inputs: Tensor) -> Tensor:
        """Logits of up to max_batch inputs, computed in a batch of exactly max_batch."""
        rows = inputs.shape[0]
        if rows < self.max_batch:
            inputs = torch.cat([inputs, inputs[:1].expand(self.max_batch - rows, *inputs.shape[1:])])
        if self.features.kind == "image":
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        logits = self.model(inputs)
        self._counter.total -= self.max_batch - rows
        return logits[:rows].float()

    @torch.no_grad()  # not inference mode: autograd refuses inference tensors, and gradient methods index with this target
    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, classes) of the clean inputs and the explained class (B,): the model's own first choice."""
        logits = torch.cat([self._logits(part.to(self._device)) for part in x.split(self.max_batch)])
        return logits, logits.argmax(1)

    def masked(self, x: Tensor, rows: Tensor, keep: Tensor) -> Tensor:
        """The inputs of Q coalitions, (Q, copies, ...): what stays as it is in x, all else as the baseline has it.

        Args:
            x: Inputs (B, ...).
            rows: Which input each coalition belongs to, int64 (Q,), on the device of x.
            keep: Features that stay, bool (Q, n), on the device of x.
        """
        # A batch mostly holds many masks of few samples: make each sample's replacement once.
        samples, which = rows.unique(return_inverse=True)
        replacement = self.baseline.replacement(x[samples])
        if self.features.kind == "text":
            keep = keep | ~self.features.valid(x)[rows]  # padding is no feature: it can't be removed
        stays = self.features.expand(keep)[:, None]
        return torch.where(stays, x[rows][:, None], replacement[which])

    @torch.inference_mode()
    def evaluate(self, x: Tensor, rows: Tensor, keep: Tensor, target: Tensor) -> Outcome:
        """Play Q coalitions in one stream of full batches.

        Args:
            x: Inputs (B, ...).
            rows: Which input each coalition belongs to, int64 (Q,).
            keep: Features that stay, bool (Q, n).
            target: Explained class of each input, int64 (B,).

        Returns:
            Value and first-choice flag of each coalition; with a background baseline the mean over its rows.
        """
        if keep.dtype != torch.bool:
            raise TypeError(f"keep must be bool (True = the feature stays), not {keep.dtype}")
        if keep.shape != (rows.shape[0], self.features.n):
            raise ValueError(f"keep has shape {tuple(keep.shape)}; ({rows.shape[0]}, {self.features.n}) expected")
        if not len(rows):
            return Outcome(torch.empty(0), torch.empty(0, dtype=torch.bool))
        x, target = x.to(self._device), target.to(self._device)
        values, tops = [], []
        for part_rows, part_keep in zip(
            rows.split(self.max_batch // self.baseline.copies), keep.split(self.max_batch // self.baseline.copies), strict=True
        ):
            part_rows, part_keep = part_rows.to(self._device), part_keep.to(self._device)
            inputs = self.masked(x, part_rows, part_keep)
            copies = inputs.shape[1]
            logits = self._logits(inputs.flatten(0, 1))
            part_target = target[part_rows]
            value = class_value(logits, part_target.repeat_interleave(copies), self.output)
            values.append(value.reshape(-1, copies).mean(1))
            choice = logits.reshape(-1, copies, logits.shape[1])
            choice = choice[:, 0] if copies == 1 else choice.softmax(2).mean(1)
            tops.append(choice.argmax(1) == part_target)
        return Outcome(torch.cat(values).cpu(), torch.cat(tops).cpu())

    def values(self, x: Tensor, keep: Tensor, target: Tensor) -> Tensor:
        """v(keep) for S masks of each input: keep bool (B, S, n) -> float32 (B, S)."""
        batch, masks = keep.shape[:2]
        rows = torch.arange(batch).repeat_interleave(masks)
        return self.evaluate(x, rows, keep.flatten(0, 1), target).value.reshape(batch, masks)

    def blend(self, x: Tensor, weight: Tensor) -> Tensor:
        """Differentiable soft mask: `weight * x + (1 - weight) * replacement`, weight (B, n) in [0, 1]; images and tables."""
        if self.features.kind == "text":
            raise ValueError("blend needs inputs that can be mixed; token ids cannot")
        spread = self.features.expand(weight)
        return spread * x + (1 - spread) * self.baseline.replacement(x)[:, 0]

    def embedding(self) -> nn.Embedding:
        """The token embedding of a text target: `get_input_embeddings()` where the model has it, else its largest embedding."""
        named = getattr(self.model, "get_input_embeddings", None)
        if callable(named):
            return named()
        found = [module for module in self.model.modules() if isinstance(module, nn.Embedding)]
        if not found:
            raise ValueError(f"{type(self.model).__name__} has no nn.Embedding: its texts have no input gradient")
        return max(found, key=lambda module: module.num_embeddings)

    def gradient_view(self, x: Tensor, output: Literal["prob", "logit"]) -> GradientView:
        """The game as a differentiable function of x (or of its token embeddings), for gradient methods."""
        x = x.to(self._device)
        removed = self.baseline.replacement(x)[:, 0]
        if self.features.kind != "text":
            return GradientView(ClassValues(self.model, output), x.detach(), removed.detach(), ())
        embedding = self.embedding()
        removed = torch.where(self.features.valid(x), removed, x)
        module = ClassValues(FromEmbeddings(self.model, embedding), output)
        # The ids tell the model which positions are padding; the embeddings carry everything else.
        return GradientView(module, embedding(x).detach(), embedding(removed).detach(), (x,))

    def reduce(self, gradient: Tensor) -> Tensor:
        """Fold an attribution of `gradient_view(...).inputs` into a stored map: sum over channels or embedding dimensions."""
        if self.features.kind == "image":
            return gradient.sum(1)
        return gradient.sum(-1) if self.features.kind == "text" else gradient

    def activations(self, x: Tensor, layers: list[str]) -> tuple[dict[str, Tensor], Tensor]:
        """Outputs of the named modules on one clean forward pass, and the logits.

        Args:
            x: Inputs (B, ...), one batch.
            layers: Module names as in `model.named_modules()`.

        Raises:
            ValueError: If the model has no module of that name; the message lists those it has.
        """
        with self._record(layers) as recorded, torch.no_grad():
            x = x.to(self._device)
            logits = self.model(x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x)
        return recorded, logits.float()

    @contextmanager
    def _record(self, layers: list[str]) -> Iterator[dict[str, Tensor]]:
        modules = dict(self.model.named_modules())
        missing = [name for name in layers if name not in modules]
        if missing:
            raise ValueError(f"layers {missing}: not in {type(self.model).__name__}; it has {sorted(filter(None, modules))}")
        recorded: dict[str, Tensor] = {}
        handles = [
            modules[name].register_forward_hook(lambda _m, _a, output, name=name: recorded.__setitem__(name, output.detach()))
            for name in layers
        ]
        try:
            yield recorded
        finally:
            for handle in handles:
                handle.remove()
