"""Axioms that every attribution method keeps. Methods are found as the keys of `config.Methods`: a new one is tested at once."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from tests.tiny_networks import TinyViT
from torch import Tensor, nn

from faithline.attributions.query import DoesNotFit, Query
from faithline.attributions.run import attribute_by_name, load_method
from faithline.bank import LAWS, Masks, all_keep_sets
from faithline.config import (
    AdversarialGradientIntegrationSettings,
    AttExploreSettings,
    BanzhafSettings,
    BoundaryIntegratedGradientsSettings,
    DeepLiftShapSettings,
    ExpectedGradientsSettings,
    GradientSettings,
    GuidedIntegratedGradientsSettings,
    IntegratedGradientsSettings,
    IsaSettings,
    KernelShapSettings,
    LimeSettings,
    LocalAttributionSettings,
    LrpSettings,
    Methods,
    MethodSettings,
    MfabaSettings,
    OcclusionSettings,
    RiseSettings,
    SaliencySettings,
    ScoreCamSettings,
    ShapleySamplingSettings,
    SmoothGradSettings,
)
from faithline.masking import Baseline, Features, MaskedModel, column_features, patch_features, token_features
from faithline.targets import TextTransformer

METHODS = list(Methods.model_fields)
KINDS = ("table", "text", "image")
PAIRS = [(name, kind) for name in METHODS for kind in load_method(name).MODALITIES]
MASKS_A_SAMPLE = 40
ATTENTION = ("attention_rollout", "generic_attention")
"""These explain Transformers; the other models here have no attention."""
UNSIGNED = (*ATTENTION, "grad_cam_plus_plus", "mfaba", "isa")
"""Maps that are never negative where activations are rectified: what speaks against the class is not looked at."""
LOSING = ("boundary_integrated_gradients", "adversarial_gradient_integration", "mfaba")
"""These walk until the class is lost, and say nothing of a class that the model does not choose."""
DOWNHILL = ("boundary_integrated_gradients", "adversarial_gradient_integration", "attexplore", "local_attribution")
"""Their steps lower the class, so that hardly a term speaks against it: their maps need not have a negative entry."""
HANGING = ("attexplore", "isa", "local_attribution")
"""These say how much a class hangs on a feature: of two classes, the same of both."""
NEED_RELU = ("guided_backprop", "deconvolution")


pytestmark = pytest.mark.usefixtures("one_thread")


def settings_of(name: str, output: str = "prob", kind: str = "table") -> MethodSettings:
    """Small settings of each method; a new method must be added here."""
    made: dict[str, MethodSettings] = {
        "saliency": SaliencySettings(role="supervision", output=output, absolute=False),
        "smooth_grad": SmoothGradSettings(role="supervision", output=output, samples=5, std=0.1),
        "input_x_gradient": GradientSettings(role="supervision", output=output),
        "guided_backprop": GradientSettings(role="supervision", output=output),
        "deconvolution": GradientSettings(role="supervision", output=output),
        "integrated_gradients": IntegratedGradientsSettings(role="supervision", output=output, steps=12),
        "guided_integrated_gradients": GuidedIntegratedGradientsSettings(
            role="supervision", output=output, steps=7, fraction=0.25, max_dist=0.1
        ),
        "boundary_integrated_gradients": BoundaryIntegratedGradientsSettings(
            role="supervision", output=output, radii=[3.0, 0.5], attack_steps=4, step=0.5, steps=6, clip=None
        ),
        "fast_integrated_gradients": GradientSettings(role="supervision", output=output),
        "expected_gradients": ExpectedGradientsSettings(role="supervision", output=output, samples=6),
        "adversarial_gradient_integration": AdversarialGradientIntegrationSettings(
            role="supervision", output=output, eps=0.2, steps=3, classes=2, clip=None
        ),
        "mfaba": MfabaSettings(role="supervision", output=output, alpha=0.05, steps=4, path="smooth", clip=None),
        "attexplore": AttExploreSettings(
            role="supervision",
            output=output,
            eps=0.2,
            steps=2,
            samples=3,
            rho=0.5,
            noise=0.06,
            resize=1.2,
            smoothing=3,
            momentum=1.0,
            clip=None,
        ),
        "isa": IsaSettings(
            role="supervision",
            output=output,
            block=80 if kind == "image" else 4,
            steps=2,
            alpha=0.01,
            factor=1.3,
            noise=0.05,
            clip=None,
        ),
        "local_attribution": LocalAttributionSettings(
            role="supervision", output=output, spatial_range=5.0, steps=2, classes=1, clip=None
        ),
        "deeplift": GradientSettings(role="supervision", output=output),
        "deeplift_shap": DeepLiftShapSettings(role="supervision", output=output, rows=3),
        "lrp": LrpSettings(role="supervision", epsilon=1e-6, gamma=0.25),
        "occlusion": OcclusionSettings(role="supervision", window=2, stride=1),
        "feature_ablation": MethodSettings(role="supervision"),
        "lime": LimeSettings(role="supervision", masks=MASKS_A_SAMPLE, kernel_width=0.5, ridge=1e-3),
        "kernel_shap": KernelShapSettings(role="supervision", masks=MASKS_A_SAMPLE, ridge=1e-6),
        "shapley_sampling": ShapleySamplingSettings(role="supervision", permutations=3),
        "rise": RiseSettings(role="supervision", masks=MASKS_A_SAMPLE),
        "grad_cam": GradientSettings(role="supervision", output=output),
        "grad_cam_plus_plus": GradientSettings(role="supervision", output=output),
        "score_cam": ScoreCamSettings(role="supervision", output=output, channels=4),
        "attention_rollout": MethodSettings(role="supervision"),
        "generic_attention": GradientSettings(role="supervision", output=output),
        "banzhaf": BanzhafSettings(role="reference", ridge=1e-6),
        "exact_shapley": MethodSettings(role="reference"),
        "exact_banzhaf": MethodSettings(role="reference"),
    }
    return made[name]


# ------------------------------------------------------------------------------------------------------------- tiny models


class TextModel(nn.Module):
    """Mean of the embeddings of all positions, padding included, then a small ReLU network: careless, as many models are."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 5)
        self.squash = nn.Tanh()
        self.head = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.squash(self.embedding(ids)).mean(1))


def image_model() -> nn.Module:
    """Two convolutions, then three classes."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 4 * 6, 3),
    )


@dataclass(frozen=True)
class Case:
    """One game with inputs, explained classes, background and seeds."""

    game: MaskedModel
    x: Tensor
    target: Tensor
    background: Tensor
    seeds: Tensor


def make_case(kind: str, name: str = "", *, max_batch: int = 64, output: str = "prob") -> Case:
    """A random game of 6 samples, of a Transformer for the methods that need one."""
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(5)
    features: Features
    if kind == "table":
        features, baseline = column_features(6), Baseline.mean(torch.randn(6, generator=generator) / 4)
        model: nn.Module = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))
        x, background = torch.randn(6, 6, generator=generator), torch.randn(5, 6, generator=generator)
    elif kind == "text":
        features, baseline, model = token_features(7, 0), Baseline.token("pad", 0), TextModel()
        x = torch.randint(1, 12, (6, 7), generator=generator)
        for row, length in enumerate((7, 1, 4, 2, 6, 3)):
            x[row, length:] = 0
        background = torch.randint(1, 12, (5, 7), generator=generator)
        background[2, 3:] = 0
    else:
        features, baseline, model = Features("image", (2, 8, 12), 2, 3), Baseline.zero(), image_model()
        x, background = torch.randn(6, 2, 8, 12, generator=generator), torch.randn(5, 2, 8, 12, generator=generator)
    if name in ATTENTION:
        sizes = {"width": 8, "depth": 2, "heads": 2, "dropout": 0.0, "token_dropout": 0.0, "pad_id": 0}
        model = TextTransformer(12, 7, 3, **sizes) if kind == "text" else TinyViT(2, (8, 12), 4, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    game = MaskedModel(model, features, baseline, output=output, max_batch=max_batch)
    return Case(game, x, game.predict(x)[1], background, torch.arange(6) * 7919 + 1)


def masks_for(name: str, game: MaskedModel, x: Tensor, target: Tensor, seeds: Tensor) -> Masks | None:
    """Masks of the law the method names, drawn for each sample from its own seed."""
    wanted = load_method(name).MASKS
    if wanted is None or wanted[1] == "table":
        return None
    law, n = wanted[1], game.features.n
    valid = game.features.valid(x)
    keeps = []
    for seed in seeds.tolist():
        generator = torch.Generator().manual_seed(seed)
        if law == "singles":
            keep = ~torch.eye(n, dtype=torch.bool)
        elif law == "all":
            keep = all_keep_sets(n)
        elif law == "bernoulli":
            keep = torch.rand(MASKS_A_SAMPLE, n, generator=generator) < 0.5
        else:
            size = torch.arange(1, n)
            drawn = size[torch.multinomial(1 / (size * (n - size)), MASKS_A_SAMPLE, True, generator=generator)]
            keep = torch.rand(MASKS_A_SAMPLE, n, generator=generator).argsort(1).argsort(1) < drawn[:, None]
        keeps.append(keep)
    keep = torch.stack(keeps)
    keep = keep | ~valid[:, None]
    ends = torch.stack([torch.ones_like(valid), ~valid], dim=1)
    full, empty = game.values(x, ends, target).unbind(1)
    return Masks(keep, game.values(x, keep, target), full, empty, valid)


def explain(name: str, case: Case, rows: Tensor | None = None, output: str = "prob") -> Tensor:
    """Maps of some of a case's samples."""
    rows = torch.arange(len(case.x)) if rows is None else rows
    x, target, seeds = case.x[rows], case.target[rows], case.seeds[rows]
    masks = masks_for(name, case.game, x, target, seeds)
    return attribute_by_name(
        name, Query(case.game, x, target, masks, case.background, seeds), settings_of(name, output, case.game.features.kind)
    )


# ------------------------------------------------------------------------------------------------------------------ axioms


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_the_same_interface(name: str) -> None:
    module = load_method(name)
    assert set(module.MODALITIES) <= set(KINDS)
    assert module.MODALITIES
    if module.MASKS is not None:
        use, law = module.MASKS
        assert law in (*LAWS[use], "all", "table")
    signature = inspect.signature(module.attribute)
    assert list(signature.parameters) == ["query", "settings"]
    assert all(signature.parameters[key].default is inspect.Parameter.empty for key in signature.parameters)


def state_of(module: nn.Module) -> tuple[int, dict[str, object]]:
    """Number of hooks of a module, and its attributes other than tensors and modules."""
    hooks = len(module._forward_hooks) + len(module._backward_hooks) + len(module._forward_pre_hooks)
    return hooks, {key: value for key, value in vars(module).items() if not key.startswith("_")}


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_maps_are_finite_signed_float32_and_leave_everything_as_it_was(name: str, kind: str) -> None:
    case = make_case(kind, name)
    before = case.x.clone(), [p.clone() for p in case.game.model.parameters()]
    state = [state_of(module) for module in case.game.model.modules()]
    maps = explain(name, case)
    assert maps.shape == (6, *case.game.features.map_shape)
    assert maps.dtype == torch.float32
    assert not maps.requires_grad
    assert not maps.is_inference()
    assert torch.isfinite(maps).all()
    assert (maps.flatten(1).abs().sum(1) > 0).all()
    assert name in DOWNHILL or (maps < 0).any() != (name in UNSIGNED)
    assert (maps > 0).any()
    assert torch.equal(case.x, before[0])
    assert all(torch.equal(p, q) and p.grad is None for p, q in zip(case.game.model.parameters(), before[1], strict=True))
    assert state == [state_of(module) for module in case.game.model.modules()]
    if kind == "text":
        assert (maps[~case.game.features.valid(case.x)] == 0).all()


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_a_map_does_not_depend_on_batch_mates_order_or_split(name: str, kind: str) -> None:
    case = make_case(kind, name)
    whole = explain(name, case)
    order = torch.tensor([4, 1, 5, 0, 3, 2])
    torch.testing.assert_close(explain(name, case, order), whole[order], atol=1e-5, rtol=1e-5)
    for rows in (torch.tensor([2]), torch.tensor([5, 3])):
        torch.testing.assert_close(explain(name, case, rows), whole[rows], atol=1e-5, rtol=1e-5)
    narrow = make_case(kind, name, max_batch=5)
    torch.testing.assert_close(explain(name, narrow), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_the_same_call_gives_the_same_bits(name: str, kind: str) -> None:
    case = make_case(kind, name)
    first = explain(name, case)
    torch.manual_seed(99)
    torch.rand(7)
    assert torch.equal(first, explain(name, case))


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_max_batch_bounds_every_model_call(name: str, kind: str) -> None:
    case = make_case(kind, name, max_batch=8)
    sizes: list[int] = []
    case.game.model.register_forward_pre_hook(lambda _module, args: sizes.append(args[0].shape[0]))
    maps = explain(name, case)
    assert len(maps) == 6
    assert max(sizes) <= 8


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_every_forward_pass_is_counted(name: str, kind: str) -> None:
    case = make_case(kind, name)
    masks = masks_for(name, case.game, case.x, case.target, case.seeds)
    before = case.game.passes
    attribute_by_name(
        name, Query(case.game, case.x, case.target, masks, case.background, case.seeds), settings_of(name, kind=kind)
    )
    windows = {"table": 5 * 6, "image": 2 * 6, "text": 6 + 1 + 3 + 1 + 5 + 2}[kind]
    inner = {"table": 5 * 6, "image": 5 * 6, "text": 6 + 0 + 3 + 1 + 5 + 2}[kind]  # places between first and last
    expected = {
        "saliency": 6,
        "smooth_grad": 6 * 5,
        "input_x_gradient": 6,
        "guided_backprop": 6,
        "deconvolution": 6,
        "integrated_gradients": 6 * 12,
        "guided_integrated_gradients": 6 * 7,
        "boundary_integrated_gradients": 6 * (2 * (4 + 1) + 6),
        "fast_integrated_gradients": 6,
        "expected_gradients": 6 * 6,
        "adversarial_gradient_integration": 6 * 2 * 3 + 1,
        "mfaba": 6 * 4,
        "attexplore": 6 * 2 * 3,
        "isa": 6 * 2 * 2 * {"table": 2, "text": 9, "image": 3}[kind],  # of 6, 35 and 192 values
        "local_attribution": 6 * (1 + 1) * 2 + 1,
        "deeplift": 6 * 2,
        "deeplift_shap": 6 * 2 * 3,
        "lrp": 6 * 2,
        "shapley_sampling": 6 * 2 + 3 * inner,
        "grad_cam": 6 + 1,
        "grad_cam_plus_plus": 6 + 1,
        "score_cam": 6 * (1 + 1 + 4) + 1,
        "attention_rollout": 6,
        "generic_attention": 6,
        "occlusion": 6 + windows,
    }
    # All others read the bank and call the model never.
    assert case.game.passes - before == expected.get(name, 0)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_a_sample_that_is_not_finite_is_a_row_of_nan_and_spoils_no_other(name: str, kind: str) -> None:
    case = make_case(kind, name)
    clean = explain(name, case)
    if kind == "text":
        embedding = case.game.embedding()
        token = int(case.x[0, 0])
        hit = (case.x == token).any(1)
        with torch.no_grad():
            embedding.weight[token] = torch.nan
        background = case.background.clone()
        background[background == token] = 0
        broken = Case(case.game, case.x, case.target, background, case.seeds)
        clean = explain(name, Case(case.game, case.x[~hit], case.target[~hit], background, case.seeds[~hit]))
        assert 0 < hit.sum() < len(hit)
    else:
        x = case.x.clone()
        x[0].view(-1)[0] = torch.nan
        hit = torch.arange(6) == 0
        broken = Case(case.game, x, case.target, case.background, case.seeds)
        clean = clean[~hit]
    maps = explain(name, broken)
    assert torch.isnan(maps[hit]).all()
    torch.testing.assert_close(maps[~hit], clean, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_another_modality_is_refused_by_name(name: str) -> None:
    for kind in set(KINDS) - set(load_method(name).MODALITIES):
        case = make_case(kind)
        with pytest.raises(ValueError, match=f"{name} does not explain {kind} tasks, only"):
            explain(name, case)


def linear_case() -> tuple[Case, Tensor]:
    """Logits that are linear in a table; column 4 has no weight. Returns weights of the explained class (B, n) too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 3))
    with torch.no_grad():
        model[0].weight[:, 4] = 0
    features, x = column_features(6), torch.randn(5, 6)
    game = MaskedModel(model, features, Baseline.mean(torch.tensor([0.5, -0.2, 0.0, 0.3, 0.1, 1.0])), output="logit")
    target = game.predict(x)[1].clone()
    return Case(game, x, target, torch.randn(4, 6), torch.arange(5) + 1), model[0].weight.detach()[target]


TABLE_METHODS = [name for name in METHODS if "table" in load_method(name).MODALITIES]


@pytest.mark.parametrize("name", TABLE_METHODS)
def test_a_linear_model_gets_its_own_weights_back(name: str) -> None:
    case, weight = linear_case()
    if name in NEED_RELU:
        with pytest.raises(DoesNotFit, match="Sequential has no ReLU module"):
            explain(name, case, output="logit")
        return
    maps = explain(name, case, output="logit")
    effect = weight * (case.x - case.game.baseline.values)
    expected: Callable[[], Tensor] = {
        "saliency": lambda: weight,
        "smooth_grad": lambda: weight,
        "input_x_gradient": lambda: weight * case.x,
        "fast_integrated_gradients": lambda: weight * case.x,
        "boundary_integrated_gradients": lambda: weight * (case.x - boundary_of(case)),
        "adversarial_gradient_integration": lambda: attacked(case, weight),
        "mfaba": lambda: 0.05 * weight.abs() * steps_to_loss(case, weight)[:, None],
        "isa": lambda: two_blocks(weight),
        "local_attribution": lambda: nearby(case, weight),
        "lrp": lambda: weight * case.x,
        "deeplift_shap": lambda: weight * (case.x - case.background[:3].mean(0)),
        "occlusion": lambda: window_means(effect),
    }.get(name, lambda: effect)
    if name == "rise":  # half the effect, exactly so over all masks
        keep = all_keep_sets(6).expand(5, -1, -1)
        masks = Masks(keep, case.game.values(case.x, keep, case.target), *torch.zeros(2, 5), torch.ones(5, 6, dtype=torch.bool))
        every = RiseSettings(role="supervision", masks=64)
        maps = attribute_by_name(name, Query(case.game, case.x, case.target, masks, None, case.seeds), every)
        torch.testing.assert_close(maps, effect / 2, atol=2e-5, rtol=1e-4)
    elif name == "expected_gradients":  # its reference is a random background row: exact only in the mean
        many = ExpectedGradientsSettings(role="supervision", output="logit", samples=4000)
        maps = attribute_by_name(name, Query(case.game, case.x, case.target, None, case.background, case.seeds), many)
        torch.testing.assert_close(maps, weight * (case.x - case.background.mean(0)), atol=0.05, rtol=0)
    else:
        # The ridge of LIME shrinks a little.
        torch.testing.assert_close(maps, expected(), atol=2e-3 if name == "lime" else 2e-5, rtol=1e-2 if name == "lime" else 1e-4)
    if name != "occlusion":  # a window holds a feature's neighbours
        assert maps[:, 4].abs().max() < (1e-4 if name == "lime" else 1e-5)


def window_means(effect: Tensor) -> Tensor:
    """Mean over the windows of two columns that cover a column of their summed effects."""
    pairs = effect[:, :-1] + effect[:, 1:]
    inner = (pairs[:, :-1] + pairs[:, 1:]) / 2
    return torch.cat([pairs[:, :1], inner, pairs[:, -1:]], dim=1)


def boundary_of(case: Case) -> Tensor:
    """The nearest point of another class on the attacks that `settings_of` asks for, one sample at a time."""
    model, points = case.game.model, []
    for x, target in zip(case.x, case.target.tolist(), strict=True):
        crossed, last = [], x
        for radius in (0.5, 3.0):
            point = x
            for _ in range(4):
                point = point.detach().requires_grad_()
                loss = nn.functional.cross_entropy(model(point[None]).double(), torch.tensor([target]))
                (up,) = torch.autograd.grad(loss, point)
                shift = point.detach() + 0.5 * radius * up / up.norm() - x
                point = x + shift * min(1.0, radius / float(shift.norm()))
                if int(model(point[None]).argmax()) != target:
                    crossed.append(point)
            last = point
        points.append(min(crossed, key=lambda p: float((p - x).norm())) if crossed else last)
    return torch.stack(points).detach()


def attacked(case: Case, weight: Tensor) -> Tensor:
    """AGI of linear logits: the point after the first step is the last, and counts three times, or once where it has arrived."""
    rows = case.game.model[0].weight.detach()
    total = torch.zeros_like(weight)
    for rival in range(3):
        shift = 0.2 * rows[rival].sign()
        arrived = case.game.model(case.x + shift).argmax(1) == rival
        times = torch.where(arrived, 1, 3) * (case.target != rival)
        total -= weight * shift * times[:, None]
    return total.detach()


def steps_to_loss(case: Case, weight: Tensor) -> Tensor:
    """How many of four steps of 0.05 against the signs of the weights begin where the class is still the first."""
    points = torch.stack([case.x - 0.05 * t * weight.sign() for t in range(4)])
    kept = case.game.model(points).argmax(2) == case.target
    return kept.int().cumprod(0).sum(0)


def two_blocks(weight: Tensor) -> Tensor:
    """ISA of linear logits: by |weight| the lowest four of six columns leave first, then the other two; no weight, no value."""
    size = weight.abs()
    order = size.sort(dim=1).values
    first = 1 + 0.15 * (size - order[:, :1]) / (order[:, 3:4] - order[:, :1])
    second = 1.3 * (1 + 0.15 * (size - order[:, 4:5]) / (order[:, 5:] - order[:, 4:5]))
    return torch.where(size == 0, 0.0, torch.where(size <= order[:, 3:4], first, second))


def nearby(case: Case, weight: Tensor) -> Tensor:
    """Local attribution of linear logits: two steps to one other class, which the seed draws, and two steps away."""
    rows, reach = case.game.model[0].weight.detach(), case.x.abs() / 5
    drawn = [int(torch.randperm(2, generator=torch.Generator().manual_seed(seed))[0]) for seed in case.seeds.tolist()]
    rival = [[k for k in range(3) if k != target][i] for target, i in zip(case.target.tolist(), drawn, strict=True)]
    return 2 * reach * weight * (weight.sign() - rows[rival].sign())


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kind in PAIRS if name not in ATTENTION])
def test_higher_means_more_support(name: str, kind: str) -> None:
    """A model that only counts evidence: what adds to the class is positive, and the same map of the other class is negative.

    Methods that let a ReLU erase negative gradients have nothing to say of the other class.
    """
    if kind == "table":
        model: nn.Module = nn.Sequential(nn.ReLU(), nn.Linear(4, 2))
        with torch.no_grad():
            model[1].weight.copy_(torch.tensor([[-1.0] * 4, [1.0] * 4]))
            model[1].bias.zero_()
        features, baseline = column_features(4), Baseline.zero()
        x = torch.tensor([[0.3, 0.2, 0.5, 0.4]])
        background = torch.zeros(3, 4)
    elif kind == "text":
        model = TextModel()
        with torch.no_grad():
            model.embedding.weight.fill_(0.5)
            model.embedding.weight[0] = 0
            model.head = nn.Sequential(nn.ReLU(), nn.Linear(5, 2))
            model.head[1].weight.copy_(torch.tensor([[-1.0] * 5, [1.0] * 5]))
            model.head[1].bias.zero_()
        # Sum, not mean: every token then counts.
        model.forward = lambda ids: model.head(model.embedding(ids).sum(1))
        features, baseline = token_features(4, 0), Baseline.token("pad", 0)
        x, background = torch.tensor([[3, 4, 5, 0]]), torch.zeros(3, 4, dtype=torch.long)
    else:
        convolution, head = nn.Conv2d(1, 1, 1), nn.Linear(1, 2)
        with torch.no_grad():
            convolution.weight.fill_(1)
            head.weight.copy_(torch.tensor([[-1.0], [1.0]]))
            convolution.bias.zero_()
            head.bias.zero_()
        model = nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
        features, baseline = patch_features(4, 2, 1), Baseline.zero()
        x, background = torch.rand(1, 1, 4, 4) + 0.5, torch.zeros(3, 1, 4, 4)
    game = MaskedModel(model, features, baseline, max_batch=64)
    real = features.valid(x)
    for target, sign in ((1, 1), (0, -1)):
        case = Case(game, x, torch.tensor([target]), background, torch.tensor([11]))
        scores = features.to_features(explain(name, case))
        if name in HANGING:
            assert (scores[real] > 0).all(), (target, scores)
        elif sign < 0 and name in (*NEED_RELU, *UNSIGNED, *LOSING):
            assert (scores == 0).all(), scores
        else:
            assert (sign * scores[real] > 0).all(), (target, scores)


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kind in PAIRS if name != "attention_rollout"])
def test_a_model_that_ignores_its_input_explains_nothing(name: str, kind: str) -> None:
    """All methods but attention rollout, which does not look at the output."""
    case = make_case(kind, name)
    with torch.no_grad():
        for parameter in case.game.model.parameters():
            if parameter.ndim > 1 and parameter.shape[-1] != 5:  # all weights but the embedding
                parameter.zero_()
    # float32 averages of equal values differ in the last place.
    assert explain(name, case).abs().max() < 1e-6


# --------------------------------------------------------------------------------------------------------- the shared checks


def test_run_refuses_what_does_not_belong_together() -> None:
    case = make_case("table")
    query = Query(case.game, case.x, case.target, None, None, case.seeds)
    with pytest.raises(ValueError, match="method 'gradient': must be one of"):
        load_method("gradient")
    with pytest.raises(ValueError, match="lime needs the bernoulli masks of the bank's fitting use"):
        attribute_by_name("lime", query, settings_of("lime"))
    masks = masks_for("lime", case.game, case.x, case.target, case.seeds)
    fewer = Query(case.game, case.x[:5], case.target[:5], masks, None, case.seeds[:5])
    with pytest.raises(ValueError, match=r"masks \(6, 40, 6\) do not belong to 5 inputs"):
        attribute_by_name("lime", fewer, settings_of("lime"))
    with pytest.raises(ValueError, match=r"inputs have shape \(4,\)"):
        attribute_by_name("saliency", replace(query, x=case.x[:, :4]), settings_of("saliency"))
    with pytest.raises(ValueError, match="6 inputs, 2 targets and 6 seeds"):
        attribute_by_name("saliency", replace(query, target=case.target[:2]), settings_of("saliency"))
    with pytest.raises(ValueError, match="needs background inputs, and got none"):
        attribute_by_name("expected_gradients", query, settings_of("expected_gradients"))
