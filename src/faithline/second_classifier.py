"""A second classifier of the same images: tells evidence that is gone from evidence that only the target no longer sees."""

import torch
from torch import Tensor, nn

from faithline.schemas.fud import SecondClassifierSettings
from faithline.seeding import derive, torch_generator


def build(settings: SecondClassifierSettings, inputs: int, classes: int) -> nn.Module:
    """A perceptron of two hidden layers: images (B, ...) with `inputs` values each -> logits (B, classes)."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, settings.width),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(settings.width, settings.width),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(settings.width, classes),
    )


def train(x: Tensor, label: Tensor, classes: int, settings: SecondClassifierSettings, *, seed: int) -> nn.Module:
    """Train one on normalised images x (N, ...) with their labels (N,); it comes back in eval mode with frozen weights.

    Dropout draws from the global generator, which is seeded here.
    """
    torch.manual_seed(derive(seed, "second classifier"))
    model = build(settings, x[0].numel(), classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    for epoch in range(settings.epochs):
        order = torch.randperm(len(x), generator=torch_generator(seed, "second classifier", epoch))
        for rows in order.split(settings.batch):
            loss = nn.functional.cross_entropy(model(x[rows]), label[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval().requires_grad_(False)
