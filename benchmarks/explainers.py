"""Speed of one explanation by a trained network, the target's own forward pass included.

    PYTHONPATH=src python benchmarks/explainers.py

512 digits in one batch through `deepfaith` of `digits_cnn` as params.yaml sizes it (untrained: weights change no time), against
the target alone, and against captum's integrated gradients with 50 steps. Times are the least of several; the sides take turns.
"""

import os

import torch
from captum.attr import IntegratedGradients
from torch import Tensor, nn

from faithline import config
from faithline.explainers.load import Explainer
from faithline.explainers.network import Network
from faithline.explainers.target_features import view
from faithline.explainers.train import network_shape
from faithline.masking import Baseline, MaskedModel, patch_features
from faithline.targets import SmallCNN
from turns import least_seconds

SAMPLES, STEPS, REPEATS = 512, 50, 7


def measure() -> dict[str, dict[str, object]]:
    """How many target forwards one explanation takes (lower is better, at most 5 wanted), and how many times faster than
    integrated gradients it is (at least 10 wanted)."""
    params = config.load()
    task, settings = params.tasks["digits_cnn"], params.image.explainers["deepfaith"]
    torch.manual_seed(0)
    sizes = task.target
    model = SmallCNN(1, 28, 10, width=sizes.width, depth=sizes.depth, dropout=sizes.dropout)
    game = MaskedModel(model, patch_features(28, 4, channels=1), Baseline.zero(), max_batch=SAMPLES)
    x = torch.rand(SAMPLES, 1, 28, 28)
    network = Network(network_shape(game, view(game, x, sizes.layers), settings, classes=10))
    explainer = Explainer(game, network, sizes.layers, efficient=False)
    target = game.predict(x)[1].clone()
    peer = IntegratedGradients(nn.Sequential(game.model, nn.Softmax(1)))

    def forward() -> Tensor:
        return game.predict(x)[0]

    def integrated() -> Tensor:
        return peer.attribute(x, baselines=0, target=target, n_steps=STEPS, internal_batch_size=SAMPLES)

    ours, alone = least_seconds(lambda: explainer(x), forward, repeats=REPEATS)
    again, gradients = least_seconds(lambda: explainer(x), integrated, repeats=REPEATS)
    return {
        "explanation_in_target_forwards": {
            "ratio": ours / alone,
            "ours": ours,
            "peer": alone,
            "unit": f"s for {SAMPLES} digits",
            "peer_name": "one forward pass of the target",
        },
        "explanation_against_integrated_gradients": {
            "ratio": gradients / again,
            "ours": again,
            "peer": gradients,
            "unit": f"s for {SAMPLES} digits",
            "peer_name": f"captum IntegratedGradients, {STEPS} steps",
        },
    }


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("FAITHLINE_THREADS") or os.cpu_count() or 1))
    for key, entry in measure().items():
        print(f"{key}: {entry['ratio']:.2f} ({entry['ours']:.4f} against {entry['peer']:.4f} {entry['unit']})")
