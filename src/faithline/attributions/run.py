"""Run an attribution method by name, with the checks that all methods share."""

from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

from faithline.attributions.query import Query
from faithline.config import Methods, MethodSettings


def load_method(name: str) -> ModuleType:
    """The module of a method: `attribute`, `MODALITIES` and `MASKS` (use and law of the bank that it reads, or None).

    The law `table` means all 2^n keep sets where the task is exact, and no masks elsewhere.

    Raises:
        ValueError: If there is no such method.
    """
    if name not in Methods.model_fields:
        raise ValueError(f"method {name!r}: must be one of {list(Methods.model_fields)}")
    return import_module(f"faithline.attributions.{name}")


def attribute_by_name(name: str, query: Query, settings: MethodSettings) -> Tensor:
    """Explain a batch with one method.

    Args:
        name: A key of `config.Methods`.
        query: What is asked.
        settings: The method's own section of the params.

    Returns:
        Maps (B, *map_shape), float32, signed: higher = more support for the class. Methods that know features only have theirs
        spread evenly over the pixels, so that `Features.to_features` gives them back. A row with any value that is not finite is
        all NaN.

    Raises:
        DoesNotFit: If the method cannot explain this target, whatever the sample.
        ValueError: If the method does not exist or does not fit the modality, arguments do not match, or the result is no map.
    """
    module = load_method(name)
    features, count, masks = query.game.features, len(query.x), query.masks
    if features.kind not in module.MODALITIES:
        raise ValueError(f"{name} does not explain {features.kind} tasks, only {' and '.join(module.MODALITIES)}")
    if tuple(query.x.shape[1:]) != features.shape:
        raise ValueError(f"{name}: inputs have shape {tuple(query.x.shape[1:])}, the features say {features.shape}")
    if not count == len(query.target) == len(query.seeds):
        raise ValueError(f"{name}: {count} inputs, {len(query.target)} targets and {len(query.seeds)} seeds")
    if module.MASKS is not None:
        if masks is None and module.MASKS[1] != "table":
            raise ValueError(f"{name} needs the {module.MASKS[1]} masks of the bank's {module.MASKS[0]} use")
        if masks is not None and (len(masks.keep) != count or masks.keep.shape[2] != features.n):
            raise ValueError(f"{name}: masks {tuple(masks.keep.shape)} do not belong to {count} inputs of {features.n} features")
    maps = module.attribute(query, settings)
    if maps.shape == (count, features.n):
        maps = features.to_map(maps)
    if maps.shape != (count, *features.map_shape) or maps.dtype != torch.float32:
        raise ValueError(f"{name} gave {maps.dtype} {tuple(maps.shape)} instead of float32 {(count, *features.map_shape)}")
    finite = torch.isfinite(maps.flatten(1)).all(1)
    return torch.where(finite.reshape(-1, *[1] * (maps.ndim - 1)), maps, torch.nan)
