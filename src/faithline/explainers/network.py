"""The networks that turn a view of an input into one score a feature."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faithline.explainers.target_features import View

Kind = Literal["encoder", "grid", "row"]
Head = Literal["sigmoid", "minmax", "signed", "softmax"]


@dataclass(frozen=True)
class Shape:
    """Everything that decides a network's parameters; stored beside its weights.

    Attributes:
        kind: `encoder`: Transformer over features. `grid`: convolutions over the patches of an image. `row`: perceptron over
            all cells of a table at once.
        head: `sigmoid` gives scores in (0, 1), `minmax` scores that reach from 0 to 1 on every input, `signed` any real number,
            `softmax` scores in (0, 1) that sum to 1 over the features that exist.
        rows: Patch rows of an image; 1 elsewhere.
        columns: Patch columns of an image; n elsewhere.
        local: Channels of a feature (D); 0 if features are token ids.
        context: Channels of the whole input (G).
        tokens: Size of the vocabulary if features are token ids, else 0.
        classes: Classes of the target if the explained class is known, else 0.
        width: Channels of the hidden layers.
        depth: Hidden layers.
        heads: Attention heads of `encoder`.
        dropout: Share of activations dropped in training.
    """

    kind: Kind
    head: Head
    rows: int
    columns: int
    local: int
    context: int
    tokens: int
    classes: int
    width: int
    depth: int
    heads: int
    dropout: float

    @property
    def n(self) -> int:
        """Number of features."""
        return self.rows * self.columns


CONTEXT_BOUND = 4.0
"""Deviations from the mean at which context channels end. The probability of a class that training inputs never had hardly varies
there: where a new input has that class, it would be thousands of deviations off and drown all else."""


class Standardise(nn.Module):
    """Subtract the training mean and divide by the training deviation of each channel; constants become 0."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("scale", torch.ones(channels))
        self.mean: Tensor
        self.scale: Tensor

    def fit(self, values: Tensor) -> None:
        """Take mean and deviation of rows (Q, channels)."""
        self.mean.copy_(values.mean(0))
        deviation = values.std(0, correction=0)
        self.scale.copy_(torch.where(deviation > 1e-6, deviation, 1.0).reciprocal())

    def forward(self, values: Tensor) -> Tensor:
        """Standardise the last axis."""
        return (values - self.mean) * self.scale


class Network(nn.Module):
    """Scores of the features of an input; which body makes them is decided by `shape.kind`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.local = Standardise(shape.local)
        self.context = Standardise(shape.context)
        self.body = {"encoder": Encoder, "grid": Grid, "row": Row}[shape.kind](shape)

    def fit_scales(self, seen: View) -> None:
        """Set the standardisation from the training inputs; features that do not exist are left out."""
        if not self.shape.tokens:
            self.local.fit(seen.local[seen.valid])
        if self.shape.context:
            self.context.fit(seen.context)

    def forward(self, local: Tensor, context: Tensor, target: Tensor, valid: Tensor) -> Tensor:
        """Score the features of a view.

        Returns:
            float32 (B, n), higher = more support for the explained class; exactly 0 where a feature does not exist.
        """
        if not self.shape.tokens:
            local = self.local(local)
            if self.shape.kind == "encoder":  # only texts have padding, and only encoders read texts
                local = local * valid[:, :, None]
        seen = self.context(context).clamp(-CONTEXT_BOUND, CONTEXT_BOUND)
        scores = self.body(local, seen, target, valid).float()
        if self.shape.head == "sigmoid":
            scores = scores.sigmoid()
        elif self.shape.head == "minmax":
            low = scores.masked_fill(~valid, torch.inf).amin(1, keepdim=True)
            high = scores.masked_fill(~valid, -torch.inf).amax(1, keepdim=True)
            # Equal scores, as those of a single feature, are all 0.
            scores = (scores - low) / torch.where(high > low, high - low, 1)
        elif self.shape.head == "softmax":
            scores = scores.masked_fill(~valid, -torch.inf).softmax(1)
        return torch.where(valid, scores, 0)


class Summary(nn.Module):
    """The whole input as one vector (B, width): its context channels and its explained class; zeros where it has neither."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.width = shape.width
        self.linear = nn.Linear(shape.context, shape.width) if shape.context else None
        self.classes = nn.Embedding(shape.classes, shape.width) if shape.classes else None

    def forward(self, context: Tensor, target: Tensor) -> Tensor:
        """Add up what there is."""
        total = context.new_zeros(len(context), self.width)
        if self.linear is not None:
            total = total + self.linear(context)
        if self.classes is not None:
            total = total + self.classes(target)
        return total


class Encoder(nn.Module):
    """Pre-norm Transformer encoder over features with learned positions and a linear head (DeepFaith's explainer)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed: nn.Module = nn.Embedding(shape.tokens, shape.width) if shape.tokens else nn.Linear(shape.local, shape.width)
        self.summary = Summary(shape)
        self.position = nn.Parameter(torch.randn(shape.n, shape.width) * 0.02)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads, shape.dropout) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, 1)

    def forward(self, local: Tensor, context: Tensor, target: Tensor, valid: Tensor) -> Tensor:
        """Scores (B, n)."""
        hidden = self.embed(local) + self.position + self.summary(context, target)[:, None]
        hidden = self.dropout(hidden)
        for block in self.blocks:
            hidden = block(hidden, valid)
        return self.head(self.norm(hidden))[:, :, 0]


class Block(nn.Module):
    """One pre-norm Transformer layer; padding is never attended to."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, valid: Tensor) -> Tensor:
        """Mix the features of each input: (B, n, width) -> the same shape."""
        batch, n, width = hidden.shape
        query, key, value = (
            self.project_in(self.norm_attention(hidden)).reshape(batch, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=valid[:, None, None])
        hidden = hidden + self.dropout(self.project_out(mixed.transpose(1, 2).reshape(batch, n, width)))
        return hidden + self.dropout(self.mlp(self.norm_mlp(hidden)))


class Grid(nn.Module):
    """Residual 3x3 convolutions over the patch grid, in each of which every patch also hears the mean of all.

    A 1x1 convolution comes first: the view has many channels, and a wide 3x3 one over them costs twice as much in all for the
    same infidelity (measured on digits).
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.size = (shape.rows, shape.columns)
        self.summary = Summary(shape)
        self.position = nn.Parameter(torch.zeros(shape.width, *self.size))
        self.first = nn.Conv2d(shape.local, shape.width, 1)
        self.mix = nn.ModuleList(nn.Linear(shape.width, shape.width) for _ in range(shape.depth))
        self.convolutions = nn.ModuleList(nn.Conv2d(shape.width, shape.width, 3, padding=1) for _ in range(shape.depth))
        self.dropout = nn.Dropout(shape.dropout)
        self.head = nn.Conv2d(shape.width, 1, 1)

    def forward(self, local: Tensor, context: Tensor, target: Tensor, valid: Tensor) -> Tensor:  # noqa: ARG002
        """Scores (B, n)."""
        grid = local.transpose(1, 2).unflatten(2, self.size)
        hidden = F.gelu(self.first(grid) + self.position + self.summary(context, target)[:, :, None, None])
        for mix, convolution in zip(self.mix, self.convolutions, strict=True):
            whole = mix(hidden.mean((2, 3)))[:, :, None, None]
            hidden = hidden + F.gelu(convolution(self.dropout(hidden)) + whole)
        return self.head(hidden).flatten(1)


class Row(nn.Module):
    """Residual perceptron over all cells and the context of a row; one output a column."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.cells = nn.Linear(shape.n * shape.local, shape.width)
        self.summary = Summary(shape)
        self.layers = nn.ModuleList(nn.Linear(shape.width, shape.width) for _ in range(shape.depth - 1))
        self.dropout = nn.Dropout(shape.dropout)
        self.head = nn.Linear(shape.width, shape.n)

    def forward(self, local: Tensor, context: Tensor, target: Tensor, valid: Tensor) -> Tensor:  # noqa: ARG002
        """Scores (B, n)."""
        hidden = F.gelu(self.cells(local.flatten(1)) + self.summary(context, target))
        for layer in self.layers:
            hidden = hidden + F.gelu(layer(self.dropout(hidden)))
        return self.head(hidden)
