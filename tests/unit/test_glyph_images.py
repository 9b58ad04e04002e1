"""Images of known truth: the best classifier, the exact conditional, its tilt, the score, and FUD's curves on them."""

from dataclasses import replace

import pytest
import torch
from tests import exact_world as world
from torch import Tensor
from torch.distributions import MultivariateNormal

from faithline import glyph_images as glyphs
from faithline.diffusion.presets import ANNEALED
from faithline.diffusion.removal import nested_keep
from faithline.diffusion.sampler import Items, reconstruct
from faithline.diffusion.score import MixtureScore

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = glyphs.glyph_task(8, 1.5, 0.2, 0.1, 0.25)
"""Small enough for brute force: 108 components over 64 pixels; uncertain enough to be interesting."""

TASK = glyphs.glyph_task(12, 3.0, 0.15, 0.05, 0.2)
LEVELS = (0.25, 0.5, 0.75)
NAMES = ("truth", "random", "wrong_blob", "truth_last")


def joint(task: glyphs.GlyphTask, pixels: Tensor, kept: Tensor) -> Tensor:
    """Log density of the kept pixels of images (B, d) in units of the score model under each component, (B, K)."""
    density = MultivariateNormal(task.means[:, kept], task.covariance[kept][:, kept])
    return density.log_prob((2 * pixels.double() - 1)[:, None, kept])


def masks_of(task: glyphs.GlyphTask, images: glyphs.GlyphImages, levels: tuple[float, ...] = LEVELS) -> Tensor:
    """(4, I, F, 1, side, side)"""
    ids = tuple(range(len(images.label)))
    maps = glyphs.glyph_maps(task, images, ids, 0)
    assert tuple(maps) == NAMES
    size = (task.side, task.side)
    return torch.stack([nested_keep(values, ids, size, levels, "pixel", "sum", seed=0) for values in maps.values()])


def fill(task: glyphs.GlyphTask, images: glyphs.GlyphImages, keep: Tensor, rows: list[int], **how: object) -> glyphs.ExactFill:
    settings = {"draws": 2, "scale": 0.0, "candidates": 8, "seed": 1, **how}
    ids = list(range(len(images.label)))
    return glyphs.exact_fill(
        task,
        images.pixels[rows],
        [ids[i] for i in rows],
        keep[rows],
        images.label[rows],
        **settings,  # type: ignore[arg-type]
    )


def test_images_hold_their_glyph() -> None:
    images = glyphs.sample_glyphs(TASK, range(200), 0)
    assert images.pixels.shape == (200, 1, 12, 12)
    assert 0 < images.pixels.min() < images.pixels.max() < 1
    assert torch.bincount(images.label, minlength=3).min() > 40
    assert images.truth.flatten(1).sum(1).tolist() == [9] * 200
    for i in range(200):
        patch = images.pixels[i, 0][images.truth[i]]
        pattern = TASK.means[images.component[i]].reshape(12, 12)[images.truth[i]]
        assert torch.equal(pattern, 0.2 * glyphs.GLYPHS[images.label[i]].flatten().double())
        assert patch.shape == (9,)
    outside = (images.pixels[:, 0] - 0.5)[~images.truth]
    assert float(outside.mean()) == pytest.approx(0, abs=0.01)
    assert float(outside.std()) == pytest.approx((0.15**2 + 0.05**2) ** 0.5 / 2, rel=0.1)
    assert torch.equal(glyphs.sample_glyphs(TASK, [7], 0).pixels[0], images.pixels[7])


def test_wrong_blobs_do_not_touch_the_glyph() -> None:
    images = glyphs.sample_glyphs(TASK, range(60), 0)
    maps = glyphs.glyph_maps(TASK, images, range(60), 0)
    nine = maps["wrong_blob"].flatten(1).argsort(1, descending=True)[:, :9]
    assert not images.truth.flatten(1).gather(1, nine).any()
    assert len({int(row[0]) for row in nine}) > 20
    nine = maps["truth"].flatten(1).argsort(1, descending=True)[:, :9]
    assert images.truth.flatten(1).gather(1, nine).all()


def test_the_best_classifier_is_the_brute_force_posterior() -> None:
    images = glyphs.sample_glyphs(SMALL, range(20), 0)
    everything = torch.ones(64, dtype=torch.bool)
    expected = joint(SMALL, images.pixels.flatten(1), everything).softmax(1).reshape(20, 3, -1).sum(2)
    found = glyphs.bayes_logits(SMALL, images.pixels)
    torch.testing.assert_close(found.double().softmax(1), expected, rtol=1e-4, atol=1e-6)
    assert 0.5 < float(expected.max(1).values.mean()) < 0.999
    keep = masks_of(SMALL, images)[1]
    kept = glyphs.kept_posterior(SMALL, images.pixels, keep)
    for i in range(5):
        for level in range(3):
            by_hand = joint(SMALL, images.pixels[i : i + 1].flatten(1), keep[i, level].flatten())
            torch.testing.assert_close(kept[i, level], by_hand.softmax(1).reshape(3, -1).sum(1), rtol=1e-6, atol=1e-9)
    nothing = torch.zeros(20, 1, 1, 8, 8, dtype=torch.bool)
    torch.testing.assert_close(glyphs.kept_posterior(SMALL, images.pixels, nothing), torch.full((20, 1, 3), 1 / 3).double())


def test_the_best_classifier_is_differentiable() -> None:
    images = glyphs.sample_glyphs(SMALL, range(3), 0)
    x = (2 * images.pixels - 1).requires_grad_()
    log_p, log_rest = glyphs.bayes_evidence(SMALL)(x, images.label)
    torch.testing.assert_close(log_p.exp() + log_rest.exp(), torch.ones(3))
    (gradient,) = torch.autograd.grad(log_p.sum(), x)
    step = torch.zeros_like(x)
    step[:, 0, 2, 3] = 1e-2
    ahead, behind = (glyphs.bayes_evidence(SMALL)(x.detach() + sign * step, images.label)[0] for sign in (1, -1))
    torch.testing.assert_close((ahead - behind) / 2e-2, gradient[:, 0, 2, 3], rtol=1e-2, atol=1e-3)


def test_the_score_is_that_of_the_mixture() -> None:
    schedule = world.schedule()
    count = len(SMALL.means)
    slow = MixtureScore(schedule, [1 / count] * count, SMALL.means, SMALL.covariance.expand(count, -1, -1))
    x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    x[:2] = 2 * glyphs.sample_glyphs(SMALL, range(2), 0).pixels - 1
    t = torch.tensor([0, 5, 50, 200, 600, 999])
    torch.testing.assert_close(glyphs.glyph_score(SMALL, schedule)(x, t), slow(x, t), rtol=1e-5, atol=1e-5)


def test_draws_have_the_moments_of_the_exact_conditional() -> None:
    images = glyphs.sample_glyphs(SMALL, range(4), 0)
    count = 4000
    for name, masks in zip(NAMES, masks_of(SMALL, images, (0.4,)), strict=True):
        kept = masks[3, 0].flatten()
        found = fill(SMALL, images, masks, [3], draws=count, candidates=1).pixels[0, 0].flatten(1)
        assert torch.equal(found[:, kept], images.pixels[3].flatten()[kept].expand(count, -1)), name
        clean = 2 * images.pixels[3].flatten().double() - 1
        gain = SMALL.covariance[~kept][:, kept] @ SMALL.covariance[kept][:, kept].inverse()
        weights = joint(SMALL, images.pixels[3:].flatten(1), kept).softmax(1)[0]
        means = SMALL.means[:, ~kept] + (clean[kept] - SMALL.means[:, kept]) @ gain.T
        mean = weights @ means
        rest = SMALL.covariance[~kept][:, ~kept] - gain @ SMALL.covariance[kept][:, ~kept]
        cov = rest + (means - mean).T @ (weights[:, None] * (means - mean))
        samples = 2 * found[:, ~kept].double() - 1
        assert ((samples.mean(0) - mean).abs() < 4.5 * (cov.diagonal() / count).sqrt()).all(), name
        error = ((cov.square() + cov.diagonal()[:, None] * cov.diagonal()) / count).sqrt()
        assert ((samples.T.cov() - cov).abs() < 5 * error).all(), name


def test_confidence_without_tilt_is_the_posterior_given_kept_pixels() -> None:
    """The mean of p(y | all) over the conditional is p(y | kept): no draw is needed to know where FUD's curve lies."""
    images = glyphs.sample_glyphs(TASK, range(10), 0)
    scores = {}
    for name, keep in zip(NAMES, masks_of(TASK, images), strict=True):
        exact = glyphs.kept_posterior(TASK, images.pixels, keep)[torch.arange(10), :, images.label]
        done = fill(TASK, images, keep, list(range(10)), candidates=40)
        gap = (done.confidence - exact[:, :, None]).mean((1, 2))
        assert abs(float(gap.mean())) < 4 * float(gap.std()) / 10**0.5 + 0.005, name
        torch.testing.assert_close(done.effective, torch.full_like(done.effective, 40))
        direct = glyphs.bayes_logits(TASK, done.pixels.flatten(0, 2)).softmax(1).reshape(*done.confidence.shape, 3)
        chosen = direct[torch.arange(10), :, :, images.label]
        assert abs(float(chosen.mean() - exact.mean())) < 0.1
        scores[name] = (float(exact.mean()), float(done.confidence.mean()))
    for place in (0, 1):
        order = [scores[name][place] for name in NAMES]
        assert order == sorted(order, reverse=True), scores
        assert order[0] - order[1] > 0.1
        assert order[2] - order[3] > 0.1


def test_the_tilt_is_that_of_many_weighted_draws() -> None:
    images = glyphs.sample_glyphs(SMALL, range(4), 0)
    keep = masks_of(SMALL, images, (0.5,))[1]
    label = int(images.label[2])
    many = fill(SMALL, images, keep, [2], draws=4000, candidates=1, seed=9).pixels[0, 0]
    p = glyphs.bayes_logits(SMALL, many).double().softmax(1)[:, label]
    last = float(p.mean())
    for scale in (0.5, 1.0):
        expected = float((p ** (1 - scale)).mean() / (p**-scale).mean())
        done = fill(SMALL, images, keep, [2], draws=200, candidates=200, scale=scale)
        assert float(done.confidence.mean()) == pytest.approx(expected, abs=0.03)
        found = glyphs.bayes_logits(SMALL, done.pixels[0, 0]).softmax(1)[:, label]
        assert float(found.mean()) == pytest.approx(expected, abs=0.06)
        assert expected < last - 0.01
        assert 1 <= done.effective.min() <= done.effective.max() < 199
        last = expected


def test_draws_depend_on_id_and_draw_alone() -> None:
    images = glyphs.sample_glyphs(SMALL, range(4), 0)
    keep = masks_of(SMALL, images)[1]
    whole = fill(SMALL, images, keep, [0, 1, 2, 3], scale=1.0)
    turned = fill(SMALL, images, keep, [2, 0], scale=1.0)
    assert torch.equal(turned.pixels, whole.pixels[[2, 0]])
    assert torch.equal(turned.confidence, whole.confidence[[2, 0]])
    assert torch.equal(fill(SMALL, images, keep[:, 1:2], [1], scale=1.0).pixels[0, 0], whole.pixels[1, 1])
    assert torch.equal(fill(SMALL, images, keep, [1], scale=1.0, draws=1).pixels[0, :, 0], whole.pixels[1, :, 0])
    assert not torch.equal(whole.pixels[0, 0, 0], whole.pixels[0, 0, 1])
    nothing = torch.zeros(4, 1, 1, 8, 8, dtype=torch.bool)
    assert not torch.equal(fill(SMALL, images, nothing, [0]).pixels, fill(SMALL, images, nothing, [1]).pixels)


def test_the_sampler_agrees_with_the_exact_conditional() -> None:
    count, ids = 16, tuple(range(16))
    images = glyphs.sample_glyphs(TASK, ids, 0)
    keep = masks_of(TASK, images)
    exact = torch.stack([glyphs.kept_posterior(TASK, images.pixels, own)[torch.arange(count), :, images.label] for own in keep])
    rows = torch.arange(count).repeat_interleave(len(LEVELS)).repeat(4)
    what = Items(2 * images.pixels - 1, ids, images.label, rows, torch.arange(len(rows)) % 3, keep.flatten(0, 2))
    preset = replace(ANNEALED, variance="fixed_small", clip=None, scale=0.0)
    model = glyphs.glyph_score(TASK, world.schedule())
    done = reconstruct(model, world.schedule(), preset, what, None, seed=1, max_batch=len(rows))
    p = glyphs.bayes_logits(TASK, (done.images + 1) / 2).double().softmax(1).gather(1, images.label[rows, None])
    found = p.reshape(exact.shape)
    gap = (found - exact).mean(2)
    assert (gap.mean(1).abs() < 4 * gap.std(1) / count**0.5 + 0.01).all()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"scale": 1.0, "candidates": 1}, "2 candidates for a tilt"),
        ({"draws": 0}, "0 draws"),
    ],
)
def test_nothing_to_choose_from_is_refused(how: dict[str, object], message: str) -> None:
    images = glyphs.sample_glyphs(SMALL, range(1), 0)
    with pytest.raises(ValueError, match=message):
        fill(SMALL, images, masks_of(SMALL, images)[0], [0], **how)


def test_tasks_and_masks_that_cannot_be_are_refused() -> None:
    images = glyphs.sample_glyphs(SMALL, range(1), 0)
    with pytest.raises(ValueError, match=r"bool \(I, F, 1, side, side\)"):
        fill(SMALL, images, masks_of(SMALL, images)[0].float(), [0])
    with pytest.raises(ValueError, match="at most a third"):
        glyphs.glyph_task(7, 1.0, 0.1, 0.1, 0.1)
    with pytest.raises(ValueError, match="must be positive"):
        glyphs.glyph_task(8, 1.0, 0.1, 0.0, 0.1)
