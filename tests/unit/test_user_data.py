"""Data sets that users bring: real layouts in miniature are read rightly, other layouts are refused with a clear message."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import layouts

from faithline import dataset
from faithline.config import (
    CheckpointTargetSettings,
    DatasetSettings,
    ImageFolderSettings,
    TableFileSettings,
    TextFileSettings,
    TextTargetSettings,
    TimmTargetSettings,
)
from faithline.errors import ArtifactError
from faithline.tasks import ag_news, imagenet, imdb, kermany_oct, nhanes_age, photos_effnet, wholesale

pytest.importorskip("skimage", reason="the extra `photos` is not installed")

COUNTS = {
    imagenet: (20, 4, 8),
    kermany_oct: (24, 8, 8),
    imdb: (30, 10, 16),
    ag_news: (40, 12, 20),
    wholesale: (60, 20, 30),
    nhanes_age: (60, 20, 30),
}
MAKERS: dict[Any, Callable[[Path], Path]] = {
    imagenet: layouts.imagenet,
    kermany_oct: layouts.oct_scans,
    imdb: layouts.imdb,
    ag_news: layouts.ag_news,
    wholesale: lambda folder: layouts.wholesale(folder / "customers.csv"),
    nhanes_age: lambda folder: layouts.nhanes_age(folder / "nhanes.csv"),
}
TASKS = list(MAKERS)
EXTRA: dict[str, dict[str, int]] = {"image": {"image_size": 64, "patch": 16}, "text": {"length": 12, "min_count": 2}, "table": {}}


def name(task: Any) -> str:
    return task.__name__.rpartition(".")[2]


pytestmark = pytest.mark.usefixtures("one_thread")


def settings(task: Any, path: Path) -> DatasetSettings:
    train, validation, test = COUNTS[task]
    counts = {"train": train, "supervised": train // 2, "validation": validation, "test": test, "augmented": 0}
    made: DatasetSettings = task.DATASET_SETTINGS(path=str(path), **counts, **EXTRA[task.MODALITY])
    return made


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[Any, Path]:
    return {task: maker(tmp_path_factory.mktemp(name(task)) / "data") for task, maker in MAKERS.items()}


@pytest.fixture
def place(places, tmp_path) -> Callable[[Any], Path]:
    """A copy of a layout that may be broken."""

    def copy(task: Any) -> Path:
        path = places[task]
        return Path(shutil.copytree(path, tmp_path / "data") if path.is_dir() else shutil.copy(path, tmp_path / path.name))

    return copy


# ------------------------------------------------------------------------------------------------------------ right layouts


@pytest.mark.parametrize("task", TASKS, ids=name)
def test_a_layout_gives_sound_samples(task, places, tmp_path):
    samples = task.load_samples(settings(task, places[task]), 0)
    dataset.check(samples)
    assert [len(samples.index(split)) for split in dataset.SPLITS] == list(COUNTS[task])
    assert samples.features.kind == task.MODALITY
    assert samples.showable == (task.MODALITY == "table"), "pictures and texts of research data are not shown"
    dataset.freeze(samples, tmp_path / "frozen")
    again = dataset.read(tmp_path / "frozen")
    assert torch.equal(again.x, samples.x)
    assert (again.showable, again.complete) == (samples.showable, samples.complete)


@pytest.mark.parametrize("task", TASKS, ids=name)
def test_the_seed_and_nothing_else_draws_the_splits(task, places):
    first, again, other = (task.load_samples(settings(task, places[task]), seed) for seed in (0, 0, 1))
    assert torch.equal(first.x, again.x)
    assert (first.split == again.split).all()
    assert first.x.shape[1:] == other.x.shape[1:]
    assert first.x.shape != other.x.shape or not torch.equal(first.x, other.x)


def test_classes_of_imagenet_come_from_the_wordnet_id(places):
    samples = imagenet.load_samples(settings(imagenet, places[imagenet]), 0)
    data = samples.split != "gallery"
    assert set(samples.label[torch.from_numpy(data)].tolist()) == {0, 2, 281, 967}
    assert [samples.class_names[i].split(",")[0] for i in (0, 2, 281, 967)] == ["tench", "great white shark", "tabby", "espresso"]
    shade = samples.x.mean((1, 2, 3))
    order = [float(shade[torch.from_numpy(data) & (samples.label == own)].mean()) for own in (0, 2, 281, 967)]
    assert order == sorted(order), "each picture has the label of its own folder"


def test_the_gallery_of_imagenet_is_scikit_image_s_and_counts_nowhere(places):
    samples = photos_effnet.load_samples(settings(imagenet, places[imagenet]), 0)
    gallery = samples.index("gallery")
    assert len(gallery) == len(imagenet.GALLERY) == 5
    assert [samples.class_names[own].split(",")[0] if own >= 0 else None for own in samples.label[gallery].tolist()] == [
        None,
        "tripod",
        "tabby",
        "espresso",
        "missile",
    ]
    assert not set(gallery.tolist()) & set(samples.scored().tolist())
    assert set(gallery.tolist()) <= set(samples.explained().tolist()) & set(samples.unseen().tolist())
    assert float(samples.x.min()) >= -1
    assert float(samples.x.max()) <= 1


def test_no_patient_of_the_test_scans_is_in_training(places):
    root = places[kermany_oct]
    samples = kermany_oct.load_samples(settings(kermany_oct, root), 0)
    scans = {
        path.stem.split("-")[1]: kermany_oct.read_picture(path, size=64, channels=3, resize=73)
        for path in sorted(root.glob("test/*/*"))
    }
    repeated = [patient for patient in scans if patient.startswith("1000")]
    assert len(repeated) == 4
    for part, folder in (("train", "train"), ("validation", "train"), ("test", "test")):
        known = {
            torch.from_numpy(kermany_oct.read_picture(path, size=64, channels=3, resize=73))
            .permute(2, 0, 1)
            .numpy()
            .tobytes(): path
            for path in root.glob(f"{folder}/*/*")
        }
        found = [known[x.numpy().tobytes()] for x in samples.x[samples.index(part)]]
        assert part == "test" or not [path for path in found if path.stem.split("-")[1] in scans]
        assert [path.parent.name for path in found] == [
            samples.class_names[i] for i in samples.label[samples.index(part)].tolist()
        ]
    patients = {}
    files = {
        torch.from_numpy(kermany_oct.read_picture(path, size=64, channels=3, resize=73)).permute(2, 0, 1).numpy().tobytes(): path
        for path in root.glob("train/*/*")
    }
    for part in ("train", "validation"):
        patients[part] = {files[x.numpy().tobytes()].stem.split("-")[1] for x in samples.x[samples.index(part)]}
    assert not patients["train"] & patients["validation"]


@pytest.mark.parametrize("task", [imdb, ag_news], ids=name)
def test_words_are_known_by_the_training_split_alone(task, places):
    samples = task.load_samples(settings(task, places[task]), 0)
    vocabulary = samples.preprocessing["vocabulary"]
    assert vocabulary[:2] == ["<pad>", "<unk>"]
    train = samples.x[samples.index("train")]
    counts = torch.bincount(train.flatten(), minlength=len(vocabulary))
    assert int(counts[2:].min()) >= 2
    assert not [word for word in vocabulary if word.startswith("test")]
    assert int((samples.x[samples.index("test")] == 1).sum()) > 0
    assert not [word for word in vocabulary if word in ("br", "<br")]


def test_a_test_review_that_is_a_training_review_is_dropped(places):
    counts = settings(imdb, places[imdb]).model_dump()
    samples = imdb.load_samples(TextFileSettings(**{**counts, "test": 22, "augmented": 0}), 0)
    assert len(samples.index("test")) == 22
    with pytest.raises(ArtifactError, match="the official test part has 22 samples, too few for dataset test: 24"):
        imdb.load_samples(TextFileSettings(**{**counts, "test": 24, "augmented": 0}), 0)


def test_a_header_of_ag_news_is_no_article(places):
    counts = settings(ag_news, places[ag_news]).model_dump()
    samples = ag_news.load_samples(TextFileSettings(**{**counts, "test": 24, "augmented": 0}), 0)
    labels = samples.label[samples.index("test")]
    assert torch.bincount(labels).tolist() == [6, 6, 6, 6]


@pytest.mark.parametrize("task", [wholesale, nhanes_age], ids=name)
def test_tables_are_standardised_by_the_training_split(task, places):
    samples = task.load_samples(settings(task, places[task]), 0)
    train = samples.x[samples.index("train")]
    torch.testing.assert_close(train.mean(0), torch.zeros(7), atol=1e-4, rtol=0)
    assert float(samples.x.mean(0).abs().max()) > 1e-3
    assert samples.features.n == 7
    assert not {"SEQN", "RIDAGEYR", "age_group", "Channel"} & set(samples.feature_names)


# ------------------------------------------------------------------------------------------------------------ wrong layouts


def _loose(root: Path) -> None:
    for path in list(root.glob("n*/*.JPEG")):
        path.rename(root / f"{path.parent.name}_{path.name}")
    for folder in root.glob("n*"):
        if folder.is_dir():
            folder.rmdir()


def _rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


WRONG: list[tuple[Any, Callable[[Path], object], str]] = [
    (imagenet, shutil.rmtree, r"data is missing: it must be a folder that holds one folder a class, named by its WordNet id"),
    (imagenet, _loose, r"holds 40 pictures but no folder: it must hold one folder a class"),
    (imagenet, lambda root: (root / WNID).rename(root / "tench"), r"holds the folders \['tench'\] \(1 in all\): no WordNet ids"),
    (imagenet, lambda root: shutil.rmtree(root / WNID) or (root / WNID).mkdir(), r"n01440764 holds no picture"),
    (imagenet, lambda root: [shutil.rmtree(root / wnid) for wnid in layouts.WNIDS[1:]], r"the data has 10 samples, too few"),
    (
        kermany_oct,
        lambda root: shutil.rmtree(root / "test"),
        r"test is missing: it must be a folder that holds the class folders CNV",
    ),
    (
        kermany_oct,
        lambda root: shutil.rmtree(root / "train/DME"),
        r"holds the folders \['CNV', 'DRUSEN', 'NORMAL'\], not \['CNV', 'DME'",
    ),
    (
        kermany_oct,
        lambda root: (root / "train/DME/DME-10001-1.jpeg").rename(root / "train/DME/scan.jpeg"),
        r"\['scan.jpeg'\] .* nobody knows",
    ),
    (imdb, lambda root: shutil.rmtree(root / "test/neg"), r"test/neg holds no .txt file: .* must be aclImdb as it is unpacked"),
    (imdb, lambda root: (root / "train/pos/3_9.txt").rename(root / "train/pos/review.txt"), r"\['review.txt'\] are not named"),
    (imdb, lambda root: (root / "train/pos/3_9.txt").write_bytes(b"\xff\xfe"), r"3_9.txt is not UTF-8 text"),
    (ag_news, lambda root: (root / "test.csv").unlink(), r"test.csv is missing: the folder must hold train.csv and test.csv"),
    (
        ag_news,
        lambda root: (root / "train.csv").write_text('"1","a","b"\n"5","a","b"\n'),
        r"article 2 has 3 columns and class '5'",
    ),
    (ag_news, lambda root: (root / "train.csv").write_text("1,only a title\n"), r"article 1 has 2 columns"),
    (wholesale, Path.unlink, r"customers.csv is missing: it must be the CSV file of Wholesale customers"),
    (wholesale, lambda path: _rewrite(path, "Grocery", "Food"), r"lacks the columns \['Grocery'\] of Wholesale customers"),
    (wholesale, lambda path: _rewrite(path, "\n2,", "\n3,"), r"column 'Channel' holds \['3'\], not only \['1', '2'\]"),
    (nhanes_age, lambda path: _rewrite(path, "Senior", "Old"), r"column 'age_group' holds \['Old'\]"),
    (
        nhanes_age,
        lambda path: path.write_text(path.read_text().rsplit(",", 1)[0] + ",\n"),
        r"'LBXIN' is empty or not finite in rows \[120\]",
    ),
]
WNID = layouts.WNIDS[0]


@pytest.mark.parametrize(
    ("task", "damage", "message"),
    WRONG,
    ids=lambda value: name(value) if hasattr(value, "__name__") and hasattr(value, "MODALITY") else "",
)
def test_another_layout_is_refused(task, damage, message, place):
    path = place(task)
    damage(path)
    with pytest.raises(ArtifactError, match=message):
        task.load_samples(settings(task, path), 0)


def test_a_damaged_photograph_is_named(place):
    root = place(imagenet)
    for path in root.glob("*/*.JPEG"):
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ArtifactError, match=r"JPEG is not a whole image"):
        imagenet.load_samples(settings(imagenet, root), 0)


def test_without_scikit_image_the_message_names_the_extra(places, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "skimage", None)
    with pytest.raises(ArtifactError, match=r"pip install 'faithline\[photos\]'"):
        imagenet.load_samples(settings(imagenet, places[imagenet]), 0)


# ----------------------------------------------------------------------------------------------------------------- targets


def training(**more: Any) -> dict[str, Any]:
    return {"epochs": 1, "batch": 8, "learning_rate": 0.01, "weight_decay": 0.0, "dropout": 0.1, "layers": [], **more}


@pytest.mark.parametrize(
    ("task", "target"),
    [
        (imagenet, TimmTargetSettings(**training(architecture="test_resnet", checkpoint=None))),
        (kermany_oct, TimmTargetSettings(**training(architecture="test_vit", checkpoint=None))),
        (imdb, TextTargetSettings(**training(width=8, depth=2, architecture="lstm", checkpoint=None))),
        (imdb, TextTargetSettings(**training(width=8, depth=2, architecture="transformer", checkpoint=None))),
        (ag_news, TextTargetSettings(**training(width=16, depth=1, architecture="transformer", checkpoint=None))),
        (wholesale, CheckpointTargetSettings(**training(width=8, depth=4, checkpoint=None))),
        (nhanes_age, CheckpointTargetSettings(**training(width=8, depth=2, checkpoint=None))),
    ],
    ids=lambda value: name(value) if hasattr(value, "MODALITY") else getattr(value, "architecture", "mlp"),
)
def test_the_target_gives_a_logit_a_class(task, target, places):
    samples = task.load_samples(settings(task, places[task]), 0)
    assert type(target) is task.TARGET_SETTINGS
    model = task.build_target(target, samples).eval()
    assert model(samples.x[:2]).shape == (2, len(samples.class_names))


def test_a_transformer_whose_width_does_not_fit_its_heads(places):
    samples = imdb.load_samples(settings(imdb, places[imdb]), 0)
    target = TextTargetSettings(**training(width=12, depth=1, architecture="transformer", checkpoint=None))
    with pytest.raises(ArtifactError, match=r"target.width = 12: must be a multiple of the 8 heads"):
        imdb.build_target(target, samples)


def test_settings_are_of_the_kinds_that_the_files_name():
    assert imagenet.DATASET_SETTINGS is kermany_oct.DATASET_SETTINGS is photos_effnet.DATASET_SETTINGS is ImageFolderSettings
    assert imdb.DATASET_SETTINGS is ag_news.DATASET_SETTINGS is TextFileSettings
    assert wholesale.DATASET_SETTINGS is nhanes_age.DATASET_SETTINGS is TableFileSettings
    assert np.isin([imagenet.CROP, kermany_oct.CROP], 0.875).all()
