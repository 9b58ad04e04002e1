"""The game: polarity, baselines, bits that do not depend on the batch, the pass counter, and the gradient view."""

import pytest
import torch
from captum.attr import IntegratedGradients
from torch import Tensor, nn

from faithline.masking import Baseline, Features, MaskedModel, class_value, column_features, patch_features, token_features
from faithline.targets import MLP, SmallCNN, TextTransformer

PAD, UNKNOWN = 0, 1


class SumModel(nn.Module):
    """Logits (sum of the input, 0): arithmetic that can be done by hand."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.float().flatten(1).sum(1)
        return torch.stack([total, torch.zeros_like(total)], 1)


def make(kind: str, baseline: Baseline | None = None, max_batch: int = 64) -> tuple[MaskedModel, Tensor]:
    """A reference network with random weights and 12 inputs of its modality (texts of length 0 to 12 are padded)."""
    torch.manual_seed(0)
    if kind in ("narrow table", "wide table"):
        n = 8 if kind == "narrow table" else 30
        model: nn.Module = MLP(n, 2, width=64, depth=2, dropout=0.1)
        features, x = column_features(n), torch.randn(12, n)
        baseline = baseline or Baseline.mean(torch.randn(n))
    elif kind == "image":
        model = SmallCNN(1, 28, 10, width=16, depth=4, dropout=0.2)
        features, x = patch_features(28, 4, channels=1), torch.rand(12, 1, 28, 28)
        baseline = baseline or Baseline.zero()
    else:
        model = TextTransformer(50, 12, 2, width=48, depth=2, heads=2, dropout=0.3, token_dropout=0.1, pad_id=PAD)
        nn.init.normal_(model.embedding.weight[2:])
        features, x = token_features(12, PAD), torch.randint(2, 50, (12, 12))
        x[torch.arange(12)[None, :] > torch.arange(12)[:, None]] = PAD  # row i has i + 1 tokens
        baseline = baseline or Baseline.token("pad", PAD)
    return MaskedModel(model, features, baseline, max_batch=max_batch), x


MODALITIES = ["narrow table", "wide table", "image", "text"]


def random_keep(features: Features, shape: tuple[int, ...]) -> Tensor:
    return torch.rand(*shape, features.n, generator=torch.Generator().manual_seed(1)) < 0.5


# -------------------------------------------------------------------------------------------------------------- polarity


def test_kept_features_stay_and_others_become_the_baseline():
    game = MaskedModel(SumModel(), column_features(3), Baseline.zero(), output="logit", max_batch=4)
    x = torch.tensor([[1.0, 20.0, 300.0]])
    keep = torch.tensor([[[True, True, True], [True, False, False], [False, True, True], [False, False, False]]])
    assert game.values(x, keep, torch.tensor([0])).tolist() == [[321.0, 1.0, 320.0, 0.0]]


def test_a_patch_covers_its_own_pixels():
    game = MaskedModel(SumModel(), patch_features(4, 2, channels=3), Baseline.zero(), output="logit", max_batch=4)
    x = torch.arange(48.0).reshape(1, 3, 4, 4)
    keep = torch.eye(4, dtype=torch.bool)[None]
    blocks = [x[0, :, r : r + 2, c : c + 2].sum().item() for r in (0, 2) for c in (0, 2)]
    assert game.values(x, keep, torch.tensor([0]))[0].tolist() == blocks


def test_a_mask_that_is_not_boolean_is_refused():
    game, x = make("narrow table")
    with pytest.raises(TypeError, match="True = the feature stays"):
        game.evaluate(x, torch.arange(12), torch.ones(12, 8), torch.zeros(12, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"\(12, 8\) expected"):
        game.evaluate(x, torch.arange(12), torch.ones(12, 7, dtype=torch.bool), torch.zeros(12, dtype=torch.int64))


def test_top_says_whether_the_explained_class_is_still_first():
    game = MaskedModel(SumModel(), column_features(2), Baseline.zero(), output="logit", max_batch=4)
    x, target = torch.tensor([[5.0, -3.0]]), torch.tensor([0])
    keep = torch.tensor([[True, True], [False, True]])
    outcome = game.evaluate(x, torch.tensor([0, 0]), keep, target)
    assert outcome.top.tolist() == [True, False]
    assert outcome.value.tolist() == [2.0, -3.0]


def test_no_coalition_gives_no_value():
    game, x = make("narrow table")
    outcome = game.evaluate(x, torch.empty(0, dtype=torch.int64), torch.empty(0, 8, dtype=torch.bool), torch.zeros(12).long())
    assert outcome.value.shape == outcome.top.shape == (0,)
    assert game.passes == 0


# ------------------------------------------------------------------------------------------------------------- baselines


def removed_sum(baseline: Baseline, features: Features, x: Tensor) -> float:
    game = MaskedModel(SumModel(), features, baseline, output="logit", max_batch=8)
    keep = torch.zeros(1, 1, features.n, dtype=torch.bool)
    return float(game.values(x, keep, torch.tensor([0])))


def test_mean_baseline_of_a_table_is_the_given_row():
    x = torch.tensor([[1.0, 2.0]])
    assert removed_sum(Baseline.mean(torch.tensor([10.0, 20.0])), column_features(2), x) == 30.0
    with pytest.raises(ValueError, match="baseline mean needs values"):
        removed_sum(Baseline.mean(), column_features(2), x)


def test_mean_baseline_of_an_image_is_its_own_mean_colour():
    x = torch.stack([torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.full((2, 2), 10.0)])[None]
    replaced = Baseline.mean().replacement(x)
    assert replaced.shape == (1, 1, 2, 2, 2)
    assert replaced[0, 0, 0].unique().tolist() == [4.0]
    assert replaced[0, 0, 1].unique().tolist() == [10.0]


def test_blur_keeps_a_flat_image_and_spreads_a_point_symmetrically():
    flat = torch.full((1, 1, 9, 9), 3.0)
    torch.testing.assert_close(Baseline.blur(1.0).replacement(flat)[:, 0], flat)
    point = torch.zeros(1, 1, 15, 15)
    point[..., 7, 7] = 1.0
    blurred = Baseline.blur(1.0).replacement(point)[0, 0, 0]
    kernel = torch.exp(-(torch.arange(-3.0, 4.0) ** 2) / 2)
    kernel /= kernel.sum()
    torch.testing.assert_close(blurred[4:11, 4:11], kernel[:, None] * kernel[None])


def test_noise_is_one_fixed_input_of_the_given_strength():
    noise = Baseline.noise(0.5, (1, 64, 64), torch.Generator().manual_seed(3))
    again = Baseline.noise(0.5, (1, 64, 64), torch.Generator().manual_seed(3))
    replaced = noise.replacement(torch.rand(2, 1, 64, 64))[:, 0]
    assert torch.equal(replaced[0], replaced[1])
    assert torch.equal(replaced[0], again.values)
    assert float(replaced.std()) == pytest.approx(0.5, rel=0.05)


def test_background_is_the_mean_value_over_its_rows_and_costs_a_pass_each():
    rows = torch.tensor([[1.0, 1.0], [3.0, 5.0], [5.0, 0.0]])
    game = MaskedModel(SumModel(), column_features(2), Baseline.background(rows), output="logit", max_batch=7)
    x = torch.tensor([[100.0, 200.0]])
    keep = torch.tensor([[[True, False], [False, True], [True, True]]])
    assert game.values(x, keep, torch.tensor([0])).tolist() == [[102.0, 203.0, 300.0]]
    assert game.passes == 9
    with pytest.raises(ValueError, match="at least the 3 rows"):
        MaskedModel(SumModel(), column_features(2), Baseline.background(rows), max_batch=2)
    with pytest.raises(ValueError, match="at least the 9 rows"):
        game.with_baseline(Baseline.background(torch.zeros(9, 2)))


def test_token_baselines_put_their_id():
    x = torch.tensor([[7, 8, 9, PAD]])
    assert removed_sum(Baseline.token("pad", PAD), token_features(4, PAD), x) == 0.0
    assert removed_sum(Baseline.token("mask", UNKNOWN), token_features(4, PAD), x) == 3.0  # three tokens, not the padding


# ------------------------------------------------------------------------------------------------------- same bits always

BASELINES = [
    ("narrow table", None),
    ("narrow table", Baseline.background(torch.randn(5, 8, generator=torch.Generator().manual_seed(2)))),
    ("wide table", None),
    ("image", None),
    ("image", Baseline.mean()),
    ("image", Baseline.blur(2.0)),
    ("image", Baseline.background(torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(2)))),
    ("text", None),
    ("text", Baseline.token("mask", UNKNOWN)),
]


@pytest.mark.parametrize(("kind", "baseline"), BASELINES, ids=lambda value: getattr(value, "kind", value))
@pytest.mark.parametrize(
    "max_batch", [16, 50, pytest.param(512, marks=pytest.mark.extended), pytest.param(4096, marks=pytest.mark.extended)]
)
def test_values_are_bit_equal_whatever_the_split_the_mates_and_the_order(kind, baseline, max_batch):
    game, x = make(kind, baseline, max_batch)
    target = game.predict(x)[1]
    keep = random_keep(game.features, (12, 5))
    together = game.values(x, keep, target)
    alone = torch.cat([game.values(x[i : i + 1], keep[i : i + 1], target[i : i + 1]) for i in range(12)])
    assert torch.equal(together, alone)
    one_by_one = torch.cat([game.values(x, keep[:, [s]], target) for s in range(5)], 1)
    assert torch.equal(together, one_by_one)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    assert torch.equal(game.values(x[order], keep[order], target[order]), together[order])
    mixed = torch.randperm(60, generator=torch.Generator().manual_seed(4))
    shuffled = game.evaluate(x, mixed // 5, keep[mixed // 5, mixed % 5], target).value
    assert torch.equal(shuffled, together[mixed // 5, mixed % 5])


@pytest.mark.parametrize("kind", MODALITIES)
def test_predictions_are_bit_equal_whatever_the_split(kind):
    game, x = make(kind)
    logits, target = game.predict(x.repeat(9, *[1] * (x.ndim - 1)))
    assert torch.equal(logits[:12], logits[60:72])
    parts = [game.predict(x[i : i + 5]) for i in range(0, 12, 5)]
    assert torch.equal(torch.cat([part[0] for part in parts]), logits[:12])
    assert torch.equal(torch.cat([part[1] for part in parts]), target[:12])
    assert torch.equal(target, logits.argmax(1))


# ---------------------------------------------------------------------------------------------------------- pass counter


@pytest.mark.parametrize("kind", MODALITIES)
def test_every_road_to_the_model_is_counted_and_padding_is_not(kind):
    game, x = make(kind)
    target = game.predict(x)[1]
    assert game.passes == 12
    game.values(x, random_keep(game.features, (12, 7)), target)
    assert game.passes == 12 + 84
    game.activations(x[:5], [])
    assert game.passes == 12 + 84 + 5
    game.model(x[:3])
    assert game.passes == 12 + 84 + 5 + 3
    view = game.gradient_view(x[:2], "prob")
    view.module(view.inputs, *view.extra)
    assert game.passes == 12 + 84 + 5 + 3 + 2


def test_captum_on_the_model_itself_is_counted():
    game, x = make("wide table")
    IntegratedGradients(game.model).attribute(x[:2], target=0, n_steps=5)
    assert game.passes == 2 * 5


def test_games_of_one_model_share_the_count_and_count_once():
    game, x = make("narrow table")
    other = game.with_baseline(Baseline.zero())
    keep = random_keep(game.features, (12, 2))
    target = torch.zeros(12, dtype=torch.int64)
    first, second = game.values(x, keep, target), other.values(x, keep, target)
    assert not torch.equal(first, second)
    assert game.passes == other.passes == 48
    assert game.baseline.kind == "mean"
    game.close()
    game.model(x)
    assert game.passes == 48


# ------------------------------------------------------------------------------------------------------------------ text


def test_the_padded_tail_is_no_feature_and_cannot_be_removed():
    game, x = make("text", Baseline.token("mask", UNKNOWN))
    valid = game.features.valid(x)
    assert valid.sum(1).tolist() == list(range(1, 13))
    target = game.predict(x)[1]
    keep = random_keep(game.features, (12, 5))
    for tail in (keep & valid[:, None], keep | ~valid[:, None]):
        assert torch.equal(game.values(x, tail, target), game.values(x, keep, target))


def test_a_text_without_tokens_has_a_finite_value():
    game, x = make("text")
    nothing = torch.zeros(12, 1, 12, dtype=torch.bool)
    values = game.values(x, nothing, torch.zeros(12, dtype=torch.int64))
    assert torch.isfinite(values).all()
    assert values.unique().numel() == 1  # an empty text says nothing of where it came from


# ------------------------------------------------------------------------------------------------------------ soft masks


@pytest.mark.parametrize(
    ("kind", "baseline"),
    [("wide table", None), ("image", None), ("image", Baseline.mean()), ("image", Baseline.blur(1.5))],
)
def test_blend_at_zero_and_one_is_the_masked_input(kind, baseline):
    game, x = make(kind, baseline)
    keep = random_keep(game.features, (12,))
    target = game.predict(x)[1]
    logits, _ = game.predict(game.blend(x, keep.float()))
    expected = game.values(x, keep[:, None], target)[:, 0]
    torch.testing.assert_close(class_value(logits, target, "prob"), expected, atol=1e-6, rtol=0)


def test_blend_is_differentiable_and_refuses_token_ids():
    game, x = make("image")
    weight = torch.full((12, 49), 0.5, requires_grad=True)
    game.blend(x, weight).sum().backward()
    torch.testing.assert_close(weight.grad, game.features.to_features(x[:, 0]))  # zero baseline: d(sum)/dw = the patch's sum
    text, ids = make("text")
    with pytest.raises(ValueError, match="token ids cannot"):
        text.blend(ids, torch.ones(12, 12))


# -------------------------------------------------------------------------------------------------------------- features


def test_to_features_sums_pixels_and_to_map_is_its_inverse():
    features = patch_features(8, 4)
    maps = torch.rand(3, 8, 8)
    summed = features.to_features(maps)
    torch.testing.assert_close(summed[:, 1], maps[:, :4, 4:].sum((1, 2)))
    torch.testing.assert_close(summed.sum(1), maps.sum((1, 2)))
    attribution = torch.randn(3, 4)
    torch.testing.assert_close(features.to_features(features.to_map(attribution)), attribution)
    assert features.map_shape == (8, 8)
    for flat in (column_features(5), token_features(5, PAD)):
        row = torch.randn(3, 5)
        assert torch.equal(flat.to_features(row), row)
        assert torch.equal(flat.to_map(row), row)
        assert flat.map_shape == (5,)


def test_a_patch_that_does_not_divide_the_image_is_refused():
    with pytest.raises(ValueError, match="patch = 5: must divide image_size = 28"):
        patch_features(28, 5)


# ---------------------------------------------------------------------------------------------------------------- values


def test_class_values_follow_their_formulas():
    logits = torch.tensor([[1.0, 2.0, 0.5], [-40.0, 40.0, 0.0]])
    target = torch.tensor([0, 1])
    prob = logits.double().softmax(1)[[0, 1], target]
    torch.testing.assert_close(class_value(logits, target, "prob").double(), prob, atol=1e-7, rtol=1e-6)
    assert class_value(logits, target, "logit").tolist() == [1.0, 40.0]
    odds = class_value(logits, target, "logodds").double()
    torch.testing.assert_close(odds[0], torch.log(prob[0] / (1 - prob[0])), atol=1e-6, rtol=1e-6)
    assert float(odds[1]) == pytest.approx(40.0)  # finite where the probability rounds to 1


# --------------------------------------------------------------------------------------------------------- gradient view


@pytest.mark.parametrize("kind", MODALITIES)
@pytest.mark.parametrize("output", ["prob", "logit"])
def test_the_gradient_view_is_the_model(kind, output):
    game, x = make(kind)
    logits, _ = game.predict(x)
    view = game.gradient_view(x, output)
    expected = logits.softmax(1) if output == "prob" else logits
    torch.testing.assert_close(view.module(view.inputs, *view.extra).detach(), expected, atol=1e-5, rtol=1e-5)
    assert view.baseline.shape == view.inputs.shape
    # The embedding works as before afterwards: the view leaves no hook behind.
    assert torch.equal(game.predict(x)[0], logits)


@pytest.mark.parametrize("kind", MODALITIES)
def test_the_explained_class_can_index_in_autograd(kind):
    game, x = make(kind)
    target = game.predict(x)[1]
    view = game.gradient_view(x, "prob")
    inputs = view.inputs.requires_grad_()
    (gradient,) = torch.autograd.grad(view.module(inputs, *view.extra).gather(1, target[:, None]).sum(), inputs)
    maps = game.reduce(gradient)
    assert maps.shape == (12, *game.features.map_shape)
    assert float(maps.abs().sum()) > 0


def test_the_text_gradient_is_the_derivative_along_the_embedding():
    game, x = make("text")
    view = game.gradient_view(x[5:6], "logit")
    inputs = view.inputs.double().float().requires_grad_()
    (gradient,) = torch.autograd.grad(view.module(inputs, *view.extra)[0, 0], inputs)
    step = torch.zeros_like(view.inputs)
    step[0, 2, 7] = 1e-2
    with torch.no_grad():
        ahead, behind = (view.module(view.inputs + sign * step, *view.extra)[0, 0] for sign in (1, -1))
    assert float(gradient[0, 2, 7]) == pytest.approx(float(ahead - behind) / 2e-2, rel=0.02, abs=1e-4)
    assert float(gradient[0, 6:].abs().sum()) == 0  # row 5 has six tokens: nothing depends on the padding


@pytest.mark.parametrize(("kind", "token_id"), [("pad", PAD), ("mask", UNKNOWN)])
def test_the_text_baseline_replaces_tokens_and_leaves_padding(kind, token_id):
    game, x = make("text", Baseline.token(kind, token_id))
    view = game.gradient_view(x[5:6], "prob")
    expected = game.embedding().weight[token_id].expand(6, -1)
    assert torch.equal(view.baseline[0, :6], expected)
    assert torch.equal(view.baseline[0, 6:], view.inputs[0, 6:])


# ----------------------------------------------------------------------------------------------------------- activations


def test_activations_are_module_outputs_and_unknown_layers_are_named():
    game, x = make("image")
    recorded, logits = game.activations(x, ["features", "head"])
    assert recorded["features"].shape == (12, 32, 7, 7)
    assert torch.equal(recorded["head"], logits)
    with pytest.raises(ValueError, match=r"layers \['body'\]: not in SmallCNN; it has .*features"):
        game.activations(x, ["body"])


def test_a_model_without_an_embedding_has_no_text_gradient():
    game = MaskedModel(SumModel(), token_features(4, PAD), Baseline.token("pad", PAD), max_batch=4)
    with pytest.raises(ValueError, match=r"has no nn\.Embedding"):
        game.gradient_view(torch.ones(1, 4, dtype=torch.int64), "prob")


def test_equal_rows_of_a_batch_have_equal_bits_at_every_place() -> None:
    # Without MKL_CBWR, MKL computes the last rows of a narrow layer's product in another order of sums.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    game = MaskedModel(model, column_features(5), Baseline.zero(), max_batch=512)
    logits, _ = game.predict(torch.randn(1, 5).expand(512, 5))
    assert len(logits.unique(dim=0)) == 1
