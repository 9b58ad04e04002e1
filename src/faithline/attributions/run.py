"""Run an attribution method by name, with the checks that all methods share."""

from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

from faithline.bank import Masks
from faithline.config import Methods, MethodSettings
from faithline.masking import MaskedModel


def load_method(name: str) -> ModuleType:
    """The module of a method: `attribute`, `MODALITIES` and `MASKS` (use and law of the bank that it reads, or None).

    Raises:
        ValueError: If there is no such method.
    """
    if name not in Methods.model_fields:
        raise ValueError(f"method {name!r}: must be one of {list(Methods.model_fields)}")
    return import_module(f"faithline.attributions.{name}")


def attribute_by_name(
    name: str,
    game: MaskedModel,
    x: Tensor,
    target: Tensor,
    settings: MethodSettings,
    *,
    masks: Masks | None,
    background: Tensor | None,
    seeds: Tensor,
) -> Tensor:
    """Explain a batch with one method.

    Args:
        name: A key of `config.Methods`.
        game: The game.
        x: Inputs (B, ...).
        target: Explained classes, int64 (B,).
        settings: The method's own section of the params.
        masks: The masks of the same samples that the method's `MASKS` names, or None.
        background: Real training inputs (R, ...) for methods that average over them, or None.
        seeds: One a sample, int64 (B,).

    Returns:
        Maps (B, *map_shape), float32, signed: higher = more support for the class. Methods that know features only have theirs
        spread evenly over the pixels, so that `Features.to_features` gives them back. A row with any value that is not finite is
        all NaN.

    Raises:
        ValueError: If the method does not exist or does not fit the modality, arguments do not match, or the result is no map.
    """
    module = load_method(name)
    features = game.features
    if features.kind not in module.MODALITIES:
        raise ValueError(f"{name} does not explain {features.kind} tasks, only {' and '.join(module.MODALITIES)}")
    if tuple(x.shape[1:]) != features.shape:
        raise ValueError(f"{name}: inputs have shape {tuple(x.shape[1:])}, the features say {features.shape}")
    if not len(x) == len(target) == len(seeds):
        raise ValueError(f"{name}: {len(x)} inputs, {len(target)} targets and {len(seeds)} seeds")
    if module.MASKS is not None:
        if masks is None:
            raise ValueError(f"{name} needs the {module.MASKS[1]} masks of the bank's {module.MASKS[0]} use")
        if len(masks.keep) != len(x) or masks.keep.shape[2] != features.n:
            raise ValueError(f"{name}: masks {tuple(masks.keep.shape)} do not belong to {len(x)} inputs of {features.n} features")
    maps = module.attribute(game, x, target, settings, masks=masks, background=background, seeds=seeds)
    if maps.shape == (len(x), features.n):
        maps = features.to_map(maps)
    if maps.shape != (len(x), *features.map_shape) or maps.dtype != torch.float32:
        raise ValueError(f"{name} gave {maps.dtype} {tuple(maps.shape)} instead of float32 {(len(x), *features.map_shape)}")
    finite = torch.isfinite(maps.flatten(1)).all(1)
    return torch.where(finite.reshape(-1, *[1] * (maps.ndim - 1)), maps, torch.nan)
