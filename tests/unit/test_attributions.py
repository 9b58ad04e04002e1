"""Each attribution method against captum on the same inputs and masks, against brute force, and against arithmetic by hand."""

import itertools
import math
from collections.abc import Iterator

import captum.attr._core.gradient_shap as captum_gradient_shap
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captum._utils.models.linear_model import SkLearnRidge
from captum.attr import (
    DeepLift,
    FeatureAblation,
    InputXGradient,
    IntegratedGradients,
    KernelShap,
    LayerGradCam,
    LayerIntegratedGradients,
    Lime,
    Occlusion,
    Saliency,
    ShapleyValues,
)
from torch import Tensor, nn

from faithline.attributions import (
    banzhaf,
    deeplift,
    exact_banzhaf,
    exact_shapley,
    expected_gradients,
    feature_ablation,
    grad_cam,
    input_x_gradient,
    integrated_gradients,
    kernel_shap,
    lime,
    occlusion,
    saliency,
)
from faithline.attributions.least_squares import efficient_ridge, weighted_ridge
from faithline.attributions.query import Query
from faithline.attributions.spatial import last_grid
from faithline.bank import Masks, all_keep_sets
from faithline.config import (
    BanzhafSettings,
    ExpectedGradientsSettings,
    GradientSettings,
    IntegratedGradientsSettings,
    KernelShapSettings,
    LimeSettings,
    MethodSettings,
    OcclusionSettings,
    SaliencySettings,
)
from faithline.masking import Baseline, Features, MaskedModel, column_features, token_features

GRADIENT = GradientSettings(role="supervision", output="prob")
LOGIT = GradientSettings(role="supervision", output="logit")


pytestmark = pytest.mark.usefixtures("one_thread")


def seeds(count: int) -> Tensor:
    return torch.arange(count) * 31 + 5


def ask(game: MaskedModel, x: Tensor, target: Tensor, masks: Masks | None = None, background: Tensor | None = None) -> Query:
    return Query(game, x, target, masks, background, seeds(len(x)))


@pytest.fixture
def image() -> tuple[MaskedModel, Tensor, Tensor]:
    """A CNN with max pooling on 10 x 8 images in a 5 x 4 grid of 2 x 2 patches."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 20, 4),
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    x = torch.randn(4, 2, 10, 8)
    game = MaskedModel(model, Features("image", (2, 10, 8), 5, 4), Baseline.zero(), max_batch=64)
    return game, x, game.predict(x)[1].clone()


@pytest.fixture
def table() -> tuple[MaskedModel, Tensor, Tensor]:
    """A ReLU network on 6 columns with a mean that is not 0."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    x = torch.randn(5, 6)
    game = MaskedModel(model, column_features(6), Baseline.mean(torch.randn(6) / 3), max_batch=64)
    return game, x, game.predict(x)[1].clone()


class TokenModel(nn.Module):
    """Attention pooling over the real tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(15, 6, padding_idx=0)
        self.score = nn.Linear(6, 1)
        self.head = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2))

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.embedding(ids)
        weight = self.score(embedded)[..., 0].masked_fill(ids == 0, -1e4).softmax(1)
        return self.head((weight[..., None] * embedded).sum(1))


@pytest.fixture
def text() -> tuple[MaskedModel, Tensor, Tensor]:
    """Texts of 6, 3 and 1 tokens, padded to 6."""
    torch.manual_seed(3)
    x = torch.tensor([[4, 7, 2, 9, 11, 3], [5, 6, 14, 0, 0, 0], [8, 0, 0, 0, 0, 0]])
    game = MaskedModel(TokenModel(), token_features(6, 0), Baseline.token("pad", 0), max_batch=32)
    return game, x, game.predict(x)[1].clone()


def drawn(game: MaskedModel, x: Tensor, target: Tensor, keep: Tensor) -> Masks:
    """Masks with their values in this game."""
    valid = game.features.valid(x)
    keep = keep | ~valid[:, None]
    ends = game.values(x, torch.stack([torch.ones_like(valid), ~valid], 1), target)
    return Masks(keep, game.values(x, keep, target), ends[:, 0], ends[:, 1], valid)


def all_masks(game: MaskedModel, x: Tensor, target: Tensor) -> Masks:
    return drawn(game, x, target, all_keep_sets(game.features.n).expand(len(x), -1, -1))


def table_baseline(game: MaskedModel, x: Tensor) -> Tensor:
    return game.baseline.replacement(x)[:, 0]


def probabilities(game: MaskedModel) -> nn.Module:
    return nn.Sequential(game.model, nn.Softmax(1))


# ---------------------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("absolute", [False, True])
def test_saliency_is_captums(image: tuple[MaskedModel, Tensor, Tensor], absolute: bool) -> None:
    game, x, target = image
    settings = SaliencySettings(role="supervision", output="prob", absolute=absolute)
    maps = saliency.attribute(ask(game, x, target), settings)
    peer = Saliency(probabilities(game)).attribute(x.clone().requires_grad_(), target, abs=absolute).sum(1)
    torch.testing.assert_close(maps, peer, atol=1e-6, rtol=1e-5)
    assert bool((maps >= 0).all()) == absolute


def test_input_x_gradient_is_captums(image: tuple[MaskedModel, Tensor, Tensor]) -> None:
    game, x, target = image
    maps = input_x_gradient.attribute(ask(game, x, target), LOGIT)
    peer = InputXGradient(game.model).attribute(x.clone().requires_grad_(), target).detach().sum(1)
    torch.testing.assert_close(maps, peer, atol=1e-5, rtol=1e-5)


def test_integrated_gradients_is_captums_and_complete(table: tuple[MaskedModel, Tensor, Tensor]) -> None:
    game, x, target = table
    settings = IntegratedGradientsSettings(role="supervision", output="prob", steps=25)
    maps = integrated_gradients.attribute(ask(game, x, target), settings)
    peer = IntegratedGradients(probabilities(game)).attribute(x, table_baseline(game, x), target, n_steps=25)
    torch.testing.assert_close(maps, peer.float(), atol=1e-6, rtol=1e-5)
    fine = IntegratedGradientsSettings(role="supervision", output="prob", steps=200)
    maps = integrated_gradients.attribute(ask(game, x, target), fine)
    ends = game.values(x, torch.tensor([[True] * 6, [False] * 6]).expand(5, -1, -1), target)
    torch.testing.assert_close(maps.sum(1), ends[:, 0] - ends[:, 1], atol=2e-3, rtol=0)


def test_integrated_gradients_cuts_a_path_that_is_longer_than_max_batch(table: tuple[MaskedModel, Tensor, Tensor]) -> None:
    game, x, target = table
    settings = IntegratedGradientsSettings(role="supervision", output="prob", steps=25)
    whole = integrated_gradients.attribute(ask(game, x, target), settings)
    game.max_batch = 7
    cut = integrated_gradients.attribute(ask(game, x, target), settings)
    torch.testing.assert_close(cut, whole, atol=1e-6, rtol=1e-5)


def test_integrated_gradients_of_a_text_is_captums_on_the_embedding_layer(text: tuple[MaskedModel, Tensor, Tensor]) -> None:
    game, x, target = text
    settings = IntegratedGradientsSettings(role="supervision", output="prob", steps=20)
    maps = integrated_gradients.attribute(ask(game, x, target), settings)
    peer = LayerIntegratedGradients(probabilities(game), game.embedding())
    expected = peer.attribute(x, torch.zeros_like(x), target, n_steps=20).sum(-1).float()
    torch.testing.assert_close(maps, expected, atol=1e-6, rtol=1e-5)
    assert (maps[x == 0] == 0).all()


def test_expected_gradients_is_captums_on_the_same_draws(
    table: tuple[MaskedModel, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    game, x, target = table
    background = torch.randn(9, 6)
    settings = ExpectedGradientsSettings(role="supervision", output="prob", samples=7)
    maps = expected_gradients.attribute(ask(game, x, target, background=background), settings)
    choice, position = [], []
    for seed in seeds(5).tolist():
        generator = torch.Generator().manual_seed(seed)
        choice.append(torch.randint(9, (7,), generator=generator))
        position.append(torch.rand(7, generator=generator))
    assert len(set(torch.stack(choice).flatten().tolist())) > 5
    expected = torch.zeros_like(x)
    peer = captum_gradient_shap.InputBaselineXGradient(probabilities(game))
    for draw in range(7):
        monkeypatch.setattr(np.random, "uniform", lambda _low, _high, _size, k=draw: torch.stack(position)[:, k].numpy())
        expected += peer.attribute(x, background[torch.stack(choice)[:, draw]], target).detach() / 7
    torch.testing.assert_close(maps, expected, atol=1e-6, rtol=1e-5)


def test_expected_gradients_of_a_text_starts_at_words_of_other_texts(text: tuple[MaskedModel, Tensor, Tensor]) -> None:
    game, x, target = text
    settings = ExpectedGradientsSettings(role="supervision", output="logit", samples=3)

    def explained(background: Tensor) -> Tensor:
        return expected_gradients.attribute(ask(game, x, target, background=background), settings)

    assert explained(x[:1])[0].abs().max() == 0  # a text measured against itself
    others = torch.tensor([[1, 1, 1, 0, 0, 0], [2, 2, 12, 12, 0, 0]])
    maps = explained(others)
    assert (maps[x == 0] == 0).all()
    assert (maps[x != 0] != 0).all()
    # Two words beyond the end of the background text: the padding's embedding, whatever its further length.
    longer = others.clone()
    longer[:, 4:] = 13
    torch.testing.assert_close(explained(longer)[1:], maps[1:])
    assert not torch.allclose(explained(longer)[0], maps[0])
    # A background text that has ended is made of the removing token, whichever that is.
    game.baseline = Baseline.token("mask", 1)
    torch.testing.assert_close(explained(others), explained(torch.where(others == 0, 1, others)))


def test_deeplift_of_logits_is_captums_and_complete(image: tuple[MaskedModel, Tensor, Tensor]) -> None:
    game, x, target = image
    maps = deeplift.attribute(ask(game, x, target), LOGIT)
    peer = DeepLift(game.model).attribute(x.clone().requires_grad_(), torch.zeros_like(x), target).detach().sum(1)
    torch.testing.assert_close(maps, peer, atol=1e-5, rtol=1e-4)
    logits = game.model(x) - game.model(torch.zeros_like(x))
    torch.testing.assert_close(maps.sum((1, 2)), logits.gather(1, target[:, None])[:, 0], atol=1e-4, rtol=1e-4)


def test_deeplift_of_probabilities_is_captums_single_sample_map_scaled_to_be_complete(
    table: tuple[MaskedModel, Tensor, Tensor],
) -> None:
    game, x, target = table
    maps = deeplift.attribute(ask(game, x, target), GRADIENT)
    base = table_baseline(game, x)
    ends = game.values(x, torch.tensor([[True] * 6, [False] * 6]).expand(5, -1, -1), target)
    torch.testing.assert_close(maps.sum(1), ends[:, 0] - ends[:, 1], atol=1e-5, rtol=1e-4)
    shift = game.model(x) - game.model(base)
    own = shift.gather(1, target[:, None])[:, 0]
    for i in range(5):
        # captum divides by the change of the class's logit, we by the change of that logit less the mean logit.
        row = slice(i, i + 1)
        peer = DeepLift(probabilities(game)).attribute(x[row].clone().requires_grad_(), base[row], target[row]).detach()
        torch.testing.assert_close(maps[row] * (own[i] - shift[i].mean()) / own[i], peer, atol=1e-5, rtol=1e-3)


def test_deeplift_refuses_an_activation_that_is_used_twice() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(3, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 2))
    game = MaskedModel(model, column_features(3), Baseline.zero(), max_batch=8)
    with pytest.raises(RuntimeError, match="used more than once"):
        deeplift.attribute(ask(game, torch.randn(2, 3), torch.tensor([0, 1])), GRADIENT)


def test_deeplift_of_a_text_measures_against_the_removing_token(text: tuple[MaskedModel, Tensor, Tensor]) -> None:
    game, x, target = text
    view = game.gradient_view(x, "logit")
    with torch.no_grad():  # without attention only linear layers and a ReLU are left: the map must be complete
        game.model.score.weight.zero_()
    change = view.module(view.inputs, *view.extra) - view.module(view.baseline, *view.extra)
    maps = deeplift.attribute(ask(game, x, target), LOGIT)
    torch.testing.assert_close(maps.sum(1), change.gather(1, target[:, None])[:, 0], atol=1e-5, rtol=1e-4)


def test_grad_cam_is_captums_signed_map_enlarged(image: tuple[MaskedModel, Tensor, Tensor]) -> None:
    game, x, target = image
    layer = last_grid(game.model, x[:1]).layer
    assert layer is game.model[4]
    maps = grad_cam.attribute(ask(game, x, target), LOGIT)
    coarse = LayerGradCam(game.model, layer).attribute(x.clone().requires_grad_(), target).detach()
    torch.testing.assert_close(
        maps, F.interpolate(coarse, size=(10, 8), mode="bilinear", align_corners=False)[:, 0], atol=1e-5, rtol=1e-5
    )
    assert (maps < 0).any()


def test_grad_cam_skips_pooled_layers_and_refuses_a_model_without_a_grid() -> None:
    convolution = nn.Conv2d(1, 3, 3)
    pooled = nn.Sequential(nn.Sequential(convolution, nn.ReLU()), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    assert last_grid(pooled, torch.zeros(1, 1, 6, 6)).layer is pooled[0]
    with pytest.raises(ValueError, match="no module of Sequential gives an output"):
        last_grid(nn.Sequential(nn.Flatten(), nn.Linear(36, 2)), torch.zeros(1, 1, 6, 6))


# ------------------------------------------------------------------------------------------------------- removal of features


@pytest.mark.parametrize(("window", "stride"), [(1, 1), (2, 1), (3, 2), (2, 2), (4, 3)])
def test_occlusion_of_images_is_captums(image: tuple[MaskedModel, Tensor, Tensor], window: int, stride: int) -> None:
    game, x, target = image
    settings = OcclusionSettings(role="supervision", window=window, stride=stride)
    scores = occlusion.attribute(ask(game, x, target), settings)
    peer = Occlusion(probabilities(game)).attribute(
        x, (2, 2 * window, 2 * window), strides=(2, 2 * stride, 2 * stride), target=target, baselines=0
    )
    # captum gives every pixel of a patch the patch's number.
    torch.testing.assert_close(scores, peer[:, 0, ::2, ::2].flatten(1).float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("window", "stride"), [(1, 1), (2, 1), (4, 3), (6, 1)])
def test_occlusion_of_tables_is_captums(window: int, stride: int) -> None:
    torch.manual_seed(4)
    game = MaskedModel(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), column_features(6), Baseline.zero())
    x = torch.randn(5, 6)
    target = game.predict(x)[1]
    settings = OcclusionSettings(role="supervision", window=window, stride=stride)
    scores = occlusion.attribute(ask(game, x, target), settings)
    peer = Occlusion(probabilities(game)).attribute(x, (window,), strides=(stride,), target=target, baselines=0)
    torch.testing.assert_close(scores, peer.float(), atol=1e-5, rtol=1e-5)


def test_occlusion_of_a_text_slides_over_its_real_tokens(text: tuple[MaskedModel, Tensor, Tensor]) -> None:
    game, x, target = text
    settings = OcclusionSettings(role="supervision", window=2, stride=1)
    scores = occlusion.attribute(ask(game, x, target), settings)

    def fall(removed: list[int], row: int) -> float:
        keep = torch.tensor([[[True] * 6, [i not in removed for i in range(6)]]])
        values = game.values(x[row : row + 1], keep, target[row : row + 1])[0]
        return float(values[0] - values[1])

    first, second = fall([0, 1], 1), fall([1, 2], 1)
    torch.testing.assert_close(scores[1], torch.tensor([first, (first + second) / 2, second, 0, 0, 0]), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(scores[2], torch.tensor([fall([0], 2), 0, 0, 0, 0, 0]), atol=1e-6, rtol=1e-5)


def test_occlusion_refuses_gaps_and_windows_that_do_not_fit(image: tuple[MaskedModel, Tensor, Tensor]) -> None:
    game, x, target = image
    for window, stride, message in ((2, 3, "stride = 3: must be <= window = 2"), (5, 1, "window = 5: must be <= the 5 x 4 grid")):
        settings = OcclusionSettings(role="supervision", window=window, stride=stride)
        with pytest.raises(ValueError, match=message):
            occlusion.attribute(ask(game, x, target), settings)


def patch_mask(features: Features) -> Tensor:
    """captum's feature mask: number of the patch that a pixel belongs to."""
    return features.expand(torch.arange(features.n)[None].float()).long()


def test_feature_ablation_is_captums(image: tuple[MaskedModel, Tensor, Tensor]) -> None:
    game, x, target = image
    masks = drawn(game, x, target, (~torch.eye(20, dtype=torch.bool)).expand(4, -1, -1))
    passes = game.passes
    scores = feature_ablation.attribute(ask(game, x, target, masks), MethodSettings(role="supervision"))
    assert game.passes == passes
    peer = FeatureAblation(probabilities(game)).attribute(
        x, baselines=0, target=target, feature_mask=patch_mask(game.features).expand(1, 2, -1, -1)
    )
    torch.testing.assert_close(scores, peer[:, 0, ::2, ::2].flatten(1).float(), atol=1e-5, rtol=1e-5)
    one = OcclusionSettings(role="supervision", window=1, stride=1)
    torch.testing.assert_close(scores, occlusion.attribute(ask(game, x, target), one))


def test_feature_ablation_refuses_other_masks(table: tuple[MaskedModel, Tensor, Tensor]) -> None:
    game, x, target = table
    masks = drawn(game, x, target, torch.ones(5, 4, 6, dtype=torch.bool))
    with pytest.raises(ValueError, match="needs 6 single-removal masks a sample; it got 4 a sample"):
        feature_ablation.attribute(ask(game, x, target, masks), MethodSettings(role="supervision"))


# ---------------------------------------------------------------------------------------------------------------- linear fits


@pytest.mark.parametrize(("width", "ridge"), [(0.5, 0.01), (0.2, 1.0), (1.0, 0.0)])
def test_lime_is_captums_on_the_same_masks(image: tuple[MaskedModel, Tensor, Tensor], width: float, ridge: float) -> None:
    game, x, target = image
    keep = torch.rand(4, 80, 20, generator=torch.Generator().manual_seed(0)) < 0.5
    masks = drawn(game, x, target, keep)
    settings = LimeSettings(role="supervision", masks=60, kernel_width=width, ridge=ridge)
    scores = lime.attribute(ask(game, x, target, masks), settings)

    def similarity(_original: Tensor, _perturbed: Tensor, sample: Tensor, **_rest: object) -> Tensor:
        distance = 1 - F.cosine_similarity(sample.float(), torch.ones(1, 20))
        return torch.exp(-(distance**2) / (2 * width**2))

    for i in range(4):

        def perturb(_original: Tensor, row: int = i, **_rest: object) -> Iterator[Tensor]:
            yield from keep[row, :60, None].long()

        peer = Lime(probabilities(game), SkLearnRidge(alpha=ridge), similarity, perturb).attribute(
            x[i : i + 1],
            baselines=0,
            target=target[i],
            feature_mask=patch_mask(game.features),
            n_samples=60,
            perturbations_per_eval=60,
            return_input_shape=False,
        )
        torch.testing.assert_close(scores[i], peer.flatten(), atol=1e-4, rtol=1e-3)


def test_lime_refuses_a_width_that_gives_no_mask_weight(table: tuple[MaskedModel, Tensor, Tensor]) -> None:
    game, x, target = table
    masks = drawn(game, x, target, torch.rand(5, 30, 6) < 0.4)
    settings = LimeSettings(role="supervision", masks=30, kernel_width=1e-4, ridge=0.01)
    masks.keep[:, :, 0] = False
    with pytest.raises(ValueError, match=r"lime.kernel_width = 0.0001: so small"):
        lime.attribute(ask(game, x, target, masks), settings)
    with pytest.raises(ValueError, match="31 masks asked for"):
        lime.attribute(ask(game, x, target, masks), settings.model_copy(update={"masks": 31}))


def shapley_kernel_masks(samples: int, count: int, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(8)
    size = torch.arange(1, n)
    drawn_size = size[torch.multinomial(1.0 / (size * (n - size)), samples * count, True, generator=generator)]
    ranks = torch.rand(samples * count, n, generator=generator).argsort(1).argsort(1)
    return (ranks < drawn_size[:, None]).reshape(samples, count, n)


def test_kernel_shap_is_captums_on_the_same_masks_and_exactly_efficient(image: tuple[MaskedModel, Tensor, Tensor]) -> None:
    game, x, target = image
    keep = shapley_kernel_masks(4, 150, 20)
    masks = drawn(game, x, target, keep)
    settings = KernelShapSettings(role="supervision", masks=150, ridge=1e-6)
    scores = kernel_shap.attribute(ask(game, x, target, masks), settings)
    torch.testing.assert_close(scores.sum(1), masks.full - masks.empty, atol=1e-6, rtol=1e-5)
    for i in range(4):
        peer = KernelShap(probabilities(game))

        def perturb(_original: Tensor, row: int = i, **_rest: object) -> Iterator[Tensor]:
            yield torch.ones(1, 20, dtype=torch.long)
            yield torch.zeros(1, 20, dtype=torch.long)
            yield from keep[row, :, None].long()

        peer.perturb_func = perturb
        expected = peer.attribute(
            x[i : i + 1],
            baselines=0,
            target=target[i],
            feature_mask=patch_mask(game.features),
            n_samples=152,
            perturbations_per_eval=152,
            return_input_shape=False,
        )
        torch.testing.assert_close(scores[i], expected.flatten(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("ridge", [0.0, 1e-12, 1e-9, 1e-6])
def test_kernel_shap_of_all_masks_at_their_weights_is_the_shapley_value(
    table: tuple[MaskedModel, Tensor, Tensor], ridge: float
) -> None:
    game, x, target = table
    every = all_keep_sets(6)
    size = every.sum(1)
    # 60 / (C(6, s) s (6 - s)): whole numbers of copies, 2 at sizes 1 and 5, .5 at 2 and 4, 1/3 at 3; times 6 all are whole.
    copies = torch.tensor([0 if s in (0, 6) else round(6 * 60 / (math.comb(6, s) * s * (6 - s))) for s in size.tolist()])
    assert sorted(set(copies.tolist())) == [0, 2, 3, 12]
    masks = drawn(game, x, target, every.repeat_interleave(copies, 0).expand(5, -1, -1))
    settings = KernelShapSettings(role="supervision", masks=int(copies.sum()), ridge=ridge)
    estimated = kernel_shap.attribute(ask(game, x, target, masks), settings)
    exact = exact_shapley.attribute(ask(game, x, target, all_masks(game, x, target)), MethodSettings(role="reference"))
    torch.testing.assert_close(estimated, exact, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(estimated.sum(1), masks.full - masks.empty, atol=1e-6, rtol=0)


def test_exact_shapley_is_brute_force_and_efficient(table: tuple[MaskedModel, Tensor, Tensor]) -> None:
    game, x, target = table
    masks = all_masks(game, x, target)
    scores = exact_shapley.attribute(ask(game, x, target, masks), MethodSettings(role="reference"))
    brute = torch.zeros(5, 6, dtype=torch.double)
    for order in itertools.permutations(range(6)):
        index = 0
        for i in order:
            brute[:, i] += masks.values[:, index + 2**i].double() - masks.values[:, index].double()
            index += 2**i
    torch.testing.assert_close(scores, (brute / math.factorial(6)).float(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(scores.sum(1), masks.full - masks.empty, atol=1e-6, rtol=1e-5)


def test_exact_shapley_is_captums_over_all_orders() -> None:
    torch.manual_seed(5)
    game = MaskedModel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), column_features(4), Baseline.zero())
    x = torch.randn(5, 4)
    target = game.predict(x)[1]
    scores = exact_shapley.attribute(ask(game, x, target, all_masks(game, x, target)), MethodSettings(role="reference"))
    peer = ShapleyValues(probabilities(game)).attribute(x, 0, target)
    torch.testing.assert_close(scores, peer.float(), atol=1e-5, rtol=1e-4)


def test_banzhaf_over_all_masks_is_exact_and_has_the_best_correlation(table: tuple[MaskedModel, Tensor, Tensor]) -> None:
    game, x, target = table
    masks = all_masks(game, x, target)
    exact = exact_banzhaf.attribute(ask(game, x, target, masks), MethodSettings(role="reference"))
    by_hand = torch.stack(
        [
            torch.stack([masks.values[:, k + 2**i] - masks.values[:, k] for k in range(64) if not k >> i & 1]).mean(0)
            for i in range(6)
        ],
        dim=1,
    )
    torch.testing.assert_close(exact, by_hand, atol=1e-6, rtol=1e-5)
    fitted = banzhaf.attribute(ask(game, x, target, masks), BanzhafSettings(role="reference", ridge=0))
    torch.testing.assert_close(fitted, exact, atol=1e-6, rtol=1e-5)

    def infidelity_correlation(scores: Tensor) -> Tensor:
        removed = (~masks.keep[0]).double() @ scores.double()[..., None]
        sides = torch.stack([removed[..., 0].expand(5, -1), masks.effects.double()], 1)
        sides = sides - sides.mean(2, keepdim=True)
        return F.cosine_similarity(sides[:, 0], sides[:, 1])

    best = infidelity_correlation(exact)
    assert (best > 0.3).all()
    generator = torch.Generator().manual_seed(1)
    for _ in range(300):
        assert (infidelity_correlation(exact + 0.1 * torch.randn(5, 6, generator=generator)) <= best + 1e-9).all()


@pytest.mark.parametrize("module", [exact_shapley, exact_banzhaf])
def test_exact_values_need_the_whole_table(table: tuple[MaskedModel, Tensor, Tensor], module: object) -> None:
    game, x, target = table
    masks = drawn(game, x, target, torch.rand(5, 63, 6) < 0.5)
    with pytest.raises(ValueError, match=r"needs all 2\^6 keep sets"):
        module.attribute(ask(game, x, target, masks), MethodSettings(role="reference"))


@pytest.mark.parametrize("ridge", [0.0, 1e-6, 0.1])
def test_padding_changes_no_fit(text: tuple[MaskedModel, Tensor, Tensor], ridge: float) -> None:
    """A text of 3 tokens padded to 6 is fitted as a game of 3 features, whatever stands in its padded columns."""
    game, x, target = text
    masks = drawn(game, x, target, torch.rand(3, 25, 6, generator=torch.Generator().manual_seed(2)) < 0.5)
    weights = torch.rand(3, 25, generator=torch.Generator().manual_seed(3))
    noise = masks.keep.clone()
    noise[~masks.valid[:, None].expand(-1, 25, -1)] = torch.rand(int((~masks.valid).sum()) * 25) < 0.5
    three = masks.keep[1:2, :, :3]
    real = torch.ones(1, 3, dtype=torch.bool)
    for keep in (masks.keep, noise):
        fits = (
            weighted_ridge(keep, masks.values, weights, masks.valid, ridge),
            efficient_ridge(keep, masks.values, masks.empty, masks.full, masks.valid, ridge),
        )
        alone = (
            weighted_ridge(three, masks.values[1:2], weights[1:2], real, ridge),
            efficient_ridge(three, masks.values[1:2], masks.empty[1:2], masks.full[1:2], real, ridge),
        )
        for fit, small in zip(fits, alone, strict=True):
            assert (fit[~masks.valid] == 0).all()
            torch.testing.assert_close(fit[1, :3], small[0], atol=1e-6, rtol=1e-5)
        # A single token carries the whole effect.
        torch.testing.assert_close(fits[1][2, 0], masks.full[2] - masks.empty[2], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("ridge", [0.0, 1e-12, 1e-6])
def test_fewer_masks_than_features_and_frozen_features_do_not_explode(ridge: float) -> None:
    generator = torch.Generator().manual_seed(6)
    keep = torch.rand(3, 8, 20, generator=generator) < 0.5
    keep[:, :, 4] = True
    values = torch.rand(3, 8, generator=generator)
    valid = torch.ones(3, 20, dtype=torch.bool)
    ones = torch.ones(3, 8)
    slopes = weighted_ridge(keep, values, ones, valid, ridge)
    assert slopes.abs().max() < 1
    assert slopes[:, 4].abs().max() < 1e-4
    centred = keep.float() - keep.float().mean(1, keepdim=True)
    torch.testing.assert_close((centred @ slopes[..., None])[..., 0], values - values.mean(1, keepdim=True), atol=1e-4, rtol=0)
    efficient = efficient_ridge(keep, values, torch.zeros(3), torch.ones(3), valid, ridge)
    assert efficient.abs().max() < 1
    torch.testing.assert_close(efficient.sum(1), torch.ones(3), atol=1e-5, rtol=0)


def test_fits_do_not_depend_on_how_many_samples_are_solved_at_once() -> None:
    generator = torch.Generator().manual_seed(7)
    keep, values = torch.rand(70, 30, 5, generator=generator) < 0.5, torch.rand(70, 30, generator=generator)
    valid, ends = torch.ones(70, 5, dtype=torch.bool), torch.rand(70, 2, generator=generator)
    weights = torch.rand(70, 30, generator=generator)
    whole = weighted_ridge(keep, values, weights, valid, 1e-3), efficient_ridge(keep, values, *ends.T, valid, 1e-3)
    for i in (0, 66, 69):
        row = slice(i, i + 1)
        torch.testing.assert_close(whole[0][row], weighted_ridge(keep[row], values[row], weights[row], valid[row], 1e-3))
        torch.testing.assert_close(whole[1][row], efficient_ridge(keep[row], values[row], *ends[row].T, valid[row], 1e-3))
