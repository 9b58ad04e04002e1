"""The ten metrics: closed forms, identities, invariances, degenerate inputs and parity with Quantus (checks of the spec)."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from math import factorial
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from faithline.bank import ExactTable, Masks, all_keep_sets
from faithline.masking import Baseline, Features, MaskedModel, column_features, patch_features, token_features
from faithline.metrics.catalogue import METRICS
from faithline.metrics.correlation import pearson
from faithline.metrics.curves import Evaluate, Sweeps, relevance_ranks, sweep
from faithline.metrics.ten import area, frozen, removed_sums, score, subset_correlation, width


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------------------------------------------------- exact games


def _table(value: Callable[[Tensor], Tensor], n: int, batch: int = 1) -> ExactTable:
    """The 2^n values of a game given as a function of keep (2^n, n); the class never changes."""
    values = value(all_keep_sets(n).double()).float().repeat(batch, 1)
    return ExactTable(values, torch.ones_like(values, dtype=torch.bool))


def _additive(delta: Tensor, clean: float) -> ExactTable:
    """v(keep) = clean - sum of the removed effects."""
    return _table(lambda keep: clean - (1 - keep) @ delta.double(), len(delta))


def _masks(table: ExactTable, keep: Tensor) -> Masks:
    """The given keep sets (S, n) of each sample."""
    batch, n = len(table.values), table.n
    rows = torch.arange(batch).repeat_interleave(len(keep))
    values = table.evaluate(rows, keep.repeat(batch, 1)).value.reshape(batch, -1)
    valid = torch.ones(batch, n, dtype=torch.bool)
    return Masks(keep.expand(batch, -1, -1), values, table.values[:, -1], table.values[:, 0], valid)


def _exact_laws(table: ExactTable, size: int) -> tuple[Masks, Masks]:
    """All masks, and all masks that remove `size` features."""
    every = all_keep_sets(table.n)
    return _masks(table, every), _masks(table, every[(~every).sum(1) == size])


def _scores(
    table: ExactTable,
    maps: Tensor,
    steps: int | None = None,
    size: int = 2,
    seed: int = 0,
    ids: Tensor | None = None,
    **conventions: object,
) -> tuple[dict[str, Tensor], Sweeps]:
    valid = torch.ones_like(maps, dtype=torch.bool)
    ranks = relevance_ranks(maps, valid, torch.arange(len(maps)) if ids is None else ids, seed)
    curves = sweep(table.evaluate, ranks, valid, table.values[:, -1], steps or table.n, insertion=None, singles=None, empty=None)
    bernoulli, fixed = _exact_laws(table, size)
    settings = {"convention": "strict", "mc_absolute": False, "min_prob": 1e-3} | conventions
    return score(maps, ranks, curves, bernoulli=bernoulli, fixed_size=fixed, **settings), curves


DELTA = torch.tensor([0.05, 0.2, 0.1, 0.3, 0.15, 0.02])


def test_check_01_additive_positive_game_is_solved_by_its_effects() -> None:
    table = _additive(DELTA, clean=0.9)
    for sign in (1, -1):
        result, _ = _scores(table, sign * DELTA[None] / DELTA.max())
        for name in ("fc", "fe", "mc", "inf"):
            assert result[name].item() == pytest.approx(sign, abs=1e-5), name
        # The local-correlation loss is (1 - INF) / 2 on the training masks: 0 at the optimum, 1 at its opposite.
        assert (1 - result["inf"].item()) / 2 == pytest.approx((1 - sign) / 2, abs=1e-5)


def test_check_02_signed_effects_survive_min_max_only_at_fixed_size() -> None:
    delta = torch.tensor([0.3, -0.2, 0.25, -0.1, 0.05, -0.3, 0.15, 0.1])
    table = _additive(delta, clean=0.6)
    raw, _ = _scores(table, delta[None], size=3)
    shifted, _ = _scores(table, ((delta - delta.min()) / (delta.max() - delta.min()))[None], size=3)
    assert raw["fc"].item() == pytest.approx(1, abs=1e-5)
    assert raw["inf"].item() == pytest.approx(1, abs=1e-5)
    assert shifted["fc"].item() == pytest.approx(1, abs=1e-5)
    assert shifted["inf"].item() < 0.7


def test_check_03_curves_of_an_additive_game_are_prefix_sums() -> None:
    delta, p0 = DELTA.sort(descending=True).values.double(), 0.9
    result, curves = _scores(_additive(delta, clean=p0), delta[None].float())
    n = len(delta)
    morf = torch.cat([torch.tensor([p0]), p0 - delta.cumsum(0)])
    lerf = torch.cat([torch.tensor([p0]), p0 - delta.flip(0).cumsum(0)])
    assert torch.allclose(curves.morf[0].double(), morf, atol=1e-6)
    assert torch.allclose(curves.lerf[0].double(), lerf, atol=1e-6)

    def trapezoid(points: Tensor) -> float:
        return float((points[1:] + points[:-1]).sum() / 2 / n)

    expected = {
        "rp": float(p0 - morf[1:].mean()),
        "ins": trapezoid(lerf.flip(0)),
        "del": trapezoid(morf),
        "neg": trapezoid(lerf),
        "pos": trapezoid(morf),
        "irof": 1 - trapezoid(morf) / p0,
    }
    for name, value in expected.items():
        assert result[name].item() == pytest.approx(value, abs=1e-6), name


def _all_orders(n: int) -> Tensor:
    """A map for each of the n! orders, (n!, n)."""
    return torch.tensor(list(itertools.permutations(range(n))), dtype=torch.float32)


@pytest.mark.parametrize("linear_in_logit", [False, True], ids=["check_03_additive", "check_04_linear_in_logit"])
def test_order_of_effects_is_best_among_all_orders(linear_in_logit: bool) -> None:
    delta = torch.tensor([0.1, 0.3, -0.05, 0.2, 0.15])
    every = _all_orders(5)
    if linear_in_logit:
        table = _table(lambda keep: torch.sigmoid(6 * (keep @ delta.double()) - 2), 5, len(every) + 1)
    else:
        table = _table(lambda keep: 0.8 - (1 - keep) @ delta.double(), 5, len(every) + 1)
    result, _ = _scores(table, torch.cat([delta[None], every]))
    for name in ("rp", "ins", "del", "neg", "pos", "irof"):
        own, others = result[name][0].item(), result[name][1:]
        best = others.max() if METRICS[name].direction == "higher" else others.min()
        assert own == pytest.approx(best.item(), abs=1e-6), name
        assert others.max() - others.min() > 0.05, name
    # Curvature of the sigmoid alone costs FC.
    fc = result["fc"][0].item()
    assert (0.9 < fc < 0.9999) if linear_in_logit else fc == pytest.approx(1, abs=1e-5)


def _mlp_table(n: int, seed: int) -> ExactTable:
    weights = torch.randn(n, 16, generator=_generator(seed), dtype=torch.float64)
    head = torch.randn(16, generator=_generator(seed + 1), dtype=torch.float64) / 4
    return _table(lambda keep: torch.sigmoid(torch.tanh(keep @ weights) @ head), n)


def _banzhaf(table: ExactTable) -> Tensor:
    """Mean marginal contribution over all coalitions, by definition, (n,)."""
    keep = all_keep_sets(table.n)
    values = table.values[0].double()
    return torch.stack([values[keep[:, i]].mean() - values[~keep[:, i]].mean() for i in range(table.n)])


def test_check_05_banzhaf_is_the_least_squares_fit_and_the_ceiling_of_inf() -> None:
    table = _mlp_table(8, seed=3)
    keep = all_keep_sets(8).double()
    design = torch.cat([keep, torch.ones(256, 1, dtype=torch.float64)], 1)
    fit = torch.linalg.lstsq(design, table.values[0].double()[:, None]).solution[:, 0]
    banzhaf = _banzhaf(table)
    assert torch.allclose(fit[:8], banzhaf, atol=1e-6)
    ceiling = pearson((design @ fit)[None], table.values)[0]
    bernoulli, _ = _exact_laws(table, 3)
    own = subset_correlation(banzhaf[None].float(), bernoulli)[0]
    assert own.item() == pytest.approx(ceiling.item(), abs=1e-6)
    others = torch.randn(500, 8, generator=_generator(0))
    others = torch.cat([others, banzhaf.float() + 0.02 * others])
    assert 0.5 < ceiling < 1
    sums = (1 - keep) @ others.double().T
    assert bool((pearson(sums.T, bernoulli.effects.expand(1000, -1)) <= ceiling + 1e-9).all())


def test_check_06_and_game_banzhaf_order_is_not_deletion_optimal() -> None:
    # v = 0.4 [3 kept] + 0.6 [1 and 2 kept]; the Banzhaf order 3, 1, 2 loses to 1, 3, 2.
    table = _table(lambda keep: 0.4 * keep[:, 2] + 0.6 * keep[:, 0] * keep[:, 1], 3, 2)
    banzhaf = _banzhaf(table)
    assert torch.allclose(banzhaf, torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64), atol=1e-6)
    maps = torch.tensor([[0.31, 0.3, 0.4], [0.5, 0.3, 0.4]])
    result, curves = _scores(table, maps, convention="official", size=1)
    assert torch.allclose(curves.morf, torch.tensor([[1.0, 0.6, 0, 0], [1.0, 0.4, 0, 0]]), atol=1e-6)
    assert result["del"].tolist() == pytest.approx([0.1, 0.2 / 3], abs=1e-6)
    assert result["inf"][0] > result["inf"][1]


# -------------------------------------------------------------------------------------------------------------- identities


def _random_game(batch: int, n: int, seed: int) -> ExactTable:
    values = torch.rand(batch, 2**n, generator=_generator(seed))
    top = torch.rand(batch, 2**n, generator=_generator(seed + 1)) < 0.8
    top[:, -1] = True
    return ExactTable(values, top)


@pytest.mark.parametrize("convention", ["strict", "official"])
@pytest.mark.parametrize("steps", [3, 6, 10])
def test_check_08_irof_is_width_minus_relative_deletion(convention: str, steps: int) -> None:
    table = _random_game(20, 6, 0)
    result, curves = _scores(table, torch.randn(20, 6, generator=_generator(1)), steps, convention=convention)
    expected = width(steps, convention) - result["del"] / curves.morf[:, 0]
    assert torch.allclose(result["irof"], expected, atol=1e-5, rtol=1e-5)


def test_check_09_region_perturbation_and_deletion_read_one_curve() -> None:
    table = _random_game(20, 6, 0)
    result, curves = _scores(table, torch.randn(20, 6, generator=_generator(1)), 3, convention="official")
    p = curves.morf
    assert torch.allclose(result["rp"], p[:, 0] - p[:, 1:].mean(1), atol=1e-6)
    assert torch.allclose(result["del"], (p[:, 1:].sum(1) - (p[:, 1] + p[:, -1]) / 2) / 3, atol=1e-6)


def test_check_10_insertion_and_negative_perturbation_share_a_sweep() -> None:
    table = replace(_random_game(20, 6, 0), top=torch.ones(20, 64, dtype=torch.bool))
    result, curves = _scores(table, torch.randn(20, 6, generator=_generator(1)))
    assert torch.equal(curves.insertion, curves.lerf.flip(1))
    assert torch.allclose(result["ins"], result["neg"], atol=1e-6)


def test_check_11_conventions_differ_by_the_clean_end() -> None:
    table = _random_game(20, 6, 0)
    maps = torch.randn(20, 6, generator=_generator(1))
    strict, curves = _scores(table, maps, 6, convention="strict")
    official, _ = _scores(table, maps, 6, convention="official")
    first = {"ins": curves.insertion, "del": curves.morf}
    for name, curve in first.items():
        assert torch.allclose(strict[name], official[name] + (curve[:, 0] + curve[:, 1]) / 12, atol=1e-6), name
    for name in ("fc", "fe", "mc", "inf", "rp"):
        assert torch.equal(strict[name], official[name]), name
    ones = torch.ones(1, 9)
    assert area(ones, "strict").item() == pytest.approx(1)
    assert area(ones, "official").item() == pytest.approx(7 / 8)  # the 0.875 cap of the published tables at n = 8


def test_check_12_curves_freeze_at_the_state_where_the_class_changes() -> None:
    curve = torch.tensor([[0.9, 0.7, 0.5, 0.3, 0.1]])
    assert torch.equal(frozen(curve, torch.ones(1, 5, dtype=torch.bool)), curve)
    top = torch.tensor([[True, True, False, True, False]])
    assert torch.equal(frozen(curve, top), torch.tensor([[0.9, 0.7, 0.5, 0.5, 0.5]]))

    table = _random_game(50, 6, 0)
    maps = torch.randn(50, 6, generator=_generator(1))
    result, curves = _scores(table, maps)
    flips = ~(curves.morf_top[:, :-1].all(1))
    plain, _ = _scores(replace(table, top=torch.ones_like(table.top)), maps)
    assert torch.equal(plain["pos"], plain["del"])
    assert 5 < flips.sum() < 50
    assert torch.equal(result["pos"][~flips], plain["pos"][~flips])
    assert not bool((result["pos"][flips] == plain["pos"][flips]).any())


# -------------------------------------------------------------------------------------------------------------- invariance


def _equal(a: dict[str, Tensor], b: dict[str, Tensor], names: list[str] | None = None, atol: float = 0.0) -> None:
    for name in names or list(METRICS):
        assert torch.allclose(a[name], b[name], rtol=0, atol=atol, equal_nan=True), name


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("steps", [3, 6])
def test_check_13_scale_of_the_map_changes_no_metric(scale: float, steps: int) -> None:
    table = _random_game(20, 6, 0)
    maps = torch.randn(20, 6, generator=_generator(1))
    _equal(_scores(table, maps, steps)[0], _scores(table, maps * scale, steps)[0], atol=1e-6)


def test_check_13_scale_of_the_effects_changes_no_correlation() -> None:
    table = _random_game(20, 6, 0)
    maps = torch.randn(20, 6, generator=_generator(1))
    saturated = replace(table, values=0.5 + 1e-3 * (table.values - 0.5))
    _equal(_scores(table, maps)[0], _scores(saturated, maps)[0], ["fc", "fe", "mc", "inf"], atol=1e-3)


def test_check_14_order_metrics_ignore_monotone_maps() -> None:
    table = _random_game(20, 6, 0)
    maps = torch.randn(20, 6, generator=_generator(1))
    names = ["rp", "ins", "del", "neg", "pos", "irof", "mc"]
    _equal(_scores(table, maps)[0], _scores(table, maps.exp())[0], names)


def test_check_16_relabelling_features_permutes_nothing_else() -> None:
    table = _random_game(20, 6, 0)
    maps = torch.randn(20, 6, generator=_generator(1))
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    # Feature i of the new game is feature order[i] of the old one.
    old = torch.zeros(64, 6, dtype=torch.bool)
    old[:, order] = all_keep_sets(6)
    index = old.long() @ (2 ** torch.arange(6))
    relabelled = ExactTable(table.values[:, index], table.top[:, index])
    _equal(_scores(table, maps)[0], _scores(relabelled, maps[:, order])[0], atol=1e-6)


class _TinyCnn(nn.Module):
    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.head = nn.Linear(96, classes)

    def forward(self, x: Tensor) -> Tensor:
        return 6 * self.head(self.body(x))


class _TinyText(nn.Module):
    """Mean of the real tokens' embeddings, then a nonlinearity."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, ids: Tensor) -> Tensor:
        real = (ids != 0).unsqueeze(-1).float()
        return 4 * self.body((self.embedding(ids) * real).sum(1) / real.sum(1).clamp(min=1))


def _model_scores(
    game: MaskedModel, x: Tensor, maps: Tensor, ids: Tensor, steps: int, keep: Tensor
) -> tuple[dict[str, Tensor], Sweeps]:
    """Ten metrics through a real model; keep (B, S, n) serves both mask laws."""
    logits, target = game.predict(x)
    valid = game.features.valid(x)

    def evaluate(rows: Tensor, kept: Tensor) -> object:
        return game.evaluate(x, rows, kept, target)

    clean = logits.softmax(1).amax(1)
    ranks = relevance_ranks(maps, valid, ids, 0)
    curves = sweep(evaluate, ranks, valid, clean, steps, insertion=None, singles=None, empty=None)
    masks = Masks(keep, game.values(x, keep, target), clean, clean, valid)
    return (
        score(
            maps,
            ranks,
            curves,
            bernoulli=masks,
            fixed_size=masks,
            convention="strict",
            mc_absolute=False,
            min_prob=1e-3,
        ),
        curves,
    )


def test_check_15_batch_order_split_and_mates_change_nothing() -> None:
    torch.manual_seed(0)
    game = MaskedModel(_TinyCnn(), patch_features(12, 4, 1), Baseline.zero(), max_batch=64)
    x = torch.randn(7, 1, 12, 12, generator=_generator(0))
    maps = torch.randn(7, 9, generator=_generator(1)).round()  # with ties
    keep = torch.rand(7, 30, 9, generator=_generator(2)) < 0.5
    ids = torch.arange(100, 107)
    whole, _ = _model_scores(game, x, maps, ids, 4, keep)
    order = torch.tensor([6, 2, 0, 4, 1, 5, 3])
    permuted, _ = _model_scores(game, x[order], maps[order], ids[order], 4, keep[order])
    _equal({name: value[order] for name, value in whole.items()}, permuted, atol=1e-6)
    for rows in (slice(0, 1), slice(2, 5)):
        part, _ = _model_scores(game, x[rows], maps[rows], ids[rows], 4, keep[rows])
        _equal({name: value[rows] for name, value in whole.items()}, part, atol=1e-6)


# -------------------------------------------------------------------------------------------------------------- degenerate


def test_check_17_constant_map_is_undefined_not_a_number() -> None:
    table = _random_game(4, 6, 0)
    for value in (0.0, 0.1, -3.0):
        for steps in (3, 6):
            result, _ = _scores(table, torch.full((4, 6), value), steps)
            for name in ("fc", "fe", "mc"):
                assert bool(result[name].isnan().all()), (name, value)
            assert bool(result["inf"].isnan().all()) == (value == 0.0)
            for name in ("rp", "ins", "del", "neg", "pos", "irof"):
                assert not bool(result[name].isnan().any()), name


def test_check_17_constant_effects_are_undefined() -> None:
    table = _table(lambda keep: torch.full((len(keep),), 0.7), 5)
    result, _ = _scores(table, torch.randn(1, 5, generator=_generator(0)))
    assert [name for name in METRICS if bool(result[name].isnan().any())] == ["fc", "fe", "mc", "inf"]
    assert result["del"].item() == pytest.approx(0.7)


def test_check_18_tied_map_scores_as_the_mean_of_all_orders() -> None:
    orders = _all_orders(4)
    table = _random_game(1, 4, 5)
    every = ExactTable(table.values.expand(len(orders), -1), table.top.expand(len(orders), -1))
    random, _ = _scores(every, orders)
    draws = 4000
    tied = ExactTable(table.values.expand(draws, -1), table.top.expand(draws, -1))
    result, _ = _scores(tied, torch.ones(draws, 4), ids=torch.arange(draws))
    assert len(orders) == factorial(4)
    for name in ("rp", "ins", "del", "neg", "pos", "irof"):
        error = random[name].std() / draws**0.5
        assert abs(result[name].mean() - random[name].mean()) < 4 * error, name


def test_check_19_small_clean_values_have_no_relative_metric() -> None:
    table = _random_game(3, 5, 0)
    values = table.values.clone()
    values[0, -1], values[1, -1] = 5e-4, 0.0
    result, _ = _scores(replace(table, values=values), torch.randn(3, 5, generator=_generator(0)))
    for name, value in result.items():
        undefined = [True, True, False] if name in ("mc", "irof") else [False] * 3
        assert value.isnan().tolist() == undefined, name


def test_check_20_padding_changes_no_score() -> None:
    torch.manual_seed(0)
    model = _TinyText()
    ids = torch.arange(3)
    x = torch.tensor([[5, 3, 9, 1, 7], [4, 4, 2, 0, 0], [11, 12, 0, 0, 0]])
    maps = torch.randn(3, 5, generator=_generator(1))
    keep = torch.rand(3, 40, 5, generator=_generator(2)) < 0.5
    short = _model_scores(MaskedModel(model, token_features(5, 0), Baseline.token("pad", 0), max_batch=64), x, maps, ids, 4, keep)
    tail = torch.zeros(3, 4)
    longer = _model_scores(
        MaskedModel(model, token_features(9, 0), Baseline.token("pad", 0), max_batch=64),
        torch.cat([x, tail.long()], 1),
        torch.cat([maps, 100 + tail], 1),
        ids,
        4,
        torch.cat([keep, torch.zeros(3, 40, 4, dtype=torch.bool)], 2),
    )
    assert not bool(short[0]["inf"].isnan().any())
    assert torch.equal(short[1].counts, longer[1].counts)
    assert torch.allclose(short[1].morf, longer[1].morf, atol=1e-6)
    _equal(short[0], longer[0], atol=1e-5)


# ----------------------------------------------------------------------------------------------------- exact against sampled


@pytest.mark.parametrize("size", [None, 3], ids=["inf", "fc"])
def test_check_23_sampled_masks_agree_with_the_exact_table(size: int | None) -> None:
    table = _mlp_table(8, seed=3)
    maps = torch.randn(1, 8, generator=_generator(0)) + 20 * _banzhaf(table)[None].float()
    bernoulli, fixed = _exact_laws(table, 3)
    exact = subset_correlation(maps, bernoulli if size is None else fixed).item()
    sampled = []
    for seed in range(40):
        if size is None:
            keep = torch.rand(400, 8, generator=_generator(seed)) < 0.5
        else:
            keep = torch.rand(400, 8, generator=_generator(seed)).argsort(1).argsort(1) >= size
        sampled.append(subset_correlation(maps, _masks(table, keep)).item())
    spread = np.std(sampled, ddof=1)
    assert spread == pytest.approx((1 - exact**2) / 20, rel=0.6)  # standard error of a correlation of 400 pairs
    assert abs(np.mean(sampled) - exact) < 4 * spread / 40**0.5


def test_removed_sums_are_those_of_what_goes() -> None:
    valid = torch.tensor([[True, True, True, False]])
    keep = torch.tensor([[[True, False, True, True], [False, False, False, False]]])
    zero = torch.zeros(1)
    masks = Masks(keep, torch.zeros(1, 2), zero, zero, valid)
    assert removed_sums(torch.tensor([[1.0, 2.0, 4.0, 8.0]]), masks).tolist() == [[2.0, 7.0]]


def test_monotonicity_absolute_forgives_the_sign() -> None:
    delta = torch.tensor([0.05, -0.2, 0.1, -0.3, 0.15, 0.02])
    table = _additive(delta, clean=0.5)
    assert _scores(table, delta[None], mc_absolute=True)[0]["mc"].item() == pytest.approx(1)
    assert _scores(table, delta[None], mc_absolute=False)[0]["mc"].item() < 0.2


# ------------------------------------------------------------------------------------------------------ parity with Quantus


def _quantus(metric: object, model: nn.Module, x: Tensor, target: Tensor, pixel_maps: Tensor) -> np.ndarray:
    return np.asarray(
        metric(  # type: ignore[operator]
            model=model,
            x_batch=x.numpy(),
            y_batch=target.numpy(),
            a_batch=pixel_maps[:, None].numpy(),
            channel_first=True,
            softmax=True,
            device="cpu",
        )
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("steps", [9, 3])
def test_check_21_parity_with_quantus(steps: int) -> None:
    """Quantus works on pixels: a map spread evenly over 4x4 patches makes its chunks of pixels our chunks of patches."""
    quantus = pytest.importorskip("quantus", reason="the dev extra brings Quantus")
    torch.manual_seed(0)
    model = _TinyCnn().eval()
    features: Features = patch_features(12, 4, 1)
    game = MaskedModel(model, features, Baseline.zero(), max_batch=64)
    batch, masks = 5, 60
    x = torch.randn(batch, 1, 12, 12, generator=_generator(0))
    maps = torch.randn(batch, 9, generator=_generator(1))
    removed = torch.rand(batch, masks, 9, generator=_generator(2)).argsort(2)[:, :, :4]
    keep = torch.ones(batch, masks, 9, dtype=torch.bool).scatter_(2, removed, False)
    ours, curves = _model_scores(game, x, maps, torch.arange(batch), steps, keep)
    _, target = game.predict(x)
    pixel_maps = features.to_map(maps)
    options = {"normalise": False, "disable_warnings": True, "perturb_baseline": 0.0}
    pixels = 144 // steps

    fe = quantus.FaithfulnessEstimate(
        features_in_step=pixels, similarity_func=quantus.similarity_func.correlation_pearson, **options
    )
    assert np.allclose(_quantus(fe, model, x, target, pixel_maps), ours["fe"], atol=1e-5)

    mc = quantus.MonotonicityCorrelation(features_in_step=pixels, nr_samples=1, abs=False, **options)
    assert np.allclose(_quantus(mc, model, x, target, pixel_maps), ours["mc"], atol=1e-5)

    flipping = quantus.PixelFlipping(features_in_step=pixels, return_auc_per_sample=True, **options)
    with mock.patch.object(np, "trapz", np.trapezoid, create=True):  # gone from NumPy 2.4, Quantus 0.6 still calls it
        auc = _quantus(flipping, model, x, target, pixel_maps)
    # Quantus' unit is a step and its curve starts at k = 1: the official convention times T.
    assert np.allclose(auc / steps, area(curves.morf, "official"), atol=1e-5)

    if steps == 9:
        region = quantus.RegionPerturbation(patch_size=4, regions_evaluation=9, **options)
        assert np.allclose(_quantus(region, model, x, target, pixel_maps).mean(1), ours["rp"], atol=1e-5)

        # Quantus draws its subsets with np.random.choice, run by run and sample by sample: it is handed our masks.
        pixel_keep = features.expand(keep.flatten(0, 1).float()).flatten(1).reshape(batch, masks, 144)
        subsets = [np.flatnonzero(pixel_keep[b, j].numpy() == 0) for j in range(masks) for b in range(batch)]
        fc = quantus.FaithfulnessCorrelation(nr_runs=masks, subset_size=64, return_aggregate=False, **options)
        with mock.patch.object(np.random, "choice", side_effect=subsets):
            assert np.allclose(_quantus(fc, model, x, target, pixel_maps), ours["fc"], atol=1e-5)


def test_a_table_and_a_model_serve_alike() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    game = MaskedModel(model, column_features(5), Baseline.zero(), max_batch=64)
    x = torch.randn(4, 5, generator=_generator(0))
    logits, target = game.predict(x)
    every = all_keep_sets(5)
    rows = torch.arange(4).repeat_interleave(32)
    outcome = game.evaluate(x, rows, every.repeat(4, 1), target)
    table = ExactTable(outcome.value.reshape(4, 32), outcome.top.reshape(4, 32))
    maps = torch.randn(4, 5, generator=_generator(1))
    valid = torch.ones(4, 5, dtype=torch.bool)
    ranks = relevance_ranks(maps, valid, torch.arange(4), 0)
    clean = logits.softmax(1).amax(1)
    games: list[Evaluate] = [table.evaluate, lambda rows, keep: game.evaluate(x, rows, keep, target)]
    read, played = (sweep(g, ranks, valid, clean, 5, insertion=None, singles=None, empty=None) for g in games)
    for name in ("morf", "morf_top", "lerf", "lerf_top", "insertion", "chunk"):
        # To rounding: a matrix product may round the same row differently at another place of the batch.
        assert torch.allclose(getattr(read, name).float(), getattr(played, name).float(), atol=1e-6), name
