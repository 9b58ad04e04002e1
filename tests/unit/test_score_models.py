"""Score models: training that resumes, the Frechet distance, what loading refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from faithline import score_models, second_classifier
from faithline.artifacts import file_sha256
from faithline.diffusion import training
from faithline.diffusion.frechet import frechet_distance
from faithline.diffusion.schedule import linear_schedule
from faithline.diffusion.training import build_network, train_score_model
from faithline.errors import ArtifactError
from faithline.schemas.fud import SecondClassifierSettings, TrainedScoreSettings

pytestmark = pytest.mark.usefixtures("one_thread")

SCHEDULE = linear_schedule(1000, 1e-4, 0.02)


def settings(**changes: Any) -> TrainedScoreSettings:
    values: dict[str, Any] = {
        "kind": "trained",
        "channels": [8, 8],
        "layers": 1,
        "groups": 4,
        "schedule": {"steps": 1000, "first": 1e-4, "last": 0.02},
        "steps": 20,
        "batch": 8,
        "learning_rate": 0.01,
        "weight_decay": 0.0,
        "warmup_fraction": 0.1,
        "ema": 0.8,
        "precision": "fp32",
        "sheet": 4,
    }
    return TrainedScoreSettings.model_validate(values | changes)


def stripes(count: int) -> Tensor:
    """Light and dark stripes of a random place, in [-1, 1]."""
    shift = torch.randint(4, (count, 1, 1, 1), generator=torch.Generator().manual_seed(count))
    return (((torch.arange(8) + shift) % 4 < 2).float() * 1.6 - 0.8).expand(count, 1, 8, 8).contiguous()


def train(scratch: Path, **changes: Any) -> training.TrainedScore:
    return train_score_model(stripes(32), stripes(10), SCHEDULE, settings(**changes), seed=0, scratch=scratch)


def test_noise_is_told_better_and_better(tmp_path: Path) -> None:
    history = train(tmp_path, steps=80).history
    assert [row["step"] for row in history] == list(range(8, 81, 8))
    assert history[-1]["validation_loss"] < 0.5 * history[0]["validation_loss"], "1 is the loss of saying nothing"


def test_a_killed_run_resumes_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(tmp_path / "whole")
    real, saved = training._save, []

    def save_and_die(*args: Any) -> None:
        real(*args)
        saved.append(args[2])
        if len(saved) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "_save", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut")
    assert saved == [2, 4, 6, 8]
    assert [path.name for path in (tmp_path / "cut").iterdir()] == ["step-0000008"]
    again = train(tmp_path / "cut")
    assert len(saved) > 4, "it went on from there"
    assert saved[4] == 10
    assert again.history == whole.history
    for name, value in again.network.state_dict().items():
        assert torch.equal(value, whole.network.state_dict()[name]), name


def test_the_running_mean_is_kept(tmp_path: Path) -> None:
    slow, none = train(tmp_path / "a", ema=0.99), train(tmp_path / "b", ema=0.0)
    name = "conv_in.weight"
    assert not torch.equal(slow.network.state_dict()[name], none.network.state_dict()[name])


def test_a_side_that_cannot_be_halved_is_refused() -> None:
    with pytest.raises(ValueError, match="2 halvings do not divide images of 6 pixels"):
        build_network(settings(channels=[8, 8, 8]), 1, 6)


def test_a_loss_that_is_not_finite_stops_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not finite in step \d+: lower score_model.learning_rate"):
        train(tmp_path, learning_rate=1e30)


# ------------------------------------------------------------------------------------------------------------------ frechet


def test_frechet_distance_of_known_gaussians() -> None:
    """Between Gaussians with diagonal covariances: squared gap of means plus squared gaps of standard deviations."""
    draw = torch.Generator().manual_seed(0)
    first = torch.randn(40_000, 3, generator=draw)
    second = torch.randn(40_000, 3, generator=draw) * torch.tensor([1.0, 2.0, 0.5]) + torch.tensor([1.0, 0.0, 0.0])
    assert frechet_distance(first, first) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(first, second) == pytest.approx(1 + 1 + 0.25, rel=0.03)
    assert frechet_distance(first, second) == pytest.approx(frechet_distance(second, first))
    angle = torch.linalg.qr(torch.randn(3, 3, generator=draw)).Q
    assert frechet_distance(first @ angle, second @ angle) == pytest.approx(frechet_distance(first, second), rel=1e-5)


def test_frechet_distance_refuses_what_has_no_covariance() -> None:
    with pytest.raises(ValueError, match="two sets of vectors of one length"):
        frechet_distance(torch.rand(1, 3), torch.rand(5, 3))


# ------------------------------------------------------------------------------------------------------------------ loading


def write(folder: Path, **changes: Any) -> Path:
    """A score model of 8 x 8 gray images with a second classifier, as `make` publishes it."""
    folder.mkdir(parents=True, exist_ok=True)
    own = SecondClassifierSettings(width=4, epochs=1, batch=8, learning_rate=0.01, weight_decay=0.0)
    save_file(build_network(settings(), 1, 8).state_dict(), folder / "network.safetensors")
    save_file(second_classifier.build(own, 64, 3).state_dict(), folder / "second.safetensors")
    info = {
        "sha256": file_sha256(folder / "network.safetensors"),
        "target_sha256": "t" * 64,
        "settings": settings().model_dump(),
        "channels": 1,
        "size": 8,
        "classes": 3,
        "inputs": 64,
        "range": [-1.0, 1.0],
        "second_classifier": {"settings": own.model_dump(), "sha256": file_sha256(folder / "second.safetensors")},
    }
    (folder / "model.json").write_text(json.dumps(info | changes))
    return folder


def test_a_score_model_comes_back(tmp_path: Path) -> None:
    loaded = score_models.load_score_model(write(tmp_path))
    weights = load_file(tmp_path / "network.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in loaded.model.network.state_dict().items())
    assert loaded.second is not None
    assert loaded.second(torch.rand(2, 1, 8, 8)).shape == (2, 3)
    assert loaded.model(torch.rand(2, 1, 8, 8), torch.tensor([3, 500])).shape == (2, 1, 8, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"range": [0.0, 1.0]}, "knows pixel values from 0.0 to 1.0, -1 to 1 expected"),
        ({"settings": {"kind": "trained"}}, "does not describe a score model"),
        ({"sha256": "0" * 64}, "network.safetensors is not the file that model.json names"),
        ({"size": 7}, "halvings do not divide"),
    ],
)
def test_a_score_model_that_does_not_fit_itself_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ArtifactError, ValueError), match=message):
        score_models.load_score_model(write(tmp_path, **changes))


def test_truncated_weights_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path)
    whole = (folder / "network.safetensors").read_bytes()
    (folder / "network.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArtifactError, match=r"network\.safetensors"):
        score_models.load_score_model(folder)
