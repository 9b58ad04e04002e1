"""The bidirectional LSTM against torch's own, and models of timm that attribution methods can look into."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from faithline.errors import ArtifactError
from faithline.masking import Baseline, MaskedModel, token_features
from faithline.networks import BidirectionalLSTM, TextLSTM, explainable, timm_model

pytestmark = pytest.mark.usefixtures("one_thread")


def lstm(dropout: float = 0.0) -> TextLSTM:
    torch.manual_seed(0)
    return TextLSTM(20, 3, width=6, depth=2, dropout=dropout, token_dropout=dropout, pad_id=0).eval()


IDS = torch.tensor([[5, 3, 8, 2, 9, 4], [7, 2, 6, 0, 0, 0], [1, 0, 0, 0, 0, 0], [4, 4, 4, 4, 4, 0]])


def test_a_layer_is_torch_s_bidirectional_lstm_on_the_present_tokens() -> None:
    torch.manual_seed(1)
    layer = BidirectionalLSTM(4, 5)
    peer = nn.LSTM(4, 5, batch_first=True, bidirectional=True)
    own = layer.state_dict()
    renamed = {name.removeprefix("onward."): value for name, value in own.items() if name.startswith("onward.")}
    renamed |= {
        f"{name.removeprefix('backward_.')}_reverse": value for name, value in own.items() if name.startswith("backward_.")
    }
    peer.load_state_dict(renamed)
    hidden, length = torch.randn(3, 6, 4), torch.tensor([6, 3, 1])
    present = torch.arange(6) < length[:, None]
    packed, _ = peer(pack_padded_sequence(hidden, length, batch_first=True, enforce_sorted=False))
    expected, _ = pad_packed_sequence(packed, batch_first=True, total_length=6)
    torch.testing.assert_close(layer(hidden, present), expected)


def test_a_text_with_holes_is_read_like_the_shorter_text() -> None:
    model = lstm()
    holes = torch.tensor([[5, 0, 8, 0, 9, 4]])
    short = torch.tensor([[5, 8, 9, 4, 0, 0]])
    torch.testing.assert_close(model(holes), model(short), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(model(holes), model(torch.tensor([[8, 5, 9, 4, 0, 0]]))), "the order of words counts"


def test_states_lie_where_their_tokens_lie() -> None:
    model = lstm()
    seen: list[torch.Tensor] = []
    model.blocks[-1].register_forward_hook(lambda _m, _a, output: seen.append(output))
    model(torch.tensor([[5, 0, 8, 0, 9, 4]]))
    model(torch.tensor([[5, 8, 9, 4, 0, 0]]))
    holes, short = seen
    assert holes.shape == (1, 6, 12)
    assert torch.equal(holes[0, [0, 2, 4, 5]], short[0, :4])
    assert float(holes[0, [1, 3]].detach().abs().sum()) == 0


def test_padding_changes_nothing_and_an_empty_text_has_finite_logits() -> None:
    model = lstm()
    longer = F.pad(IDS, (0, 3))
    torch.testing.assert_close(model(longer), model(IDS), rtol=0, atol=0)
    assert bool(torch.isfinite(model(torch.zeros(1, 6, dtype=torch.int64))).all())


def test_values_do_not_depend_on_batch_mates_or_order() -> None:
    game = MaskedModel(lstm(), token_features(6, 0), Baseline.token("pad", 0), max_batch=16)
    keep = torch.rand(len(IDS), 9, 6, generator=torch.Generator().manual_seed(2)) < 0.5
    target = game.predict(IDS)[1]
    together = game.values(IDS, keep, target)
    for row in range(len(IDS)):
        assert torch.equal(game.values(IDS[row : row + 1], keep[row : row + 1], target[row : row + 1])[0], together[row])
    flipped = game.values(IDS.flip(0), keep.flip(0), target.flip(0)).flip(0)
    assert torch.equal(flipped, together)


def test_dropout_acts_in_training_only() -> None:
    model = lstm(0.5)
    assert torch.equal(model(IDS), model(IDS))
    model.train()
    assert not torch.equal(model(IDS), model(IDS))


def test_input_gradients_of_an_lstm_agree_with_finite_differences() -> None:
    game = MaskedModel(lstm().double(), token_features(6, 0), Baseline.token("pad", 0), max_batch=8)
    view = game.gradient_view(IDS[:1], "logit")
    inputs = view.inputs.clone().requires_grad_()
    view.module(inputs, *view.extra)[0, 1].backward()
    step = torch.zeros_like(view.inputs)
    step[0, 2, 3] = 1e-6
    ends = [view.module(view.inputs + sign * step, *view.extra)[0, 1] for sign in (1, -1)]
    assert inputs.grad is not None
    assert float(inputs.grad[0, 2, 3]) == pytest.approx(float(ends[0] - ends[1]) / 2e-6, rel=1e-5)


def test_cudnn_is_off_inside_the_gradient_view_of_a_recurrent_model_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "enabled", True)
    seen: list[bool] = []

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(20, 4), nn.Linear(4, 3)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(ids).sum(1))

    for model in (lstm(), Bag()):
        model.head.register_forward_hook(lambda *_: seen.append(torch.backends.cudnn.enabled))
        game = MaskedModel(model, token_features(6, 0), Baseline.token("pad", 0), max_batch=8)
        view = game.gradient_view(IDS, "prob")
        view.module(view.inputs, *view.extra)
        game.predict(IDS)
        assert torch.backends.cudnn.enabled
    assert seen == [False, True, True, True]


# ------------------------------------------------------------------------------------------------------------------- timm


def test_a_model_of_timm_takes_the_size_of_the_input_and_overwrites_nothing() -> None:
    for architecture in ("test_efficientnet", "test_vit"):
        model = timm_model(architecture, classes=7, channels=3, image_size=64, dropout=0.0).eval()
        x = torch.randn(2, 3, 64, 64)
        assert model(x).shape == (2, 7)
        assert not [name for name, module in model.named_modules() if getattr(module, "inplace", False)]
        assert not [name for name, module in model.named_modules() if getattr(module, "fused_attn", False)]


def test_explainable_changes_no_output() -> None:
    import timm

    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=3, img_size=64).eval()
    x = torch.randn(2, 3, 64, 64)
    before = model(x)
    torch.testing.assert_close(explainable(model)(x), before, rtol=1e-4, atol=1e-5)


def test_an_unknown_architecture_is_refused_with_what_there_is() -> None:
    with pytest.raises(ArtifactError, match=r"'resnet51': timm has no such model; it has \['resnet"):
        timm_model("resnet51", classes=2, channels=3, image_size=64, dropout=0.0)
