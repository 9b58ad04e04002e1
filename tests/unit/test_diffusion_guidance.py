"""The anti-class term: spec fud.md, check 11 and the mutations that concern it."""

import pytest
import torch
from torch import Tensor, nn

from faithline.diffusion.guidance import anti_class_score, classifier_evidence, log_probabilities

pytestmark = pytest.mark.usefixtures("one_thread")
TARGETS = torch.tensor([2, 0, 1, 2])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))


def inputs() -> Tensor:
    return torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(1)) * 2 - 1


def evidence(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return log_probabilities(network()(x), target)


def test_log_probabilities_are_one_softmax_of_the_own_class() -> None:
    logits = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]])
    own, rest = log_probabilities(logits, torch.tensor([1, 0]))
    p = logits.exp() / logits.exp().sum(1, keepdim=True)
    torch.testing.assert_close(own.exp(), torch.stack([p[0, 1], p[1, 0]]))
    torch.testing.assert_close(rest.exp(), 1 - own.exp())
    _, certain = log_probabilities(torch.tensor([[40.0, 0.0]]), torch.tensor([0]))
    assert certain.item() == pytest.approx(-40)  # log(1 - p) of the rounded p is minus infinity


def test_one_minus_p_is_the_odds_times_minus_log_p() -> None:
    x = inputs()
    p = evidence(x, TARGETS)[0].exp().detach()[:, None, None, None]
    plain = anti_class_score(evidence, x, TARGETS, "minus_log_p")
    literal = anti_class_score(evidence, x, TARGETS, "one_minus_p")
    torch.testing.assert_close(literal, p / (1 - p) * plain)

    leaf = x.clone().requires_grad_()
    (by_hand,) = torch.autograd.grad(network()(leaf).softmax(1)[torch.arange(4), TARGETS].log().sum(), leaf)
    torch.testing.assert_close(plain, -by_hand)


def test_one_minus_p_goes_to_zero_with_p() -> None:
    def two(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return log_probabilities(torch.stack([x[:, 0, 0, 0], torch.zeros(len(x))], 1), target)

    x = torch.tensor([8.0, 0.0, -8.0, -16.0]).reshape(4, 1, 1, 1)
    target = torch.zeros(4, dtype=torch.int64)
    literal = anti_class_score(two, x, target, "one_minus_p").flatten()
    plain = anti_class_score(two, x, target, "minus_log_p").flatten()
    torch.testing.assert_close(literal, -torch.sigmoid(x.flatten()))
    torch.testing.assert_close(plain, -torch.sigmoid(-x.flatten()))
    assert abs(literal[3]) < 1e-6
    assert plain[3] == pytest.approx(-1)


def test_batch_mates_of_other_classes_leak_no_gradient() -> None:
    x = inputs()
    together = anti_class_score(evidence, x, TARGETS, "minus_log_p")
    for i in range(4):
        alone = anti_class_score(evidence, x[i : i + 1], TARGETS[i : i + 1], "minus_log_p")
        torch.testing.assert_close(alone[0], together[i])


def test_the_classifier_sees_normalised_pixels_in_its_own_size() -> None:
    seen: list[Tensor] = []

    def classifier(pixels: Tensor) -> Tensor:
        seen.append(pixels.detach())
        return network()(pixels)

    mean, std = [0.5, 0.4, 0.3], [0.2, 0.25, 0.5]
    ends = torch.tensor([-1.0, 1.0]).reshape(2, 1, 1, 1).expand(2, 3, 2, 2)
    classifier_evidence(classifier, mean, std, 2)(ends, TARGETS[:2])
    torch.testing.assert_close(seen[0][0, :, 0, 0], -torch.tensor(mean) / torch.tensor(std))  # -1 is black: 0 in [0, 1]
    torch.testing.assert_close(seen[0][1, :, 0, 0], (1 - torch.tensor(mean)) / torch.tensor(std))
    found = classifier_evidence(classifier, mean, std, 2)(torch.rand(2, 3, 6, 6), TARGETS[:2])
    assert seen[1].shape == (2, 3, 2, 2)
    assert found[0].shape == (2,)
    torch.testing.assert_close(found[0], network()(seen[1]).log_softmax(1)[[0, 1], TARGETS[:2]])
