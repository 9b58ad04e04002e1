"""Cost of masking: images a second through the game against a bare loop over ready inputs, the same network and batch.

    PYTHONPATH=src python benchmarks/photos.py

The network is EfficientNet-Lite0 at 224 px with random weights (they change no time), cut into 14 x 14 patches. The peer is what
could not be faster: the model in eval mode, without gradient, on inputs that are masked and channels_last already. Times are the
least of four, taken in turns. Masking may take a fifth of the throughput at most; more is an error.
"""

from typing import Any

import torch
from torch import Tensor

from faithline.masking import Baseline, MaskedModel, patch_features
from faithline.networks import timm_model
from turns import least_seconds

IMAGES, MASKS, BATCH, REPEATS = 2, 32, 32, 4
LEAST = 0.8


def measure() -> dict[str, dict[str, Any]]:
    """Images a second of the game and of the bare loop; the ratio is ours over the peer's, 1 is free masking.

    Raises:
        AssertionError: If the game is slower than it may be.
    """
    torch.manual_seed(0)
    model = timm_model("tf_efficientnet_lite0", classes=1000, channels=3, image_size=224, dropout=0.0)
    features = patch_features(224, 16)
    game = MaskedModel(model, features, Baseline.zero(), max_batch=BATCH)
    x = torch.randn(IMAGES, 3, 224, 224)
    target = torch.zeros(IMAGES, dtype=torch.int64)
    keep = torch.rand(IMAGES, MASKS, features.n) < 0.5
    ready = (x[:, None] * torch.stack([features.expand(own) for own in keep])).flatten(0, 1)
    parts = [part.contiguous(memory_format=torch.channels_last) for part in ready.split(BATCH)]

    @torch.inference_mode()
    def bare() -> list[Tensor]:
        return [game.model(part) for part in parts]

    ours, peer = (
        IMAGES * MASKS / seconds for seconds in least_seconds(lambda: game.values(x, keep, target), bare, repeats=REPEATS)
    )
    assert ours / peer >= LEAST, f"the game plays {ours:.1f} images/s, a bare loop {peer:.1f}"
    return {
        "photos_masked_throughput": {
            "ratio": ours / peer,
            "ours": ours,
            "peer": peer,
            "unit": "images/s",
            "peer_name": "bare channels_last loop",
        }
    }


if __name__ == "__main__":
    for name, entry in measure().items():
        print(f"{name}: {entry['ratio']:.3f} ({entry['ours']:.1f} against {entry['peer']:.1f} {entry['unit']})")
