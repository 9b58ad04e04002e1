"""Networks for tests: a vision Transformer of a few tokens, with the names that timm's have, so that no test needs timm."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Self-attention whose weights pass through `attn_drop` only where `fused_attn` is off."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.fused_attn = heads, True
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attn_drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.fused_attn:
            mixed = F.scaled_dot_product_attention(query, key, value)
        else:
            weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
            mixed = self.attn_drop(weights) @ value
        return self.proj(mixed.transpose(1, 2).flatten(2))


class PatchEmbed(nn.Module):
    """A strided convolution; knows its grid."""

    def __init__(self, channels: int, size: tuple[int, int], patch: int, width: int) -> None:
        super().__init__()
        self.grid_size = (size[0] // patch, size[1] // patch)
        self.proj = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).mT


class TinyViT(nn.Module):
    """Two attention layers with skip connections over a class token and the patches."""

    def __init__(self, channels: int, size: tuple[int, int], patch: int, classes: int, global_pool: str = "token") -> None:
        super().__init__()
        self.global_pool, self.num_prefix_tokens = global_pool, 1
        self.patch_embed = PatchEmbed(channels, size, patch, 8)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 8))
        self.blocks = nn.ModuleList(Attention(8, 2) for _ in range(2))
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch_embed(x)
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), tokens], 1)
        for block in self.blocks:
            tokens = tokens + block(tokens)
        return self.head(tokens[:, 0] if self.global_pool == "token" else tokens[:, 1:].mean(1))


def louder(model: nn.Module) -> nn.Module:
    """Larger weights, in eval mode: an untrained network hardly reacts to its input, and its attention is even."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model.eval()
