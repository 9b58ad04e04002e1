"""Weights of openai/guided-diffusion (ADM) in a `diffusers.UNet2DModel`: the unconditional layout with residual resampling."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from torch import Tensor, nn

from faithline.checkpoints import misfits, read_checkpoint
from faithline.errors import ArtifactError

RESNET = {
    "in_layers.0": "norm1",
    "in_layers.2": "conv1",
    "emb_layers.1": "time_emb_proj",
    "out_layers.0": "norm2",
    "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
}
"""Parts of a residual block, in ADM and in diffusers."""

ENDS = {
    "time_embed.0": "time_embedding.linear_1",
    "time_embed.2": "time_embedding.linear_2",
    "input_blocks.0.0": "conv_in",
    "out.0": "conv_norm_out",
    "out.2": "conv_out",
}


@dataclass(frozen=True)
class AdmLayout:
    """Shape of an ADM network.

    Attributes:
        image_size: Side of the images in pixels.
        widths: Channels of each resolution, the finest first.
        attention: Which resolutions have attention.
        blocks: Residual blocks of each resolution on the way down.
        head_width: Channels of one attention head.
        groups: Groups of every group norm.
    """

    image_size: int
    widths: tuple[int, ...]
    attention: tuple[bool, ...]
    blocks: int
    head_width: int
    groups: int


ADM_256 = AdmLayout(256, (256, 256, 512, 512, 1024, 1024), (False, False, False, True, True, True), 2, 64, 32)
"""`256x256_diffusion_uncond.pt`."""


def adm_network(layout: AdmLayout) -> nn.Module:
    """A `UNet2DModel` with fresh weights: images (B, 3, size, size) in [-1, 1] -> epsilon and variance, 6 channels."""
    from diffusers import UNet2DModel

    network = UNet2DModel(
        sample_size=layout.image_size,
        in_channels=3,
        out_channels=6,
        layers_per_block=layout.blocks,
        block_out_channels=layout.widths,
        down_block_types=tuple("AttnDownBlock2D" if has else "ResnetDownsampleBlock2D" for has in layout.attention),
        up_block_types=tuple("AttnUpBlock2D" if has else "ResnetUpsampleBlock2D" for has in reversed(layout.attention)),
        attention_head_dim=layout.head_width,
        resnet_time_scale_shift="scale_shift",
        norm_num_groups=layout.groups,
        attn_norm_num_groups=layout.groups,  # else the attention in the middle has no norm
        downsample_type="resnet",
        upsample_type="resnet",
    )
    return cast(nn.Module, network)  # type checkers see diffusers' placeholder for an absent torch


def convert_adm(weights: dict[str, Tensor], layout: AdmLayout) -> dict[str, Tensor]:
    """Rename the tensors of an ADM state dict as diffusers has them, and split its attention.

    ADM's attention splits heads before query, key and value: the rows of `qkv` are (heads, 3, head width). Cut into thirds as
    they are, they load without complaint into a network that computes something else.

    Raises:
        ArtifactError: If a tensor has a name that the layout has no place for.
    """
    modules = _modules(layout)
    converted: dict[str, Tensor] = {}
    for name, value in weights.items():
        module, _, part = name.rpartition(".")
        if module in ENDS:
            converted[f"{ENDS[module]}.{part}"] = value
            continue
        block = ".".join(module.split(".")[: 3 if module.startswith(("input", "output")) else 2])
        inner = module.removeprefix(block).lstrip(".")
        place = modules.get(block)
        if place is None or (inner not in RESNET and inner not in ("norm", "qkv", "proj_out")):
            raise ArtifactError(f"ADM weights: {name} has no place in the layout")
        if inner == "qkv":
            rows = value.reshape(-1, 3, layout.head_width, *value.shape[1:2])
            for i, target in enumerate(("to_q", "to_k", "to_v")):
                converted[f"{place}.{target}.{part}"] = rows[:, i].flatten(0, 1).contiguous()
        elif inner == "proj_out":
            converted[f"{place}.to_out.0.{part}"] = value.reshape(value.shape[:2])
        else:
            converted[f"{place}.{'group_norm' if inner == 'norm' else RESNET[inner]}.{part}"] = value
    return converted


def load_adm(path: str | Path, sha256: str, layout: AdmLayout) -> nn.Module:
    """A `UNet2DModel` with the weights of a guided-diffusion checkpoint.

    Raises:
        ArtifactError: If the file is refused (see `checkpoints.read_checkpoint`) or does not fit the layout.
    """
    weights = convert_adm(read_checkpoint(path, sha256), layout)
    network = adm_network(layout)
    faults = misfits(network, weights)
    if faults:
        raise ArtifactError(f"checkpoint {path} does not fit the layout ({len(faults)} faults): {'; '.join(faults[:5])}")
    network.load_state_dict(weights)
    return network


def _modules(layout: AdmLayout) -> dict[str, str]:
    """Where each block of ADM is in diffusers."""
    places = {"middle_block.0": "mid_block.resnets.0", "middle_block.1": "mid_block.attentions.0"}
    places["middle_block.2"] = "mid_block.resnets.1"
    last, at = len(layout.widths) - 1, 1
    for level, has in enumerate(layout.attention):
        for i in range(layout.blocks):
            places[f"input_blocks.{at}.0"] = f"down_blocks.{level}.resnets.{i}"
            if has:
                places[f"input_blocks.{at}.1"] = f"down_blocks.{level}.attentions.{i}"
            at += 1
        if level < last:
            places[f"input_blocks.{at}.0"] = f"down_blocks.{level}.downsamplers.0"
            at += 1
    at = 0
    for level, has in enumerate(reversed(layout.attention)):
        for i in range(layout.blocks + 1):
            places[f"output_blocks.{at}.0"] = f"up_blocks.{level}.resnets.{i}"
            if has:
                places[f"output_blocks.{at}.1"] = f"up_blocks.{level}.attentions.{i}"
            if i == layout.blocks and level < last:
                places[f"output_blocks.{at}.{1 + has}"] = f"up_blocks.{level}.upsamplers.0"
            at += 1
    return places
