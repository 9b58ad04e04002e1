"""A trained explainer as files: weights as safetensors, everything else as JSON, no pickle; it knows the target it belongs to."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from faithline.artifacts import file_sha256, read_json, read_tensors, write_json, write_tensors
from faithline.config import ExplainerSettings
from faithline.errors import ArtifactError
from faithline.explainers.network import Network, Shape
from faithline.explainers.target_features import view
from faithline.explainers.train import TrainedExplainer
from faithline.masking import Baseline, Features, MaskedModel


class Explainer:
    """A trained explainer with its target: inputs in, attributions out.

    Attributes:
        game: Reads the target; its counter says how often it was called (one clean pass a sample, none for raw inputs).
        network: View -> scores.
        layers: Modules of the target that are read; None for raw inputs.
    """

    def __init__(self, game: MaskedModel, network: Network, layers: list[str] | None) -> None:
        self.game = game
        self.layers = layers
        self._device = next((p.device for p in game.model.parameters()), torch.device("cpu"))
        self.network = network.eval().requires_grad_(False).to(self._device)

    @torch.inference_mode()
    def __call__(self, x: Tensor) -> Tensor:
        """Explain the target's first choice for each input.

        Args:
            x: Inputs as the target takes them (B, ...); split by the game's `max_batch`, which bounds memory.

        Returns:
            float32 (B, n) on the device of x, higher = more support; 0 at padding. In (0, 1) or signed, as trained.

        Raises:
            ValueError: If x has another shape than the explainer was trained for.
        """
        if tuple(x.shape[1:]) != self.game.features.shape:
            raise ValueError(f"inputs have shape {tuple(x.shape[1:])}; this explainer takes {self.game.features.shape}")
        parts = x.to(self._device).split(self.game.max_batch)
        return torch.cat([self.network(*view(self.game, part, self.layers)) for part in parts]).to(x.device)


def state_sha256(model: nn.Module) -> str:
    """Identity of a model: SHA-256 over names, types, shapes and bytes of its parameters and buffers, on any device."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_explainer(
    folder: str | Path, trained: TrainedExplainer, game: MaskedModel, settings: ExplainerSettings, *, target_sha256: str
) -> dict[str, Any]:
    """Write `model.safetensors` and `model.json`.

    Args:
        folder: Where to; publish it whole (`artifacts.publish`).
        trained: From `train_explainer`.
        game: The game it was trained on.
        settings: How it was trained.
        target_sha256: Hash of the target's weights file, as banks and maps name it.

    Returns:
        The content of `model.json`. `passes` are the target calls of one explanation.
    """
    folder = Path(folder)
    write_tensors(folder / "model.safetensors", trained.network.state_dict())
    info = {
        "sha256": file_sha256(folder / "model.safetensors"),
        "target_sha256": target_sha256,
        "target_state_sha256": state_sha256(game.model),
        "features": asdict(game.features),
        "layers": trained.layers,
        "network": asdict(trained.network.shape),
        "passes": 0 if trained.layers is None else 1,
        "settings": settings.model_dump(),
        **trained.info,
    }
    write_json(folder / "model.json", info)
    return info


def load_explainer(folder: str | Path, model: nn.Module, *, max_batch: int = 4096) -> Explainer:
    """Open a trained explainer for the model it was trained on.

    Args:
        folder: `models/explainers/<task>/<name>`.
        model: The target; it is put into eval mode and its weights are frozen.
        max_batch: Most inputs that are explained at once.

    Raises:
        ArtifactError: If a file is missing, damaged or does not fit the others, or the model is another one.
    """
    folder = Path(folder)
    info = read_json(folder / "model.json")
    try:
        wanted, recorded = info["target_state_sha256"], info["sha256"]
        features = Features(**{**info["features"], "shape": tuple(info["features"]["shape"])})
        shape = Shape(**info["network"])
        layers = info["layers"]
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"{folder}/model.json does not describe an explainer ({error}): run `dvc repro`") from error
    weights = read_tensors(folder / "model.safetensors")
    if file_sha256(folder / "model.safetensors") != recorded:
        raise ArtifactError(f"{folder}/model.safetensors is not the file that model.json names: run `dvc repro`")
    if (found := state_sha256(model)) != wanted:
        raise ArtifactError(
            f"{folder} explains another model: it was trained for the weights {wanted[:12]}, this model's are {found[:12]} "
            f"(sha256 of the state dict)"
        )
    network = Network(shape)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise ArtifactError(f"{folder}: weights and model.json disagree: {error}") from error
    return Explainer(MaskedModel(model, features, Baseline.zero(), max_batch=max_batch), network, layers)
