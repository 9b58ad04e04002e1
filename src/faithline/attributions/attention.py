"""What the attention methods share: the attention of each layer as the model computes it, and which token is which feature."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faithline.attributions.query import DoesNotFit
from faithline.masking import Features


@dataclass(frozen=True)
class Tokens:
    """How the tokens of a Transformer make its output, and which features they are.

    Attributes:
        pooled: Share of each token of the last layer in what the classifier sees, float32 (B, T); rows sum to 1.
        first: Number of tokens before the features' (class and register tokens).
        grid: Rows and columns of an image's tokens; the length of a text.
    """

    pooled: Tensor
    first: int
    grid: tuple[int, ...]

    def to_map(self, relevance: Tensor, features: Features) -> Tensor:
        """Relevance of the tokens (B, T) as a map: a text's own positions, an image's token spread evenly over its pixels."""
        own = relevance[:, self.first :].float()
        if features.kind == "text":
            return own
        rows, columns = self.grid
        height, width = features.map_shape
        spread = F.interpolate(own.reshape(-1, 1, rows, columns), size=(height, width), mode="nearest")
        return spread[:, 0] * (rows * columns / (height * width))


def layers(model: nn.Module) -> list[nn.Module]:
    """The modules that give attention (B, heads, T, T), in the order in which they were made.

    They are `attn_drop` of the attention modules of timm, and `softmax` of those of `targets.TextTransformer`.

    Raises:
        DoesNotFit: If there are none.
    """
    found: list[nn.Module] = [module.get_submodule("attn_drop") for module in timm_attention(model)]
    for name, module in model.named_modules():
        if name.endswith("attention.softmax") and isinstance(module, nn.Softmax):
            found.append(module)
    if not found:
        raise DoesNotFit(f"{type(model).__name__} has no attention layer whose weights can be read")
    return found


def timm_attention(model: nn.Module) -> list[nn.Module]:
    """timm's attention modules, known by their attributes; their weights can be seen only where `fused_attn` is off."""
    return [module for module in model.modules() if hasattr(module, "fused_attn") and hasattr(module, "attn_drop")]


@contextmanager
def recorded(model: nn.Module) -> Iterator[list[Tensor]]:
    """Record the attention of every layer of the forward passes in a block; the model is then as it was before.

    Yields:
        A list that each pass adds to, one (B, heads, T, T) a layer, within the autograd graph.

    Raises:
        DoesNotFit: If the model has no attention layer.
    """
    weights: list[Tensor] = []

    def record(_module: nn.Module, _args: object, output: Tensor) -> None:
        if torch.is_grad_enabled() and not output.requires_grad:
            output.requires_grad_()  # attention that does not depend on the input has a gradient all the same
        weights.append(output)

    handles = [layer.register_forward_hook(record) for layer in layers(model)]
    fused = [(module, module.fused_attn) for module in timm_attention(model)]
    try:
        for module, _ in fused:
            module.fused_attn = False  # type: ignore[assignment]
        yield weights
    finally:
        for module, setting in fused:
            module.fused_attn = setting
        for handle in handles:
            handle.remove()


def tokens(model: nn.Module, features: Features, x: Tensor) -> Tokens:
    """Tokens of a batch: of a timm vision Transformer, or of a text model that averages its real tokens.

    Raises:
        DoesNotFit: If the model has no attention layer, or does not say on which grid its tokens lie and how it pools them.
    """
    layers(model)  # a model without attention is refused as such, whatever its tokens are
    if features.kind == "text":
        valid = features.valid(x).float()
        return Tokens(valid / valid.sum(1, keepdim=True).clamp(min=1), 0, (features.n,))
    first, rows, columns = token_grid(model)
    pool = getattr(model, "global_pool", None)
    if pool not in ("token", "avg") or (pool == "token" and first == 0):
        raise DoesNotFit(f"{type(model).__name__} pools its tokens by {pool!r}: attention can be followed to `token` and `avg`")
    pooled = torch.zeros(first + rows * columns, device=x.device)
    if pool == "token":
        pooled[0] = 1
    else:
        pooled[first:] = 1 / (rows * columns)
    return Tokens(pooled.expand(len(x), -1), first, (rows, columns))


def token_grid(model: nn.Module) -> tuple[int, int, int]:
    """Tokens of a timm vision Transformer before those of the image, and the rows and columns of these.

    Raises:
        DoesNotFit: If the model does not say.
    """
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    first = getattr(model, "num_prefix_tokens", None)
    if grid is None or first is None:
        raise DoesNotFit(f"{type(model).__name__} does not say on which grid its tokens lie")
    return int(first), int(grid[0]), int(grid[1])
