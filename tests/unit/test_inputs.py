"""Raw files become inputs, or a clear error."""

import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from faithline.dataset import Samples
from faithline.errors import ArtifactError
from faithline.inputs import read_files
from faithline.masking import Features, column_features, patch_features, token_features


def samples(features: Features, preprocessing: dict[str, object], names: tuple[str, ...] = ()) -> Samples:
    empty = torch.zeros(0, *features.shape)
    return Samples(empty, torch.zeros(0).long(), np.array([]), np.array([]), features, ("a", "b"), names, preprocessing, "")


GREY = samples(patch_features(4, 2, channels=1), {"size": 4, "channels": 1, "mean": [0.5], "std": [0.25]})
COLOUR = samples(patch_features(4, 2), {"size": 4, "channels": 3, "mean": [0.0, 0.0, 0.5], "std": [1.0, 1.0, 0.5]})
TEXT = samples(token_features(4, 0), {"vocabulary": ["<pad>", "<unk>", "good", "film's"], "pattern": r"[^\W_]+(?:'[^\W_]+)*"})
TABLE = samples(column_features(2), {"mean": [10.0, 1.0], "std": [2.0, 4.0]}, ("age", "height"))


def png(path: Path, pixels: np.ndarray) -> Path:
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


def test_grey_image_is_scaled_and_normalised(tmp_path: Path) -> None:
    pixels = np.arange(16).reshape(4, 4) * 17
    read = read_files([png(tmp_path / "a.png", pixels)], GREY)
    assert read.names == ("a",)
    assert torch.allclose(read.x[0, 0], torch.from_numpy((pixels / 255 - 0.5) / 0.25).float())
    assert np.allclose(read.shown[0][:, :, 0], pixels / 255)


def test_colour_channels_stay_in_order(tmp_path: Path) -> None:
    pixels = np.zeros((4, 4, 3))
    pixels[..., 0], pixels[..., 2] = 255, 255
    x = read_files([png(tmp_path / "a.png", pixels)], COLOUR).x
    assert x[0, :, 0, 0].tolist() == [1.0, 0.0, 1.0]


def test_other_sizes_modes_and_transparency_are_brought_to_the_task(tmp_path: Path) -> None:
    assert read_files([png(tmp_path / "big.png", np.full((9, 13), 255))], GREY).x.shape == (1, 1, 4, 4)
    hidden = np.full((4, 4, 4), 255)
    hidden[..., 3] = 0
    assert read_files([png(tmp_path / "clear.png", hidden)], COLOUR).shown[0].max() == 0, "transparent is black"


def test_text_is_cut_and_unknown_words_are_marked(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Good FILM'S, xyzzy good good")
    read = read_files([tmp_path / "a.txt"], TEXT)
    assert read.x.tolist() == [[2, 3, 1, 2]]
    assert read.shown[0] == ["good", "film's", "xyzzy", "good"]


def test_short_text_is_padded(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("good")
    assert read_files([tmp_path / "a.txt"], TEXT).x.tolist() == [[2, 0, 0, 0]]


def test_table_rows_are_standardised_by_name_not_by_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,height,age\n7,5,14\n8,1,10\n")
    read = read_files([tmp_path / "a.csv"], TABLE)
    assert read.names == ("a-1", "a-2")
    assert read.x.tolist() == [[2.0, 1.0], [0.0, 0.0]]
    assert read.shown[0] == [14.0, 5.0]


def test_files_of_one_name_get_names_of_their_own(tmp_path: Path) -> None:
    paths = []
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("good")
        paths.append(tmp_path / folder / "a.txt")
    assert read_files(paths, TEXT).names == ("a", "a-2")


@pytest.mark.parametrize(
    ("task", "file", "content", "message"),
    [
        (GREY, "a.png", b"", "is not a whole image"),
        (GREY, "a.png", b"\x89PNG\r\n\x1a\n" + zlib.compress(b"x"), "is not a whole image"),
        (GREY, "a.csv", b"1,2", "an image task takes .png"),
        (TEXT, "a.txt", b"\xff\xfe\x00", "is not UTF-8 text"),
        (TEXT, "a.txt", b"", "none of its first 4 words is in the vocabulary"),
        (TEXT, "a.txt", b"xyzzy plugh", "none of its first 4 words is in the vocabulary"),
        (TEXT, "a.png", b"x", "a text task takes plain text files"),
        (TABLE, "a.csv", b"", "cannot be read as CSV"),
        (TABLE, "a.csv", b"age,weight\n1,2\n", r"lacks the columns \['height'\] \(it has \['age', 'weight'\]\)"),
        (TABLE, "a.csv", b"age,height\n", "has no rows"),
        (TABLE, "a.csv", b"age,height\n1,tall\n", "column 'height' holds String, not numbers"),
        (TABLE, "a.csv", b"age,height\n1,2\n3,\n", r"column 'height' is empty or not finite in rows \[2\]"),
        (TABLE, "a.csv", b"age,height\n1,2\n3,inf\n", r"column 'height' is empty or not finite in rows \[2\]"),
        (TABLE, "a.txt", b"x", "a table task takes .csv files with the columns age, height"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, task: Samples, file: str, content: bytes, message: str) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ArtifactError, match=message) as error:
        read_files([tmp_path / file], task)
    assert file in str(error.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"none.png is missing"):
        read_files([tmp_path / "none.png"], GREY)
    with pytest.raises(ArtifactError, match="is a folder"):
        read_files([tmp_path], GREY)


def test_a_truncated_photo_is_named(tmp_path: Path) -> None:
    path = png(tmp_path / "a.png", np.random.default_rng(0).integers(0, 255, (64, 64)))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ArtifactError, match="is not a whole image"):
        read_files([path], GREY)


def test_a_task_without_preprocessing_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,height\n1,2\n")
    with pytest.raises(ArtifactError, match=r"gives no preprocessing\['mean'\]: it takes no table files"):
        read_files([tmp_path / "a.csv"], samples(column_features(2), {}, ("age", "height")))
