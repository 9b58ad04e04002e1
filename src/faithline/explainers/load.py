"""A trained explainer as files: weights as safetensors, everything else as JSON, no pickle; it knows the target it belongs to."""

import hashlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from faithline.artifacts import file_sha256, read_json, read_tensors, write_json, write_tensors
from faithline.config import ExplainerSettings, Output, ShapleySettings
from faithline.errors import ArtifactError
from faithline.explainers import fastshap
from faithline.explainers.network import Network, Shape
from faithline.explainers.target_features import view
from faithline.explainers.train import TrainedExplainer
from faithline.masking import Baseline, Features, MaskedModel

_BASELINE = "baseline.values"
"""Where the weights file keeps the inputs that stand in for removed features, of an explainer that removes them."""


class Explainer:
    """A trained explainer with its target: inputs in, attributions out.

    Attributes:
        game: Reads the target; its counter says how often it was called (one clean pass a sample, none for raw inputs, and what
            `efficient` takes).
        network: View -> scores.
        layers: Modules of the target that are read; None for raw inputs.
        efficient: Whether scores are made to sum to v(all) - v(none) (FastSHAP), which asks the target for both.
    """

    def __init__(self, game: MaskedModel, network: Network, layers: list[str] | None, *, efficient: bool) -> None:
        self.game = game
        self.layers = layers
        self.efficient = efficient
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
        return torch.cat([self._explain(part) for part in x.to(self._device).split(self.game.max_batch)]).to(x.device)

    def _explain(self, x: Tensor) -> Tensor:
        seen = view(self.game, x, self.layers)
        scores = self.network(*seen)
        if not self.efficient:
            return scores
        return fastshap.normalise(scores, fastshap.total_value(self.game, x).to(scores.device), seen.valid)


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
        The content of `model.json`. `passes` are the target calls of one explanation; `efficient` is None or the removal and the
        output of the game whose v(all) - v(none) the scores sum to.
    """
    folder = Path(folder)
    weights = trained.network.state_dict()
    baseline, efficient = game.baseline, None
    if isinstance(settings, ShapleySettings):
        removal = {"kind": baseline.kind, "sigma": baseline.sigma, "token_id": baseline.token_id}
        efficient = {"baseline": removal, "output": game.output}
        if baseline.values is not None:
            weights[_BASELINE] = baseline.values
    write_tensors(folder / "model.safetensors", weights)
    info = {
        "sha256": file_sha256(folder / "model.safetensors"),
        "target_sha256": target_sha256,
        "target_state_sha256": state_sha256(game.model),
        "features": asdict(game.features),
        "layers": trained.layers,
        "network": asdict(trained.network.shape),
        "passes": (0 if trained.layers is None else 1) + (1 + baseline.copies if efficient else 0),
        "efficient": efficient,
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
        layers, efficient = info["layers"], info["efficient"]
        # No feature is removed and no value read, unless scores are efficient.
        baseline, output = Baseline.zero(), cast(Output, "prob")
        if efficient is not None:
            baseline, output = Baseline(**efficient["baseline"]), efficient["output"]
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"{folder}/model.json does not describe an explainer ({error}): run `dvc repro`") from error
    weights = read_tensors(folder / "model.safetensors")
    baseline = replace(baseline, values=weights.pop(_BASELINE, None))
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
    game = MaskedModel(model, features, baseline, output=output, max_batch=max_batch)
    return Explainer(game, network, layers, efficient=efficient is not None)
