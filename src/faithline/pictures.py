"""Pictures from files: opened, brought to the size of a task, and found in folders with one folder a class."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from faithline.errors import ArtifactError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


def read_picture(path: Path, *, size: int, channels: int, resize: int | None) -> np.ndarray:
    """A picture file as a task sees it (see `fit_picture`).

    Raises:
        ArtifactError: If it is no picture, or a damaged one.
    """
    try:
        with Image.open(path) as image:
            return fit_picture(ImageOps.exif_transpose(image), size=size, channels=channels, resize=resize)
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ArtifactError(f"{path} is not a whole image ({error})") from error


def fit_picture(image: Image.Image, *, size: int, channels: int, resize: int | None) -> np.ndarray:
    """Pixels of a picture at the size of a task, float32 (size, size, channels) in [0, 1].

    Args:
        image: Any mode; transparent parts become black, the removed colour of most tasks, instead of what lies hidden below them.
        size: Side of the result.
        channels: 1 (grey) or 3.
        resize: Short side after bicubic resizing; the centre is then cut out. None: the whole picture is squeezed to the square,
            bilinearly.
    """
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        opaque = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", opaque.size, (0, 0, 0, 255)), opaque)
    pixels = image.convert("L" if channels == 1 else "RGB")
    if resize is not None:
        width, height = pixels.size
        short = min(width, height)
        wanted = (resize * width // short, resize * height // short)
        if pixels.size != wanted:
            pixels = pixels.resize(wanted, Image.Resampling.BICUBIC)
        left, top = round((wanted[0] - size) / 2), round((wanted[1] - size) / 2)
        pixels = pixels.crop((left, top, left + size, top + size))
    elif pixels.size != (size, size):
        pixels = pixels.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(pixels, dtype=np.float32).reshape(size, size, channels) / 255


def class_folders(root: Path, what: str) -> dict[str, list[Path]]:
    """Picture files by the name of their class folder, both ascending; other files are passed over.

    Args:
        root: Holds one folder a class.
        what: What should lie there, for the message.

    Raises:
        ArtifactError: If root is no folder, holds no folder, or a class folder holds no picture.
    """
    if not root.is_dir():
        raise ArtifactError(f"{root} is {'a file' if root.exists() else 'missing'}: it must be a folder that holds {what}")
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not folders:
        loose = sum(path.suffix.lower() in IMAGE_SUFFIXES for path in root.iterdir())
        raise ArtifactError(f"{root} holds {f'{loose} pictures but ' if loose else ''}no folder: it must hold {what}")
    found = {}
    for folder in folders:
        found[folder.name] = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
        if not found[folder.name]:
            raise ArtifactError(f"{folder} holds no picture ({', '.join(IMAGE_SUFFIXES)}): {root} must hold {what}")
    return found
