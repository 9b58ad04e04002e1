"""Schedule, plan and one denoising step: spec fud.md, checks 2, 4 and 10."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests import exact_world as world
from torch import Tensor

from faithline.diffusion.plan import Cost, cost, plan
from faithline.diffusion.presets import ANNEALED, LANGEVIN, PAPER, PRESETS, REPAINT, SOFT, Preset
from faithline.diffusion.sampler import denoising_moments
from faithline.diffusion.schedule import DATA, linear_schedule

pytestmark = pytest.mark.usefixtures("one_thread")


def test_schedule_has_the_levels_of_the_spec() -> None:
    schedule = world.schedule()
    assert schedule.kept(949) == pytest.approx(1.1e-4, rel=0.05)
    assert (1 - schedule.kept(500)) ** 0.5 == pytest.approx(0.96, abs=0.005)
    assert schedule.sigma(150) == pytest.approx(0.52, abs=0.005)
    assert schedule.kept(50) == pytest.approx(0.970, abs=0.001)
    assert schedule.sigma(50) == pytest.approx(0.176, abs=0.001)
    assert (schedule.kept(DATA), schedule.sigma(DATA)) == (1, 0)
    assert schedule.respaced(250) == tuple(round(i * 999 / 249) for i in range(249, -1, -1))
    with pytest.raises(IndexError, match="time step 1000"):
        schedule.kept(1000)
    with pytest.raises(ValueError, match="between 2 and 1000"):
        schedule.respaced(1)
    with pytest.raises(ValueError, match="betas from"):
        linear_schedule(10, 0.1, 1.0)


@pytest.mark.parametrize("variance", ["learned_range", "fixed_small", "fixed_large"])
@pytest.mark.parametrize("steps", [250, 50, 24])
def test_a_denoising_step_is_that_of_diffusers(variance: str, steps: int) -> None:
    from diffusers import DDPMScheduler

    schedule = world.schedule()
    reference = DDPMScheduler(
        beta_start=1e-4, beta_end=0.02, variance_type=variance, clip_sample=True, timestep_spacing="linspace"
    )
    reference.set_timesteps(steps)
    times = schedule.respaced(steps)
    assert list(times) == reference.timesteps.tolist()
    torch.testing.assert_close(reference.alphas_cumprod.double(), schedule.abar, rtol=2e-5, atol=2e-7)

    def differ(t: int, after: int) -> float:
        draw = torch.Generator().manual_seed(t)
        x, output = torch.randn(2, 3, 4, 4, generator=draw), torch.randn(2, 6, 4, 4, generator=draw).clamp(-1, 1)
        output = output if variance == "learned_range" else output[:, :3]
        expected = reference.step(output, t, x, generator=torch.Generator().manual_seed(5)).prev_sample
        mean, spread, _ = denoising_moments(output, x, t, after, schedule, variance, 1.0)  # type: ignore[arg-type]
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(5))
        return float((mean + (after != DATA) * spread.sqrt() * noise - expected).abs().max())

    pairs = list(zip(times, (*times[1:], DATA), strict=True))[:: max(1, steps // 25)]
    pairs += [(times[-2], times[-1]), (times[-1], DATA)]
    assert max(differ(*pair) for pair in pairs) < 1e-4  # diffusers rounds 1 - abar to single precision
    reference.alphas_cumprod = schedule.abar
    assert max(differ(*pair) for pair in pairs) < 1e-5


def test_a_learned_variance_must_be_there() -> None:
    x = torch.zeros(1, 3, 2, 2)
    with pytest.raises(ValueError, match="returns 3 channels for 3, 6 expected"):
        denoising_moments(x, x, 10, 5, world.schedule(), "learned_range", None)


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        (PAPER, Cost(250, 12)),
        (SOFT, Cost(250, 12)),
        (replace(PAPER, scale=0.0), Cost(250, 0)),
        (replace(PAPER, denoising_window=(0.0, 1.0)), Cost(250, 250)),
        (replace(PAPER, denoising_window=(0.0, 0.95)), Cost(250, 237)),
        (replace(PAPER, denoising_steps=20), Cost(20, 1)),
        (ANNEALED, Cost(147, 100)),
        (replace(ANNEALED, langevin_steps=100), Cost(447, 400)),
        (replace(REPAINT, scale=0.0), Cost(2410, 0)),
        (LANGEVIN, Cost(3000, 2850)),
    ],
)
def test_plans_cost_what_the_spec_says(preset: Preset, expected: Cost) -> None:
    assert cost(plan(preset, world.schedule())) == expected


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_step_starts_where_the_last_one_ended(preset: Preset) -> None:
    steps = plan(preset, world.schedule())
    denoising = [step for step in steps if step.kind != "langevin"]
    for before, step in pairwise(denoising):
        assert step.t == before.after
    if denoising:
        assert (denoising[0].t, denoising[-1].after) == (999, preset.switch)
    assert all((step.after > step.t) == (step.kind == "renoise") for step in steps)
    last = [i for i, step in enumerate(steps) if step.guided]
    assert preset in (REPAINT, LANGEVIN) or not last or last == list(range(last[0], len(steps)))  # the term stays on to the end


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"denoising_steps": 0}, "neither denoising nor Langevin"),
        ({"denoising_steps": 1}, "at least 2"),
        ({"switch": 50}, "must end at -1"),
        ({"jump": 10}, "both or neither"),
        ({"langevin_levels": (5, 12), "langevin_steps": 1}, "fall"),
        ({"langevin_levels": (5,)}, "positive"),
        ({"denoising_window": (0.5, 0.1)}, "windows"),
        ({"soft_step": 2.0}, "overshoots"),
        ({"clip": 0.0, "soft_sigma": 0.0}, "soft_sigma is positive; clip is positive"),
    ],
)
def test_presets_that_mean_nothing_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PAPER, **changes)  # type: ignore[arg-type]


def test_plans_that_do_not_fit_the_schedule_are_refused() -> None:
    with pytest.raises(ValueError, match="time step 50, the schedule ends at 19"):
        plan(ANNEALED, linear_schedule(20, 1e-4, 0.02))


def test_the_exact_score_is_the_gradient_of_the_log_density() -> None:
    from faithline.diffusion.score import MixtureScore

    schedule = world.schedule()
    means = torch.tensor([[0.5, -1.0, 0.0], [-0.5, 1.0, 0.3]], dtype=torch.float64)
    root = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    covariances = root @ root.mT
    model = MixtureScore(schedule, [0.3, 0.7], means, covariances)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    t = torch.tensor([0, 3, 50, 400, 999])

    def log_density(row: Tensor, kept: float) -> Tensor:
        parts = [
            torch.distributions.MultivariateNormal(
                kept**0.5 * means[k], kept * covariances[k] + (1 - kept) * torch.eye(3, dtype=torch.float64)
            ).log_prob(row)
            for k in range(2)
        ]
        return torch.stack([parts[0] + torch.tensor(0.3).log(), parts[1] + torch.tensor(0.7).log()]).logsumexp(0)

    total = torch.stack([log_density(row, schedule.kept(int(at))) for row, at in zip(x, t, strict=True)]).sum()
    (score,) = torch.autograd.grad(total, x)
    noise = (1 - schedule.abar[t]).sqrt()[:, None]
    torch.testing.assert_close(model(x.detach(), t), -noise * score, rtol=1e-6, atol=1e-8)
    with pytest.raises(ValueError, match="do not match"):
        MixtureScore(schedule, [1.0], means, covariances)
    with pytest.raises(ValueError, match="sum to 1"):
        MixtureScore(schedule, [0.3, 0.3], means, covariances)
    with pytest.raises(ValueError, match="negative eigenvalue"):
        MixtureScore(schedule, [0.3, 0.7], means, -covariances)
