"""Grad-CAM++ and Score-CAM on small networks whose answers can be written down."""

import pytest
import torch
import torch.nn.functional as F
from tests.tiny_networks import TinyViT
from torch import Tensor, nn

from faithline.attributions import grad_cam, grad_cam_plus_plus, score_cam
from faithline.attributions.query import DoesNotFit, Query
from faithline.attributions.spatial import activations_and_gradients, last_grid
from faithline.config import GradientSettings, ScoreCamSettings
from faithline.masking import Baseline, Features, MaskedModel

LOGIT = GradientSettings(role="supervision", output="logit")
HEAD = torch.tensor([[3.0, -1.0, 0.5], [0.0, 0.0, 0.0]])
"""Weights of two classes on the pooled channels."""


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def pooled() -> tuple[MaskedModel, Tensor]:
    """Three channels (the input, twice the input, its shortfall below 1), averaged, then a linear head; with images.

    They are 2 x 2, one cell a pixel, so that nothing is enlarged.
    """
    convolution, head = nn.Conv2d(1, 3, 1), nn.Linear(3, 2)
    with torch.no_grad():
        convolution.weight.copy_(torch.tensor([1.0, 2.0, -1.0]).reshape(3, 1, 1, 1))
        convolution.bias.copy_(torch.tensor([0.0, 0.0, 1.0]))
        head.weight.copy_(HEAD)
        head.bias.zero_()
    model = nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    game = MaskedModel(model, Features("image", (1, 2, 2), 2, 2), Baseline.zero(), output="logit", max_batch=4)
    return game, torch.tensor([[[[0.5, 1.0], [0.25, 0.0]]], [[[0.1, 0.2], [0.9, 0.4]]], [[[0.3, 0.3], [0.3, 0.3]]]])


def ask(game: MaskedModel, x: Tensor, target: int = 0) -> Query:
    return Query(game, x, torch.full((len(x),), target), None, None, torch.arange(len(x)))


def channels(x: Tensor) -> Tensor:
    """Activations of the fixture's last grid."""
    return torch.cat([x, 2 * x, (1 - x).relu()], 1)


def test_the_layer_says_what_it_gives_and_what_the_class_makes_of_it(pooled: tuple[MaskedModel, Tensor]) -> None:
    game, x = pooled
    grid = last_grid(game.model, x[:1])
    assert grid.layer is game.model[1]
    view = game.gradient_view(x.clone().requires_grad_(), "logit")
    view.inputs.requires_grad_()
    activation, gradient = activations_and_gradients(view, grid, torch.zeros(3, dtype=torch.long))
    torch.testing.assert_close(activation, channels(x))
    torch.testing.assert_close(gradient, (HEAD[0] / 4).reshape(1, 3, 1, 1).expand(3, 3, 2, 2))


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_a_vision_transformer_is_seen_at_the_input_of_its_last_attention(pool: str) -> None:
    torch.manual_seed(3)
    model = TinyViT(2, (12, 8), 4, 3, pool).eval()
    x = torch.randn(3, 2, 12, 8)
    game = MaskedModel(model, Features("image", (2, 12, 8), 3, 2), Baseline.zero(), max_batch=8)
    maps = {module: module.attribute(ask(game, x, 2), LOGIT) for module in (grad_cam, grad_cam_plus_plus)}
    assert game.passes == 6  # nothing had to be searched
    tokens = torch.cat([model.cls_token.expand(3, -1, -1), model.patch_embed(x)], 1)
    tokens = (tokens + model.blocks[0](tokens)).detach().requires_grad_()
    seen = tokens * 1  # what the last attention sees, apart from what skips it
    last = tokens + model.blocks[1](seen)
    value = model.head(last[:, 0] if pool == "token" else last[:, 1:].mean(1))[:, 2].sum()
    gradient = torch.autograd.grad(value, seen)[0][:, 1:]
    activation = tokens.detach()[:, 1:]
    plain = (activation * gradient.mean(1, keepdim=True)).sum(2)
    weight = (gradient.relu() / (2 + activation.sum(1, keepdim=True) * gradient).clamp(min=1)).sum(1, keepdim=True)
    plus = (activation * weight).sum(2)
    for module, expected in ((grad_cam, plain), (grad_cam_plus_plus, plus)):
        fine = F.interpolate(expected.reshape(3, 1, 3, 2), size=(12, 8), mode="bilinear", align_corners=False)[:, 0]
        torch.testing.assert_close(maps[module], fine, atol=1e-5, rtol=1e-4)
        assert (fine != 0).any()


def test_grad_cam_plus_plus_by_hand(pooled: tuple[MaskedModel, Tensor]) -> None:
    game, x = pooled
    activation = channels(x)
    gradient = HEAD[0] / 4
    # Each cell of a channel has the same gradient g, so that its weight is 4 relu(g) g^2 / (2 g^2 + A g^3).
    total = activation.sum((2, 3))
    weight = 4 * gradient.relu() * gradient**2 / (2 * gradient**2 + total * gradient**3)
    assert (weight[:, 1] == 0).all()
    expected = torch.einsum("bc,bchw->bhw", weight, activation)
    torch.testing.assert_close(grad_cam_plus_plus.attribute(ask(game, x), LOGIT), expected, atol=1e-6, rtol=1e-5)
    assert (grad_cam_plus_plus.attribute(ask(game, x, 1), LOGIT) == 0).all()


def test_grad_cam_plus_plus_differs_from_grad_cam_where_the_cells_do() -> None:
    """A fully connected head: every cell has its own gradient; the formula cell by cell, with the exponential written out."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3))
    x = torch.randn(3, 1, 4, 4) * 3
    game = MaskedModel(model, Features("image", (1, 4, 4), 2, 2), Baseline.zero(), max_batch=8)
    maps = grad_cam_plus_plus.attribute(ask(game, x, 2), LOGIT)
    activation = model[1](model[0](x)).detach().requires_grad_()
    score = model[3](activation.flatten(1))[:, 2]
    score.exp().sum().backward()
    scale = score.exp().detach()[:, None, None, None]
    first = activation.grad
    second, third = first**2 / scale, first**3 / scale**2  # derivatives of exp of a function that is linear in the activations
    share = second / (2 * second + activation.detach().sum((2, 3), keepdim=True) * third)
    weight = (share * first.relu()).sum((2, 3), keepdim=True) / scale
    expected = (weight * activation.detach()).sum(1)
    torch.testing.assert_close(maps, expected, atol=1e-5, rtol=1e-4)
    assert (maps - grad_cam.attribute(ask(game, x, 2), LOGIT)).abs().max() > 1e-2


def test_grad_cam_plus_plus_of_activations_that_are_not_rectified_stays_finite() -> None:
    """2 + A g = 0 for the only channel."""
    convolution, head = nn.Conv2d(1, 1, 1, bias=False), nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        convolution.weight.fill_(-1)
        head.weight.fill_(1)
    game = MaskedModel(nn.Sequential(convolution, nn.Flatten(), head), Features("image", (1, 2, 2), 2, 2), Baseline.zero())
    x = torch.full((1, 1, 2, 2), 0.5)
    torch.testing.assert_close(grad_cam_plus_plus.attribute(ask(game, x), LOGIT), torch.full((1, 2, 2), -2.0))


def score_cam_by_hand(x: Tensor, tried: list[int]) -> Tensor:
    """f(x through a channel's stretched map) - f(0) is the channel's weight; f is computed from the definition of the model."""

    def logit(image: Tensor) -> Tensor:
        return channels(image).mean((2, 3)) @ HEAD[0]

    activation = channels(x)
    expected = torch.zeros(len(x), 2, 2)
    for k in tried:
        one = activation[:, k : k + 1]
        low, high = one.amin((2, 3), keepdim=True), one.amax((2, 3), keepdim=True)
        shown = torch.where(high == low, 0.0, (one - low) / (high - low).clamp(min=1e-9))
        weight = logit(shown * x) - logit(torch.zeros_like(x))
        expected += weight[:, None, None] * one[:, 0]
    return expected


@pytest.mark.parametrize(("tried", "count"), [([0], 1), ([0, 1], 2), ([0, 1, 2], 3), ([0, 1, 2], 99)])
def test_score_cam_by_hand(pooled: tuple[MaskedModel, Tensor], tried: list[int], count: int) -> None:
    """|Grad-CAM weights| are 3, 1 and 0.5 quarters: that is the order in which channels are tried."""
    game, x = pooled
    before = game.passes
    maps = score_cam.attribute(ask(game, x), ScoreCamSettings(role="supervision", output="logit", channels=count))
    torch.testing.assert_close(maps, score_cam_by_hand(x, tried), atol=1e-6, rtol=1e-5)
    assert (maps[2] == 0).all(), "a channel that is the same everywhere shows nothing"
    assert game.passes - before == 1 + 3 * (2 + len(tried))


def test_score_cam_blends_with_what_the_game_removes_to(pooled: tuple[MaskedModel, Tensor]) -> None:
    game, x = pooled
    settings = ScoreCamSettings(role="supervision", output="prob", channels=1)
    other = game.with_baseline(Baseline.noise(1.0, (1, 2, 2), torch.Generator().manual_seed(0)))
    removed = other.baseline.values
    shown = (x - x.amin((2, 3), keepdim=True)) / (x.amax((2, 3), keepdim=True) - x.amin((2, 3), keepdim=True)).clamp(min=1e-9)
    seen = shown * x + (1 - shown) * removed
    with torch.no_grad():
        weight = game.model(seen).softmax(1)[:, 0] - game.model(removed[None]).softmax(1)[:, 0]
    torch.testing.assert_close(
        score_cam.attribute(ask(other, x), settings), weight[:, None, None] * x[:, 0], atol=1e-6, rtol=1e-5
    )


def test_score_cam_enlarges_before_it_stretches() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(2, 3, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    x = torch.randn(4, 2, 4, 4) * 2
    game = MaskedModel(model, Features("image", (2, 4, 4), 2, 2), Baseline.zero(), max_batch=5)
    maps = score_cam.attribute(ask(game, x), ScoreCamSettings(role="supervision", output="prob", channels=3))
    with torch.no_grad():
        activation = model[1](model[0](x))
        fine = F.interpolate(activation, size=(4, 4), mode="bilinear", align_corners=False)
        expected = torch.zeros(4, 4, 4)
        floor = model(torch.zeros_like(x)).softmax(1)[:, 0]
        for k in range(3):
            low, high = fine[:, [k]].amin((2, 3), keepdim=True), fine[:, [k]].amax((2, 3), keepdim=True)
            shown = torch.where(high == low, 0.0, (fine[:, [k]] - low) / (high - low).clamp(min=1e-9))
            expected += (model(shown * x).softmax(1)[:, 0] - floor)[:, None, None] * fine[:, k]
    torch.testing.assert_close(maps, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("module", [grad_cam, grad_cam_plus_plus, score_cam])
def test_class_activation_maps_do_not_fit_a_model_without_a_grid(module: object) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    game = MaskedModel(model, Features("image", (1, 4, 4), 2, 2), Baseline.zero(), max_batch=8)
    settings = ScoreCamSettings(role="supervision", output="logit", channels=2) if module is score_cam else LOGIT
    with pytest.raises(DoesNotFit, match="no module of Sequential gives an output"):
        module.attribute(ask(game, torch.randn(2, 1, 4, 4)), settings)
