"""Weights from local files: the right file, tensors only, names that fit."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from faithline.artifacts import file_sha256
from faithline.checkpoints import load_checkpoint, read_checkpoint
from faithline.errors import ArtifactError

WEIGHTS = {"0.weight": torch.arange(6.0).reshape(2, 3), "0.bias": torch.tensor([1.0, -1.0])}


def saved(path: Path, content: object) -> str:
    if path.suffix == ".safetensors":
        save_file(content, path)  # type: ignore[arg-type]
    else:
        torch.save(content, path)
    return file_sha256(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.safetensors", WEIGHTS),
        ("a.pth", WEIGHTS),
        ("a.ckpt", {"state_dict": {f"model.{key}": value for key, value in WEIGHTS.items()}, "epoch": 3}),
        ("a.pt", {"model": {f"module.{key}": value for key, value in WEIGHTS.items()}}),
    ],
)
def test_the_layouts_of_training_scripts_are_read(tmp_path: Path, name: str, content: object) -> None:
    path = tmp_path / name
    model = nn.Sequential(nn.Linear(3, 2))
    load_checkpoint(model, path, saved(path, content))
    assert {key: value.tolist() for key, value in model.state_dict().items()} == {
        key: value.tolist() for key, value in WEIGHTS.items()
    }


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    digest = saved(path, WEIGHTS)
    with pytest.raises(ArtifactError, match=rf"has sha256 {digest}, params.yaml says {'0' * 64}: it is another file"):
        read_checkpoint(path, "0" * 64)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"none.pth is missing: put it there, or correct target.checkpoint"):
        read_checkpoint(tmp_path / "none.pth", "0" * 64)


class Bomb:
    """Code that a pickle would run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("open('ran', 'w').close()",))


# Pickles are written here, never read: the hostile file must exist for the reader to refuse it.
@pytest.mark.parametrize("save", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))])
def test_a_pickle_that_needs_more_than_tensors_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.pth"
    save({"state_dict": WEIGHTS, "hyper_parameters": Bomb()}, path)
    with pytest.raises(ArtifactError, match=r"holds more than tensors, or is damaged, and is not unpickled .*as safetensors"):
        read_checkpoint(path, file_sha256(path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
def test_a_damaged_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    saved(path, WEIGHTS)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ArtifactError, match=rf"checkpoint {path} "):
        read_checkpoint(path, file_sha256(path))


@pytest.mark.parametrize("content", [[1, 2], {}, {"epoch": 3, "weights": [torch.ones(2)]}])
def test_a_file_without_state_dict_is_refused(tmp_path: Path, content: object) -> None:
    path = tmp_path / "a.pth"
    with pytest.raises(ArtifactError, match="holds no state dict"):
        read_checkpoint(path, saved(path, content))


def test_what_does_not_fit_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    digest = saved(path, {"0.weight": torch.zeros(4, 3), "1.weight": torch.zeros(1)})
    with pytest.raises(ArtifactError) as caught:
        load_checkpoint(nn.Sequential(nn.Linear(3, 2)), path, digest)
    assert "does not fit the model (3 faults)" in str(caught.value)
    for fault in (
        "0.bias is missing from the checkpoint",
        "1.weight is not in the model",
        "0.weight is [4, 3] in the checkpoint, [2, 3]",
    ):
        assert fault in str(caught.value)
