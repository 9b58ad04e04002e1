"""Weights of guided-diffusion in diffusers, against an independent forward pass of a tiny ADM: spec fud.md, check 5."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from faithline.artifacts import file_sha256
from faithline.diffusion.adm import ADM_256, AdmLayout, _modules, adm_network, convert_adm, load_adm
from faithline.errors import ArtifactError

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = AdmLayout(image_size=8, widths=(8, 8, 16), attention=(False, True, True), blocks=1, head_width=4, groups=4)


class Reference:
    """ADM written out over its state dict; a weight is drawn when the forward pass first asks for it."""

    def __init__(self, layout: AdmLayout) -> None:
        self.layout = layout
        self.weights: dict[str, Tensor] = {}
        self._draw = torch.Generator().manual_seed(0)

    def get(self, name: str, *shape: int) -> Tensor:
        if name not in self.weights:
            self.weights[name] = torch.randn(shape, generator=self._draw) / math.prod(shape[1:] or (4,)) ** 0.5
        return self.weights[name]

    def norm(self, x: Tensor, name: str) -> Tensor:
        c = x.shape[1]
        return functional.group_norm(x, self.layout.groups, self.get(f"{name}.weight", c), self.get(f"{name}.bias", c), 1e-5)

    def conv(self, x: Tensor, name: str, out: int, kernel: int = 3) -> Tensor:
        weight = self.get(f"{name}.weight", out, x.shape[1], kernel, kernel)
        return functional.conv2d(x, weight, self.get(f"{name}.bias", out), padding=kernel // 2)

    def linear(self, x: Tensor, name: str, out: int) -> Tensor:
        return x @ self.get(f"{name}.weight", out, x.shape[1]).T + self.get(f"{name}.bias", out)

    def resnet(self, x: Tensor, emb: Tensor, name: str, out: int, scale: float = 1.0) -> Tensor:
        h = functional.silu(self.norm(x, f"{name}.in_layers.0"))
        if scale == 2:
            h, x = (value.repeat_interleave(2, 2).repeat_interleave(2, 3) for value in (h, x))
        elif scale == 0.5:
            h, x = (functional.avg_pool2d(value, 2) for value in (h, x))
        h = self.conv(h, f"{name}.in_layers.2", out)
        gain, shift = self.linear(functional.silu(emb), f"{name}.emb_layers.1", 2 * out)[:, :, None, None].chunk(2, 1)
        h = self.norm(h, f"{name}.out_layers.0") * (1 + gain) + shift
        h = self.conv(functional.silu(h), f"{name}.out_layers.3", out)
        return h + (x if x.shape[1] == out else self.conv(x, f"{name}.skip_connection", out, 1))

    def attention(self, x: Tensor, name: str) -> Tensor:
        c, width = x.shape[1], self.layout.head_width
        h = self.norm(x, f"{name}.norm").flatten(2)
        h = self.get(f"{name}.qkv.weight", 3 * c, c, 1)[:, :, 0] @ h + self.get(f"{name}.qkv.bias", 3 * c)[:, None]
        heads = []
        for rows in h.split(3 * width, 1):  # the legacy order: a head's query, key and value lie together
            q, k, v = rows.split(width, 1)
            heads.append(v @ (q.mT @ k / width**0.5).softmax(2).mT)
        h = self.get(f"{name}.proj_out.weight", c, c, 1)[:, :, 0] @ torch.cat(heads, 1)
        return x + (h + self.get(f"{name}.proj_out.bias", c)[:, None]).reshape(x.shape)

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        layout = self.layout
        base, last = layout.widths[0], len(layout.widths) - 1
        angle = t[:, None] * torch.exp(-math.log(10000) * torch.arange(base // 2) / (base // 2))
        emb = self.linear(torch.cat([angle.cos(), angle.sin()], 1), "time_embed.0", 4 * base)
        emb = self.linear(functional.silu(emb), "time_embed.2", 4 * base)
        h = self.conv(x, "input_blocks.0.0", base)
        skips, at = [h], 1
        for level, width in enumerate(layout.widths):
            for _ in range(layout.blocks):
                h = self.resnet(h, emb, f"input_blocks.{at}.0", width)
                if layout.attention[level]:
                    h = self.attention(h, f"input_blocks.{at}.1")
                skips.append(h)
                at += 1
            if level < last:
                h = self.resnet(h, emb, f"input_blocks.{at}.0", width, 0.5)
                skips.append(h)
                at += 1
        h = self.resnet(h, emb, "middle_block.0", layout.widths[-1])
        h = self.resnet(self.attention(h, "middle_block.1"), emb, "middle_block.2", layout.widths[-1])
        at = 0
        for level in range(last, -1, -1):
            for i in range(layout.blocks + 1):
                h = self.resnet(torch.cat([h, skips.pop()], 1), emb, f"output_blocks.{at}.0", layout.widths[level])
                if layout.attention[level]:
                    h = self.attention(h, f"output_blocks.{at}.1")
                if level and i == layout.blocks:
                    place = 2 if layout.attention[level] else 1
                    h = self.resnet(h, emb, f"output_blocks.{at}.{place}", layout.widths[level], 2)
                at += 1
        return self.conv(functional.silu(self.norm(h, "out.0")), "out.2", 6)


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([3, 700])


@torch.no_grad()
def test_the_network_computes_what_adm_computes(tmp_path: Path) -> None:
    reference = Reference(TINY)
    expected = reference(*inputs())
    save_file(reference.weights, tmp_path / "adm.safetensors")
    network = load_adm(tmp_path / "adm.safetensors", file_sha256(tmp_path / "adm.safetensors"), TINY).eval()
    found = network(*inputs(), return_dict=False)[0]
    assert float((found - expected).norm() / expected.norm()) < 1e-5

    # Attention cut into thirds loads as cleanly, and is something else.
    weights = convert_adm(reference.weights, TINY)
    places = {old: new for old, new in _modules(TINY).items() if "attentions" in new}
    for old, new in places.items():
        for part in ("weight", "bias"):
            thirds = reference.weights[f"{old}.qkv.{part}"].flatten(1 if part == "weight" else 0).chunk(3)
            for name, value in zip(("to_q", "to_k", "to_v"), thirds, strict=True):
                weights[f"{new}.{name}.{part}"] = value
    network.load_state_dict(weights)
    assert float((network(*inputs(), return_dict=False)[0] - expected).norm() / expected.norm()) > 1e-3


@torch.no_grad()
def test_a_checkpoint_of_another_layout_is_refused(tmp_path: Path) -> None:
    reference = Reference(TINY)
    reference(*inputs())
    with pytest.raises(ArtifactError, match="label_emb"):
        convert_adm({**reference.weights, "label_emb.weight": torch.zeros(1)}, TINY)
    reference.weights.pop("out.2.bias")
    save_file(reference.weights, tmp_path / "adm.safetensors")
    with pytest.raises(ArtifactError, match=r"conv_out\.bias is missing"):
        load_adm(tmp_path / "adm.safetensors", file_sha256(tmp_path / "adm.safetensors"), TINY)


def test_the_published_layout_has_its_size() -> None:
    with torch.device("meta"):
        network = adm_network(ADM_256)
    assert sum(value.numel() for value in network.parameters()) == pytest.approx(552.8e6, rel=1e-3)
