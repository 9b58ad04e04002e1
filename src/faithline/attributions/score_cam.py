"""Score-CAM: channels of the last grid weighted by what the model says of the image seen through them."""

import torch
from torch import Tensor

from faithline.attributions.gradients import chunks
from faithline.attributions.query import Query
from faithline.attributions.spatial import Grid, activations_and_gradients, enlarge, last_grid
from faithline.config import ScoreCamSettings
from faithline.masking import MaskedModel, class_value

MODALITIES: tuple[str, ...] = ("image",)
MASKS: tuple[str, str] | None = None


def attribute(query: Query, settings: ScoreCamSettings) -> Tensor:
    """Activations of the last grid weighted by f(image seen through the channel) - f(removed image), enlarged.

    A channel's activations, enlarged to the image and stretched to [0, 1], blend the image with what the game puts in the place
    of removed features (of a background its first row). A channel that is the same everywhere shows nothing and weighs 0. Only
    the `channels` channels with the largest |Grad-CAM weight| are tried; `channels` beyond what the layer has means all of
    them. The sign is kept: the softmax over channels of the paper's algorithm and its final ReLU, which erase it, are left out.

    Passes a sample: one forward and backward pass, one of the removed image, and one a channel; and one a call that finds the
    layer. All samples and channels go through the model as one stream.

    Args:
        query: The game, inputs and classes.
        settings: `channels` tried; `output` that is differentiated and measured.

    Returns:
        Maps (B, H, W), float32: higher = more support for the class.

    Raises:
        DoesNotFit: If no layer of the model is laid out over the image (`spatial.last_grid`).

    Source:
        Wang et al., Score-CAM, CVPR workshops 2020, section 3 (channel-wise increase of confidence); the choice of channels is
        ours.
    """
    game = query.game
    maps = []
    grid: Grid | None = None
    for part, view, classes in chunks(query, settings.output, 1):
        if grid is None:
            grid = last_grid(game.model, view.inputs[:1].detach())
        activation, gradient = activations_and_gradients(view, grid, classes)
        # Stable, so that the choice among equals does not depend on the batch.
        order = gradient.mean((2, 3)).abs().argsort(dim=1, descending=True, stable=True)[:, : settings.channels]
        chosen = activation.take_along_dim(order[:, :, None, None], dim=1)
        weight = _scores(game, part.to(view.inputs.device), view.baseline, chosen, classes, settings)
        coarse = (weight[:, :, None, None] * chosen).sum(1, keepdim=True)
        maps.append(enlarge(coarse, game.features.map_shape)[:, 0].cpu())
    return torch.cat(maps)


def _scores(game: MaskedModel, x: Tensor, removed: Tensor, chosen: Tensor, classes: Tensor, settings: ScoreCamSettings) -> Tensor:
    """What each channel lets the model see of its class, less what it sees in the removed image: (B, K)."""
    samples, channels = chosen.shape[:2]
    floor = class_value(game.predict(removed)[0], classes, settings.output)
    rows = torch.arange(samples, device=x.device).repeat_interleave(channels)
    values = []
    for start in range(0, samples * channels, game.max_batch):
        part = rows[start : start + game.max_batch]
        fine = enlarge(chosen.flatten(0, 1)[start : start + game.max_batch, None], game.features.map_shape)
        lowest, highest = fine.amin((2, 3), keepdim=True), fine.amax((2, 3), keepdim=True)
        constant = highest == lowest
        shown = torch.where(constant, 0.0, (fine - lowest) / torch.where(constant, 1.0, highest - lowest))
        logits, _ = game.predict(shown * x[part] + (1 - shown) * removed[part])
        values.append(class_value(logits, classes[part], settings.output))
    return torch.cat(values).reshape(samples, channels) - floor[:, None]
