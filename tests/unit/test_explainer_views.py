"""What an explainer sees of an input, and the networks that score it."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faithline.explainers.network import Network, Shape, Standardise
from faithline.explainers.target_features import class_weights, raw_view, target_view, view
from faithline.masking import Baseline, Features, MaskedModel, column_features, patch_features, token_features

PAD = 0


class Picture(nn.Module):
    """Two strided layers; the head reads the mean over positions of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.coarse = nn.Conv2d(2, 4, 2, stride=2)  # 8x8 -> 4x4
        self.features = nn.Conv2d(4, 6, 2, stride=2)  # 4x4 -> 2x2
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.coarse(x)).mean((2, 3)))


class Words(nn.Module):
    """Embedding and a per-token layer; the head reads the mean over real tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4, padding_idx=PAD)
        self.layer = nn.Linear(4, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, ids: Tensor) -> Tensor:
        present = (ids != PAD).float()[:, :, None]
        return self.head((self.layer(self.embedding(ids)) * present).sum(1) / present.sum(1))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def _picture_game() -> MaskedModel:
    return MaskedModel(Picture(), patch_features(8, 4, channels=2), Baseline.zero(), max_batch=4)


def _words_game() -> MaskedModel:
    return MaskedModel(Words(), token_features(6, PAD), Baseline.token("pad", PAD), max_batch=4)


def test_raw_pieces_are_cut_as_the_game_cuts() -> None:
    """Removing patch i changes row i of the raw view and no other."""
    features = patch_features(8, 4, channels=2)
    x = torch.randn(1, 2, 8, 8)
    whole = raw_view(features, x)
    assert whole.local.shape == (1, 4, 2 * 16)
    assert whole.context.shape == (1, 0)
    for feature in range(features.n):
        keep = torch.ones(1, features.n)
        keep[0, feature] = 0
        changed = raw_view(features, x * features.expand(keep)).local != whole.local
        assert changed[0].any(1).nonzero().flatten().tolist() == [feature]
    ids = torch.tensor([[3, 4, PAD]])
    assert raw_view(token_features(3, PAD), ids).valid.tolist() == [[True, True, False]]
    assert raw_view(column_features(3), torch.randn(5, 3)).local.shape == (5, 3, 1)


def test_class_shares_of_a_linear_head_add_up_to_the_logit() -> None:
    """Features times the class weights of the first choice, averaged over positions and summed over channels: logit - bias."""
    game = _picture_game()
    x = torch.randn(5, 2, 8, 8)
    seen = target_view(game, x, ["features"])
    logits, target = game.predict(x)
    assert seen.local.shape == (5, 4, 2 * 16 + 6 + 6)
    assert seen.target.tolist() == target.tolist()
    head = game.model.get_submodule("head")
    assert isinstance(head, nn.Linear)
    own = logits.gather(1, target[:, None])[:, 0] - head.bias[target]
    torch.testing.assert_close(seen.local[:, :, -6:].sum(2).mean(1), own)
    torch.testing.assert_close(seen.context[:, 6:12].sum(1), own)
    torch.testing.assert_close(seen.context[:, -6:-3], logits)
    torch.testing.assert_close(seen.context[:, -3:], logits.softmax(1))


def test_finer_maps_are_pooled_and_coarser_ones_spread() -> None:
    game = MaskedModel(Picture(), patch_features(8, 4, channels=2), Baseline.zero())
    x = torch.randn(2, 2, 8, 8)
    coarse = game.model.get_submodule("coarse")(x)
    seen = target_view(game, x, ["coarse"])
    torch.testing.assert_close(seen.local[:, :, 32:], F.avg_pool2d(coarse, 2).flatten(2).transpose(1, 2))
    fine = MaskedModel(Picture(), patch_features(8, 2, channels=2), Baseline.zero())
    assert target_view(fine, x, ["features"]).local.shape == (2, 16, 2 * 4 + 12)


def test_tokens_of_a_vision_transformer_lie_on_the_grid() -> None:
    """The class token comes first; it is context, and the others are rows of the grid in order."""

    class Tokens(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            patches = F.unfold(x, 4, stride=4).transpose(1, 2)
            return torch.cat([torch.full_like(patches[:, :1], 7), patches], 1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = Tokens()
            self.head = nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.tokens(x)[:, 0])

    x = torch.randn(2, 2, 8, 8)
    features = patch_features(8, 4, channels=2)
    seen = target_view(MaskedModel(Model(), features, Baseline.zero()), x, ["tokens"])
    torch.testing.assert_close(seen.local[:, :, 32:64], raw_view(features, x).local)
    assert (seen.context[:, :32] == 7).all()


def test_a_flattened_map_is_weighted_element_by_element() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 2, stride=2), nn.Flatten(), nn.Linear(2 * 4, 3))
    game = MaskedModel(model, patch_features(4, 2, channels=1), Baseline.zero())
    x = torch.randn(3, 1, 4, 4)
    seen = target_view(game, x, ["0"])
    logits, target = game.predict(x)
    weights = class_weights(model, 3)
    assert weights is not None
    own = logits.gather(1, target[:, None])[:, 0] - model[2].bias[target]
    torch.testing.assert_close(seen.local[:, :, -2:].sum((1, 2)), own)


def test_views_cost_one_pass_a_sample_or_none() -> None:
    game = _picture_game()
    x = torch.randn(10, 2, 8, 8)
    view(game, x, None)
    assert game.passes == 0
    view(game, x, ["coarse", "features"])
    assert game.passes == 10


def test_layers_that_do_not_fit_are_named() -> None:
    game = _words_game()
    ids = torch.randint(1, 9, (2, 6))
    with pytest.raises(ValueError, match="at least one layer"):
        target_view(game, ids, [])
    with pytest.raises(ValueError, match="none has an output at each token"):
        target_view(game, ids, ["head"])
    with pytest.raises(ValueError, match="'coarse' has outputs of shape"):
        target_view(MaskedModel(Picture(), token_features(8, PAD), Baseline.zero()), torch.randn(1, 2, 8, 8), ["coarse"])


def test_standardise_leaves_constants_at_zero() -> None:
    layer = Standardise(2)
    values = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    layer.fit(values)
    torch.testing.assert_close(layer(values), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))


def _shape(features: Features, kind: str, head: str, *, local: int, context: int, tokens: int, classes: int) -> Shape:
    return Shape(
        kind=kind,  # type: ignore[arg-type]
        head=head,  # type: ignore[arg-type]
        rows=features.rows,
        columns=features.columns,
        local=local,
        context=context,
        tokens=tokens,
        classes=classes,
        width=8,
        depth=2,
        heads=2,
        dropout=0.1,
    )


CASES = ["raw image", "raw text", "raw table", "image", "text", "table"]


def _case(name: str) -> tuple[Network, MaskedModel, Tensor, list[str] | None]:
    """A network for each modality and input, on random inputs."""
    raw = name.startswith("raw")
    if name.endswith("image"):
        game, x, layers = _picture_game(), torch.randn(7, 2, 8, 8), ["coarse", "features"]
    elif name.endswith("text"):
        game, x, layers = _words_game(), torch.randint(1, 9, (7, 6)), ["embedding", "layer"]
        x[:, 4:] = PAD
        x[3, 2:] = PAD
    else:
        model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
        game, x, layers = (
            MaskedModel(model, column_features(5), Baseline.mean(torch.zeros(5)), max_batch=4),
            torch.randn(7, 5),
            ["1"],
        )
    seen = view(game, x, None if raw else layers)
    ids = seen.local.ndim == 2
    kind = "encoder" if raw or name == "text" else {"image": "grid", "table": "row"}[name]
    shape = _shape(
        game.features,
        kind,
        "sigmoid" if raw else "signed",
        local=0 if ids else seen.local.shape[2],
        context=seen.context.shape[1],
        tokens=9 if ids else 0,
        classes=0 if raw else 3,
    )
    network = Network(shape).eval()
    network.fit_scales(seen)
    return network, game, x, None if raw else layers


@pytest.mark.parametrize("name", CASES)
def test_scores_do_not_depend_on_batch_mates(name: str) -> None:
    """Spec check 15: any split and any order of the batch gives the same scores."""
    network, game, x, layers = _case(name)
    whole = network(*view(game, x, layers))
    assert whole.shape == (7, game.features.n)
    assert whole.std() > 0
    torch.testing.assert_close(torch.cat([network(*view(game, row, layers)) for row in x.split(1)]), whole, atol=1e-5, rtol=0)
    torch.testing.assert_close(network(*view(game, x.flip(0), layers)).flip(0), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_the_head_bounds_scores(name: str) -> None:
    network, game, x, layers = _case(name)
    scores = network(*view(game, x, layers))[game.features.valid(x)]
    if network.shape.head == "sigmoid":
        assert ((scores > 0) & (scores < 1)).all()
    else:
        assert scores.min() < 0 < scores.max()


@pytest.mark.parametrize("name", CASES)
def test_min_max_scores_reach_from_0_to_1_on_every_input_and_keep_its_order(name: str) -> None:
    network, game, x, layers = _case(name)
    seen = view(game, x, layers)
    signed = Network(replace(network.shape, head="signed")).eval()
    scaled = Network(replace(network.shape, head="minmax")).eval()
    for other in (signed, scaled):
        other.load_state_dict(network.state_dict())
    for before, after, valid in zip(signed(*seen), scaled(*seen), seen.valid, strict=True):
        assert (after[valid].min(), after[valid].max()) == (0, 1)
        assert (after[~valid] == 0).all()
        spread = before[valid].max() - before[valid].min()
        torch.testing.assert_close(after[valid] * spread, before[valid] - before[valid].min())


@pytest.mark.parametrize("name", ["raw text", "text"])
def test_padding_gets_nothing_and_changes_nothing(name: str) -> None:
    """Spec check 20: scores at padding are exactly 0, and those of the tokens do not depend on what lies there."""
    network, game, x, layers = _case(name)
    seen = view(game, x, layers)
    scores = network(*seen)
    assert (scores[~seen.valid] == 0).all()
    assert (scores[seen.valid] != 0).all()
    noise = seen.local.clone()
    noise[~seen.valid] = 5 if network.shape.tokens else 1e3
    torch.testing.assert_close(network(*seen._replace(local=noise)), scores)


def test_dropout_is_off_in_eval_mode_and_on_in_training() -> None:
    network, game, x, layers = _case("raw image")
    seen = view(game, x, layers)
    assert torch.equal(network(*seen), network(*seen))
    network.train()
    assert not torch.equal(network(*seen), network(*seen))


def test_a_shape_decides_all_parameters() -> None:
    """Two networks of one shape take each other's weights; another width does not."""
    network, *_ = _case("image")
    Network(network.shape).load_state_dict(network.state_dict())
    with pytest.raises(RuntimeError, match="size mismatch"):
        Network(replace(network.shape, width=16)).load_state_dict(network.state_dict())
