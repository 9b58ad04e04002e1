"""The verbs of the public API, for a model and inputs in memory: `attribute`, `score`, `fud_score`. No files, no params."""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional

from faithline import fud
from faithline.attributions.query import Query
from faithline.attributions.run import attribute_by_name, load_method
from faithline.bank import Law, Masks, all_keep_sets, draw
from faithline.config import MAX_EXACT_FEATURES, Methods, MethodSettings, MetricSettings
from faithline.diffusion.guidance import classifier_evidence
from faithline.diffusion.presets import ANNEALED, Preset
from faithline.diffusion.removal import Reduction, Unit, nested_keep
from faithline.judging import Judge
from faithline.masking import MaskedModel
from faithline.metrics import ranking, ten
from faithline.score_models import LoadedScore
from faithline.seeding import derive, device, numpy_generator, torch_generator

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "saliency": {"output": "prob", "absolute": False},
    "smooth_grad": {"output": "prob", "samples": 50, "std": 0.15},
    "input_x_gradient": {"output": "prob"},
    "guided_backprop": {"output": "prob"},
    "deconvolution": {"output": "prob"},
    "integrated_gradients": {"output": "prob", "steps": 50},
    "guided_integrated_gradients": {"output": "prob", "steps": 200, "fraction": 0.25, "max_dist": 0.02},
    "boundary_integrated_gradients": {
        "output": "prob",
        "radii": [0.14, 0.3, 0.46, 0.62, 0.78, 0.94, 1.1],
        "attack_steps": 40,
        "step": 0.1,
        "steps": 10,
        "clip": None,
    },
    "fast_integrated_gradients": {"output": "logit"},
    "expected_gradients": {"output": "prob", "samples": 40},
    "adversarial_gradient_integration": {"output": "prob", "eps": 0.05, "steps": 20, "classes": 20, "clip": None},
    "mfaba": {"output": "prob", "alpha": 0.001, "steps": 50, "path": "smooth", "clip": None},
    "attexplore": {
        "output": "prob",
        "eps": 16 / 255,
        "steps": 10,
        "samples": 20,
        "rho": 0.5,
        "noise": 16 / 255,
        "resize": 1.1,
        "smoothing": 7,
        "momentum": 1.0,
        "clip": None,
    },
    "isa": {"output": "prob", "block": 5000, "steps": 8, "alpha": 0.004, "factor": 1.3, "noise": 0.05, "clip": None},
    "local_attribution": {"output": "prob", "spatial_range": 20.0, "steps": 20, "classes": 20, "clip": None},
    "deeplift": {"output": "prob"},
    "deeplift_shap": {"output": "prob", "rows": 16},
    "lrp": {"epsilon": 1.0e-4, "gamma": 0.25},
    "occlusion": {"window": 2, "stride": 1},
    "feature_ablation": {},
    "lime": {"masks": 1000, "kernel_width": 0.5, "ridge": 0.01},
    "kernel_shap": {"masks": 1000, "ridge": 1.0e-6},
    "shapley_sampling": {"permutations": 25},
    "rise": {"masks": 1000},
    "grad_cam": {"output": "logit"},
    "grad_cam_plus_plus": {"output": "logit"},
    "score_cam": {"output": "prob", "channels": 64},
    "attention_rollout": {},
    "generic_attention": {"output": "prob"},
    "banzhaf": {"ridge": 1.0e-6},
    "exact_shapley": {},
    "exact_banzhaf": {},
}
"""Settings of a method where the caller gives none. The pipeline never reads them: there, params.yaml says everything."""

DEFAULT_MASKS = 1000
"""Masks of a method that has no number of its own (banzhaf)."""


def attribute(
    name: str,
    game: MaskedModel,
    x: Tensor,
    target: Tensor | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    background: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """Explain inputs with one method; the random masks that it fits, if it fits any, are drawn and played here.

    Args:
        name: Method, a key of `DEFAULTS`.
        game: The game.
        x: Inputs (B, ...).
        target: Explained classes, int64 (B,); the model's own first choices where None.
        settings: Values that replace those of `DEFAULTS[name]`.
        background: Real inputs (R, ...) for `expected_gradients` and `deeplift_shap`.
        seed: Seeds masks and draws. A map depends on its position in x, not on its batch mates.

    Returns:
        Maps, float32 (B, n), signed: higher = more support for the class. A row that is not finite is all NaN.

    Raises:
        DoesNotFit: If the method cannot explain this model, whatever the inputs; a ValueError.
        ValueError: If the method, a setting or the inputs do not fit; the message names them.
    """
    module = load_method(name)
    chosen = _settings(name, settings)
    if target is None:
        target = game.predict(x)[1].cpu()
    masks = None
    if module.MASKS is not None and module.MASKS[1] != "table":
        masks = play(game, x, target, module.MASKS[1], getattr(chosen, "masks", DEFAULT_MASKS), seed=derive(seed, name))
    seeds = torch.tensor([derive(seed, name, i) for i in range(len(x))])
    maps = attribute_by_name(name, Query(game, x, target, masks, background, seeds), chosen)
    return game.features.to_features(maps)


def _settings(name: str, changes: Mapping[str, Any] | None) -> MethodSettings:
    kind = next(k for k in typing.get_args(Methods.model_fields[name].annotation) if k is not type(None))
    try:
        # The role is the pipeline's business; any value will do here.
        return kind.model_validate({"role": "baseline", **DEFAULTS[name], **(changes or {})})
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))} = {fault['input']!r}: {fault['msg']}" for fault in error.errors()]
        raise ValueError(f"{name}: {'; '.join(faults)}") from error


def play(
    game: MaskedModel, x: Tensor, target: Tensor, law: str, count: int, *, fixed_size_fraction: float = 0.3, seed: int = 0
) -> Masks:
    """Draw masks of a law for inputs in memory and play them: what the bank does for a task.

    Args:
        game: The game.
        x: Inputs (B, ...).
        target: Explained classes (B,).
        law: `bernoulli`, `fixed_size`, `shapley_kernel`, `singles`, or `all` (every one of the 2^n keep sets).
        count: Masks of each input; `singles` and `all` have their own number.
        fixed_size_fraction: Share of features that `fixed_size` removes.
        seed: Seeds the masks, by position in x.

    Raises:
        ValueError: If the law is unknown, or `all` meets more than 14 features.
    """
    valid = game.features.valid(x).cpu()
    if law == "all":
        if game.features.n > MAX_EXACT_FEATURES:
            raise ValueError(f"{game.features.n} features: exact values stop at {MAX_EXACT_FEATURES}")
        keep = all_keep_sets(game.features.n).expand(len(x), -1, -1)
    else:
        drawn = [
            draw(typing.cast(Law, law), valid[i].numpy(), count, fixed_size_fraction, numpy_generator(seed, law, i))
            for i in range(len(x))
        ]
        keep = torch.from_numpy(np.stack(drawn))
    ends = torch.stack([torch.ones_like(valid), ~valid], 1)
    values = game.values(x, torch.cat([ends, keep], 1), target)
    return Masks(keep=keep, values=values[:, 2:], full=values[:, 0], empty=values[:, 1], valid=valid)


def score(
    game: MaskedModel,
    x: Tensor,
    maps: Mapping[str, Tensor],
    target: Tensor | None = None,
    *,
    steps: int | None = None,
    masks: int = 100,
    fixed_size_fraction: float = 0.3,
    convention: ten.Convention = "strict",
    mc_absolute: bool = False,
    min_prob: float = 1.0e-3,
    seed: int = 0,
) -> pl.DataFrame:
    """Measure any attribution with the ten faithfulness metrics. All candidates are judged by the same masks.

    Args:
        game: The game.
        x: Inputs (B, ...).
        maps: Candidate -> its maps of x, (B, n) or (B, *map_shape), higher = supports the class; any scale.
        target: Explained classes (B,); the model's own first choices where None.
        steps: Points of a sweep; one feature a step where None.
        masks: Random masks of each input for FC and for INF.
        fixed_size_fraction: Share of features that FC removes.
        convention: `strict` (curves with both ends) or `official` (docs/metrics.md).
        mc_absolute: Whether MC reads |map|.
        min_prob: Clean value below which MC and IROF are undefined.
        seed: Seeds masks and tie-breaks.

    Returns:
        `sample_id i64 (position in x), candidate str, metric str, value f32`; null where a metric is undefined, and everywhere
        for a map that is not finite. Directions: `faithline.metrics.catalogue.METRICS`.

    Raises:
        ValueError: If maps have the wrong shape; the message names the candidate.
    """
    features = game.features
    prepared = {name: _as_features(name, game, x, candidate) for name, candidate in maps.items()}
    if target is None:
        target = game.predict(x)[1].cpu()
    valid = features.valid(x).cpu()
    judge = Judge(
        game=game,
        insertion=None,
        x=x,
        target=target,
        sample_ids=torch.arange(len(x)),
        bernoulli=play(game, x, target, "bernoulli", masks, seed=derive(seed, "score")),
        fixed_size=play(
            game, x, target, "fixed_size", masks, fixed_size_fraction=fixed_size_fraction, seed=derive(seed, "score")
        ),
        singles=play(game, x, target, "singles", features.n),
        table=None,
        steps=features.n if steps is None else steps,
        metrics=MetricSettings(convention=convention, mc_absolute=mc_absolute, min_prob=min_prob),
        seed=seed,
    )
    frames = []
    for name, candidate in prepared.items():
        finite = (torch.isfinite(candidate) | ~valid).all(1)
        usable = torch.where(finite[:, None], candidate, 0.0)
        for metric, value in judge.score(usable, judge.sweep(usable)).items():
            column = pl.Series("value", torch.where(finite, value, torch.nan).numpy()).fill_nan(None)
            frame = pl.DataFrame({"sample_id": judge.sample_ids.numpy(), "candidate": name, "metric": metric})
            frames.append(frame.with_columns(column))
    return pl.concat(frames)


def _as_features(name: str, game: MaskedModel, x: Tensor, maps: Tensor) -> Tensor:
    """Maps of a candidate on the features, float32 (B, n)."""
    features = game.features
    maps = torch.as_tensor(maps).detach().cpu().float()
    if maps.shape == (len(x), features.n):
        return maps
    if maps.shape == (len(x), *features.map_shape):
        return features.to_features(maps)
    expected = f"{(len(x), features.n)}" + (f" or {(len(x), *features.map_shape)}" if features.kind == "image" else "")
    raise ValueError(f"maps of {name!r} have shape {tuple(maps.shape)}; {expected} expected")


LEVELS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""Kept fractions of FUD."""

RANDOM = "random"
"""Name of the random order that stands beside every judged map."""


@dataclass(frozen=True)
class FudResult:
    """How one candidate does in-distribution.

    Attributes:
        score: Mean confidence over levels and draws, mean over images, higher = more faithful.
        low: Lower end of its bootstrap interval over images.
        high: Upper end.
        above_random: (mean, low, high) of the score minus that of random pixels, paired by image.
        tau: Kendall's tau-b of kept fraction and confidence of each image, (I,); NaN where the confidence is constant.
        confidences: Of the explained class, (I, F, R).
        images: What the model saw, pixels in [0, 1], (I, F, R, C, S, S).
        calls: Of the score model, for all images together.
    """

    score: float
    low: float
    high: float
    above_random: tuple[float, float, float]
    tau: Tensor
    confidences: Tensor
    images: Tensor
    calls: int


def fud_score(
    game: MaskedModel,
    x: Tensor,
    maps: Mapping[str, Tensor],
    score_model: LoadedScore,
    target: Tensor | None = None,
    *,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    sampler: Preset = ANNEALED,
    levels: Sequence[float] = LEVELS,
    draws: int = 4,
    unit: Unit = "pixel",
    patch: int = 1,
    reduction: Reduction = "sum",
    max_batch: int = 64,
    bootstrap: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, FudResult]:
    """Judge attributions of images in-distribution: what they call unimportant is regenerated, not blacked out.

    Args:
        game: The game; its model is what is judged by.
        x: Normalised images (I, C, H, W).
        maps: Candidate -> its maps of x, (I, h, w) or (I, n), higher = supports the class. A random order joins as `random`.
        score_model: From `load_score_model`; it may have another image size, then everything happens on its grid.
        target: Class whose evidence is removed, (I,); the model's own first choices where None.
        mean: Of each channel, by which pixels in [0, 1] were normalised.
        std: The same.
        sampler: How removed features are sampled (`faithline.diffusion.presets`).
        levels: Kept fractions.
        draws: Reconstructions of each image and level.
        unit: What stays or goes as one.
        patch: Side of a patch, for `unit="patch"`.
        reduction: How channels of a map become one number.
        max_batch: Images in the score model at once.
        bootstrap: Resamples of images.
        confidence: Coverage of the intervals.
        seed: Seeds noise and ties, by position in x.

    Raises:
        ValueError: If images, maps, score model or sampler do not fit; a map that is constant or not finite orders nothing.
    """
    features = game.features
    if features.kind != "image":
        raise ValueError(f"fud_score judges images, not {features.kind} features")
    if RANDOM in maps:
        raise ValueError(f"maps: the name {RANDOM!r} is that of the random order")
    statistics = [torch.tensor(values, dtype=torch.float32).reshape(1, -1, 1, 1) for values in (mean, std)]
    pixels = x.float() * statistics[1] + statistics[0]
    if float(pixels.min()) < -1e-3 or float(pixels.max()) > 1 + 1e-3:
        raise ValueError(f"x has pixels from {float(pixels.min()):.3g} to {float(pixels.max()):.3g} in [0, 1]: give mean and std")
    if score_model.channels != x.shape[1]:
        raise ValueError(f"the score model knows images of {score_model.channels} channel(s), x has {x.shape[1]}")
    if target is None:
        target = game.predict(x)[1].cpu()
    size = (score_model.size, score_model.size)
    if tuple(pixels.shape[-2:]) != size:
        pixels = functional.interpolate(pixels, size, mode="bilinear", antialias=True, align_corners=False)
    if score_model.learned_variance != (sampler.variance == "learned_range"):
        sampler = replace(sampler, variance="learned_range" if score_model.learned_variance else "fixed_small")

    def predict(images: Tensor) -> Tensor:
        shape = features.shape[1:]
        if tuple(images.shape[-2:]) != tuple(shape):
            images = functional.interpolate(images, tuple(shape), mode="bilinear", antialias=True, align_corners=False)
        return game.predict((images.cpu() - statistics[0]) / statistics[1])[0].cpu()

    ids = tuple(range(len(x)))
    scene = fud.Scene(
        pixels=pixels.clamp(0, 1).to(device()),
        image_ids=ids,
        targets=target.to(device()),
        model=score_model.model,
        schedule=score_model.schedule,
        evidence=classifier_evidence(game.model, mean, std, features.shape[1]),
        seed=seed,
        max_batch=max_batch,
    )
    noise = torch.stack([torch.randn(size, generator=torch_generator(seed, "random pixels", i)) for i in ids])
    ordered = {RANDOM: noise} | {name: _pixel_map(name, game, candidate, len(x)) for name, candidate in maps.items()}
    masks = {}
    for name, candidate in ordered.items():
        try:
            keep = nested_keep(candidate, ids, size, tuple(levels), unit, reduction, patch=patch, seed=seed)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        masks[name] = keep.to(device())
    made = {name: fud.regenerate(scene, keep, sampler, draws) for name, keep in masks.items()}
    own = target.repeat_interleave(len(levels) * draws)
    confidences = {
        name: fud.confidence(predict(item.pixels.flatten(0, 2)), own).reshape(item.pixels.shape[:3])
        for name, item in made.items()
    }
    results = {}
    for name, values in confidences.items():
        columns = torch.stack([fud.score(values), fud.score(values) - fud.score(confidences[RANDOM])], 1)
        found = ranking.interval(columns, repeats=bootstrap, confidence=confidence, seed=seed)
        (score_mean, above), (low, above_low), (high, above_high) = (end.tolist() for end in (found.mean, found.low, found.high))
        results[name] = FudResult(
            score=score_mean,
            low=low,
            high=high,
            above_random=(above, above_low, above_high),
            tau=fud.smoothness(values.mean(2), list(levels)),
            confidences=values,
            images=made[name].pixels.cpu(),
            calls=int(made[name].calls.sum()),
        )
    return results


def _pixel_map(name: str, game: MaskedModel, maps: Tensor, count: int) -> Tensor:
    """Maps of a candidate on any grid: (I, n) as the game's feature grid, (I, h, w) and (I, C, h, w) as they are."""
    maps = torch.as_tensor(maps).detach().cpu().float()
    if maps.shape == (count, game.features.n):
        return game.features.to_map(maps)
    if maps.ndim in (3, 4) and len(maps) == count:
        return maps
    raise ValueError(f"maps of {name!r} have shape {tuple(maps.shape)}; ({count}, {game.features.n}) or ({count}, h, w) expected")
