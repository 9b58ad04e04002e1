"""Miniature copies of the data sets that users bring, in the layouts they are published in; pictures and words are made up."""

from pathlib import Path

import numpy as np
from PIL import Image

WNIDS = ("n01440764", "n01484850", "n02123045", "n07920052")
"""Classes 0, 2, 281 and 967 of ImageNet-1k: a partial folder, in which a class is not its folder's position."""


def _picture(path: Path, shade: float, draw: np.random.Generator, size: tuple[int, int], mode: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.clip(255 * shade + draw.normal(0, 20, (*size, 3)), 0, 255).astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(path, quality=90)


def imagenet(root: Path) -> Path:
    """`<wnid>/<name>.JPEG`, ten pictures a class, of differing shapes; one of them is grey."""
    draw = np.random.default_rng(0)
    for number, wnid in enumerate(WNIDS):
        for image in range(10):
            path = root / wnid / f"ILSVRC2012_val_{image:08d}.JPEG"
            _picture(path, number / 4, draw, (70 + 10 * image, 90), "L" if image == 3 else "RGB")
    (root / "classes.json").write_text("[]")
    return root


def oct_scans(root: Path) -> Path:
    """`{train,test}/<class>/<class>-<patient>-<number>.jpeg`; patient 1000 of the test part is in training as well."""
    draw = np.random.default_rng(0)
    for number, name in enumerate(("CNV", "DME", "DRUSEN", "NORMAL")):
        for patient in range(1000, 1008):
            for scan in (1, 2):
                _picture(root / f"train/{name}/{name}-{patient}{number}-{scan}.jpeg", number / 4, draw, (80, 96), "L")
        for patient in (1000, 2000, 2001):
            _picture(root / f"test/{name}/{name}-{patient}{number}-7.jpeg", number / 4, draw, (80, 96), "L")
    return root


def imdb(root: Path) -> Path:
    """`{train,test}/{neg,pos}/<id>_<rating>.txt`; the first test review of each class repeats a training review."""
    draw = np.random.default_rng(0)
    words = {"neg": ("bad", "dull", "awful"), "pos": ("good", "great", "fine")}
    for part, count in (("train", 30), ("test", 12)):
        for name in ("neg", "pos"):
            for review in range(count):
                own = draw.choice(["film", "plot", "cast", "the", "a", *words[name]], 8).tolist()
                text = f"{words[name][review % 3]} <br /><br />{' '.join(own)} {part}word{review}"
                if part == "test" and review == 0:
                    text = (root / f"train/{name}/0_{'2' if name == 'neg' else '9'}.txt").read_text()
                path = root / f"{part}/{name}/{review}_{'2' if name == 'neg' else '9'}.txt"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        (root / part / "urls_pos.txt").write_text("http://example.invalid\n")
    return root


def ag_news(root: Path) -> Path:
    """`train.csv` and `test.csv` of class, title, description; the test file has the header that some copies have."""
    draw = np.random.default_rng(0)
    root.mkdir(parents=True, exist_ok=True)
    words = ("war", "match", "shares", "chip")
    for part, count in (("train", 80), ("test", 24)):
        rows = ['"Class Index","Title","Description"'] * (part == "test")
        for article in range(count):
            own = " ".join(draw.choice(["today", "new", "said", "the", words[article % 4]], 6))
            rows.append(f'"{article % 4 + 1}","{words[article % 4]} {part}{article}","{own}\\ and ""more"""')
        (root / f"{part}.csv").write_text("\n".join(rows) + "\n")
    return root


def wholesale(path: Path) -> Path:
    """The columns of UCI Wholesale customers, 120 rows."""
    draw = np.random.default_rng(0)
    lines = ["Channel,Region,Fresh,Milk,Grocery,Frozen,Detergents_Paper,Delicassen"]
    for row in range(120):
        channel = 1 + row % 2
        spent = draw.integers(1, 9000, 6)
        spent[4] += 20000 * (channel - 1)
        lines.append(f"{channel},{draw.integers(1, 4)},{','.join(map(str, spent))}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def nhanes_age(path: Path) -> Path:
    """The columns of the NHANES age prediction subset, 120 rows."""
    draw = np.random.default_rng(0)
    lines = ["SEQN,age_group,RIDAGEYR,RIAGENDR,PAQ605,BMXBMI,LBXGLU,DIQ010,LBXGLT,LBXIN"]
    for row in range(120):
        age = int(draw.integers(12, 80))
        values = [draw.integers(1, 3), draw.integers(1, 3), draw.uniform(15, 40), 80 + age / 2, draw.integers(1, 4)]
        values += [90 + age, draw.uniform(2, 30)]
        cells = ",".join(f"{float(value):.1f}" for value in values)
        lines.append(f"{73000 + row}.0,{'Senior' if age >= 65 else 'Adult'},{age}.0,{cells}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path
