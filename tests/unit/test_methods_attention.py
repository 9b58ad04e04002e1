"""Attention rollout and generic attention: two layers by hand, and the models that they can and cannot read."""

import pytest
import torch
from tests.tiny_networks import TinyViT, louder
from torch import Tensor, nn

from faithline.attributions import attention, attention_rollout, generic_attention
from faithline.attributions.query import DoesNotFit, Query
from faithline.config import GradientSettings, MethodSettings
from faithline.masking import Baseline, Features, MaskedModel, token_features
from faithline.targets import TextTransformer

ROLLOUT = MethodSettings(role="supervision")
LOGIT = GradientSettings(role="supervision", output="logit")
World = tuple[MaskedModel, Tensor, Tensor]


pytestmark = pytest.mark.usefixtures("one_thread")


def ask(game: MaskedModel, x: Tensor, target: Tensor) -> Query:
    return Query(game, x, target, None, None, torch.arange(len(x)))


@pytest.fixture
def text() -> World:
    """Texts of 5, 3, 1 and 0 tokens for the project's own Transformer."""
    torch.manual_seed(0)
    model = TextTransformer(9, 5, 3, width=8, depth=2, heads=2, dropout=0.0, token_dropout=0.0, pad_id=0)
    x = torch.tensor([[4, 7, 2, 8, 1], [5, 6, 3, 0, 0], [8, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    game = MaskedModel(louder(model), token_features(5, 0), Baseline.token("pad", 0), max_batch=8)
    return game, x, game.predict(x)[1].clone()


def image(global_pool: str = "token") -> World:
    """12 x 8 images in 3 x 2 tokens."""
    torch.manual_seed(1)
    model = louder(TinyViT(2, (12, 8), 4, 3, global_pool))
    x = torch.randn(3, 2, 12, 8)
    game = MaskedModel(model, Features("image", (2, 12, 8), 3, 2), Baseline.zero(), max_batch=8)
    return game, x, game.predict(x)[1].clone()


class Fixed(nn.Module):
    """An attention layer of three tokens whose weights are given: two heads mix the tokens' values (B, 3), `MIX` adds them."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)
        self.scores = nn.Parameter(weights.log())

    def forward(self, hidden: Tensor) -> Tensor:
        heads = self.softmax(self.scores.expand(len(hidden), -1, -1, -1))
        return ((heads @ hidden[:, None, :, None])[..., 0] * MIX[:, None]).sum(1)


class Block(nn.Module):
    """Attention with a skip connection."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.attention = Fixed(weights)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.attention(hidden)


class ByHand(nn.Module):
    """Two such layers over words that are numbers; class 1's logit is the mean token, class 0's is 0."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 1)
        self.blocks = nn.ModuleList([Block(first), Block(second)])

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embedding(ids)[..., 0]
        for block in self.blocks:
            hidden = block(hidden)
        logit = hidden.mean(1)
        return torch.stack([torch.zeros_like(logit), logit], 1)


MIX = torch.tensor([1.0, -0.5])
FIRST = torch.tensor(
    [[[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]], [[0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.3, 0.3, 0.4]]]
)
SECOND = torch.tensor(
    [[[0.2, 0.3, 0.5], [0.6, 0.2, 0.2], [0.1, 0.1, 0.8]], [[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.5, 0.25, 0.25]]]
)


@pytest.fixture
def by_hand() -> World:
    model = ByHand(FIRST, SECOND)
    with torch.no_grad():
        model.embedding.weight.copy_(torch.tensor([[0.0], [1.0], [-2.0], [3.0]]))
    game = MaskedModel(model, token_features(3, 0), Baseline.token("pad", 0), max_batch=8)
    return game, torch.tensor([[1, 2, 3], [3, 3, 1]]), torch.tensor([1, 1])


def test_rollout_of_two_layers_by_hand(by_hand: World) -> None:
    game, x, target = by_hand
    identity = torch.eye(3)
    rolled = (SECOND.mean(0) + identity) / 2 @ ((FIRST.mean(0) + identity) / 2)
    maps = attention_rollout.attribute(ask(game, x, target), ROLLOUT)
    torch.testing.assert_close(maps, rolled.mean(0).expand(2, -1), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(maps.sum(1), torch.ones(2))
    assert not torch.allclose(maps[0], ((FIRST.mean(0) + identity) / 2 @ ((SECOND.mean(0) + identity) / 2)).mean(0), atol=1e-3)


def test_generic_attention_of_two_layers_by_hand(by_hand: World) -> None:
    """The gradient of an attention weight is (what the row is worth to the logit) x (the value it points at)."""
    game, x, target = by_hand
    maps = generic_attention.attribute(ask(game, x, target), LOGIT)
    identity = torch.eye(3)
    for i in range(2):
        value = game.model.embedding.weight[x[i], 0].detach()
        mix = MIX[:, None, None]
        hidden = value + (FIRST * mix).sum(0) @ value
        worth_second = torch.full((3,), 1 / 3)
        worth_first = worth_second + (SECOND * mix).sum(0).mT @ worth_second
        first = (FIRST * mix * worth_first[:, None] * value).relu().mean(0)
        second = (SECOND * mix * worth_second[:, None] * hidden).relu().mean(0)
        relevance = identity + first  # R after the first layer
        relevance = relevance + second @ relevance
        torch.testing.assert_close(maps[i], (relevance - identity).mean(0), atol=1e-5, rtol=1e-5)


def test_generic_attention_of_the_other_class_is_another_map(by_hand: World) -> None:
    game, x, _ = by_hand
    prob = GradientSettings(role="supervision", output="prob")
    own = generic_attention.attribute(ask(game, x, torch.tensor([1, 1])), prob)
    other = generic_attention.attribute(ask(game, x, torch.tensor([0, 0])), prob)
    assert (own - other).abs().max() > 1e-3
    assert (generic_attention.attribute(ask(game, x, torch.tensor([0, 0])), LOGIT) == 0).all()


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_rollout_of_a_vision_transformer_reads_where_it_pools(pool: str) -> None:
    game, x, target = image(pool)
    maps = attention_rollout.attribute(ask(game, x, target), ROLLOUT)
    with torch.no_grad():
        tokens = game.model.patch_embed(x)
        tokens = torch.cat([game.model.cls_token.expand(3, -1, -1), tokens], 1)
        rolled = torch.eye(7).expand(3, -1, -1)
        for block in game.model.blocks:
            query, key, _ = block.qkv(tokens).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
            weights = (query @ key.mT / 2).softmax(-1).mean(1)
            rolled = (weights + torch.eye(7)) / 2 @ rolled
            tokens = tokens + block(tokens)
    row = rolled[:, 0] if pool == "token" else rolled[:, 1:].mean(1)
    torch.testing.assert_close(game.features.to_features(maps), row[:, 1:], atol=1e-5, rtol=1e-5)


def test_tokens_need_not_be_the_features() -> None:
    """6 tokens of 4 x 4 pixels, 24 features of 2 x 2: a token's relevance is shared by its four."""
    game, x, target = image()
    coarse = attention_rollout.attribute(ask(game, x, target), ROLLOUT)
    fine = MaskedModel(game.model, Features("image", (2, 12, 8), 6, 4), Baseline.zero(), max_batch=8)
    maps = attention_rollout.attribute(ask(fine, x, target), ROLLOUT)
    assert torch.equal(maps, coarse)
    features = fine.features.to_features(maps).reshape(3, 3, 2, 2, 2)
    torch.testing.assert_close(features.sum((2, 4)).flatten(1), game.features.to_features(coarse))
    torch.testing.assert_close(features[:, :, 0, :, 0], features[:, :, 1, :, 1])


@pytest.mark.parametrize("module", [attention_rollout, generic_attention])
def test_padding_of_a_text_neither_gives_nor_gets(text: World, module: object) -> None:
    game, x, target = text
    settings = ROLLOUT if module is attention_rollout else LOGIT
    maps = module.attribute(ask(game, x, target), settings)
    assert (maps[x == 0] == 0).all()
    assert torch.isfinite(maps).all()
    assert (maps[x != 0] > 0).all() or module is generic_attention
    short = MaskedModel(game.model, token_features(3, 0), Baseline.token("pad", 0), max_batch=8)
    torch.testing.assert_close(
        module.attribute(ask(short, x[1:2, :3], target[1:2]), settings), maps[1:2, :3], atol=1e-5, rtol=1e-4
    )
    if module is attention_rollout:
        torch.testing.assert_close(maps.sum(1), torch.tensor([1.0, 1.0, 1.0, 0.0]))


def test_fused_attention_is_put_back_also_after_an_error() -> None:
    game, x, target = image()
    blocks = list(game.model.blocks)
    blocks[1].fused_attn = False
    generic_attention.attribute(ask(game, x, target), LOGIT)
    assert [block.fused_attn for block in blocks] == [True, False]
    seen: list[bool] = []
    game.model.head.register_forward_pre_hook(lambda _module, _args: seen.extend(block.fused_attn for block in blocks))
    game.model.head.register_forward_hook(lambda _module, _args, _output: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        generic_attention.attribute(ask(game, x, target), LOGIT)
    assert seen == [False, False]
    assert [block.fused_attn for block in blocks] == [True, False]
    assert not any(block.attn_drop._forward_hooks for block in blocks)


@pytest.mark.parametrize(("module", "settings"), [(attention_rollout, ROLLOUT), (generic_attention, LOGIT)])
def test_attention_does_not_fit_what_has_none_or_does_not_say_how_it_pools(module: object, settings: MethodSettings) -> None:
    features = Features("image", (2, 12, 8), 3, 2)
    x, target = torch.randn(2, 2, 12, 8), torch.tensor([0, 1])
    convolution = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    mapped = TinyViT(2, (12, 8), 4, 3)
    mapped.global_pool = "map"
    for model, message in ((convolution, "Sequential has no attention layer"), (mapped, "TinyViT pools its tokens by .map.")):
        game = MaskedModel(model, features, Baseline.zero(), max_batch=8)
        with pytest.raises(DoesNotFit, match=message):
            module.attribute(ask(game, x, target), settings)
        assert game.passes == 0


@pytest.mark.parametrize(("name", "pool"), [("vit_tiny_patch16_224", "token"), ("vit_tiny_patch16_224", "avg")])
def test_timms_attention_is_read(name: str, pool: str) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(2)
    model = timm.create_model(
        name, img_size=12, patch_size=4, embed_dim=12, depth=2, num_heads=3, num_classes=3, in_chans=2, global_pool=pool,
        class_token=pool == "token",
    )  # fmt: skip
    game = MaskedModel(model, Features("image", (2, 12, 12), 3, 3), Baseline.zero(), max_batch=8)
    x = torch.randn(2, 2, 12, 12)
    target = game.predict(x)[1].clone()
    assert len(attention.layers(model)) == 2
    fused = [block.attn.fused_attn for block in model.blocks]
    with attention.recorded(model) as weights:
        game.predict(x)
    assert [tuple(layer.shape[1:]) for layer in weights] == [(3, 10 if pool == "token" else 9, 10 if pool == "token" else 9)] * 2
    torch.testing.assert_close(weights[0].sum(-1), torch.ones_like(weights[0][..., 0]))
    rolled = attention_rollout.attribute(ask(game, x, target), ROLLOUT)
    assert (rolled > 0).all()
    assert (generic_attention.attribute(ask(game, x, target), LOGIT) >= 0).all()
    assert [block.attn.fused_attn for block in model.blocks] == fused
