"""The alpha rule and the two losses, against arithmetic done by hand."""

import math

import pytest
import torch
from torch import Tensor

from faithline.config import AlphaSettings
from faithline.explainers.alpha import AlphaController
from faithline.explainers.losses import local_correlation, pattern_consistency

SETTINGS = AlphaSettings(epsilon=1e-5, window=5, tau_decay=10, reset_factor=10)


def test_alpha_trace_on_a_scripted_series() -> None:
    """Spec check 26: jump to 0.5 at t0, decay, reset on a variance spike, and convergence again."""
    controller = AlphaController(SETTINGS)
    falling = [controller.update(value) for value in (0.5, 0.4, 0.3, 0.25, 0.22, 0.2)]
    assert falling == [1.0] * 6
    # Window (.22, .2, .2, .2, .2): variance 6.4e-5 is above epsilon and below the reset threshold; the next one is 0.
    assert [controller.update(0.2) for _ in range(3)] == [1.0] * 3
    assert not controller.converged
    assert controller.update(0.2) == 0.5
    assert controller.converged
    trace = [controller.update(0.2) for _ in range(50)]
    for elapsed, expected in ((1, 0.475), (10, 0.269), (20, 0.119), (30, 0.047), (50, 0.0067)):
        assert trace[elapsed - 1] == pytest.approx(expected, abs=5e-4)
        assert trace[elapsed - 1] == 1 - 1 / (1 + math.exp(-elapsed / 10))
    # (.2, .2, .2, .2, .24): variance 2.56e-4 > 10 epsilon.
    assert controller.update(0.24) == 1.0
    assert not controller.converged
    assert [controller.update(0.24) for _ in range(3)] == [1.0] * 3
    assert controller.update(0.24) == 0.5


def test_alpha_between_the_thresholds_neither_converges_nor_resets() -> None:
    """A variance between epsilon and reset_factor * epsilon leaves things as they are."""
    controller = AlphaController(SETTINGS)
    for _ in range(5):
        controller.update(0.2)
    before = controller.update(0.2)
    assert controller.update(0.22) < before  # variance 6.4e-5: still converged, still decaying
    fresh = AlphaController(SETTINGS)
    assert [fresh.update(value) for value in (0.2, 0.2, 0.2, 0.2, 0.22)] == [1.0] * 5


def test_alpha_constants_are_split() -> None:
    """`tau_decay` sets the speed only, `reset_factor` the threshold only."""
    slow = AlphaController(SETTINGS.model_copy(update={"tau_decay": 100.0}))
    for _ in range(5):
        slow.update(0.2)
    assert slow.update(0.2) == 1 - 1 / (1 + math.exp(-1 / 100))
    assert slow.update(0.24) == 1.0
    tolerant = AlphaController(SETTINGS.model_copy(update={"reset_factor": 100.0}))
    for _ in range(5):
        tolerant.update(0.2)
    assert tolerant.update(0.24) == 1 - 1 / (1 + math.exp(-1 / 10))


def test_alpha_reaches_zero_without_a_spurious_reset() -> None:
    """At t - t0 = 368 alpha is exactly 0 in float64; the loss is still fed, so nothing resets."""
    controller = AlphaController(SETTINGS)
    for _ in range(5):
        controller.update(0.2)
    trace = [controller.update(0.2) for _ in range(400)]
    assert trace[366] > 0
    assert trace[367:] == [0.0] * 33
    # What the released code does: it logs 0 instead, which looks like a spike.
    assert controller.update(0.0) == 1.0


def test_alpha_goes_on_from_a_checkpoint_and_refuses_nan() -> None:
    whole, first = AlphaController(SETTINGS), AlphaController(SETTINGS)
    series = [0.3, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.21, 0.2, 0.25, 0.2]
    expected = [whole.update(value) for value in series]
    got = [first.update(value) for value in series[:6]]
    second = AlphaController(SETTINGS)
    second.load_state_dict(first.state_dict())
    got += [second.update(value) for value in series[6:]]
    assert got == expected
    with pytest.raises(ValueError, match="nan"):
        second.update(math.nan)


def _game(signed: bool, rows: int = 6, masks: int = 64, n: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """Additive game: delta (R, n), removed (R, S, n), effects (R, S) = sum of the delta that goes."""
    generator = torch.Generator().manual_seed(0)
    delta = torch.randn(rows, n, generator=generator) if signed else torch.rand(rows, n, generator=generator) + 0.1
    removed = torch.rand(rows, masks, n, generator=generator) < 0.5
    return delta, removed, (removed * delta[:, None]).sum(2)


@pytest.mark.parametrize("signed", [False, True])
def test_local_correlation_of_an_additive_game(signed: bool) -> None:
    """Spec check 1: the true effects have loss 0, their negation 1; the sign of the released code would swap them."""
    delta, removed, effects = _game(signed)
    torch.testing.assert_close(local_correlation(delta, removed, effects).mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    torch.testing.assert_close(local_correlation(-delta, removed, effects).mean(), torch.tensor(1.0), atol=1e-6, rtol=0)
    # Subtracting the minimum adds a multiple of the number of removed features: harmful when that number varies.
    if signed:
        assert local_correlation(delta - delta.min(1, keepdim=True).values, removed, effects).mean() > 0.1


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_losses_do_not_depend_on_the_scale_of_scores(scale: float) -> None:
    delta, removed, effects = _game(signed=True)
    scores = delta + torch.randn(delta.shape, generator=torch.Generator().manual_seed(1))
    valid = torch.ones_like(scores, dtype=torch.bool)
    torch.testing.assert_close(
        local_correlation(scores * scale, removed, effects).value,
        local_correlation(scores, removed, effects).value,
        atol=1e-5,
        rtol=0,
    )
    torch.testing.assert_close(
        pattern_consistency(scores * scale, delta, valid).value,
        pattern_consistency(scores, delta, valid).value,
        atol=1e-5,
        rtol=0,
    )


def test_losses_equal_pearson_of_torch() -> None:
    delta, removed, effects = _game(signed=True)
    scores = delta + torch.randn(delta.shape, generator=torch.Generator().manual_seed(1))
    sums = (removed * scores[:, None]).sum(2)
    for row, value in enumerate(local_correlation(scores, removed, effects).value):
        assert value == pytest.approx(0.5 - 0.5 * float(torch.corrcoef(torch.stack([sums[row], effects[row]]))[0, 1]), abs=1e-5)
    valid = torch.ones_like(scores, dtype=torch.bool)
    valid[:, 7:] = False
    for row, value in enumerate(pattern_consistency(scores, delta, valid).value):
        r = torch.corrcoef(torch.stack([scores[row, :7], delta[row, :7]]))[0, 1]
        assert value == pytest.approx(0.5 - 0.5 * float(r), abs=1e-5)


def test_pattern_ignores_features_that_do_not_exist() -> None:
    scores, maps = torch.randn(3, 5), torch.randn(3, 5)
    valid = torch.tensor([True, True, True, False, False]).expand(3, 5)
    other = torch.where(valid, scores, 1e3)
    changed = torch.where(valid, maps, -1e3)
    torch.testing.assert_close(pattern_consistency(other, changed, valid).value, pattern_consistency(scores, maps, valid).value)


def test_constant_goals_are_skipped_and_counted() -> None:
    """A saturated target (all effects equal, or equal up to float32 rounding) has no correlation: no loss, no gradient."""
    delta, removed, effects = _game(signed=True)
    effects[1] = 0.25
    effects[2] = 6e-8 * (torch.arange(effects.shape[1]) % 3)
    scores = delta.clone().requires_grad_()
    loss = local_correlation(scores, removed, effects)
    assert loss.defined.tolist() == [True, False, False, True, True, True]
    assert float(loss.mean().detach()) == pytest.approx(0.0, abs=1e-6)  # not (4 * 0 + 2 * 0.5) / 6
    loss.value.sum().backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    assert scores.grad[1:3].abs().max() == 0
    maps = torch.randn(6, 12)
    maps[3] = 1.5
    assert (
        pattern_consistency(delta, maps, torch.ones(6, 12, dtype=torch.bool)).defined.tolist()
        == [True] * 3 + [False] + [True] * 2
    )


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_gradient_is_finite_at_a_constant_map(value: float) -> None:
    delta, removed, effects = _game(signed=True)
    scores = torch.full_like(delta, value, requires_grad=True)
    pattern = pattern_consistency(scores, delta, torch.ones_like(delta, dtype=torch.bool))
    (pattern.mean() + local_correlation(scores, removed, effects).mean()).backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    assert scores.grad.abs().max() > 0


def test_what_is_not_finite_shows() -> None:
    """A NaN score or effect must not be taken for an undefined correlation, which would be skipped."""
    delta, removed, effects = _game(signed=True)
    delta[2, 3] = torch.nan
    effects[4, 0] = torch.nan
    assert local_correlation(delta, removed, effects).value.isnan().tolist() == [False, False, True, False, True, False]
    maps = torch.randn(6, 12)
    maps[1, 0] = torch.inf
    loss = pattern_consistency(delta, maps, torch.ones(6, 12, dtype=torch.bool))
    assert loss.value.isnan().tolist() == [False, True, True, False, False, False]
