"""SmoothGrad, guided backpropagation, deconvolution, DeepLIFT SHAP and LRP: against captum, and against arithmetic by hand."""

import pytest
import torch
from captum.attr import LRP, Deconvolution, DeepLift, DeepLiftShap, GuidedBackprop, NoiseTunnel, Saliency
from captum.attr._utils.lrp_rules import EpsilonRule
from tests.tiny_networks import TinyViT, louder
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from faithline.attributions import deconvolution, deeplift_shap, guided_backprop, input_x_gradient, lrp, saliency, smooth_grad
from faithline.attributions.query import DoesNotFit, Query
from faithline.config import DeepLiftShapSettings, GradientSettings, LrpSettings, SaliencySettings, SmoothGradSettings
from faithline.masking import Baseline, Features, MaskedModel, column_features, token_features
from faithline.targets import MLP, SmallCNN, TextTransformer

PROB = GradientSettings(role="supervision", output="prob")
LOGIT = GradientSettings(role="supervision", output="logit")
World = tuple[MaskedModel, Tensor, Tensor]


pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:Setting"),
    pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients"),
]


@pytest.fixture
def image() -> World:
    """A CNN with batch normalisation and pooling on 10 x 8 images in a 5 x 4 grid of patches."""
    torch.manual_seed(1)
    model = louder(
        nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(32, 4),
        )
    )  # fmt: skip
    x = torch.randn(4, 2, 10, 8)
    game = MaskedModel(model, Features("image", (2, 10, 8), 5, 4), Baseline.zero(), max_batch=64)
    return game, x, game.predict(x)[1].clone()


@pytest.fixture
def table() -> World:
    """A ReLU network on 6 columns."""
    torch.manual_seed(2)
    model = louder(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3)))
    x = torch.randn(5, 6)
    game = MaskedModel(model, column_features(6), Baseline.mean(torch.randn(6) / 3), max_batch=64)
    return game, x, game.predict(x)[1].clone()


class Bag(nn.Module):
    """A ReLU network on the mean embedding of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 5, padding_idx=0)
        self.head = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embedding(ids).mean(1))


@pytest.fixture
def text() -> World:
    """Texts of 5, 3 and 1 tokens."""
    torch.manual_seed(3)
    x = torch.tensor([[4, 7, 2, 9, 11], [5, 6, 10, 0, 0], [8, 0, 0, 0, 0]])
    game = MaskedModel(louder(Bag()), token_features(5, 0), Baseline.token("pad", 0), max_batch=32)
    return game, x, game.predict(x)[1].clone()


def ask(game: MaskedModel, x: Tensor, target: Tensor, background: Tensor | None = None) -> Query:
    return Query(game, x, target, None, background, torch.arange(len(x)) * 31 + 5)


def probabilities(game: MaskedModel) -> nn.Module:
    return nn.Sequential(game.model, nn.Softmax(1))


# --------------------------------------------------------------------------------------------------------------- SmoothGrad


def test_smooth_grad_is_captums_noise_tunnel_on_the_same_noise(image: World, monkeypatch: pytest.MonkeyPatch) -> None:
    game, x, target = image
    settings = SmoothGradSettings(role="supervision", output="prob", samples=6, std=0.2)
    query = ask(game, x, target)
    maps = smooth_grad.attribute(query, settings)
    for i, seed in enumerate(query.seeds.tolist()):
        noise = torch.randn(6, *x.shape[1:], generator=torch.Generator().manual_seed(seed))
        monkeypatch.setattr(torch, "normal", lambda mean, std, noise=noise: mean + std * noise)
        peer = NoiseTunnel(Saliency(probabilities(game))).attribute(
            x[i : i + 1].clone().requires_grad_(),
            nt_type="smoothgrad",
            nt_samples=6,
            stdevs=0.2 * float(x[i].max() - x[i].min()),
            target=target[i : i + 1],
            abs=False,
        )
        torch.testing.assert_close(maps[i], peer.detach()[0].sum(0), atol=1e-5, rtol=1e-5)


def test_smooth_grad_of_little_noise_is_the_gradient_and_of_more_is_not(table: World) -> None:
    game, x, target = table
    gradient = saliency.attribute(ask(game, x, target), SaliencySettings(role="supervision", output="prob", absolute=False))
    made = [
        smooth_grad.attribute(ask(game, x, target), SmoothGradSettings(role="supervision", output="prob", samples=4, std=std))
        for std in (1e-6, 0.5)
    ]
    torch.testing.assert_close(made[0], gradient, atol=1e-4, rtol=1e-3)
    assert (made[1] - gradient).abs().max() > 1e-2


def test_smooth_grad_disturbs_no_padding(text: World) -> None:
    """Whatever the padding's embedding is, it neither sets the range of the noise nor gets any."""
    game, x, target = text
    settings = SmoothGradSettings(role="supervision", output="logit", samples=3, std=0.3)
    seen: list[Tensor] = []
    game.model.head.register_forward_pre_hook(lambda _module, args: seen.append(args[0].detach()))
    maps = smooth_grad.attribute(ask(game, x, target), settings)
    embedded = game.embedding().weight[8]
    spread = settings.std * (embedded.max() - embedded.min())
    noise = torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(67))[:, 0]
    torch.testing.assert_close(seen[0][6:], (embedded + spread * noise) / 5, atol=1e-6, rtol=1e-5)
    assert (maps[x == 0] == 0).all()


# -------------------------------------------------------------------------------------------- guided backprop, deconvolution


@pytest.mark.parametrize(("module", "peer"), [(guided_backprop, GuidedBackprop), (deconvolution, Deconvolution)])
@pytest.mark.parametrize("settings", [PROB, LOGIT])
def test_rectified_gradients_are_captums(image: World, module: object, peer: type, settings: GradientSettings) -> None:
    game, x, target = image
    model = probabilities(game) if settings.output == "prob" else game.model
    expected = peer(model).attribute(x.clone().requires_grad_(), target).detach().sum(1)
    torch.testing.assert_close(module.attribute(ask(game, x, target), settings), expected, atol=1e-5, rtol=1e-5)


def test_rectified_gradients_by_hand() -> None:
    """Hidden units 1, -2 and 3 (the second is off) with outer weights 2, 5 and -4; the inner weights are the rows below."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, -1.0], [1.0, 2.0]]))
        model[2].weight.copy_(torch.tensor([[2.0, 5.0, -4.0], [0.0, 0.0, 0.0]]))
        for layer in (model[0], model[2]):
            layer.bias.zero_()
    query = ask(
        MaskedModel(model, column_features(2), Baseline.zero(), max_batch=8), torch.tensor([[1.0, 1.0]]), torch.tensor([0])
    )
    # Gradient: 2 (1, 0) - 4 (1, 2). Guided: only the first unit is on and has a positive gradient. Deconvolution: the second too.
    plain = saliency.attribute(query, SaliencySettings(role="supervision", output="logit", absolute=False))
    torch.testing.assert_close(plain, torch.tensor([[-2.0, -8.0]]))
    torch.testing.assert_close(guided_backprop.attribute(query, LOGIT), torch.tensor([[2.0, 0.0]]))
    torch.testing.assert_close(deconvolution.attribute(query, LOGIT), torch.tensor([[-3.0, -5.0]]))


@pytest.mark.parametrize("module", [guided_backprop, deconvolution])
def test_rectified_gradients_do_not_fit_a_model_without_relu(module: object) -> None:
    game = MaskedModel(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)), column_features(3), Baseline.zero())
    with pytest.raises(DoesNotFit, match="Sequential has no ReLU module, so that the map would be its plain gradient"):
        module.attribute(ask(game, torch.randn(2, 3), torch.tensor([0, 1])), PROB)
    assert game.passes == 0


# -------------------------------------------------------------------------------------------------------------- DeepLIFT SHAP


def test_deeplift_shap_of_logits_is_captums_and_complete(image: World) -> None:
    game, x, target = image
    background = torch.randn(7, 2, 10, 8)
    settings = DeepLiftShapSettings(role="supervision", output="logit", rows=5)
    maps = deeplift_shap.attribute(ask(game, x, target, background), settings)
    peer = DeepLiftShap(game.model).attribute(x.clone(), background[:5], target).detach().sum(1)
    torch.testing.assert_close(maps, peer, atol=1e-5, rtol=1e-4)


def test_deeplift_shap_of_probabilities_is_complete_row_by_row(table: World) -> None:
    game, x, target = table
    background = torch.randn(4, 6)
    settings = DeepLiftShapSettings(role="supervision", output="prob", rows=4)
    maps = deeplift_shap.attribute(ask(game, x, target, background), settings)
    with torch.no_grad():
        own = game.model(x).softmax(1).gather(1, target[:, None])[:, 0]
        others = game.model(background).softmax(1)[:, target].mean(0)
    torch.testing.assert_close(maps.sum(1), own - others, atol=1e-5, rtol=1e-4)
    one = DeepLiftShapSettings(role="supervision", output="prob", rows=1)
    alone = deeplift_shap.attribute(ask(game, x, target, background), one)
    singles = [
        DeepLift(probabilities(game)).attribute(x[i : i + 1].clone().requires_grad_(), background[:1], target[i : i + 1])
        for i in range(5)
    ]
    # captum divides by the change of the class's logit, we by that less the mean logit: one factor a sample.
    ratio = alone / torch.cat(singles).detach()
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio), atol=1e-3, rtol=1e-3)


def test_deeplift_shap_of_a_text_is_complete(text: World) -> None:
    game, x, target = text
    background = torch.tensor([[3, 4, 5, 6, 7], [1, 2, 0, 0, 0]])
    settings = DeepLiftShapSettings(role="supervision", output="logit", rows=2)
    maps = deeplift_shap.attribute(ask(game, x, target, background), settings)
    other = torch.where(x[:, None] != 0, background[None], 0)  # padding stays, and a text that ended is padding
    with torch.no_grad():
        shift = game.model(x) - game.model(other.flatten(0, 1)).reshape(3, 2, -1).mean(1)
    torch.testing.assert_close(maps.sum(1), shift.gather(1, target[:, None])[:, 0], atol=1e-5, rtol=1e-4)
    assert (maps[x == 0] == 0).all()


def test_where_the_logit_stays_contributions_are_those_of_the_derivative() -> None:
    """Two columns that cancel: the probability stays at 1/2, where its derivative is 1/4."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    game = MaskedModel(model, column_features(2), Baseline.zero(), max_batch=8)
    settings = DeepLiftShapSettings(role="supervision", output="prob", rows=1)
    maps = deeplift_shap.attribute(ask(game, torch.tensor([[2.0, -2.0]]), torch.tensor([1]), torch.zeros(1, 2)), settings)
    torch.testing.assert_close(maps, torch.tensor([[0.5, -0.5]]))


def test_deeplift_shap_refuses_too_small_a_background(table: World) -> None:
    game, x, target = table
    settings = DeepLiftShapSettings(role="supervision", output="prob", rows=5)
    with pytest.raises(ValueError, match=r"deeplift_shap.rows = 5: there are only 4 background rows"):
        deeplift_shap.attribute(ask(game, x, target, torch.randn(4, 6)), settings)


# ------------------------------------------------------------------------------------------------------------------------ LRP


def test_lrp_without_gamma_is_captums_and_input_x_gradient(image: World) -> None:
    game, x, target = image
    maps = lrp.attribute(ask(game, x, target), LrpSettings(role="supervision", epsilon=1e-9, gamma=0))
    for layer in game.model:
        if isinstance(layer, nn.Flatten):  # captum has no rule for it
            layer.rule = EpsilonRule()
    peer = LRP(game.model).attribute(x.clone().requires_grad_(), target).detach().sum(1)
    torch.testing.assert_close(maps, peer, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(maps, input_x_gradient.attribute(ask(game, x, target), LOGIT), atol=1e-4, rtol=1e-3)


def test_lrp_gamma_by_hand_between_the_ends() -> None:
    """Three layers: the middle one hands on its relevance in proportion to a (w + gamma w+), the others to a w."""
    torch.manual_seed(4)
    layers = nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)
    model = louder(nn.Sequential(*layers))
    x, target = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])
    game = MaskedModel(model, column_features(3), Baseline.zero(), max_batch=16)
    maps = lrp.attribute(ask(game, x, target), LrpSettings(role="supervision", epsilon=1e-9, gamma=0.5))

    def back(relevance: Tensor, activation: Tensor, weight: Tensor) -> Tensor:
        given = activation[:, None] * weight  # (B, outputs, inputs)
        total = given.sum(2)
        return (given * (relevance / torch.where(total == 0, 1.0, total))[:, :, None]).sum(1)

    with torch.no_grad():
        first = model[1](model[0](x))
        second = model[3](model[2](first))
        logit = model[4](second).gather(1, target[:, None])
        relevance = back(logit, second, model[4].weight[target][:, None])
        weight = model[2].weight + 0.5 * model[2].weight.clamp(min=0)
        relevance = back(relevance, first, weight[None])
        expected = back(relevance, x, model[0].weight[None])
    torch.testing.assert_close(maps, expected, atol=1e-5, rtol=1e-4)
    plain = lrp.attribute(ask(game, x, target), LrpSettings(role="supervision", epsilon=1e-9, gamma=0))
    assert (maps - plain).abs().max() > 1e-2
    # Nothing gets lost without biases, where a unit with relevance has something to hand on.
    torch.testing.assert_close(plain.sum(1), logit[:, 0], atol=1e-5, rtol=1e-4)


def normalised() -> nn.Sequential:
    """Three convolutions, two with a batch normalisation that shifts and scales, one of these without a bias of its own."""
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 2),
        nn.BatchNorm2d(5, affine=False), nn.ReLU(), nn.Flatten(), nn.Linear(45, 3),
    )  # fmt: skip
    model.train()
    model(torch.randn(64, 1, 8, 8) * 2 + 1)
    with torch.no_grad():
        model[3].weight.copy_(torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0, 2.0]))
        model[3].bias.normal_()
    return model.eval()


def test_lrp_folds_batch_normalisation_into_the_convolution_before_it() -> None:
    game = MaskedModel(normalised(), Features("image", (1, 8, 8), 4, 4), Baseline.zero(), max_batch=8)
    x = torch.randn(3, 1, 8, 8)
    target = game.predict(x)[1].clone()
    settings = LrpSettings(role="supervision", epsilon=1e-7, gamma=0.5)
    layers = list(normalised())
    folded = nn.Sequential(
        *layers[:2], fuse_conv_bn_eval(layers[2], layers[3]), layers[4], fuse_conv_bn_eval(layers[5], layers[6]), *layers[7:]
    )
    other = MaskedModel(folded, game.features, Baseline.zero(), max_batch=8)
    maps = lrp.attribute(ask(game, x, target), settings)
    torch.testing.assert_close(maps, lrp.attribute(ask(other, x, target), settings), atol=1e-5, rtol=1e-4)
    assert game.passes - 3 == other.passes == 6


def test_lrp_puts_everything_back_and_leaves_no_rule() -> None:
    model = normalised()
    game = MaskedModel(model, Features("image", (1, 8, 8), 4, 4), Baseline.zero(), max_batch=8)
    kept = {name: (value, value.clone()) for name, value in [*model.named_parameters(), *model.named_buffers()]}
    lrp.attribute(
        ask(game, torch.randn(3, 1, 8, 8), torch.tensor([0, 1, 2])), LrpSettings(role="supervision", epsilon=1e-4, gamma=1)
    )
    now = dict([*model.named_parameters(), *model.named_buffers()])
    assert now.keys() == kept.keys()
    assert all(now[name] is value and torch.equal(value, copy) for name, (value, copy) in kept.items())
    assert not any(hasattr(layer, name) for layer in model for name in ("rule", "activations"))


class Idle(nn.Module):
    """A chain with a layer that is never used, and reshaping by a method."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.first, self.head = nn.Identity(), nn.Conv2d(1, 2, 3), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        found = self.first(x)
        return self.head(found.reshape(found.size(0), -1))


def test_lrp_passes_idle_layers_and_reshaping() -> None:
    game = MaskedModel(Idle(), Features("image", (1, 4, 4), 2, 2), Baseline.zero(), max_batch=8)
    query = ask(game, torch.randn(3, 1, 4, 4), torch.tensor([0, 1, 0]))
    maps = lrp.attribute(query, LrpSettings(role="supervision", epsilon=1e-9, gamma=0.5))
    torch.testing.assert_close(maps, input_x_gradient.attribute(query, LOGIT), atol=1e-5, rtol=1e-4)
    assert not hasattr(game.model.idle, "rule")


class Residual(nn.Module):
    """A chain of known layers but for a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.head = nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.relu(self.first(x)))


class Branching(nn.Module):
    """Its way depends on its input."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) if x.sum() > 0 else -self.head(x)


def test_lrp_says_what_it_has_no_rule_for() -> None:
    shared = nn.ReLU()
    cases = {
        "no propagation rule for GELU of Sequential": nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 2)),
        "Residual uses 'add' between its layers": Residual(),
        "Branching cannot be traced": Branching(),
        "Sequential uses 1 more than once": nn.Sequential(nn.Linear(3, 3), shared, nn.Linear(3, 3), shared, nn.Linear(3, 2)),
        "Linear uses": nn.Linear(3, 2),
    }
    for message, model in cases.items():
        game = MaskedModel(model, column_features(3), Baseline.zero(), max_batch=8)
        with pytest.raises(DoesNotFit, match=message):
            lrp.attribute(
                ask(game, torch.randn(2, 3), torch.tensor([0, 1])), LrpSettings(role="supervision", epsilon=1e-4, gamma=0.25)
            )
        assert game.passes == 0


def test_lrp_fits_the_projects_chains_and_no_transformer() -> None:
    assert len(lrp.chain(MLP(4, 2, width=8, depth=2, dropout=0.1))) == 7
    assert len(lrp.chain(SmallCNN(1, 28, 10, width=4, depth=3, dropout=0.1))) == 12
    with pytest.raises(DoesNotFit, match="TinyViT cannot be traced as a graph of layers"):
        lrp.chain(TinyViT(1, (8, 8), 4, 2))
    transformer = TextTransformer(9, 5, 2, width=4, depth=1, heads=1, dropout=0.0, token_dropout=0.0, pad_id=0)
    with pytest.raises(DoesNotFit, match="no propagation rule for Embedding, LayerNorm, Softmax of TextTransformer"):
        lrp.chain(transformer)
