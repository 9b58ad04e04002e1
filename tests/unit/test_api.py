"""attribute and score on models small enough to know the answer."""

import math

import pytest
import torch
from torch import Tensor, nn

import faithline as fl
from faithline.api import DEFAULTS, play
from faithline.config import Methods
from faithline.metrics.catalogue import METRICS

WEIGHTS = torch.tensor([3.0, -2.0, 1.0, 0.5])


class Additive(nn.Module):
    """Logit of class 1 = weights . x, of class 0 = 0: with output logit the game is additive where class 1 is explained."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(WEIGHTS.clone())

    def forward(self, x: Tensor) -> Tensor:
        own = x @ self.weight
        return torch.stack([torch.zeros_like(own), own], 1)


@pytest.fixture
def game() -> fl.MaskedModel:
    return fl.MaskedModel(Additive(), fl.column_features(4), fl.Baseline.zero(), output="logit", max_batch=64)


@pytest.fixture
def x() -> Tensor:
    x = torch.rand(6, 4, generator=torch.Generator().manual_seed(0)) + 0.5
    return torch.where(WEIGHTS < 0, x * 0.1, x)  # class 1 wins on every row


EXACT_ON_ADDITIVE = {
    "input_x_gradient": {"output": "logit"},
    "integrated_gradients": {"output": "logit"},
    "feature_ablation": {},
    "lime": {"ridge": 0.0},
    "kernel_shap": {"ridge": 0.0},
    "shapley_sampling": {"permutations": 2},
    "banzhaf": {"ridge": 0.0},
    "exact_shapley": {},
    "exact_banzhaf": {},
}


@pytest.mark.parametrize("name", EXACT_ON_ADDITIVE)
def test_additive_game_is_explained_exactly(name: str, game: fl.MaskedModel, x: Tensor) -> None:
    maps = fl.attribute(name, game, x, settings=EXACT_ON_ADDITIVE[name])
    assert torch.allclose(maps, x * WEIGHTS, atol=1e-3), (maps - x * WEIGHTS).abs().max()


def test_every_method_has_defaults_and_no_other() -> None:
    assert set(DEFAULTS) == set(Methods.model_fields)


def test_perfect_map_has_perfect_correlations_and_its_negative_the_worst(game: fl.MaskedModel, x: Tensor) -> None:
    result = fl.score(game, x, {"true": x * WEIGHTS, "wrong": -x * WEIGHTS, "tripled": 3 * x * WEIGHTS})
    assert result.columns == ["sample_id", "candidate", "metric", "value"]
    assert len(result) == 6 * 3 * len(METRICS)
    means = {(c, m): v for c, m, v in result.group_by("candidate", "metric").mean().select("candidate", "metric", "value").rows()}
    for metric in ("fc", "inf", "fe"):
        assert means["true", metric] == pytest.approx(1, abs=1e-5)
        assert means["wrong", metric] == pytest.approx(-1, abs=1e-5)
    for metric, entry in METRICS.items():
        if metric not in ("mc", "neg"):  # MC has no sign; NEG is frozen where the class flips
            better = means["true", metric] > means["wrong", metric]
            assert better == (entry.direction == "higher"), metric
        assert math.isclose(means["true", metric], means["tripled", metric], rel_tol=1e-6), f"{metric} depends on scale"


def test_a_map_does_not_depend_on_its_batch_mates(game: fl.MaskedModel, x: Tensor) -> None:
    for name in ("lime", "expected_gradients"):
        whole = fl.attribute(name, game, x, background=x)
        part = fl.attribute(name, game, x[:2], background=x)
        assert torch.equal(whole[:2], part), name


def test_a_map_that_is_not_finite_is_null_everywhere(game: fl.MaskedModel, x: Tensor) -> None:
    maps = x * WEIGHTS
    maps[2, 1] = torch.nan
    result = fl.score(game, x, {"holed": maps})
    assert result.filter(result["sample_id"] == 2)["value"].null_count() == len(METRICS)
    assert result.filter(result["sample_id"] != 2)["value"].null_count() == 0
    assert not result["value"].is_nan().any()


def test_pixel_maps_are_summed_within_patches() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 2))
    game = fl.MaskedModel(model, fl.patch_features(4, 2), fl.Baseline.zero(), max_batch=64)
    images = torch.randn(3, 3, 4, 4)
    maps = fl.attribute("input_x_gradient", game, images)
    assert maps.shape == (3, 4)
    pixels = game.features.to_map(maps)
    both = fl.score(game, images, {"patches": maps, "pixels": pixels})
    values = [both.filter(both["candidate"] == name)["value"].to_list() for name in ("patches", "pixels")]
    assert values[0] == pytest.approx(values[1], nan_ok=True)


def test_play_counts_every_pass(game: fl.MaskedModel, x: Tensor) -> None:
    masks = play(game, x, torch.ones(6).long(), "bernoulli", 10)
    assert game.passes == 6 * (10 + 2)
    assert torch.allclose(masks.full - masks.empty, (x * WEIGHTS).sum(1), atol=1e-5)
    assert play(game, x, torch.ones(6).long(), "all", 0).keep.shape == (6, 16, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, x: fl.attribute("ig", g, x), "method 'ig': must be one of"),
        (lambda g, x: fl.attribute("grad_cam", g, x), "grad_cam does not explain table tasks"),
        (lambda g, x: fl.attribute("lime", g, x, settings={"maks": 3}), "lime: maks = 3: Extra inputs are not permitted"),
        (lambda g, x: fl.attribute("lime", g, x, settings={"masks": 0}), "lime: masks = 0: .*greater than or equal to 1"),
        (lambda g, x: fl.attribute("expected_gradients", g, x), "needs background inputs"),
        (lambda g, x: fl.attribute("guided_backprop", g, x), "Additive has no ReLU module"),
        (lambda g, x: fl.score(g, x, {"a": torch.zeros(3, 3)}), r"maps of 'a' have shape \(3, 3\); \(6, 4\) expected"),
        (lambda g, x: fl.score(g, x, {"a": x}, convention="loose"), "convention"),
    ],
)
def test_misuse_is_named(game: fl.MaskedModel, x: Tensor, call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call(game, x)
