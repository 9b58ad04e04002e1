"""Shapley sampling and RISE: against captum, the exact table, and arithmetic by hand."""

import pytest
import torch
from captum.attr import ShapleyValueSampling
from torch import Tensor, nn

from faithline.attributions import exact_banzhaf, exact_shapley, rise, shapley_sampling
from faithline.attributions.query import Query
from faithline.bank import Masks, all_keep_sets
from faithline.config import MethodSettings, RiseSettings, ShapleySamplingSettings
from faithline.masking import Baseline, Features, MaskedModel, column_features, token_features

World = tuple[MaskedModel, Tensor, Tensor]
REFERENCE = MethodSettings(role="reference")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def table() -> World:
    """A network with interactions on 6 columns."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    x = torch.randn(5, 6)
    game = MaskedModel(model, column_features(6), Baseline.zero(), max_batch=64)
    return game, x, game.predict(x)[1].clone()


class Product(nn.Module):
    """Log-odds of a text: the sum of its words' numbers, and their product if words 2 and 3 meet."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 1, padding_idx=0)

    def forward(self, ids: Tensor) -> Tensor:
        both = (ids == 2).any(1) & (ids == 3).any(1)
        logit = self.embedding(ids).sum((1, 2)) + both
        return torch.stack([torch.zeros_like(logit), logit], 1)


def ask(game: MaskedModel, x: Tensor, target: Tensor, masks: Masks | None = None) -> Query:
    return Query(game, x, target, masks, None, torch.arange(len(x)) * 31 + 5)


def every(game: MaskedModel, x: Tensor, target: Tensor) -> Masks:
    keep = all_keep_sets(game.features.n).expand(len(x), -1, -1)
    values = game.values(x, keep, target)
    return Masks(keep, values, values[:, -1], values[:, 0], torch.ones(len(x), game.features.n, dtype=torch.bool))


def drawn(permutations: int) -> ShapleySamplingSettings:
    return ShapleySamplingSettings(role="supervision", permutations=permutations)


def orders(n: int, count: int, seed: int) -> list[list[int]]:
    """The features in the order in which each permutation brings them in."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randperm(n, generator=generator).argsort().tolist() for _ in range(count)]


def test_shapley_sampling_is_captums_on_the_same_permutations(table: World) -> None:
    game, x, target = table
    query = ask(game, x, target)
    values = shapley_sampling.attribute(query, drawn(7))
    for i, seed in enumerate(query.seeds.tolist()):
        peer = ShapleyValueSampling(nn.Sequential(game.model, nn.Softmax(1)))
        peer.permutation_generator = lambda _features, _samples, seed=seed: orders(6, 7, seed)
        expected = peer.attribute(x[i : i + 1], baselines=0, target=target[i], n_samples=7)
        torch.testing.assert_close(values[i], expected[0].float(), atol=1e-5, rtol=1e-4)


def test_shapley_sampling_of_images_is_captums_on_the_same_permutations() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3))
    features = Features("image", (2, 4, 6), 2, 3)
    game, x = MaskedModel(model, features, Baseline.zero(), max_batch=32), torch.randn(3, 2, 4, 6) * 3
    query = ask(game, x, game.predict(x)[1].clone())
    values = shapley_sampling.attribute(query, drawn(4))
    patches = features.expand(torch.arange(6)[None].float()).long().repeat(1, 2, 1, 1)
    for i, seed in enumerate(query.seeds.tolist()):
        peer = ShapleyValueSampling(nn.Sequential(model, nn.Softmax(1)))
        peer.permutation_generator = lambda _features, _samples, seed=seed: orders(6, 4, seed)
        expected = peer.attribute(x[i : i + 1], 0, target=query.target[i], feature_mask=patches, n_samples=4)
        torch.testing.assert_close(values[i], expected[0, 0, ::2, ::2].flatten().float(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("permutations", [1, 2, 9])
def test_shapley_sampling_is_efficient_whatever_was_drawn(table: World, permutations: int) -> None:
    game, x, target = table
    masks = every(game, x, target)
    values = shapley_sampling.attribute(ask(game, x, target), drawn(permutations))
    torch.testing.assert_close(values.sum(1), masks.full - masks.empty, atol=1e-6, rtol=0)


def test_shapley_sampling_is_exact_on_additive_games() -> None:
    model = nn.Sequential(nn.Linear(5, 2))
    x = torch.randn(4, 5)
    game = MaskedModel(model, column_features(5), Baseline.zero(), output="logit", max_batch=32)
    target = torch.tensor([0, 1, 1, 0])
    values = shapley_sampling.attribute(ask(game, x, target), drawn(1))
    torch.testing.assert_close(values, model[0].weight.detach()[target] * x, atol=1e-5, rtol=1e-5)


def test_shapley_sampling_converges_to_the_exact_value(table: World) -> None:
    game, x, target = table
    masks = every(game, x, target)
    exact = exact_shapley.attribute(ask(game, x, target, masks), REFERENCE)
    runs = torch.stack(
        [
            shapley_sampling.attribute(Query(game, x, target, masks, None, torch.arange(5) + 100 * run), drawn(20))
            for run in range(40)
        ]
    )
    error = runs.std(0) / 40**0.5
    assert ((runs.mean(0) - exact).abs() <= 4 * error + 1e-6).all()
    assert error.max() > 1e-4  # there is something to converge from


def test_shapley_sampling_reads_the_table_where_there_is_one(table: World) -> None:
    game, x, target = table
    masks = every(game, x, target)
    before = game.passes
    read = shapley_sampling.attribute(ask(game, x, target, masks), drawn(5))
    assert game.passes == before
    assert torch.equal(read, shapley_sampling.attribute(ask(game, x, target), drawn(5)))
    assert game.passes - before == 5 * (2 + 5 * 5)


def test_shapley_sampling_has_the_same_bits_in_any_batch(table: World, monkeypatch: pytest.MonkeyPatch) -> None:
    game, x, target = table
    whole = shapley_sampling.attribute(ask(game, x, target), drawn(5))
    query = ask(game, x, target)
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled = Query(game, x[order], target[order], None, None, query.seeds[order])
    assert torch.equal(shapley_sampling.attribute(shuffled, drawn(5)), whole[order])
    alone = Query(game, x[2:3], target[2:3], None, None, query.seeds[2:3])
    assert torch.equal(shapley_sampling.attribute(alone, drawn(5)), whole[2:3])
    monkeypatch.setattr(shapley_sampling, "CELLS_AT_ONCE", 2 * 5 * 7 * 6)  # two samples a block
    assert torch.equal(shapley_sampling.attribute(query, drawn(5)), whole)


def test_shapley_sampling_permutes_the_real_tokens_of_a_text() -> None:
    game = MaskedModel(Product(), token_features(5, 0), Baseline.token("pad", 0), output="logodds", max_batch=32)
    with torch.no_grad():
        game.model.embedding.weight.copy_(torch.arange(8)[:, None] / 10)
    x = torch.tensor([[4, 5, 6, 7, 1], [2, 3, 0, 0, 0], [2, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    target = torch.ones(4, dtype=torch.long)
    before = game.passes
    values = shapley_sampling.attribute(ask(game, x, target), drawn(200))
    # Alone a word brings its own number; of the pair, whichever comes second brings the bonus too.
    torch.testing.assert_close(values[0], torch.tensor([0.4, 0.5, 0.6, 0.7, 0.1]), atol=1e-5, rtol=0)
    torch.testing.assert_close(values[1, :2].sum(), torch.tensor(1.5), atol=1e-5, rtol=0)
    assert 0.5 < float(values[1, 0]) < 0.9  # 0.7 in the mean, 0.035 standard error
    torch.testing.assert_close(values[2:], torch.tensor([[0.2, 0, 0, 0, 0], [0, 0, 0, 0, 0]]), atol=1e-6, rtol=0)
    assert game.passes - before == 2 * 4 + 200 * (4 + 1 + 0 + 0)


def test_rise_is_the_papers_map_less_its_mean(table: World) -> None:
    game, x, target = table
    keep = torch.rand(5, 4000, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    values = game.values(x, keep, target)
    masks = Masks(keep, values, *torch.zeros(2, 5), torch.ones(5, 6, dtype=torch.bool))
    maps = rise.attribute(ask(game, x, target, masks), RiseSettings(role="supervision", masks=4000))
    paper = (values[:, None] @ keep.float())[:, 0] / (0.5 * 4000)  # equation 6
    torch.testing.assert_close(maps, paper - values.mean(1, keepdim=True), atol=0.03, rtol=0)
    counted = torch.stack([values[i][keep[i, :, 2]].mean() - values[i].mean() for i in range(5)])
    torch.testing.assert_close(maps[:, 2], counted, atol=1e-5, rtol=1e-4)


def test_rise_over_all_masks_is_half_the_banzhaf_value(table: World) -> None:
    game, x, target = table
    masks = every(game, x, target)
    maps = rise.attribute(ask(game, x, target, masks), RiseSettings(role="supervision", masks=64))
    torch.testing.assert_close(maps * 2, exact_banzhaf.attribute(ask(game, x, target, masks), REFERENCE), atol=1e-6, rtol=1e-5)


def test_rise_of_padding_and_of_a_feature_that_was_never_kept_is_nothing(table: World) -> None:
    game, x, target = table
    keep = torch.rand(5, 30, 6, generator=torch.Generator().manual_seed(1)) < 0.5
    keep[:, :, 0] = False
    keep[:, :, 5] = True
    valid = torch.ones(5, 6, dtype=torch.bool)
    valid[:, 5] = False
    masks = Masks(keep, torch.rand(5, 30), *torch.zeros(2, 5), valid)
    maps = rise.attribute(ask(game, x, target, masks), RiseSettings(role="supervision", masks=20))
    assert (maps[:, [0, 5]] == 0).all()
    assert (maps[:, 1:5] != 0).all()
    with pytest.raises(ValueError, match="31 masks asked for, the bank holds 30"):
        rise.attribute(ask(game, x, target, masks), RiseSettings(role="supervision", masks=31))
