"""Weights from a local file: the file that params name and no other, read without running anything that is in it."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from faithline.artifacts import file_sha256
from faithline.errors import ArtifactError

WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts keep a model's weights beside other things."""
PREFIXES = ("module.", "model.")
"""What wrappers of a model put before each name."""


def read_checkpoint(path: str | Path, sha256: str) -> dict[str, Tensor]:
    """The weights in a checkpoint.

    Args:
        path: `.safetensors`, or a file of `torch.save` that holds tensors and plain containers only.
        sha256: Its digest.

    Returns:
        Tensor by name, without the wrapper key and the name prefix that training scripts add.

    Raises:
        ArtifactError: If the file is missing, is another one, is damaged, needs more than tensors to be read, or holds no
            weights.
    """
    path = Path(path)
    if not path.is_file():
        raise ArtifactError(f"checkpoint {path} is missing: put it there, or correct target.checkpoint in params.yaml")
    if (found := file_sha256(path)) != sha256:
        raise ArtifactError(f"checkpoint {path} has sha256 {found}, params.yaml says {sha256}: it is another file")
    if path.suffix == ".safetensors":
        try:
            return _unprefixed(load_file(path))
        except SafetensorError as error:
            raise ArtifactError(f"checkpoint {path} is not a whole safetensors file ({error})") from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or foreign file fails in many ways, all of which mean the same here
        reason = str(error).strip().splitlines()
        raise ArtifactError(
            f"checkpoint {path} holds more than tensors, or is damaged, and is not unpickled "
            f"({reason[0] if reason else type(error).__name__}): save its state dict as safetensors"
        ) from error
    for key in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict) or not content or not all(isinstance(value, Tensor) for value in content.values()):
        raise ArtifactError(f"checkpoint {path} holds no state dict: its values must be tensors by name")
    return _unprefixed(dict(content))


def _unprefixed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    for prefix in PREFIXES:
        if weights and all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    return weights


def misfits(model: nn.Module, weights: dict[str, Tensor]) -> list[str]:
    """What keeps weights from being those of a model: names that one of them lacks, and shapes that differ."""
    own = model.state_dict()
    faults = [f"{name} is missing from the checkpoint" for name in own if name not in weights]
    faults += [f"{name} is not in the model" for name in weights if name not in own]
    return faults + [
        f"{name} is {list(weights[name].shape)} in the checkpoint, {list(own[name].shape)} in the model"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]


def load_checkpoint(model: nn.Module, path: str | Path, sha256: str) -> None:
    """Give a model the weights of a checkpoint.

    Raises:
        ArtifactError: If the file is refused (see `read_checkpoint`) or does not fit the model; the message lists tensors.
    """
    weights = read_checkpoint(path, sha256)
    faults = misfits(model, weights)
    if faults:
        raise ArtifactError(f"checkpoint {path} does not fit the model ({len(faults)} faults): {'; '.join(faults[:5])}")
    model.load_state_dict(weights)
