"""Tables: the Gaussian copula, its conditionals, the tilt, and FUD's protocol on columns."""

import pytest
import torch
from torch import Tensor, nn

from faithline.copula import (
    Copula,
    Rows,
    _between,
    columns_kept,
    fit_copula,
    kept_counts,
    reconstruct_rows,
    row_confidences,
)

pytestmark = pytest.mark.usefixtures("one_thread")

FIT = {"sweeps": 40, "least_eigenvalue": 1e-3, "seed": 0}
HOW = {"draws": 3, "scale": 0.0, "candidates": 8, "sweeps": 6, "seed": 1, "max_batch": 512}


def normals(count: int, correlation: Tensor, seed: int = 0) -> Tensor:
    draw = torch.randn(count, len(correlation), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return draw @ torch.linalg.cholesky(correlation).T


def pair(rho: float) -> Tensor:
    return torch.tensor([[1, rho], [rho, 1]], dtype=torch.float64)


CHAIN = 0.7 ** (torch.arange(4.0, dtype=torch.float64)[:, None] - torch.arange(4.0)).abs()


def mixed(count: int, seed: int = 0) -> Tensor:
    """Four columns of correlated normals: as they are, two values, whole numbers, and exponentials."""
    z = normals(count, CHAIN, seed)
    return torch.stack([z[:, 0], (z[:, 1] > 0.5).double(), (z[:, 2] * 1.5).round(), z[:, 3].exp()], 1).float()


def linear(weights: list[float]) -> nn.Module:
    """Logits 0 and w x."""
    w = torch.tensor(weights)
    return lambda rows: torch.stack([torch.zeros(len(rows)), (rows * w).sum(1)], 1)  # type: ignore[return-value]


def refill(
    copula: Copula, rows: Tensor, keep: Tensor, predict: object = None, ids: tuple[int, ...] | None = None, **how: object
) -> Rows:
    targets = torch.ones(len(rows), dtype=torch.int64)
    names = tuple(range(len(rows))) if ids is None else ids
    return reconstruct_rows(copula, rows, names, keep, targets, predict, **{**HOW, **how})  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------------------- fit


def test_correlations_of_discrete_columns_are_those_of_the_latents() -> None:
    """Normal scores of middle ranks would understate them: by a fifth for a column of two values."""
    rows = mixed(4000)
    copula = fit_copula(rows, **FIT)  # type: ignore[arg-type]
    assert copula.discrete.tolist() == [False, True, True, False]
    assert copula.shrinkage == 0
    torch.testing.assert_close(copula.correlation, CHAIN, rtol=0, atol=0.05)
    torch.testing.assert_close(copula.correlation, copula.correlation.T)
    ranks = torch.stack(
        [(column[:, None] > column).double().mean(1) + (column[:, None] == column).double().mean(1) / 2 for column in rows.T[:2]]
    )
    naive = torch.special.ndtri(ranks).corrcoef()[0, 1]
    assert naive < 0.6 < copula.correlation[0, 1]


def test_columns_that_repeat_each_other_are_shrunk() -> None:
    z = normals(300, pair(0.5)).float()
    rows = torch.cat([z, z[:, :1], -z[:, 1:]], 1)
    copula = fit_copula(rows, **FIT)  # type: ignore[arg-type]
    assert float(torch.linalg.eigvalsh(copula.correlation)[0]) == pytest.approx(1e-3, rel=1e-3)
    assert 0 < copula.shrinkage < 2e-3
    assert copula.correlation.diagonal().tolist() == [1] * 4
    keep = torch.tensor([[[True, True, False, False]]])
    done = refill(copula, rows[:1], keep, draws=200).rows[0, 0]
    assert (done[:, 2] - rows[0, 0]).abs().mean() < 0.1
    assert (done[:, 3] + rows[0, 1]).abs().mean() < 0.1


def test_a_constant_column_says_nothing_and_comes_back() -> None:
    rows = torch.cat([mixed(500), torch.full((500, 1), 7.0)], 1)
    copula = fit_copula(rows, **FIT)  # type: ignore[arg-type]
    assert copula.correlation[4].tolist() == [0, 0, 0, 0, 1]
    keep = torch.tensor([[[False, True, True, False, False], [False, True, True, False, True]]])
    done = refill(copula, rows[:1], keep).rows
    assert (done[..., 4] == 7).all()
    assert torch.equal(done[:, 0], done[:, 1])


# ------------------------------------------------------------------------------------------------------------ conditionals


@pytest.mark.parametrize("rho", [0.8, -0.6, 0.0])
def test_the_conditional_of_two_normals_is_the_closed_form(rho: float) -> None:
    rows = normals(4000, pair(rho)).float() * torch.tensor([2.0, 0.5]) + torch.tensor([1.0, -3.0])
    copula = fit_copula(rows, **FIT)  # type: ignore[arg-type]
    x = torch.tensor([[3.0, -3.0], [0.0, -2.5]])  # the kept one at 1 and -0.5 deviations
    done = refill(copula, x, torch.tensor([[[True, False]]]).expand(2, 1, 2), draws=3000).rows[:, 0, :, 1]
    std = (1 - rho**2) ** 0.5 / 2
    for found, at in zip(done, (1.0, -0.5), strict=True):
        assert float(found.mean()) == pytest.approx(-3 + rho * at / 2, abs=0.04)
        assert float(found.std()) == pytest.approx(std, abs=0.03)


def test_kept_discrete_values_condition_as_they_should() -> None:
    """Two kept columns of two values, one removed normal: against rejection from the latents."""
    z = normals(200_000, CHAIN[:3, :3])
    truth = torch.stack([(z[:, 0] > 0).double(), (z[:, 1] > 0.8).double(), z[:, 2]], 1)
    copula = fit_copula(truth[:6000].float(), **FIT)  # type: ignore[arg-type]
    keep = torch.tensor([[[True, True, False]]])
    for first, second in ((0.0, 0.0), (1.0, 1.0), (0.0, 1.0)):
        chosen = truth[(truth[:, 0] == first) & (truth[:, 1] == second), 2]
        done = refill(copula, torch.tensor([[first, second, 0.0]]), keep, draws=3000).rows[0, 0, :, 2]
        assert float(done.mean()) == pytest.approx(float(chosen.mean()), abs=0.08)
        assert float(done.std()) == pytest.approx(float(chosen.std()), abs=0.06)


def test_removed_discrete_values_have_the_conditional_frequencies() -> None:
    z = normals(200_000, pair(0.8))
    copula = fit_copula(torch.stack([z[:6000, 0], (z[:6000, 1] > 0.5).double()], 1).float(), **FIT)  # type: ignore[arg-type]
    done = refill(copula, torch.tensor([[1.0, 0.0]]), torch.tensor([[[True, False]]]), draws=3000).rows[0, 0, :, 1]
    assert set(done.tolist()) == {0.0, 1.0}
    expected = 1 - torch.special.ndtr(torch.tensor((0.5 - 0.8) / 0.6))
    assert float(done.mean()) == pytest.approx(float(expected), abs=0.04)


def test_with_nothing_kept_the_marginals_come_back() -> None:
    rows = mixed(2000)
    copula = fit_copula(rows, **FIT)  # type: ignore[arg-type]
    done = refill(copula, rows[:1], torch.zeros(1, 1, 4, dtype=torch.bool), draws=4000).rows[0, 0]
    for found, expected in zip(done.T, rows.T, strict=True):
        assert set(found.tolist()) <= set(expected.tolist())
        assert float((found.sort().values[::2] - expected.sort().values).abs().mean() / expected.std()) < 0.1
    torch.testing.assert_close(done[:, [0, 2]].T.corrcoef(), rows[:, [0, 2]].T.corrcoef(), rtol=0, atol=0.06)


def test_normals_between_bounds() -> None:
    uniform = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    for low, high in ((-0.5, 1.0), (2.0, 8.0), (-8.0, -6.5), (6.5, 8.0)):
        bounds = (torch.tensor(edge, dtype=torch.float64).expand(2000) for edge in (low, high))
        found = _between(*bounds, uniform)
        assert low <= found.min() <= found.max() <= high
        at = torch.linspace(low, high, 100_001, dtype=torch.float64)
        weight = (-at.square() / 2).softmax(0)
        assert float(found.mean()) == pytest.approx(float(weight @ at), abs=2e-3)
    point = torch.tensor([1.25], dtype=torch.float64)
    assert _between(point, point, uniform[:1]).tolist() == [1.25]


# ---------------------------------------------------------------------------------------------------------------- protocol


def test_kept_columns_are_bit_equal_and_removed_ones_are_training_values() -> None:
    rows, copula = mixed(50, seed=5), fit_copula(mixed(1000), **FIT)  # type: ignore[arg-type]
    rows[:5] += 0.123  # values that training rows lack
    keep = columns_kept(torch.randn(50, 4, generator=torch.Generator().manual_seed(0)), tuple(range(50)), (1, 2, 3), 0)
    done = refill(copula, rows, keep, linear([1, 1, -1, 0.1]), scale=1.0)
    whole = keep[:, :, None].expand_as(done.rows)
    assert torch.equal(done.rows[whole], rows[:, None, None].expand_as(done.rows)[whole])
    for column in range(4):
        new = done.rows[..., column][~keep[..., column]]
        assert set(new.flatten().tolist()) <= set(copula.values[column].float().tolist())
    assert done.effective.shape == (50, 3, 3)
    assert 1 <= done.effective.min() < 7 < done.effective.max() <= 8 + 1e-9


def test_draws_depend_on_id_and_draw_alone() -> None:
    rows, copula = mixed(6, seed=5), fit_copula(mixed(1000), **FIT)  # type: ignore[arg-type]
    keep = columns_kept(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), tuple(range(6)), (1, 2, 3), 0)
    model = linear([1, 1, -1, 0.1])
    whole = refill(copula, rows, keep, model, scale=1.0)
    order = [4, 0, 3]
    some = refill(copula, rows[order], keep[order], model, ids=tuple(order), scale=1.0, max_batch=7)
    assert torch.equal(some.rows, whole.rows[order])
    assert torch.equal(some.effective, whole.effective[order])
    one = refill(copula, rows[2:3], keep[2:3, 1:2], model, ids=(2,), scale=1.0, draws=1)
    assert torch.equal(one.rows[0, 0, 0], whole.rows[2, 1, 0])
    same = refill(copula, rows[:1].expand(2, -1), keep[:1].expand(2, -1, -1), ids=(0, 1))
    assert not torch.equal(same.rows[0], same.rows[1])
    assert not torch.equal(refill(copula, rows, keep, model, scale=1.0, seed=2).rows, whole.rows)


def test_methods_share_their_noise() -> None:
    """What two masks both remove, given the same kept value of an independent column, is the same draw."""
    rows = normals(500, torch.eye(3, dtype=torch.float64)).float()
    copula = fit_copula(rows, **FIT)  # type: ignore[arg-type]
    copula = Copula(copula.values, copula.discrete, torch.eye(3, dtype=torch.float64), 0.0)
    keep = torch.tensor([[[True, False, False], [False, True, False]]]).expand(4, 2, 3)
    done = refill(copula, rows[:4], keep).rows
    assert torch.equal(done[:, 0, :, 2], done[:, 1, :, 2])


def test_mean_log_p_falls_with_the_tilt() -> None:
    rows, copula = mixed(30, seed=5), fit_copula(mixed(1000), **FIT)  # type: ignore[arg-type]
    keep = columns_kept(torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), tuple(range(30)), (1, 2), 0)
    model, ones = linear([1, 1, 1, 0.1]), torch.ones(30, dtype=torch.int64)
    means, effective = [], []
    for scale in (-1.0, 0.0, 0.5, 1.0, 2.0):
        done = refill(copula, rows, keep, model, scale=scale, candidates=32)
        means.append(float(row_confidences(model, done.rows, ones, 999).log().mean()))  # type: ignore[arg-type]
        effective.append(float(done.effective.mean()))
    assert means == sorted(means, reverse=True)
    assert means[1] - means[-1] > 0.3
    assert effective[1] == 32
    assert effective[1:] == sorted(effective[1:], reverse=True)


def test_the_tilt_of_a_normal_is_the_closed_form() -> None:
    """For log p = -a x the tilted normal is moved by s a: exp(-s log p) = exp(s a x)."""
    copula = fit_copula(normals(4000, pair(0.6)).float(), **FIT)  # type: ignore[arg-type]
    keep, x = torch.tensor([[[True, False]]]), torch.tensor([[0.5, 0.0]])

    def predict(rows: Tensor) -> Tensor:
        log_p = -(rows[:, 1] + 5) / 5  # below 0 for every training value
        return torch.stack([(1 - log_p.exp()).log(), log_p], 1)

    done = refill(copula, x, keep, predict, draws=600, candidates=300, scale=2.0).rows[0, 0, :, 1]
    assert float(done.mean()) == pytest.approx(0.3 + 0.4 * 0.64, abs=0.12)
    plain = refill(copula, x, keep, draws=600).rows[0, 0, :, 1]
    assert float(done.mean() - plain.mean()) == pytest.approx(0.4 * 0.64, abs=0.12)


def test_the_truth_of_a_linear_model_scores_above_random_and_inverse() -> None:
    weights = [2.0, -1.0, 0.5, 0.25, 0.0]
    train = normals(1500, 0.3 * torch.ones(5, 5, dtype=torch.float64) + 0.7 * torch.eye(5, dtype=torch.float64)).float()
    copula, model = fit_copula(train[:1000], **FIT), linear(weights)  # type: ignore[arg-type]
    rows = train[1000:]
    rows = rows[(model(rows)[:, 1] > 1)][:60]
    truth = rows * torch.tensor(weights)
    maps = {"truth": truth, "random": torch.rand(60, 5, generator=torch.Generator().manual_seed(0)), "inverse": -truth}
    ones, scores = torch.ones(60, dtype=torch.int64), {}
    for scale in (0.0, 1.0):
        for name, values in maps.items():
            keep = columns_kept(values, tuple(range(60)), kept_counts(5, tuple(i / 10 for i in range(1, 10))), 0)
            assert keep.shape == (60, 4, 5)
            done = refill(copula, rows, keep, model, scale=scale, candidates=16)
            scores[name] = float(row_confidences(model, done.rows, ones, 512).mean())  # type: ignore[arg-type]
        assert scores["truth"] > scores["random"] + 0.03
        assert scores["random"] > scores["inverse"] + 0.03


def test_columns_stay_by_importance_in_nested_masks() -> None:
    maps = torch.tensor([[0.1, 0.9, 0.5, -2.0], [0.0, 0.0, 0.0, 1.0]])
    keep = columns_kept(maps, (3, 4), (1, 2, 3), 0)
    assert keep[0].tolist() == [[False, True, False, False], [False, True, True, False], [True, True, True, False]]
    assert not (keep[:, :-1] & ~keep[:, 1:]).any()
    assert keep.sum(2).tolist() == [[1, 2, 3]] * 2
    assert keep[1, :, 3].all()
    ties = {tuple(columns_kept(maps[1:], (i,), (2,), 0)[0, 0].tolist()) for i in range(20)}
    assert len(ties) == 3
    assert torch.equal(columns_kept(maps[1:], (4,), (2,), 0)[0, 0], keep[1, 1])
    assert columns_kept(torch.randn(1, 30), (0,), range(1, 30), 0).sum(2).tolist() == [list(range(1, 30))]


def test_counts_of_fractions() -> None:
    nine = tuple(i / 10 for i in range(1, 10))
    assert kept_counts(4, nine) == (1, 2, 3)
    assert kept_counts(30, nine) == tuple(range(3, 30, 3))
    assert kept_counts(2, nine) == (1,)


# ---------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("maps", "counts", "message"),
    [
        (torch.ones(1, 4), (1,), "constant"),
        (torch.tensor([[0.0, torch.nan, 1, 2]]), (1,), "not finite"),
        (torch.rand(1, 2, 2), (1,), r"\(I, n\) expected"),
        (torch.rand(1, 4), (0,), "1 to 3 of 4"),
        (torch.rand(1, 4), (4,), "1 to 3 of 4"),
        (torch.rand(1, 4), (2, 2), "different numbers"),
    ],
)
def test_maps_that_order_nothing_are_refused(maps: Tensor, counts: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        columns_kept(maps, (0,), counts, 0)


def test_training_rows_that_fit_nothing_are_refused() -> None:
    rows = mixed(50)
    with pytest.raises(ValueError, match="not finite"):
        fit_copula(rows.index_fill(0, torch.tensor([3]), torch.nan), **FIT)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two rows more"):
        fit_copula(rows[:5], **FIT)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="least_eigenvalue"):
        fit_copula(rows, sweeps=1, least_eigenvalue=0.0, seed=0)


def test_what_does_not_fit_together_is_refused() -> None:
    rows, copula = mixed(3, seed=5), fit_copula(mixed(200), **FIT)  # type: ignore[arg-type]
    keep = torch.ones(3, 2, 4, dtype=torch.bool)
    for change, message in (
        ({"rows": rows / 0}, "not finite"),
        ({"rows": rows.double()}, "float32"),
        ({"rows": rows[:, :3]}, "float32"),
        ({"keep": keep.float()}, "keep is"),
        ({"keep": keep[:, :, :3]}, "keep is"),
        ({"ids": (1, 1, 2)}, "they differ"),
        ({"scale": 1.0}, "a model"),
        ({"scale": 1.0, "predict": linear([1, 1, 1, 1]), "candidates": 1}, "2 candidates"),
        ({"draws": 0}, "0 draws"),
    ):
        with pytest.raises(ValueError, match=message):
            refill(copula, **{"rows": rows, "keep": keep, **change})  # type: ignore[arg-type]
