"""Guided and boundary integrated gradients and the methods that walk along attacks: against arithmetic and plain loops."""

import math

import pytest
import torch
from pydantic import ValidationError
from tests.tiny_networks import louder
from torch import Tensor, nn

from faithline.attributions import (
    adversarial_gradient_integration,
    attexplore,
    boundary_integrated_gradients,
    fast_integrated_gradients,
    guided_integrated_gradients,
    integrated_gradients,
    isa,
    local_attribution,
    mfaba,
    walks,
)
from faithline.attributions.query import DoesNotFit, Query
from faithline.config import (
    AdversarialGradientIntegrationSettings,
    AttExploreSettings,
    BoundaryIntegratedGradientsSettings,
    GradientSettings,
    GuidedIntegratedGradientsSettings,
    IntegratedGradientsSettings,
    IsaSettings,
    LocalAttributionSettings,
    MfabaSettings,
)
from faithline.masking import Baseline, Features, FromEmbeddings, MaskedModel, column_features, token_features

pytestmark = pytest.mark.usefixtures("one_thread")

GIG = GuidedIntegratedGradientsSettings(role="baseline", output="prob", steps=9, fraction=0.25, max_dist=0.1)
BIG = BoundaryIntegratedGradientsSettings(
    role="baseline", output="logit", radii=[0.5, 4.0], attack_steps=20, step=0.1, steps=8, clip=None
)
AGI = AdversarialGradientIntegrationSettings(role="baseline", output="prob", eps=0.3, steps=5, classes=9, clip=None)
MFABA = MfabaSettings(role="baseline", output="prob", alpha=0.1, steps=6, path="smooth", clip=None)
ATTEXPLORE = AttExploreSettings(
    role="baseline", output="logit", eps=0.2, steps=4, samples=3, rho=0.5, noise=0.06, resize=1.0, smoothing=1, momentum=1.0,
    clip=None,
)  # fmt: skip
ISA = IsaSettings(role="baseline", output="logit", block=4, steps=2, alpha=0.01, factor=1.3, noise=0.05, clip=None)
LA = LocalAttributionSettings(role="baseline", output="prob", spatial_range=5.0, steps=4, classes=9, clip=None)


def ask(game: MaskedModel, x: Tensor, target: Tensor) -> Query:
    return Query(game, x, target, None, None, torch.arange(len(x)) * 31 + 5)


@pytest.fixture
def query() -> Query:
    """Five rows of a ReLU network of 6 columns and 4 classes, of more than one class."""
    torch.manual_seed(2)
    model = louder(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 4)))
    game = MaskedModel(model, column_features(6), Baseline.mean(torch.randn(6) / 3), max_batch=64)
    x = torch.randn(5, 6)
    target = game.predict(x)[1].clone()
    assert len(set(target.tolist())) > 1
    return ask(game, x, target)


def linear(weight: list[list[float]], x: list[list[float]], bias: list[float] | None = None) -> Query:
    """Linear logits of a table with a baseline of zeros, each row explained for the model's own choice."""
    layer = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias or [0.0] * len(weight)))
    game = MaskedModel(nn.Sequential(layer), column_features(len(weight[0])), Baseline.zero(), max_batch=16)
    inputs = torch.tensor(x)
    return ask(game, inputs, game.predict(inputs)[1].clone())


def linear_image(seed: int = 3) -> tuple[Query, Tensor]:
    """Linear logits of 2 x 6 x 8 images; also the weights of the explained class (B, 2, 6, 8)."""
    torch.manual_seed(seed)
    layer = nn.Linear(96, 3)
    game = MaskedModel(nn.Sequential(nn.Flatten(), layer), Features("image", (2, 6, 8), 3, 4), Baseline.zero(), max_batch=16)
    x = torch.rand(3, 2, 6, 8)
    target = game.predict(x)[1].clone()
    return ask(game, x, target), layer.weight.detach()[target].reshape(3, 2, 6, 8)


def slope(query: Query, i: int, point: Tensor, target: int) -> Tensor:
    """Gradient of a class's probability at one point of the i-th sample's space, sample by sample."""
    point = point.detach().requires_grad_()
    value = query.game.model(point[None]).softmax(1)[0, target]
    return torch.autograd.grad(value, point)[0]


def chosen(query: Query, point: Tensor) -> int:
    return int(query.game.model(point[None]).argmax())


# ---------------------------------------------------------------------------------------------- guided integrated gradients


def test_guided_path_is_that_of_a_plain_loop(query: Query) -> None:
    maps = guided_integrated_gradients.attribute(query, GIG)
    start = query.game.baseline.values
    for i, x in enumerate(query.x):
        point, expected = start.clone(), torch.zeros(6)
        whole = float((x - start).abs().sum())
        for step in range(1, GIG.steps + 1):
            gradient = slope(query, i, point, int(query.target[i]))
            share = step / GIG.steps
            before = point.clone()
            for k in range(6):  # what fell behind the band is pulled in
                if (point[k] - start[k]) / (x[k] - start[k]) < share - GIG.max_dist:
                    point[k] = start[k] + (share - GIG.max_dist) * (x[k] - start[k])
            ends = start + min(share + GIG.max_dist, 1) * (x - start)
            left = float((x - point).abs().sum()) - whole * (1 - share)
            movable = [k for k in range(6) if abs(float(ends[k] - point[k])) > 1e-7]
            movable.sort(key=lambda k: abs(float(gradient[k])))
            while left > 1e-6 and movable:
                group, movable = movable[:2], movable[2:]  # a quarter of six, rounded up
                room = sum(abs(float(ends[k] - point[k])) for k in group)
                for k in group:
                    point[k] += min(1, left / room) * (ends[k] - point[k])
                left -= room
            expected += (point - before) * gradient
        torch.testing.assert_close(point, x, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(maps[i], expected, atol=1e-5, rtol=1e-4)


def test_guided_integrated_gradients_are_complete_and_leave_the_straight_line() -> None:
    torch.manual_seed(2)
    model = louder(nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4)))
    x = torch.randn(5, 6)
    game = MaskedModel(model, column_features(6), Baseline.mean(torch.randn(6) / 3), max_batch=64)
    query = ask(game, x, game.predict(x)[1].clone())
    many = GIG.model_copy(update={"steps": 800})
    maps = guided_integrated_gradients.attribute(query, many)
    ends = torch.tensor([[True], [False]]).expand(2, 6)
    full, none = game.values(query.x, ends.expand(5, 2, 6), query.target).unbind(1)
    assert ((maps.sum(1) - (full - none)).abs() < 0.01 * (full - none).abs()).all()
    straight = integrated_gradients.attribute(query, IntegratedGradientsSettings(role="baseline", output="prob", steps=100))
    assert (maps - straight).abs().max() > 1e-2
    band = guided_integrated_gradients.attribute(query, many.model_copy(update={"max_dist": 0.0}))
    torch.testing.assert_close(band, straight, atol=5e-3, rtol=0)  # a band of no width is the straight line


# --------------------------------------------------------------------------------------------- boundary integrated gradients


def test_boundary_of_two_linear_classes_is_the_first_step_beyond_the_line() -> None:
    """The logits differ by x . (3, 4) - 1: at (1, 1) by 6, which is 1.2 away. Steps of the wider attack are 0.4 long."""
    query = linear([[0.0, 0.0], [3.0, 4.0]], [[1.0, 1.0]], [1.0, 0.0])
    maps = boundary_integrated_gradients.attribute(query, BIG.model_copy(update={"radii": [4.0, 0.5], "step": 0.09}))
    # Steps of 0.36 along (0.6, 0.8): the fourth, at 1.44, is the first beyond 1.2.
    torch.testing.assert_close(maps, torch.tensor([[3 * 1.44 * 0.6, 4 * 1.44 * 0.8]]))
    assert query.game.passes - 1 == 2 * (20 + 1) + 8


def test_the_smaller_radius_wins_where_it_reaches() -> None:
    query = linear([[0.0, 0.0], [3.0, 4.0]], [[1.0, 1.0]], [1.0, 0.0])
    # The steps of radius 1.3 are 0.13 long: the tenth, at 1.3, is the first beyond 1.2; the wider attack's first is at 1.32.
    maps = boundary_integrated_gradients.attribute(query, BIG.model_copy(update={"radii": [1.3, 4.4]}))
    torch.testing.assert_close(maps, torch.tensor([[3 * 1.3 * 0.6, 4 * 1.3 * 0.8]]), atol=1e-5, rtol=1e-5)


def test_attacks_of_other_radii_are_other_attacks(query: Query) -> None:
    """Each attack reaches its own radius, and none leaves it."""
    view = query.game.gradient_view(query.x, "logit")
    free = torch.ones_like(query.x, dtype=torch.bool)
    for radius in (1e-3, 0.02):
        settings = BIG.model_copy(update={"radii": [radius]})
        boundary = boundary_integrated_gradients.nearest_boundary(view, query.target, free, settings)
        assert not boundary.found.any()  # the last point is kept
        torch.testing.assert_close((boundary.point - query.x).norm(dim=1), torch.full((5,), radius), atol=1e-6, rtol=1e-4)


def test_nearest_boundary_says_what_it_found_and_is_complete(query: Query) -> None:
    view = query.game.gradient_view(query.x, "logit")
    free = torch.ones_like(query.x, dtype=torch.bool)
    settings = BIG.model_copy(update={"steps": 400})
    boundary = boundary_integrated_gradients.nearest_boundary(view, query.target, free, settings)
    assert boundary.found.any()
    assert ((query.game.predict(boundary.point)[1] != query.target) == boundary.found).all()
    maps = boundary_integrated_gradients.attribute(query, settings)
    gap = query.game.predict(query.x)[0] - query.game.predict(boundary.point)[0]
    gap = gap.gather(1, query.target[:, None])[:, 0]
    torch.testing.assert_close(maps.sum(1), gap, atol=2e-2, rtol=1e-2)


def test_a_probability_that_rounds_to_one_still_has_a_way_out() -> None:
    query = linear([[0.0, 0.0], [30.0, 40.0]], [[1.0, 1.0]])
    assert float(query.game.predict(query.x)[0].softmax(1)[0, 1]) == 1
    maps = boundary_integrated_gradients.attribute(query, BIG)
    assert (maps > 0).all()


def test_an_attack_that_never_reaches_its_radius_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"attack_steps = 50 steps of step = 0.01 never reach the radius"):
        BoundaryIntegratedGradientsSettings(**{**BIG.model_dump(), "attack_steps": 50, "step": 0.01})


# ------------------------------------------------------------------------------------------------- fast integrated gradients


@pytest.mark.parametrize("bias", [False, True])
def test_fast_integrated_gradients_are_exact_without_biases_only(bias: bool) -> None:
    torch.manual_seed(6)
    model = nn.Sequential(
        nn.Linear(5, 9, bias=bias), nn.ReLU(), nn.Linear(9, 7, bias=bias), nn.ReLU(), nn.Linear(7, 3, bias=bias)
    )
    game = MaskedModel(louder(model), column_features(5), Baseline.zero(), max_batch=64)
    x = torch.randn(4, 5)
    query = ask(game, x, game.predict(x)[1].clone())
    maps = fast_integrated_gradients.attribute(query, GradientSettings(role="baseline", output="logit"))
    path = integrated_gradients.attribute(query, IntegratedGradientsSettings(role="baseline", output="logit", steps=64))
    assert bool(torch.allclose(maps, path, atol=1e-4)) != bias
    if not bias:  # and it has the sign of the logit, not of a loss
        torch.testing.assert_close(maps.sum(1), game.predict(x)[0].amax(1), atol=1e-4, rtol=1e-4)


# ------------------------------------------------------------------------------------------- adversarial gradient integration


def test_adversarial_gradient_integration_is_that_of_a_plain_loop(query: Query) -> None:
    """All three other classes; a batch of mixed classes gives each sample what it gets alone."""
    settings = AGI.model_copy(update={"clip": (-3.0, 3.0)})
    maps = adversarial_gradient_integration.attribute(query, settings)
    arrived = 0
    for i, x in enumerate(query.x):
        own, expected = int(query.target[i]), torch.zeros(6)
        for rival in set(range(4)) - {own}:
            point = x
            for _ in range(AGI.steps):
                if chosen(query, point) == rival:
                    arrived += 1
                    break
                after = (x + AGI.eps * slope(query, i, point, rival).sign()).clamp(-3, 3)
                expected -= slope(query, i, point, own) * (after - x)
                point = after
        torch.testing.assert_close(maps[i], expected, atol=1e-5, rtol=1e-4)
    assert 0 < arrived < 15  # some walks end early, some do not


def test_displacements_are_measured_from_the_input() -> None:
    """Three classes, of which the walks reach none: five times the same displacement, not one to five of them."""
    query = linear([[9.0, 9.0], [1.0, -2.0], [-3.0, 1.0]], [[2.0, 2.0]])
    maps = adversarial_gradient_integration.attribute(query, AGI.model_copy(update={"output": "logit"}))
    # Signs of the others: (1, -1) and (-1, 1): they cancel. One of them only:
    torch.testing.assert_close(maps, torch.zeros(1, 2))
    one = adversarial_gradient_integration.attribute(query, AGI.model_copy(update={"output": "logit", "classes": 1}))
    torch.testing.assert_close(one.abs(), torch.full((1, 2), 5 * 0.3 * 9.0))
    assert float(one.sum()) == 0  # one column speaks for the class, the other against it


def test_other_classes_are_drawn_by_seed_and_are_never_the_explained_one() -> None:
    torch.manual_seed(1)
    game = MaskedModel(nn.Linear(3, 10), column_features(3), Baseline.zero(), max_batch=8)
    seeds, target = torch.arange(200), torch.arange(200) % 10
    query = Query(game, torch.randn(200, 3), target, None, None, seeds)
    some = walks.false_classes(query, 4)
    assert game.passes == 1
    assert some.shape == (200, 4)
    assert (some != target[:, None]).all()
    assert all(len(set(row)) == 4 for row in some.tolist())
    assert {k for row in some.tolist() for k in row} == set(range(10))
    part = Query(game, query.x[50:53], target[50:53], None, None, seeds[50:53])
    assert torch.equal(walks.false_classes(part, 4), some[50:53])
    every = walks.false_classes(query, 99)
    assert all(sorted([*row, k]) == list(range(10)) for row, k in zip(every.tolist(), target.tolist(), strict=True))


@pytest.mark.parametrize(
    ("module", "settings"), [(adversarial_gradient_integration, AGI), (local_attribution, LA)], ids=["agi", "la"]
)
def test_one_class_has_nowhere_to_walk_to(module: object, settings: object) -> None:
    game = MaskedModel(nn.Linear(3, 1), column_features(3), Baseline.zero(), max_batch=8)
    with pytest.raises(DoesNotFit, match="the model has one class"):
        module.attribute(ask(game, torch.randn(2, 3), torch.zeros(2, dtype=torch.long)), settings)


# -------------------------------------------------------------------------------------------------------------------- MFABA


@pytest.mark.parametrize("path", ["smooth", "sharp"])
def test_mfaba_is_that_of_a_plain_loop(query: Query, path: str) -> None:
    maps = mfaba.attribute(query, MFABA.model_copy(update={"path": path}))
    taken = []
    for i, x in enumerate(query.x):
        point, expected, own = x, torch.zeros(6), int(query.target[i])
        taken.append(0)
        while taken[-1] < MFABA.steps and chosen(query, point) == own:
            gradient = slope(query, i, point, own)
            expected += 0.1 * (gradient.abs() if path == "smooth" else gradient**2 / gradient.norm())
            point = point - 0.1 * (gradient.sign() if path == "smooth" else gradient / gradient.norm())
            taken[-1] += 1
        torch.testing.assert_close(maps[i], expected, atol=1e-5, rtol=1e-4)
    assert min(taken) < MFABA.steps  # somebody loses the class on the way
    assert (maps >= 0).all()
    assert (maps.sum(1) > 0).all()


def test_a_clipped_walk_stops_at_the_range() -> None:
    query = linear([[0.0, 0.0], [3.0, -4.0]], [[0.9, 0.15]])
    settings = MFABA.model_copy(update={"output": "logit", "clip": (0.0, 0.3)})
    with pytest.raises(ValueError, match=r"clip = \[0.0, 0.3\]: inputs reach from 0.15 to 0.9; give their range, or null"):
        mfaba.attribute(query, settings)
    # Down the first column by 0.1 a step and up the second as far as 0.3 (1.5 steps); the class is lost before the fifth step,
    # at (0.5, 0.3): 3 * 0.5 - 4 * 0.3 = 0.3 keeps it, (0.4, 0.3) ties and keeps it, (0.3, 0.3) does not.
    maps = mfaba.attribute(query, settings.model_copy(update={"clip": (0.0, 1.0), "steps": 1}))
    torch.testing.assert_close(maps, torch.tensor([[0.3, 0.4]]))
    low = linear([[-9.0, -9.0], [3.0, -4.0]], [[0.15, 0.9]])
    maps = mfaba.attribute(low, settings.model_copy(update={"clip": (0.0, 1.0)}))
    torch.testing.assert_close(maps, torch.tensor([[0.45, 0.4]]))  # 3 * 0.15 and 4 * 0.1: no room for more


# --------------------------------------------------------------------------------------------------------------- AttExplore


def test_attexplore_of_linear_logits_walks_away_from_the_class() -> None:
    query, weight = linear_image()
    before = query.game.passes
    maps = attexplore.attribute(query, ATTEXPLORE)
    torch.testing.assert_close(maps, 0.2 * weight.abs().sum(1), atol=1e-5, rtol=1e-5)
    assert query.game.passes - before == 3 * 4 * 3


def test_attexplore_smoothes_the_way_and_not_what_is_summed() -> None:
    query, weight = linear_image()
    maps = attexplore.attribute(query, ATTEXPLORE.model_copy(update={"smoothing": 7}))
    reach = torch.arange(-3, 4)
    line = torch.exp(-(reach**2) / 2)
    kernel = (line[:, None] * line / line.sum() ** 2).expand(2, 1, 7, 7)
    way = nn.functional.conv2d(weight, kernel, padding=3, groups=2).sign()
    torch.testing.assert_close(maps, (0.2 * way * weight).sum(1), atol=1e-5, rtol=1e-5)
    assert (maps < 0).any()


def test_copies_are_resized_within_the_frame_and_gradients_come_back() -> None:
    share, place = torch.tensor([1.0, 0.5, 0.5]), torch.tensor([0.3, 0.0, 1.0])
    matrices = attexplore.frame(8, share, place)
    assert torch.equal(matrices[0], torch.eye(8))
    line = torch.arange(8.0)
    torch.testing.assert_close(matrices[1] @ line, torch.tensor([0.5, 2.5, 4.5, 6.5, 0, 0, 0, 0]))
    torch.testing.assert_close(matrices[2] @ line, torch.tensor([0, 0, 0, 0, 0.5, 2.5, 4.5, 6.5]))
    # A copy shrunk by s sends even weights back shrunk to s^2.
    query, _ = linear_image()
    with torch.no_grad():
        query.game.model[1].weight.fill_(0.01)
    one, two = (
        attexplore.attribute(query, ATTEXPLORE.model_copy(update={"resize": resize, "samples": 40})) for resize in (1.0, 2.0)
    )
    torch.testing.assert_close(one, torch.full((3, 6, 8), 2 * 0.2 * 0.01))
    # Mean of s^2 over s uniform in [1/2, 1] for both sides is 7/12; bilinear borders and 160 draws leave some room.
    assert 0.5 < float(two.mean() / one.mean()) < 0.68


def test_cosines_are_a_rotation_into_frequencies() -> None:
    matrix = attexplore.cosines(8)
    torch.testing.assert_close(matrix @ matrix.mT, torch.eye(8, dtype=torch.float64))
    torch.testing.assert_close(matrix @ torch.ones(8, dtype=torch.float64), math.sqrt(8) * torch.eye(8, dtype=torch.float64)[0])


def test_frequencies_are_disturbed_by_rho_and_pixels_by_noise() -> None:
    query, _ = linear_image()
    view = query.game.gradient_view(query.x, "logit")
    seen: list[Tensor] = []
    query.game.model.register_forward_pre_hook(lambda _module, args: seen.append(args[0].detach()))
    shown = {}
    for rho, noise in ((0.0, 0.0), (0.5, 0.0), (0.0, 0.06)):
        settings = ATTEXPLORE.model_copy(update={"rho": rho, "noise": noise})
        draws = walks.Draws(query.seeds)
        attexplore._copys_gradient(view, query.x, query.target, draws, torch.arange(3), settings)
        shown[rho, noise] = seen[-1]
    torch.testing.assert_close(shown[0.0, 0.0], query.x, atol=1e-5, rtol=1e-5)
    assert 0.04 < float((shown[0.0, 0.06] - query.x).std()) < 0.08
    rows, columns = attexplore.cosines(6).float(), attexplore.cosines(8).float()
    ratio = (rows @ shown[0.5, 0.0] @ columns.mT) / (rows @ query.x @ columns.mT)
    assert ratio.min() > 0.5 - 1e-3
    assert ratio.max() < 1.5 + 1e-3
    assert ratio.std() > 0.2


# ---------------------------------------------------------------------------------------------------------------------- ISA


def test_isa_ranks_blocks_above_one_another_and_the_last_incomplete_one_highest() -> None:
    """Ten columns in blocks of four: the two of largest weight are the third block."""
    weight = torch.tensor([0.3, -0.9, 0.1, 0.5, -0.2, 1.0, 0.7, -0.4, 0.8, 0.6])
    query = linear([(-weight).tolist(), weight.tolist()], [weight.tolist()] * 2)
    before = query.game.passes
    maps = isa.attribute(query, ISA)
    assert query.game.passes - before == 2 * 3 * 2 * 2
    assert torch.equal(maps[0].argsort(), weight.abs().argsort())
    blocks = [[2, 4, 0, 7], [3, 9, 6, 8], [1, 5]]
    for number, columns in enumerate(blocks):
        size = weight.abs()[columns]
        expected = 1.3**number * (1 + 0.15 * (size - size.min()) / (size.max() - size.min()))
        torch.testing.assert_close(maps[0, columns], expected, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(maps[0], maps[1], atol=1e-3, rtol=1e-3)


def test_isa_moves_what_is_left_only_and_both_ways() -> None:
    weight = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    query = linear([(-weight).tolist(), weight.tolist()], [[1.0] * 6])
    seen: list[Tensor] = []
    query.game.model.register_forward_pre_hook(lambda _module, args: seen.append(args[0].detach()[0]))
    isa.attribute(query, ISA.model_copy(update={"noise": 0.0}))
    shifts = torch.stack(seen) - 1
    late = torch.tensor([0.0] * 4 + [1.0] * 2)
    every = torch.ones(6)
    expected = torch.stack([0 * every, -0.01 * every, 0 * every, 0.01 * every, 0 * late, -0.01 * late, 0 * late, 0.01 * late])
    torch.testing.assert_close(shifts, expected, atol=1e-6, rtol=1e-4)


def test_isa_noise_is_the_samples_own() -> None:
    query = linear([[-1.0, -1.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 2.0]])
    seen: list[Tensor] = []
    query.game.model.register_forward_pre_hook(lambda _module, args: seen.append(args[0].detach()))
    isa.attribute(query, ISA)
    alone = Query(query.game, query.x[1:], query.target[1:], None, None, query.seeds[1:])
    isa.attribute(alone, ISA)
    torch.testing.assert_close(torch.stack(seen[4:])[:, 0], torch.stack(seen[:4])[:, 1])
    assert 0.01 < float((seen[0] - query.x).std()) < 0.12
    assert not torch.allclose(seen[0] - query.x, seen[2] - query.x)


def test_isa_refuses_so_many_rounds_that_ranks_overflow(query: Query) -> None:
    with pytest.raises(ValueError, match=r"isa.block = 1: makes 6 rounds; isa.factor = 1000000.0 to that power is no float32"):
        isa.attribute(query, ISA.model_copy(update={"block": 1, "factor": 1e6}))


# -------------------------------------------------------------------------------------------------------- local attribution


def test_local_attribution_is_that_of_a_plain_loop(query: Query) -> None:
    maps = local_attribution.attribute(query, LA)
    for i, x in enumerate(query.x):
        own, expected, radius = int(query.target[i]), torch.zeros(6), x.abs() / 5
        for rival in range(4):  # the explained class itself stands for the walk away from it
            point = x
            for _ in range(LA.steps):
                way = -slope(query, i, point, own).sign() if rival == own else slope(query, i, point, rival).sign()
                after = x + radius * way
                expected -= slope(query, i, point, own) * (after - x)
                point = after
        torch.testing.assert_close(maps[i], expected, atol=1e-5, rtol=1e-4)


def test_a_value_of_zero_has_no_room_in_its_neighbourhood(query: Query) -> None:
    x = query.x.clone()
    x[:, 2] = 0
    maps = local_attribution.attribute(Query(query.game, x, query.target, None, None, query.seeds), LA)
    assert (maps[:, 2] == 0).all()
    assert (maps[:, [0, 1, 3, 4, 5]] != 0).any(0).all()


# ------------------------------------------------------------------------------------------------------------- what they share


def test_the_gradient_of_a_probability_is_exact_also_where_it_rounds_to_one(query: Query) -> None:
    view = query.game.gradient_view(query.x, "logit")
    _, (gradient,) = walks.look(view, query.x, "prob", query.target)
    expected = torch.stack([slope(query, i, x, int(query.target[i])) for i, x in enumerate(query.x)])
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)
    sure = linear([[0.0, 0.0], [30.0, -40.0]], [[1.0, -1.0]])
    _, (gradient,) = walks.look(sure.game.gradient_view(sure.x, "logit"), sure.x, "prob", sure.target)
    torch.testing.assert_close(gradient, math.exp(-70) * torch.tensor([[30.0, -40.0]]), atol=0, rtol=1e-4)


ATTACKS = {
    "boundary": (boundary_integrated_gradients, BIG),
    "agi": (adversarial_gradient_integration, AGI),
    "mfaba": (mfaba, MFABA),
    "isa": (isa, ISA),
    "la": (local_attribution, LA),
}


class Bag(nn.Module):
    """A network on the mean embedding of all positions: careless of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.head = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embedding(ids).mean(1))


@pytest.mark.parametrize("name", ATTACKS)
def test_no_walk_moves_the_padding_of_a_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, settings = ATTACKS[name]
    torch.manual_seed(4)
    game = MaskedModel(louder(Bag()), token_features(5, 0), Baseline.token("pad", 0), max_batch=32)
    x = torch.tensor([[4, 7, 2, 8, 1], [5, 6, 0, 0, 0]])
    query = ask(game, x, game.predict(x)[1].clone())
    points: list[Tensor] = []
    plain = FromEmbeddings.forward

    def record(self: FromEmbeddings, embedded: Tensor, ids: Tensor) -> Tensor:
        points.append(embedded.detach()[ids == 0])
        return plain(self, embedded, ids)

    monkeypatch.setattr(FromEmbeddings, "forward", record)
    module.attribute(query, settings)
    blank = game.embedding().weight.detach()[0]
    padded = torch.cat(points)
    assert len(padded)
    torch.testing.assert_close(padded, blank.expand_as(padded))


@pytest.mark.parametrize("name", ["agi", "la", "isa", "mfaba"])
def test_backward_passes_are_those_the_docstring_names(name: str, query: Query) -> None:
    module, settings = ATTACKS[name]
    rows = 0

    def count(_module: nn.Module, given: tuple[Tensor, ...], _back: tuple[Tensor, ...]) -> None:
        nonlocal rows
        rows += len(given[0])

    handle = query.game.model.register_full_backward_hook(count)
    before = query.game.passes
    module.attribute(query, settings)
    handle.remove()
    forward, backward = {
        "agi": (5 * 3 * 5 + 1, 5 * 3 * 5 * 2),
        "la": (5 * 3 * 4 + 1 + 5 * 4, 5 * 3 * 4 * 2 + 5 * 4),
        "isa": (5 * 2 * 2 * 2, 5 * 2 * 2 * 2),
        "mfaba": (5 * 6, 5 * 6),
    }[name]
    assert query.game.passes - before == forward
    assert rows == backward


def test_a_range_is_two_numbers_in_order() -> None:
    with pytest.raises(ValidationError, match=r"clip = \[1.0, 0.0\]: must be \[lowest, highest\]"):
        MfabaSettings(**{**MFABA.model_dump(), "clip": [1.0, 0.0]})
    with pytest.raises(ValidationError, match="smoothing = 4: must be odd"):
        AttExploreSettings(**{**ATTEXPLORE.model_dump(), "smoothing": 4})
