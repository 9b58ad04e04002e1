"""What an explainer sees of an input: its raw pieces, or beside them what the frozen target itself made of it."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faithline.masking import Features, MaskedModel


class View(NamedTuple):
    """What an explainer sees of B inputs.

    Attributes:
        local: Channels of each feature, float32 (B, n, D); of a raw text the token ids, int64 (B, n).
        context: Channels of the whole input, float32 (B, G); G may be 0.
        target: Explained class, int64 (B,); 0 where the target was not asked (raw views).
        valid: Features that exist, bool (B, n).
    """

    local: Tensor
    context: Tensor
    target: Tensor
    valid: Tensor

    def take(self, rows: Tensor | slice) -> "View":
        """The same for some of the inputs."""
        return View(*(part[rows] for part in self))

    def to(self, device: torch.device) -> "View":
        """The same on another device."""
        return View(*(part.to(device) for part in self))


def view(game: MaskedModel, x: Tensor, layers: list[str] | None) -> View:
    """What an explainer sees of x, in chunks of `game.max_batch`.

    Args:
        game: The game; its model is called once a sample where `layers` are given, else never.
        x: Inputs (B, ...).
        layers: Modules of the target whose outputs are read; None for a raw view.
    """
    if layers is None:
        return raw_view(game.features, x)
    parts = [target_view(game, part, layers) for part in x.split(game.max_batch)]
    return View(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def raw_view(features: Features, x: Tensor) -> View:
    """Patches, token ids or cells of x, nothing else: what the paper's explainer sees."""
    return View(_pieces(features, x), x.new_zeros(len(x), 0).float(), x.new_zeros(len(x)).long(), features.valid(x))


def _pieces(features: Features, x: Tensor) -> Tensor:
    """The raw content of each feature: patches (B, n, C*h*w), cells (B, n, 1), token ids (B, n)."""
    if features.kind == "text":
        return x
    if features.kind == "table":
        return x[:, :, None]
    tiles = x.unflatten(3, (features.columns, -1)).unflatten(2, (features.rows, -1))  # (B, C, rows, h, columns, w)
    return tiles.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # F.unfold gives the same, image by image


@torch.no_grad()
def target_view(game: MaskedModel, x: Tensor, layers: list[str]) -> View:
    """The frozen target's own features at each feature of x, and over the whole of x, from one clean forward pass.

    Of every layer: its output, and its output times the class weights of the explained class where they have the same width
    (for a linear head on pooled features that product is each position's exact share of the logit). Images and texts keep
    them where they lie; outputs without positions, position means, logits and probabilities are context.

    Args:
        game: The game of the target.
        x: Inputs (B, ...), at most one batch.
        layers: Module names: (B, C, h, w) and (B, tokens, D) outputs of images, (B, L, D) of texts, (B, D) of all.

    Raises:
        ValueError: If a layer's output has none of these shapes, or no layer is given.

    Source:
        Ours; that the target's features close most of the gap to per-sample fits was measured in the project's pilot.
    """
    if not layers:
        raise ValueError("an explainer that reads the target needs at least one layer (target.layers)")
    features = game.features
    recorded, logits = game.activations(x, layers)
    x = x.to(logits.device)
    explained = logits.argmax(1)
    weights = class_weights(game.model, logits.shape[1])
    row = None if weights is None else weights[explained]
    valid = features.valid(x)
    local: list[Tensor] = [] if features.kind == "text" else [_pieces(features, x)]
    context: list[Tensor] = []
    for name, output in recorded.items():
        for activation in (output, _weighted(output, row)):
            if activation is None:
                continue
            if activation.ndim == 2:
                context.append(activation.float())
            else:
                placed, whole = _placed(features, activation.float(), valid, name)
                local.append(placed)
                context.append(whole)
    context += [logits, logits.softmax(1)]
    if not local:
        raise ValueError(f"layers {layers}: none has an output at each token")
    return View(torch.cat(local, 2), torch.cat(context, 1), explained, valid)


def class_weights(model: nn.Module, classes: int) -> Tensor | None:
    """Weights (classes, width) of the model's last linear layer with one output a class; None if it has no such layer."""
    heads = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == classes]
    return heads[-1].weight.detach().float() if heads else None


def _weighted(activation: Tensor, row: Tensor | None) -> Tensor | None:
    """Activation times the weight row of each sample's class, where a linear head could read it; else None.

    A head reads channels (pooled features), or every element of a flattened feature map.
    """
    if row is None:
        return None
    width = row.shape[1]
    if activation.ndim == 4:
        if activation.shape[1] == width:
            return activation * row[:, :, None, None]
        return activation * row.reshape(activation.shape) if activation[0].numel() == width else None
    if activation.shape[-1] != width:
        return None
    return activation * (row[:, None] if activation.ndim == 3 else row)


def _placed(features: Features, activation: Tensor, valid: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """An activation at each feature (B, n, D), and its mean over all positions with leading extra tokens (B, G)."""
    batch = len(activation)
    if features.kind == "text" and activation.shape[:2] == valid.shape:
        share = valid.float() / valid.sum(1, keepdim=True)
        return activation * valid[:, :, None], torch.einsum("bl,bld->bd", share, activation)
    if features.kind == "image" and activation.ndim == 3:
        side = math.isqrt(activation.shape[1])
        extra = activation.shape[1] - side**2  # class and register tokens come first
        grid = activation[:, extra:].transpose(1, 2).reshape(batch, -1, side, side)
        placed, whole = _placed(features, grid, valid, name)
        return placed, torch.cat([activation[:, :extra].flatten(1), whole], 1)
    if features.kind == "image" and activation.ndim == 4:
        size = (features.rows, features.columns)
        fine = activation.shape[2] >= features.rows and activation.shape[3] >= features.columns
        if activation.shape[2:] == size:  # pooling would copy it
            grid = activation
        else:
            grid = F.adaptive_avg_pool2d(activation, size) if fine else F.interpolate(activation, size, mode="bilinear")
        return grid.flatten(2).transpose(1, 2), activation.mean((2, 3))
    raise ValueError(
        f"layer {name!r} has outputs of shape {tuple(activation.shape)}: they do not lie on {features.kind} features"
    )
