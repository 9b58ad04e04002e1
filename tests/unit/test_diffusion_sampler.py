"""The sampler: spec fud.md, checks 1, 2, 8, 10, 12 and 13, and what it must refuse."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests import exact_world as world
from torch import Tensor, nn

from faithline.diffusion.noise import ItemNoise
from faithline.diffusion.plan import cost, plan
from faithline.diffusion.presets import ANNEALED, LANGEVIN, PAPER, REPAINT, SOFT, Preset
from faithline.diffusion.sampler import Items, Reconstructions, reconstruct
from faithline.diffusion.score import NetworkScore

pytestmark = pytest.mark.usefixtures("one_thread")

SHORT: dict[str, Preset] = {
    "paper": replace(PAPER, denoising_steps=12, denoising_window=(0.0, 0.3)),
    "repaint": replace(REPAINT, denoising_steps=12, jump=3, resamples=2, denoising_window=(0.0, 0.3)),
    "annealed": replace(ANNEALED, denoising_steps=12, langevin_steps=3),
    "langevin": replace(LANGEVIN, langevin_steps=12),
    "soft": replace(SOFT, denoising_steps=12, denoising_window=(0.0, 0.3)),
}
"""The shipped presets with fewer steps."""


class Tiny(nn.Module):
    """A network of the call of a UNet2DModel with a learned variance; counts the rows it sees."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Conv2d(3, 6, 3, padding=1)
        self.rows = 0

    def forward(self, x: Tensor, t: Tensor, return_dict: bool) -> tuple[Tensor]:
        self.rows += len(x)
        return (torch.tanh(self.net(x) + t.to(x)[:, None, None, None] / 1000),)


def evidence(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """A classifier of two classes by the mean."""
    logit = torch.where(target == 0, 1.0, -1.0) * x.flatten(1).sum(1)
    return nn.functional.logsigmoid(logit), nn.functional.logsigmoid(-logit)


def linear(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """`log p = w x`, w falling from 1 to 0."""
    return (x.flatten(1) * torch.linspace(1, 0, world.D)).sum(1), torch.zeros(len(x))


def items(count: int = 7) -> Items:
    """Three images, random masks, two draws."""
    draw = torch.Generator().manual_seed(0)
    return Items(
        images=torch.rand(3, 3, 6, 6, generator=draw) * 2 - 1,
        image_ids=(11, 5, 8),
        targets=torch.tensor([0, 1, 0]),
        rows=torch.arange(count) % 3,
        draws=torch.arange(count) % 2,
        keep=torch.rand(count, 1, 6, 6, generator=draw) < 0.5,
    )


def run(preset: Preset, what: Items, max_batch: int = 4, dtype: torch.dtype = torch.float32, seed: int = 3) -> Reconstructions:
    return reconstruct(NetworkScore(Tiny(), dtype), world.schedule(), preset, what, evidence, seed=seed, max_batch=max_batch)


def select(what: Items, rows: list[int]) -> Items:
    return replace(what, rows=what.rows[rows], draws=what.draws[rows], keep=what.keep[rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", SHORT)
def test_kept_pixels_are_bit_equal_unless_the_mask_is_soft(name: str, dtype: torch.dtype) -> None:
    what = items()
    done = run(SHORT[name], what, dtype=dtype).images
    clean, keep = what.images[what.rows], what.keep.expand_as(done)
    assert done.dtype == torch.float32
    assert torch.equal(done[keep], clean[keep]) == (name != "soft")
    assert (done[~keep] != clean[~keep]).float().mean() > 0.9
    assert done[~keep].abs().max() <= 1  # clamped; images of a wider range are not, see below
    if name != "soft":
        wide = replace(what, images=what.images * 3)
        found = run(SHORT[name], wide, dtype=dtype).images
        assert torch.equal(found[keep], wide.images[what.rows][keep])


@pytest.mark.parametrize("name", SHORT)
def test_calls_are_those_planned(name: str) -> None:
    network = Tiny()
    seen: list[int] = []

    def watched(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(len(x))
        return evidence(x, target)

    done = reconstruct(NetworkScore(network, torch.float32), world.schedule(), SHORT[name], items(), watched, seed=3, max_batch=4)
    expected = cost(plan(SHORT[name], world.schedule()))
    assert expected.gradients > 0
    assert set(done.calls.tolist()) == {expected.calls}
    assert set(done.gradients.tolist()) == {expected.gradients}
    assert network.rows == 2 * 4 * expected.calls  # two batches of four, the last one padded
    assert seen == [4] * (2 * expected.gradients)


def test_a_mask_that_keeps_everything_costs_nothing() -> None:
    what = items()
    what = replace(what, keep=what.keep | (torch.arange(7) == 2)[:, None, None, None])
    done = run(SHORT["paper"], what)
    assert torch.equal(done.images[2], what.images[2])
    assert done.calls.tolist() == [12, 12, 0, 12, 12, 12, 12]
    assert done.gradients[2] == done.dose[2] == done.gradient_norm[2] == 0


@pytest.mark.parametrize("name", SHORT)
def test_batch_mates_and_order_change_no_bit(name: str) -> None:
    what = items()
    whole = run(SHORT[name], what)
    shuffled = [4, 2, 6, 0, 5, 1, 3]
    assert torch.equal(run(SHORT[name], select(what, shuffled)).images, whole.images[shuffled])
    assert torch.equal(run(SHORT[name], select(what, [5])).images[0], whole.images[5])
    torch.testing.assert_close(run(SHORT[name], what, max_batch=3).images, whole.images, rtol=0, atol=1e-5)
    torch.testing.assert_close(run(SHORT[name], what, max_batch=3).dose, whole.dose, rtol=1e-5, atol=1e-7)
    assert not torch.equal(run(SHORT[name], what, seed=4).images, whole.images)


def test_items_of_one_image_and_draw_share_their_noise() -> None:
    """What two masks both remove differs only by what they keep; with nothing kept there is no difference."""
    what = items(6)
    empty = replace(what, keep=torch.zeros(6, 1, 6, 6, dtype=torch.bool), rows=torch.tensor([0, 0, 0, 1, 1, 0]))
    plain = replace(SHORT["annealed"], scale=0.0)  # the anti-class term would tell images apart by their class
    done = run(plain, replace(empty, draws=torch.tensor([0, 1, 0, 0, 0, 1]))).images
    assert torch.equal(done[0], done[2])
    assert torch.equal(done[1], done[5])
    assert torch.equal(done[3], done[4])
    assert not torch.equal(done[0], done[1])
    assert not torch.equal(done[0], done[3])


@pytest.mark.parametrize("kept", ["clean", "noised"])
def test_the_model_sees_kept_pixels_at_the_noise_level_of_its_step(kept: str) -> None:
    """A bright image makes one level of difference visible."""
    seen: list[tuple[int, float]] = []
    schedule = world.schedule()

    def model(x: Tensor, t: Tensor) -> Tensor:
        seen.append((int(t[0]), float(x[0, 0, 0, 0])))
        return torch.zeros_like(x)

    bright = torch.full((1, *world.SHAPE), 1e5)
    preset = replace(world.EXACT, kept=kept, denoising_steps=50, jump=7, resamples=2)
    reconstruct(model, schedule, preset, world.chains(world.scattered(), 1, bright), None, seed=0, max_batch=1)
    assert len(seen) == cost(plan(preset, schedule)).calls
    for t, value in seen:
        assert value == pytest.approx(1e5 * (schedule.kept(t) ** 0.5 if kept == "noised" else 1), abs=6)


def test_langevin_levels_see_clean_pixels_in_the_scaling_of_the_schedule() -> None:
    seen: list[tuple[int, float]] = []
    schedule = world.schedule()

    def model(x: Tensor, t: Tensor) -> Tensor:
        seen.append((int(t[0]), float(x[0, 0, 0, 0])))
        return torch.zeros_like(x)

    preset = replace(ANNEALED, variance="fixed_small", scale=0.0, clip=None, langevin_steps=2)
    bright = torch.full((1, *world.SHAPE), 1e5)
    reconstruct(model, schedule, preset, world.chains(world.scattered(), 1, bright), None, seed=0, max_batch=1)
    assert [t for t, _ in seen[-8:]] == [50, 50, 25, 25, 12, 12, 5, 5]
    for t, value in seen[-8:]:
        assert value == pytest.approx(1e5 * schedule.kept(t) ** 0.5, abs=0.1)


@pytest.mark.parametrize("preset", [REPAINT, ANNEALED], ids=["repaint", "annealed"])
def test_every_step_keeps_the_scaling(preset: Preset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that sees no noise, and no noise after the start: in units of the data nothing moves, from 999 to the end."""
    schedule = world.schedule()
    numbers = iter([1.0])
    monkeypatch.setattr(ItemNoise, "next", lambda self: torch.full((1, *world.SHAPE), next(numbers, 0.0)))
    preset = replace(preset, variance="fixed_small", scale=0.0, clip=None, denoising_steps=50)
    what = world.chains(torch.zeros(world.D, dtype=torch.bool), 1)
    done = reconstruct(lambda x, t: torch.zeros_like(x), schedule, preset, what, None, seed=0, max_batch=1)
    torch.testing.assert_close(done.images, torch.full_like(done.images, schedule.kept(999) ** -0.5), rtol=1e-4, atol=0)


# ------------------------------------------------------------------------------------------------------- anti-class term


def shift(preset: Preset, keep: Tensor) -> Tensor:
    """Mean change (16,) by the anti-class term with the same noise; on a Gaussian and a linear term no chain differs."""
    what = world.chains(keep, 4)
    guided = reconstruct(world.model(), world.schedule(), preset, what, linear, seed=1, max_batch=4)
    plain = reconstruct(world.model(), world.schedule(), replace(preset, scale=0.0), what, None, seed=1, max_batch=4)
    change = (guided.images - plain.images).flatten(1)
    torch.testing.assert_close(change, change[:1].expand(4, -1), rtol=1e-2, atol=1e-3)
    return change.mean(0).double()


ALWAYS = replace(world.EXACT, scale=0.1, denoising_window=(0.0, 1.0))


@pytest.mark.parametrize("at", ["x_t", "x0"])
def test_anti_class_moves_along_minus_c_w_and_flips_with_its_sign(at: str) -> None:
    """Of p(x) p_y(x)^-s the mean is -s C w, for log p = w x."""
    nothing = torch.zeros(world.D, dtype=torch.bool)
    preset = replace(ALWAYS, at=at)
    exact = -(world.covariance() @ torch.linspace(1, 0, world.D, dtype=torch.float64))
    moved = shift(preset, nothing)
    assert torch.cosine_similarity(moved, exact, dim=0) > 0.95
    torch.testing.assert_close(shift(replace(preset, scale=-0.1), nothing), -moved, rtol=1e-2, atol=1e-3)
    assert shift(replace(preset, scale=0.0), nothing).abs().max() == 0


def test_langevin_tilts_the_conditional_as_much_as_it_should() -> None:
    keep = world.scattered()
    _, cov = world.conditional(keep, world.image())
    exact = -(cov @ torch.linspace(1, 0, world.D, dtype=torch.float64)[~keep])
    preset = replace(
        ANNEALED, variance="fixed_small", clip=None, scale=1.0, langevin_levels=(5,), langevin_steps=600, langevin_step=1.0
    )
    moved = shift(preset, keep)
    assert moved[keep].abs().max() == 0
    assert torch.cosine_similarity(moved[~keep], exact, dim=0) > 0.95
    assert float(moved[~keep].norm() / exact.norm()) == pytest.approx(1, abs=0.1)


def test_the_first_five_percent_do_not_matter_and_the_last_alone_do_little() -> None:
    for keep in (world.scattered(), world.contiguous()):
        always, early, late = (
            float(shift(replace(ALWAYS, denoising_window=window), keep).norm())
            for window in ((0.0, 1.0), (0.0, 0.95), (0.0, 0.05))
        )
        assert early == pytest.approx(always, rel=0.01)
        assert 0 < late < 0.1 * always


def test_dose_is_the_scale_times_the_variances_of_the_active_steps() -> None:
    schedule = world.schedule()
    done = reconstruct(world.model(), schedule, ALWAYS, world.chains(world.scattered(), 2), linear, seed=1, max_batch=2)
    times = (*schedule.respaced(250), -1)
    total = 0.0
    for t, after in pairwise(times):
        beta = 1 - schedule.kept(t) / schedule.kept(after)
        total += beta * (1 - schedule.kept(after)) / (1 - schedule.kept(t))
    torch.testing.assert_close(done.dose, torch.full((2,), 0.1 * total), rtol=1e-4, atol=0)
    removed = torch.linspace(1, 0, world.D)[~world.scattered()]
    torch.testing.assert_close(done.gradient_norm, removed.norm().expand(2))


def test_mean_log_p_of_a_trained_network_falls_with_the_scale() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(world.D, 16), nn.Tanh(), nn.Linear(16, 2))
    root = torch.linalg.cholesky(world.covariance()).float()
    x = torch.randn(512, world.D) @ root.T
    label = (x.sum(1) + x[:, :4].square().sum(1) > 1).long()
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    for _ in range(80):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), label).backward()
        optimizer.step()
    network.requires_grad_(False)

    def trained(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logs = network(x).log_softmax(1)
        return logs.gather(1, target[:, None])[:, 0], logs.gather(1, 1 - target[:, None])[:, 0]

    what = world.chains(world.scattered() & world.contiguous(), 32)
    preset = replace(ANNEALED, denoising_steps=20, variance="fixed_small", clip=None, langevin_steps=10)
    means = []
    for scale in (-2.0, 0.0, 1.0, 4.0):
        done = reconstruct(world.model(), world.schedule(), replace(preset, scale=scale), what, trained, seed=1, max_batch=32)
        means.append(float(trained(done.images, torch.zeros(32, dtype=torch.int64))[0].mean()))
    assert means == sorted(means, reverse=True)
    assert means[0] - means[-1] > 0.1


# -------------------------------------------------------------------------------------------------------------- soft mask

SOFT_CHAIN = replace(
    LANGEVIN, kept="soft", soft_sigma=0.05, langevin_levels=(5,), langevin_steps=400, langevin_step=0.3, scale=0.0, clip=None,
    variance="fixed_small",
)  # fmt: skip


def test_soft_kept_pixels_spread_by_sigma() -> None:
    keep = world.scattered()
    what = world.chains(keep, 300)
    done = reconstruct(world.model(), world.schedule(), SOFT_CHAIN, what, None, seed=1, max_batch=300).images
    spread = (done - what.images[what.rows]).flatten(1)[:, keep]
    assert float(spread.square().mean().sqrt()) == pytest.approx(0.05, rel=0.15)


def test_soft_steps_that_would_run_away_are_refused() -> None:
    schedule = world.schedule()
    size = schedule.sigma(5) ** 2
    assert plan(replace(SOFT_CHAIN, langevin_step=1.9 * 0.05**2 / size), schedule)
    with pytest.raises(ValueError, match="run away"):
        plan(replace(SOFT_CHAIN, langevin_step=2.1 * 0.05**2 / size), schedule)


# ---------------------------------------------------------------------------------------------------------------- refusals


def test_a_sampler_that_diverges_says_so() -> None:
    preset = replace(SOFT_CHAIN, kept="clean", langevin_step=500.0)
    with pytest.raises(ValueError, match="diverged"):
        reconstruct(world.model(), world.schedule(), preset, world.chains(world.scattered(), 1), None, seed=1, max_batch=1)


def test_what_does_not_fit_together_is_refused() -> None:
    what = items()
    with pytest.raises(ValueError, match="no classifier"):
        reconstruct(NetworkScore(Tiny(), torch.float32), world.schedule(), PAPER, what, None, seed=1, max_batch=4)
    with pytest.raises(ValueError, match="learned_range"):
        reconstruct(lambda x, t: x, world.schedule(), PAPER, what, evidence, seed=1, max_batch=4)
    with pytest.raises(ValueError, match="score model returns"):
        reconstruct(lambda x, t: x[:, :2], world.schedule(), world.EXACT, what, None, seed=1, max_batch=4)
    for change, message in (
        ({"keep": what.keep.float()}, "keep is bool"),
        ({"image_ids": (1, 1, 2)}, "different ids"),
        ({"draws": what.draws[:2]}, "2 draws"),
        ({"keep": what.keep[:, 0]}, "do not fit"),
        ({"keep": what.keep[..., :5]}, "do not fit"),
        ({"rows": what.rows + 1}, "outside 0 to 2"),
        ({"images": what.images / 0}, "not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(what, **change)  # type: ignore[arg-type]
