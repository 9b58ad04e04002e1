"""Larger target networks: a bidirectional LSTM for texts, and any image model of timm."""

from typing import cast

import torch
from torch import Tensor, nn

from faithline.errors import ArtifactError


class BidirectionalLSTM(nn.Module):
    """One LSTM layer that reads the present tokens of each text in both directions: (B, L, D) -> (B, L, 2 * width).

    Tokens that are not there are skipped, wherever they lie: the others move together, are read, and move back to their places.
    So a text whose tokens were taken away is read like the shorter text, and padding changes nothing. Two LSTMs of one direction
    instead of packed sequences: their matrix products have one shape for every text, so that a text's numbers do not depend, to
    the last bit, on the lengths of its batch mates.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.onward = nn.LSTM(inputs, width, batch_first=True)
        self.backward_ = nn.LSTM(inputs, width, batch_first=True)

    def forward(self, hidden: Tensor, present: Tensor) -> Tensor:
        """States at each token, 0 where there is none; `present` is bool (B, L)."""
        order = (~present).to(torch.int8).argsort(dim=1, stable=True)
        length = present.sum(1, keepdim=True)
        place = torch.arange(hidden.shape[1], device=hidden.device).expand_as(order)
        mirror = torch.where(place < length, length - 1 - place, place)
        together = _at(hidden, order)
        onward, _ = self.onward(together)
        backward, _ = self.backward_(_at(together, mirror))
        states = torch.cat([onward, _at(backward, mirror)], dim=2)
        return _at(states, order.argsort(dim=1)) * present[:, :, None].to(states.dtype)


def _at(sequence: Tensor, places: Tensor) -> Tensor:
    """Elements of (B, L, D) at places (B, L)."""
    return sequence.gather(1, places[:, :, None].expand(-1, -1, sequence.shape[2]))


class TextLSTM(nn.Module):
    """Bidirectional LSTM over token ids: `embedding`, `blocks`, mean over the tokens, linear `head`.

    Positions whose id is `pad_id` are skipped, so a text of which all tokens were taken away still has finite logits. In
    training each token is taken away with probability `token_dropout`: it teaches the model texts with holes, which is what the
    game shows it.
    """

    def __init__(
        self, vocabulary: int, classes: int, *, width: int, depth: int, dropout: float, token_dropout: float, pad_id: int
    ) -> None:
        super().__init__()
        self.pad_id = pad_id
        self.token_dropout = token_dropout
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=pad_id)
        nn.init.normal_(self.embedding.weight, std=0.1)
        nn.init.zeros_(self.embedding.weight[pad_id])
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(BidirectionalLSTM(2 * width if layer else width, width) for layer in range(depth))
        self.head = nn.Linear(2 * width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids int64 (B, L) -> logits (B, classes)."""
        if self.training and self.token_dropout:
            ids = ids.masked_fill(torch.rand(ids.shape, device=ids.device) < self.token_dropout, self.pad_id)
        present = ids != self.pad_id
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = block(self.dropout(hidden), present)
        pooled = hidden.sum(1) / present.sum(1, keepdim=True).clamp(min=1)
        return self.head(self.dropout(pooled))


def timm_model(architecture: str, *, classes: int, channels: int, image_size: int, dropout: float) -> nn.Module:
    """A model of timm with random weights; nothing is downloaded.

    Args:
        architecture: Its name in timm.
        classes: Outputs.
        channels: Channels of the input.
        image_size: Side of the input in pixels; vision transformers learn one position a patch of it.
        dropout: Before the last layer, in training.

    Raises:
        ArtifactError: If timm has no such model.
    """
    import timm  # late: slow to import, and few task files need it

    if not timm.is_model(architecture):
        near = timm.list_models(f"{architecture[:6]}*")[:5]
        raise ArtifactError(f"target.architecture = {architecture!r}: timm has no such model{f'; it has {near}' if near else ''}")
    if timm.models.is_model_in_modules(architecture, ["vision_transformer", "deit"]):
        model = timm.create_model(
            architecture, pretrained=False, num_classes=classes, in_chans=channels, drop_rate=dropout, img_size=image_size
        )
    else:
        model = timm.create_model(architecture, pretrained=False, num_classes=classes, in_chans=channels, drop_rate=dropout)
    return explainable(cast(nn.Module, model))


def explainable(model: nn.Module) -> nn.Module:
    """Make a timm model one that attribution methods can look into; its outputs stay the same up to rounding.

    Activations that overwrite their input would break the hooks of captum's DeepLIFT, and fused attention hides its softmax.
    """
    for module in model.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
        if getattr(module, "fused_attn", False):
            module.fused_attn = False  # type: ignore[assignment]
    return model
