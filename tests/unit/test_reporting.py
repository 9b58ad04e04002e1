"""The report, from synthetic result files of three small tasks that the real writers made."""

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
import yaml

from faithline import config, dataset
from faithline.artifacts import maps_column, write_json, write_table
from faithline.config import Params
from faithline.dataset import Samples
from faithline.errors import ArtifactError
from faithline.masking import Features, column_features, patch_features, token_features
from faithline.metrics.catalogue import METRICS
from faithline.reporting import figures, findings, gallery, leaderboard, results, site
from faithline.reporting.records import Interval

HOSTILE = '<script>alert("x")</script> & <img src=http://evil.example/x.png onerror=alert(1)> | [a](http://evil.example)'
TASKS = {"toy_table": "table", "toy_text": "text", "toy_image": "image"}
PASSES = {
    "deepfaith": 1,
    "deepfaith_paper": 0,
    "lime": 200,
    "kernel_shap": 200,
    "banzhaf": 1000,
    "exact_banzhaf": 256,
    "deepfaith_refined": 65,
}
COLUMNS = {"changes", "family_rank", "mean_rank", "metrics", "passes", "role", "training_passes", "versus"}
"""What `leaderboard.json` says of a candidate."""
CANDIDATES = {
    "deepfaith": ("explainer", 1.5),
    "deepfaith_paper": ("explainer", 0.7),
    "saliency": ("supervision", 0.3),
    "integrated_gradients": ("supervision", 0.9),
    "deeplift": ("supervision", 0.8),
    "feature_ablation": ("supervision", 0.85),
    "lime": ("supervision", 0.6),
    "kernel_shap": ("supervision", 1.0),
    "random": ("control", -1.0),
    "mean_map": ("control", -0.4),
    "edge": ("control", -0.6),
    "centre": ("control", -0.5),
    "banzhaf": ("reference", 1.6),
    "exact_banzhaf": ("reference", 1.7),
    "oracle_prior": ("reference", 1.4),
    "deepfaith_refined": ("refined", 1.55),
}
"""Synthetic quality of each candidate; nothing here was measured."""


def params_text(root: Path) -> str:
    """The repository's own params, cut down to three synthetic tasks of 24 test samples."""
    raw = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    first = {settings["modality"]: settings for settings in reversed(raw["tasks"].values())}
    raw["tasks"] = {}
    for task, modality in TASKS.items():
        settings = json.loads(json.dumps(first[modality]))
        settings["bank"]["exact"] = modality == "table"
        settings["game"]["steps"] = {"table": 8, "text": 12, "image": 16}[modality]
        raw["tasks"][task] = settings
        raw[modality]["tasks"] = [task]
        keep = {"saliency", "integrated_gradients", "deeplift", "feature_ablation", "lime", "kernel_shap", "banzhaf"}
        raw[modality]["methods"] = {name: value for name, value in raw[modality]["methods"].items() if name in keep}
    for judged in raw["fud"].values():
        judged |= {"tasks": [], "methods": ["integrated_gradients", "lime"]}
    raw["evaluate"]["bootstrap"] = 100
    raw["report"] = {"gallery": 4, "reference": "integrated_gradients"}
    (root / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    return (root / "params.yaml").read_text(encoding="utf-8")


def toy_samples(modality: str, rng: np.random.Generator) -> Samples:
    """Sixty samples: 30 train, 6 validation, 24 test."""
    count, names = 60, ["no", HOSTILE]
    feature_names: tuple[str, ...] = ()
    features: Features
    preprocessing: dict[str, object]
    if modality == "table":
        features = column_features(8)
        x = torch.from_numpy(rng.normal(size=(count, 8)).astype(np.float32))
        feature_names = (HOSTILE, *(f"column {i}" for i in range(1, 8)))
        preprocessing = {"mean": [10.0] * 8, "std": [2.0] * 8}
    elif modality == "text":
        vocabulary = ["<pad>", "<unk>", HOSTILE, "a", "fine", "$film", "that", "never", "finds", "its", "$feet", "but", "looks"]
        features = token_features(14, 0)
        x = torch.zeros(count, 14, dtype=torch.int64)
        for row in range(count):
            length = int(rng.integers(5, 15))
            x[row, :length] = torch.from_numpy(rng.integers(1, len(vocabulary), length))
            x[row, 0] = 2
        preprocessing = {"vocabulary": vocabulary}
    else:
        features = patch_features(16, 4, channels=1)
        grid = np.linspace(-1, 1, 16)
        centre = rng.uniform(-0.5, 0.5, size=(count, 2))
        distance = (grid[None, :, None] - centre[:, :1, None]) ** 2 + (grid[None, None] - centre[:, 1:, None]) ** 2
        picture = np.exp(-8 * (np.sqrt(distance) - 0.4) ** 2 / 0.1)
        x = torch.from_numpy(((picture - 0.3) / 0.4)[:, None].astype(np.float32))
        preprocessing = {"size": 16, "channels": 1, "mean": [0.3], "std": [0.4]}
    split = np.array(["train"] * 30 + ["validation"] * 6 + ["test"] * 24)
    return Samples(
        x=x,
        label=torch.arange(count) % 2,
        split=split,
        supervised=split == "train",
        features=features,
        class_names=tuple(names),
        feature_names=feature_names,
        preprocessing=preprocessing,
        source=f"Synthetic {modality} data for tests. {HOSTILE}",
    )


def spread(values: np.ndarray) -> dict[str, float]:
    """Mean and a normal interval."""
    half = 1.96 * float(values.std()) / len(values) ** 0.5
    return {"mean": float(values.mean()), "low": float(values.mean()) - half, "high": float(values.mean()) + half}


def compared(difference: dict[str, float], *, separable: bool | None = None) -> dict[str, object]:
    """A comparison as `evaluate` writes it; by default the correction changes nothing."""
    apart = not difference["low"] <= 0 <= difference["high"]
    separable = apart if separable is None else separable
    return {
        "mean_rank_difference": difference,
        "without_fe_mc": difference,
        "p_holm": 0.004 if separable else 0.3,
        "separable": separable,
    }


def write_task(root: Path, task: str, modality: str, params: Params) -> None:
    """All result files of a task, with the project's own writers."""
    rng = np.random.default_rng(len(task))
    samples = toy_samples(modality, rng)
    dataset.freeze(samples, root / "data/tasks" / task)
    test = samples.index("test").numpy()
    names = [name for name in CANDIDATES if modality == "image" or name not in ("edge", "centre")]
    names = [name for name in names if modality == "table" or name != "exact_banzhaf"]
    section = params.modality(task)
    methods = section.methods.names()
    prob = rng.uniform(0.7, 0.99, size=60).astype(np.float32)

    def frame(ids: np.ndarray, **columns: object) -> pl.DataFrame:
        return pl.DataFrame({"sample_id": ids.astype(np.int64), **columns})

    target = root / "models/target" / task
    write_json(
        target / "model.json",
        {"source": "toy.py", "sha256": "ab" * 32, "accuracy": 0.9, "auc": 0.95, "n_test": 24, "majority": 0.5, "history": []},
    )
    explained = (np.arange(60) % 2 ^ (np.arange(60) % 7 == 0)).astype(np.int32)
    write_table(target / "predictions.parquet", frame(np.arange(60), target=explained, prob=prob))

    # Scores: quality plus noise; IROF is read off DEL, as from one sweep.
    value: dict[tuple[str, str], np.ndarray] = {}
    for name in names:
        noise = rng.normal(size=(len(METRICS), 24)) * 0.6 + CANDIDATES[name][1]
        level = 1 / (1 + np.exp(-noise))
        for metric, row in zip(METRICS, level, strict=True):
            value[name, metric] = 1 - row if METRICS[metric].direction == "lower" else row
        value[name, "del"] = value[name, "del"] * prob[test]
        value[name, "irof"] = 1 - value[name, "del"] / prob[test]
    value["mean_map", "fc"][:3] = np.nan
    value["edge" if modality == "image" else "random", "mc"][:] = np.nan
    rows = [
        frame(test, candidate=[name] * 24, metric=[metric] * 24, value=v.astype(np.float32))
        for (name, metric), v in value.items()
    ]
    write_table(root / "data/evaluation" / task / "scores.parquet", pl.concat(rows).with_columns(pl.col("value").fill_nan(None)))
    signs = {metric: 1 if METRICS[metric].direction == "higher" else -1 for metric in METRICS}
    pooled = np.stack([[np.nan_to_num(value[name, metric]) * signs[metric] for metric in METRICS] for name in names])
    place = (pooled.shape[0] - pooled.argsort(0).argsort(0)).mean(1)
    rank = {name: place[i] for i, name in enumerate(names)}
    ours = rank["deepfaith"]

    def summary(v: np.ndarray) -> dict[str, float | int | None]:
        known = v[np.isfinite(v)]
        stats = spread(known) if len(known) else {"mean": None, "low": None, "high": None}
        return {**stats, "n": len(known), "null": len(v) - len(known)}

    reference = "integrated_gradients"
    priors = [name for name in names if CANDIDATES[name][0] == "supervision"]
    best = min(priors, key=lambda name: float(rank[name].mean()))
    candidates = {
        name: {
            "role": CANDIDATES[name][0],
            "mean_rank": float(rank[name].mean()),
            "mean_rank_low": spread(rank[name])["low"],
            "mean_rank_high": spread(rank[name])["high"],
            "family_rank": float(rank[name].mean()) + 0.1,
            "mean_rank_without_fe_mc": float(rank[name].mean()) - 0.1,
            "metrics": {metric: summary(value[name, metric]) for metric in METRICS},
            "difference": {metric: spread(np.nan_to_num(value[name, metric] - value[reference, metric])) for metric in METRICS},
            "passes": None if name == "oracle_prior" else 0 if CANDIDATES[name][0] == "control" else PASSES.get(name, 20),
            "training_passes": {"bank": 1000, "clean": 30, "surrogate": 77 if name == "deepfaith_paper" else 0}
            if CANDIDATES[name][0] == "explainer"
            else None,
            "changes": {"deepfaith": {}, "deepfaith_paper": {"head": "sigmoid", "alpha.window": HOSTILE}}.get(name),
            "duplicate_of": "deeplift" if name == "saliency" and modality == "text" else None,
        }
        for name in names
    }
    versus = {name: compared(spread(ours - rank[name])) for name in names if name != "deepfaith"}
    versus["median_prior"] = compared(spread(ours - np.median([rank[name] for name in priors], axis=0)))
    write_json(
        root / "reports/evaluation" / f"{task}.json",
        {
            "task": task,
            "modality": modality,
            "n_test": 24,
            "n_features": samples.features.n,
            "target": {"accuracy": 0.9, "auc": 0.95},
            "conventions": {"baseline": "mean", "output": "prob", "convention": "strict", "steps": 8, "seed": 0},
            "candidates": candidates,
            "runner_up": {"explainer": "deepfaith", "candidate": best, **versus[best]},
            "versus": versus,
            "ceiling": summary(np.full(24, 0.93) + rng.normal(size=24) * 0.01) if modality == "table" else None,
            "inf_over_ceiling": {name: float(value[name, "inf"].mean()) / 0.93 for name in names} if modality == "table" else {},
        },
    )

    # Maps and curves.
    shape = samples.features.map_shape
    truth = rng.normal(size=(60, *shape)).astype(np.float32)
    if modality == "image":
        truth = truth * 0.3 + samples.x[:, 0].numpy()
    metadata = {"task": task, "target_sha256": "ab" * 32, "passes": "20"}
    kept = []
    for name in names:
        noise = rng.normal(size=truth.shape).astype(np.float32)
        weight = float(np.clip((CANDIDATES[name][1] + 1) / 2.7, 0, 1))
        maps = torch.from_numpy(weight * truth + (1 - weight) * noise)
        if name in methods:
            folder = root / "data/attributions" / task / name
            good = np.full(60, not (name == "lime" and modality == "image"))
            maps = torch.where(torch.from_numpy(good).reshape(-1, *[1] * len(shape)), maps, 0.0)
            table = frame(np.arange(60), split=samples.split.astype(str), finite=good).to_arrow(
                compat_level=pl.CompatLevel.oldest()
            )
            write_table(folder / "part-00000.parquet", table.append_column("attribution", maps_column(maps)), metadata)
        elif name != "oracle_prior":
            table = frame(test, candidate=[name] * 24).to_arrow(compat_level=pl.CompatLevel.oldest())
            kept.append(table.append_column("attribution", maps_column(maps[test])))
        if name == "oracle_prior":
            continue
        steps = params.tasks[task].game.steps
        parts = []
        for sweep in ("morf", "lerf", "insertion"):
            for sample in test:
                count = int(samples.features.valid(samples.x[[sample]]).sum()) if modality == "text" else steps
                count = min(count, steps)
                fraction = np.linspace(0, 1, count + 1, dtype=np.float32)
                power = 1 + 2 * max(0, CANDIDATES[name][1])
                curve = {"morf": (1 - fraction) ** power, "lerf": 1 - fraction**power, "insertion": 1 - (1 - fraction) ** power}[
                    sweep
                ]
                noise = rng.normal(size=count + 1) * 0.05
                parts.append(
                    frame(np.full(count + 1, sample)).with_columns(
                        split=pl.lit("test"),
                        sweep=pl.lit(sweep),
                        step=pl.Series(np.arange(count + 1, dtype=np.int32)),
                        fraction=pl.Series(fraction),
                        value=pl.Series((prob[sample] * curve + noise).astype(np.float32)),
                        top=pl.lit(True),
                    )
                )
        folder = root / "data/curves" / task if name in methods else root / "data/evaluation" / task / "curves"
        write_table(folder / f"{name}.parquet", pl.concat(parts))
    write_table(root / "data/evaluation" / task / "maps.parquet", pa.concat_tables(kept))

    write_json(
        root / "reports/curate" / f"{task}.json",
        {
            "methods": {
                name: {
                    "maps": 30,
                    "taught": 30 - 4 * i,
                    "kept": 30 - 5 * i,
                    "below_quantile": 3 * i,
                    "duplicate": i,
                    "non_finite": i,
                }
                for i, name in enumerate(m for m in methods if m != "banzhaf")
            },
            "samples": 30,
            "mean_unique": 4.4,
            "mean_kept": 2.2,
            "on_empty": {"count": 3, "rate": 0.1, "saved": 3},
            "lost": 0,
        },
    )
    for name, settings in section.explainers.items():
        folder = root / "models/explainers" / task / name
        write_json(folder / "model.json", {"settings": settings.model_dump(), "target_sha256": "ab" * 32, "best_epoch": 9})
        epoch = np.arange(12)
        write_table(
            folder / "history.parquet",
            pl.DataFrame(
                {
                    "epoch": epoch.astype(np.int32),
                    "loss": pl.Series([None] * 12, dtype=pl.Float32),
                    "validation_loss": pl.Series([None] * 12, dtype=pl.Float32),
                    "pattern": (0.4 * np.exp(-epoch / 4) + 0.1).astype(np.float32),
                    "local": (0.5 * np.exp(-epoch / 6)).astype(np.float32),
                    "alpha": np.where(epoch < 6, 1, 1 / (1 + np.exp((epoch - 6) / 2))).astype(np.float32),
                    "validation_inf": pl.Series([None if e % 2 else 0.8 - 0.5 * np.exp(-e / 4) for e in epoch], dtype=pl.Float32),
                    "validation_local": (0.5 * np.exp(-epoch / 6)).astype(np.float32),
                }
            ),
        )


def write_all(root: Path) -> Params:
    """The three tasks, timings and a snapshot; returns the params."""
    params = config.parse(params_text(root))
    for task, modality in TASKS.items():
        write_task(root, task, modality, params)
    write_json(
        root / "benchmarks/results.json",
        {"scoring": {"ratio": 12.3, "ours": 0.9, "peer": 11.1, "unit": "s", "peer_name": HOSTILE}},
    )
    return params


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a written report; tests read it and do not change it."""
    root = tmp_path_factory.mktemp("report")
    params = write_all(root)
    site.write(params, root)
    return root


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


def load(root: Path) -> Params:
    """Params of a workspace."""
    return config.parse((root / "params.yaml").read_text(encoding="utf-8"))


def change(path: Path, edit: Callable[[dict], object]) -> None:
    """Edit a JSON file in place."""
    value = json.loads(path.read_text(encoding="utf-8"))
    edit(value)
    path.write_text(json.dumps(value), encoding="utf-8")


class Page(HTMLParser):
    """Tags, their attributes and the visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br", "wbr", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


@pytest.fixture(scope="module")
def page(made: Path) -> Page:
    """The parsed page."""
    return Page((made / "reports/index.html").read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------------------------------------ files


def test_leaderboard_json_has_the_stable_schema(made: Path) -> None:
    text = (made / "reports/leaderboard.json").read_text(encoding="utf-8")
    board = json.loads(text)
    assert list(board) == ["tasks"]
    assert sorted(board["tasks"]) == sorted(TASKS)
    assert text == json.dumps(board, sort_keys=True, indent=2, ensure_ascii=False) + "\n"
    for result in board["tasks"].values():
        assert sorted(result) == ["candidates", "n_test", "runner_up", "target"]
        assert sorted(result["target"]) == ["accuracy", "auc"]
        assert sorted(result["runner_up"]) == ["candidate", "mean_rank_difference", "without_fe_mc"]
        assert sorted(result["runner_up"]["mean_rank_difference"]) == ["high", "low", "mean"]
        for row in result["candidates"].values():
            assert set(row) == COLUMNS
            assert set(row["metrics"]) == set(METRICS)
            assert row["role"] in results.ROLES
            for summary in row["metrics"].values():
                assert sorted(summary) == ["high", "low", "mean", "n", "null"]
                assert summary["n"] + summary["null"] == result["n_test"]


def test_findings_json_has_the_stable_schema(made: Path) -> None:
    found = json.loads((made / "reports/findings.json").read_text(encoding="utf-8"))
    assert len(found) >= 10
    for finding in found:
        assert sorted(finding) == ["claim", "evidence", "source", "verdict"]
        assert finding["verdict"] in ("confirmed", "refuted", "untestable")
        assert all(finding.values())


def test_check_32_reporting_rules_hold_in_every_table(made: Path) -> None:
    """Controls, ceiling, family rank and intervals stand in each table of JSON, Markdown and page."""
    board = json.loads((made / "reports/leaderboard.json").read_text(encoding="utf-8"))
    readme = (made / "reports/README.md").read_text(encoding="utf-8")
    html = (made / "reports/index.html").read_text(encoding="utf-8")
    tables = re.findall(r'aria-label="leaderboard of (\w+)">(.*?)</table>', html, re.S)
    assert [task for task, _ in tables] == list(TASKS)
    for task, table in tables:
        rows = board["tasks"][task]["candidates"]
        markdown = readme.split(f"## {task}\n")[1].split("## ")[0]
        for wanted in ("random", "mean_map", "ceiling R(x)"):
            assert f">{wanted}<" in table.replace("<wbr>", "")
            assert f"| {wanted} |".replace("_", "\\_") in markdown
        assert "family rank" in table
        assert "family rank" in markdown
        for name, row in rows.items():
            assert f">{name}<" in table.replace("<wbr>", "")
            assert row["family_rank"] is not None
            for summary in row["metrics"].values():
                assert summary["low"] <= summary["mean"] <= summary["high"] if summary["n"] else summary["mean"] is None


def test_plots_are_csv_with_the_announced_columns(made: Path) -> None:
    board = pl.read_csv(made / "reports/plots/leaderboard.csv")
    assert board.columns[:3] == ["candidate", "task", "role"]
    assert "mean_rank" in board.columns
    curves = pl.read_csv(made / "reports/plots/curves.csv")
    assert curves.columns == ["task", "candidate", "sweep", "fraction", "value"]
    assert set(curves["task"]) == set(TASKS)
    assert set(curves["sweep"]) == {"morf", "lerf", "insertion"}
    assert curves.null_count().sum_horizontal().item() == 0


def test_gallery_has_one_contact_sheet_a_task_without_metadata(made: Path) -> None:
    sheets = sorted((made / "reports/gallery").iterdir())
    assert [path.name for path in sheets] == sorted(f"{task}.png" for task in TASKS)
    for path in sheets:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG")
        assert b"tEXt" not in data
        assert b"tIME" not in data


def test_same_inputs_give_same_bytes(made: Path, copy: Path) -> None:
    site.write(load(copy), copy)
    names = ["index.html", "README.md", "leaderboard.json", "findings.json", "plots/leaderboard.csv", "plots/curves.csv"]
    for name in [*names, *(f"gallery/{task}.png" for task in TASKS)]:
        assert (made / "reports" / name).read_bytes() == (copy / "reports" / name).read_bytes(), name


def test_no_output_holds_nan_or_infinity(made: Path, page: Page) -> None:
    for name in ("leaderboard.json", "findings.json", "README.md", "plots/leaderboard.csv", "plots/curves.csv"):
        assert not re.search(
            r"\b(nan|inf|infinity)\b(?!\w)",
            re.sub(r'"inf"|,inf,|\binf\b(?=,)|INF', "", (made / "reports" / name).read_text()),
            re.I,
        ), name
    assert not re.search(r"\b(nan|None|Infinity)\b", page.text)
    numbers = [value for tag, attrs in page.tags for key, value in attrs.items() if key in ("d", "style", "cx", "cy", "x", "y")]
    assert numbers
    assert not any("nan" in value or "inf" in value for value in numbers if value)


# ------------------------------------------------------------------------------------------------------------------- page


def test_page_is_self_contained(made: Path, page: Page) -> None:
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "iframe", "object", "embed", "base", "form"}
    for _, attrs in page.tags:
        for key in ("src", "href", "srcset", "xlink:href", "data", "poster"):
            value = attrs.get(key)
            assert value is None or value.startswith(("data:image/png;base64,", "#")), value
        assert not any(key.startswith("on") for key in attrs)
    text = (made / "reports/index.html").read_text(encoding="utf-8")
    assert "@import" not in text
    assert "url(" not in text
    assert not page.open, "every tag is closed"


def test_every_link_of_the_contents_has_a_target(page: Page) -> None:
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    links = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    assert len(ids) == len(set(ids))
    assert {f"#task-{task}" for task in TASKS} <= links
    assert links <= {f"#{name}" for name in ids}


def test_hostile_names_are_escaped_everywhere(made: Path, page: Page) -> None:
    """A class, a column, a token, a source and a peer are hostile; they are shown as text."""
    assert page.text.count('<script>alert("x")</script>') >= 5
    assert not any(tag == "img" and not (attrs["src"] or "").startswith("data:") for tag, attrs in page.tags)
    readme = (made / "reports/README.md").read_text(encoding="utf-8")
    assert "<script" not in readme


def test_markdown_cells_cannot_end_or_link() -> None:
    assert site._markdown("a|b\n[x](http://y) <i>") == r"a\|b \[x\](http://y) &lt;i&gt;"


def test_snapshots_are_shown_beside_the_default_run_and_timings_only_from_their_file(
    made: Path, copy: Path, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "contact_sheet", lambda *_: b"")  # slow, and not what is tested here
    assert "12.3\N{MULTIPLICATION SIGN}" in page.text
    assert "Other scales" not in page.text
    (copy / "benchmarks/results.json").unlink()
    folder = copy / "reports/snapshots/full"
    folder.mkdir(parents=True)
    shutil.copy(made / "reports/leaderboard.json", folder)
    shutil.copy(made / "reports/findings.json", folder)
    write_json(folder / "snapshot.json", {"name": HOSTILE, "params_sha256": "cd" * 32})
    site.write(load(copy), copy)
    text = (copy / "reports/index.html").read_text(encoding="utf-8")
    assert "cd" * 32 in text
    assert "Timings" not in text
    assert text.count('aria-label="leaderboard of toy_table') == 2
    assert not any(tag == "script" for tag, _ in Page(text).tags)
    (folder / "snapshot.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"snapshot\.json must hold name"):
        site.write(load(copy), copy)


# ------------------------------------------------------------------------------------------------------------ sensitivity


def varied_runs() -> dict[str, Any]:
    """A sensitivity study of two values and two ablations on two tasks, hostile words in every text; nothing was measured."""

    def row(factor: str, value: float | str, task: str, level: float) -> dict[str, object]:
        interval = {"mean": level, "low": level - 0.1, "high": level + 0.1}
        undefined = {"mean": None, "low": None, "high": None}
        return {
            "factor": factor,
            "value": value,
            "task": task,
            "n_test": 77,
            "candidates": 11,
            "mean_rank": interval,
            "metrics": {"inf": interval, "del": interval, "ins": undefined if value == 8 else interval},
            "taught": 0.25,
        }

    rows = [row("k", value, task, value / 8) for value in (8, 16, 64) for task in ("toy_table", HOSTILE)]
    rows += [row("ablation", name, "toy_table", level) for name, level in (("full", 0.125), ("local", 0.875))]
    return {
        "params_sha256": "ef" * 32,
        "confidence": 0.9,
        "factors": [{"name": "k", "symbol": "k", "meaning": f"masks {HOSTILE}", "keys": [], "preset": 16}],
        "ablations": [{"name": "full", "meaning": f"all {HOSTILE}"}, {"name": "local", "meaning": "LC only"}],
        "rows": rows,
    }


@pytest.mark.parametrize(
    ("unfiltered", "duplicated", "expected"), [(0.2, 0.5, "confirmed"), (0.5, 0.2, "refuted"), (0.45, 0.4, "untestable")]
)
def test_the_filter_claim_reads_the_sensitivity_study(copy: Path, unfiltered: float, duplicated: float, expected: str) -> None:
    assert verdict(copy, "p-quantile filter hurts") == "untestable"
    study = varied_runs()
    first = {**study["rows"][0], "factor": "ablation"}
    for name, level in (("full", 0.6), ("dedup", unfiltered), ("filter", duplicated)):
        ends = {"mean": level, "low": level - 0.1, "high": level + 0.1}
        study["rows"].append({**first, "value": name, "metrics": {**first["metrics"], "inf": ends}})
    study["rows"] = [row for row in study["rows"] if row["task"] == "toy_table"]
    path = copy / "reports/sensitivity/results.json"
    path.parent.mkdir(parents=True)
    write_json(path, study)
    assert verdict(copy, "p-quantile filter hurts") == expected


def test_a_sensitivity_study_is_drawn_and_one_that_is_not_there_is_offered(
    copy: Path, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "contact_sheet", lambda *_: b"")  # slow, and not what is tested here
    assert "is not measured here: make sensitivity does so" in page.text
    path = copy / "reports/sensitivity/results.json"
    write_json(path, varied_runs())
    site.write(load(copy), copy)
    shown = Page((copy / "reports/index.html").read_text(encoding="utf-8"))
    assert not any(tag in ("script",) or "evil" in str(words.get("src")) for tag, words in shown.tags)
    assert "is not measured here" not in shown.text
    section = shown.text.split("DeepFaith with one value changed at a time")[1].split("Timings")[0]
    for wanted in (
        "ef" * 32,
        "small",
        "77 test samples of toy_table",
        "11 of toy_table",
        "(90 %)",
        f"k: masks {HOSTILE}",
        "LC only",
    ):
        assert wanted in section, wanted
    assert "0.8750.775 to 0.975" in section, "a number of an ablation and its interval"
    charts = [words["aria-label"] for tag, words in shown.tags if tag == "svg" and " by k" in str(words.get("aria-label"))]
    assert charts == ["mean rank by k", "INF by k", "INS by k", "DEL by k"], "the share of maps kept is the same for all k"

    change(path, lambda value: value["rows"][0].pop("taught"))
    with pytest.raises(ArtifactError, match=r"results\.json is not a result of `make sensitivity` \(rows\.0\.taught"):
        site.write(load(copy), copy)


def test_value_chart_names_the_measured_values_marks_one_and_keeps_undefined_ones_out() -> None:
    lines = [
        figures.Series("a<b", 0, [1e-6, 1e-4, 1e-2], [1.0, 2.0, 3.0], [0.5, 1.5, 2.5], [1.5, 2.5, 3.5]),
        figures.Series("without", 1, [1e-6], [1.0]),
    ]
    chart = str(figures.value_chart(lines, mark=1e-4, title="t", x_label="e", y_label="y"))
    ticks = re.findall(r'<text class="tick" x="([0-9.]+)" y="\d+" text-anchor="middle">([^<]+)</text>', chart)
    assert [text for _, text in ticks] == ["1e\N{MINUS SIGN}06", "0.0001", "0.01"]
    places = [float(x) for x, _ in ticks]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2), "decades are evenly spaced"
    (mark,) = re.findall(r'class="mark" d="M([0-9.]+) ', chart)
    assert float(mark) == places[1]
    assert chart.count('class="whisker"') == 3
    assert chart.count('class="dot"') == 4
    assert "a&lt;b" in chart
    assert "a<b" not in chart
    linear = [figures.Series("a", 0, [0.4, 0.6, 1.0], [1.0, 2.0, 3.0])]
    chart = str(figures.value_chart(linear, mark=0.6, title="t", x_label="e", y_label="y"))
    places = [float(x) for x in re.findall(r'class="tick" x="([0-9.]+)" y="\d+" text-anchor="middle"', chart)]
    assert (places[2] - places[1]) / (places[1] - places[0]) == pytest.approx(2, rel=0.01)
    assert figures.value_chart([figures.Series("a", 0, (), ())], mark=1, title="t", x_label="x", y_label="y") == ""


# ------------------------------------------------------------------------------------------------------------ comparisons


@pytest.mark.parametrize(
    ("low", "high", "higher", "shows"),
    [
        (-0.6, -0.1, False, "better"),
        (0.1, 0.6, False, "worse"),
        (-0.6, 0.1, False, "undecided"),
        (-0.6, 0.0, False, "undecided"),
        (0.0, 0.6, True, "undecided"),
        (0.1, 0.6, True, "better"),
        (-0.6, -0.1, True, "worse"),
        (None, None, True, "undecided"),
    ],
)
def test_better_and_worse_need_an_interval_that_excludes_zero(
    low: float | None, high: float | None, higher: bool, shows: str
) -> None:
    assert leaderboard.compare(Interval(mean=0.2, low=low, high=high), higher=higher) == shows


@pytest.mark.parametrize(
    ("low", "high", "phrase"),
    [(-0.6, -0.1, "is better than the best"), (0.1, 0.6, "is worse than the best"), (-0.5, 0.1, "cannot be told apart from")],
)
def test_the_answer_follows_the_interval(copy: Path, low: float, high: float, phrase: str) -> None:
    def edit(value: dict) -> None:
        value["runner_up"].update(compared({"mean": (low + high) / 2, "low": low, "high": high}))
        value["versus"][value["runner_up"]["candidate"]] = compared({"mean": 0, "low": low, "high": high})

    change(copy / "reports/evaluation/toy_table.json", edit)
    inputs = results.read(load(copy), copy)
    first = leaderboard.answer(inputs.tasks["toy_table"])[0]
    assert phrase in first
    for other in {"is better than", "is worse than", "cannot be told apart from"} - {phrase.removesuffix(" the best")}:
        assert other not in first


def set_versus(root: Path, low: float, high: float, only: str | None = None, *, separable: bool | None = None) -> None:
    """Give every comparison of every task the same interval, or one candidate's."""
    for task in TASKS:

        def edit(value: dict) -> None:
            for name in value["versus"]:
                if only in (None, name):
                    value["versus"][name] = compared({"mean": (low + high) / 2, "low": low, "high": high}, separable=separable)

        change(root / "reports/evaluation" / f"{task}.json", edit)


def verdicts(root: Path, *words: str) -> list[str]:
    """Verdict of the one finding whose claim holds some words, for each of them."""
    every = findings.findings(results.read(load(root), root))
    found = []
    for part in words:
        named = [finding for finding in every if part in finding.claim]
        assert len(named) == 1, part
        found.append(named[0].verdict)
    return found


def verdict(root: Path, words: str) -> str:
    """Verdict of one finding (see `verdicts`)."""
    return verdicts(root, words)[0]


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(-2.0, -1.0, "confirmed"), (1.0, 2.0, "refuted"), (-1.0, 1.0, "untestable")]
)
def test_the_main_claim_follows_the_intervals(copy: Path, low: float, high: float, expected: str) -> None:
    set_versus(copy, low, high)
    words = ("than every prior", "than most prior", "ahead of integrated", "know nothing of model", "the paper's form")
    assert verdicts(copy, *words) == [expected] * len(words)


def test_an_interval_alone_makes_no_claim(copy: Path) -> None:
    """What does not hold after the correction over all candidates is undecided, in the findings and in the answer."""
    set_versus(copy, -2.0, -1.0, separable=False)
    words = ("than every prior", "than most prior", "ahead of integrated", "know nothing of model", "the paper's form")
    assert verdicts(copy, *words) == ["untestable"] * len(words)

    def edit(value: dict) -> None:
        value["runner_up"].update(compared({"mean": -1.0, "low": -2.0, "high": -0.5}, separable=False))

    change(copy / "reports/evaluation/toy_table.json", edit)
    answer = leaderboard.answer(results.read(load(copy), copy).tasks["toy_table"])
    assert "cannot be told apart from" in answer[0]
    assert "p = 0.300 after Holm's correction" in answer[0]
    assert "better than 0 of" in answer[1]
    change(copy / "reports/evaluation/toy_table.json", lambda value: value["runner_up"].update(p_holm=1e-9, separable=True))
    assert ", p < 0.001 after" in leaderboard.answer(results.read(load(copy), copy).tasks["toy_table"])[0]


def add_explainer(root: Path, name: str, settings: Callable[[dict], dict], row: dict, difference: dict[str, float]) -> None:
    """One more trained explainer in every task: its entry, its files and its row."""
    raw = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    for task, modality in TASKS.items():
        explainers = raw[modality]["explainers"]
        explainers[name] = settings(explainers["deepfaith"])
        for law in ("shapley_kernel", "singles"):
            if law not in raw["tasks"][task]["bank"]["training_laws"]:
                raw["tasks"][task]["bank"]["training_laws"].append(law)
        shutil.copytree(root / f"models/explainers/{task}/deepfaith", root / f"models/explainers/{task}/{name}")
        curves = root / "data/evaluation" / task / "curves"
        shutil.copy2(curves / "deepfaith.parquet", curves / f"{name}.parquet")

        def edit(value: dict) -> None:
            value["candidates"][name] = {**value["candidates"]["deepfaith_paper"], **row}
            value["versus"][name] = compared(difference)

        change(root / "reports/evaluation" / f"{task}.json", edit)
    (root / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")


def fastshap(settings: dict) -> dict:
    """FastSHAP of the size of another explainer."""
    own = {key: value for key, value in settings.items() if key not in ("head", "objective", "singles", "ema", "alpha")}
    return {**own, "module": "fastshap"}


@pytest.mark.parametrize(("mean", "expected"), [(-1.0, "confirmed"), (1.0, "refuted"), (0.0, "untestable")])
def test_rival_explainers_are_compared_after_correction(copy: Path, mean: float, expected: str) -> None:
    assert verdict(copy, "than the other trained explainers") == "untestable"
    add_explainer(copy, "fastshap", fastshap, {}, {"mean": mean, "low": mean - 0.5, "high": mean + 0.5})
    assert verdict(copy, "than the other trained explainers") == expected
    # They are no forms of DeepFaith: claims about its passes and its ablations do not speak of them.
    assert verdict(copy, "costs one forward pass") == "confirmed"
    assert verdict(copy, "full objective") == "untestable"


def test_passes_of_training_are_a_column_and_a_surrogates_stand_apart(copy: Path) -> None:
    row = {"training_passes": {"bank": 1000, "clean": 300, "surrogate": 4500}}
    add_explainer(copy, "fastshap", fastshap, row, {"mean": -1.0, "low": -2.0, "high": -0.5})
    inputs = results.read(load(copy), copy)
    evaluation = inputs.tasks["toy_table"].evaluation
    keys = [column.key for column in leaderboard.columns(["inf"], ceiling=True)]
    cells = {found.name: found.cells[keys.index("training_passes")] for found in leaderboard.rows(evaluation, ["inf"])}
    assert (cells["fastshap"].text, cells["fastshap"].small) == ("1,300", "and 4,500 of a surrogate")
    assert cells["lime"].text == "\N{EN DASH}"
    site.write(load(copy), copy)
    assert "passes to train" in (copy / "reports/index.html").read_text(encoding="utf-8")
    board = json.loads((copy / "reports/leaderboard.json").read_text(encoding="utf-8"))
    for result in board["tasks"].values():
        assert set(result["candidates"]["fastshap"]) == COLUMNS


def test_the_spread_over_training_seeds_is_shown(copy: Path) -> None:
    assert verdict(copy, "Whatever the training seed") == "untestable"
    best = {"mean_rank": 1.0}
    add_explainer(copy, "deepfaith_seed1", lambda own: {**own, "seed_offset": 1}, best, {"mean": 0.0, "low": -1.0, "high": 1.0})
    for task in TASKS:
        path = copy / "reports/evaluation" / f"{task}.json"
        change(path, lambda value: value["candidates"]["deepfaith"].update(mean_rank=1.5))
        change(path, lambda value: value["candidates"][value["runner_up"]["candidate"]].update(mean_rank=3.0))
    (finding,) = [f for f in findings.findings(results.read(load(copy), copy)) if "Whatever the training seed" in f.claim]
    assert finding.verdict == "confirmed"
    assert "deepfaith 1.50, deepfaith_seed1 1.00 (standard deviation 0.35)" in finding.evidence
    change(copy / "reports/evaluation/toy_text.json", lambda value: value["candidates"]["deepfaith_seed1"].update(mean_rank=3.5))
    assert verdict(copy, "Whatever the training seed") == "refuted"


def test_one_undecided_prior_keeps_the_main_claim_open_and_one_worse_refutes_it(copy: Path) -> None:
    set_versus(copy, -2.0, -1.0)
    set_versus(copy, -1.0, 1.0, only="lime")
    assert verdict(copy, "than every prior") == "untestable"
    assert verdict(copy, "than most prior") == "confirmed"
    set_versus(copy, 1.0, 2.0, only="lime")
    assert verdict(copy, "than every prior") == "refuted"


def test_ablations_are_untestable_without_variants_and_testable_with_one(copy: Path) -> None:
    assert verdict(copy, "full objective") == "untestable"
    raw = yaml.safe_load((copy / "params.yaml").read_text(encoding="utf-8"))
    for task, modality in TASKS.items():
        raw[modality]["explainers"]["deepfaith"]["objective"] = "full"
        raw[modality]["explainers"]["local_only"] = {**raw[modality]["explainers"]["deepfaith"], "objective": "local"}
        shutil.copytree(copy / f"models/explainers/{task}/deepfaith", copy / f"models/explainers/{task}/local_only")

        def edit(value: dict) -> None:
            value["candidates"]["local_only"] = value["candidates"]["deepfaith_paper"]
            value["versus"]["local_only"] = compared({"mean": -1, "low": -2, "high": -0.5})

        change(copy / "reports/evaluation" / f"{task}.json", edit)
    (copy / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    assert verdict(copy, "full objective") == "confirmed"
    assert verdict(copy, "signed head ranks better") == "untestable"
    # The same numbers with the values changed over: now the loss alone stands in the headline, and it is ahead.
    for modality in TASKS.values():
        entries = raw[modality]["explainers"]
        entries["deepfaith"]["objective"], entries["local_only"]["objective"] = "local", "full"
    (copy / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    assert verdict(copy, "full objective") == "refuted"


def test_the_gap_to_a_large_fit_is_confirmed_within_and_refuted_beyond_its_bounds(copy: Path) -> None:
    def put(metric: str, behind: float) -> None:
        for task in TASKS:
            path = copy / f"data/evaluation/{task}/scores.parquet"
            scores = pl.read_parquet(path)
            fit = scores.filter((pl.col("candidate") == "banzhaf") & (pl.col("metric") == metric))
            own = fit.with_columns(candidate=pl.lit("deepfaith"), value=(pl.col("value") + behind).cast(pl.Float32))
            rest = scores.filter(~((pl.col("candidate") == "deepfaith") & (pl.col("metric") == metric)))
            write_table(path, pl.concat([rest, own]))

    for metric, behind in (("inf", -0.02), ("del", 0.005), ("ins", 0.2)):
        put(metric, behind)
    assert verdict(copy, "within .03 in INF") == "confirmed"  # far ahead in INS is no gap
    put("del", 0.02)
    assert verdict(copy, "within .03 in INF") == "refuted"
    put("del", 0.005)
    path = copy / "data/evaluation/toy_text/scores.parquet"
    own = (pl.col("candidate") == "deepfaith") & (pl.col("metric") == "inf")
    noise = pl.when(pl.col("sample_id") % 2 == 0).then(0.5).otherwise(-0.5)
    moved = pl.when(own).then(pl.col("value") + noise).otherwise("value").cast(pl.Float32)
    write_table(path, pl.read_parquet(path).with_columns(value=moved))
    assert verdict(copy, "within .03 in INF") == "untestable"  # the mean is within, its interval is not
    put("del", -0.02)
    put("inf", -0.04)
    assert verdict(copy, "within .03 in INF") == "refuted"


def test_the_claim_without_fe_and_mc_follows_its_own_difference(copy: Path) -> None:
    def put(low: float, high: float) -> None:
        def edit(value: dict) -> None:
            for versus in value["versus"].values():
                versus["without_fe_mc"] = {"mean": (low + high) / 2, "low": low, "high": high}

        for task in TASKS:
            change(copy / "reports/evaluation" / f"{task}.json", edit)

    for ends, expected in (((-2, -1), "confirmed"), ((-1, 1), "untestable"), ((1, 2), "refuted")):
        put(*ends)
        assert verdict(copy, "also without FE and MC") == expected


def test_refined_maps_are_compared_with_their_own_explainer(copy: Path) -> None:
    for shift, expected in ((0.2, "confirmed"), (-0.2, "refuted")):
        for task in TASKS:
            path = copy / f"data/evaluation/{task}/scores.parquet"
            scores = pl.read_parquet(path)
            own = scores.filter(pl.col("candidate") == "deepfaith")
            signed = pl.when(pl.col("metric") == "del").then(-shift).otherwise(shift)
            refined = own.with_columns(candidate=pl.lit("deepfaith_refined"), value=(pl.col("value") + signed).cast(pl.Float32))
            write_table(path, pl.concat([scores.filter(pl.col("candidate") != "deepfaith_refined"), refined]))
        assert verdict(copy, "Refitting the explainer's map") == expected


def test_explainers_stand_beside_the_first_with_what_they_have_otherwise(copy: Path) -> None:
    site.write(load(copy), copy)
    page = (copy / "reports/index.html").read_text(encoding="utf-8")
    assert "Explainers beside deepfaith" in page
    assert "; head = sigmoid" in page
    assert HOSTILE not in page
    table = leaderboard.variants(json.loads((copy / "reports/leaderboard.json").read_text())["tasks"]["toy_table"])
    assert [variant.name for variant in table] == ["deepfaith", "deepfaith_paper"]
    assert (table[0].changes, table[0].difference, table[0].shows) == ((), "", None)
    assert table[1].shows == "better"
    assert table[1].training_passes == "1,030 and 77 of a copy"


def test_a_lone_explainer_has_no_table_of_variants() -> None:
    row = {"changes": {}, "versus": None, "mean_rank": 1.0, "metrics": {}, "training_passes": None}
    assert leaderboard.variants({"candidates": {"deepfaith": row, "lime": {"changes": None}}}) == []


def test_irof_identity_is_refuted_by_one_impossible_row(copy: Path) -> None:
    assert verdict(copy, "IROF") == "confirmed"
    path = copy / "data/evaluation/toy_text/scores.parquet"
    scores = pl.read_parquet(path)
    wrong = (pl.col("candidate") == "lime") & (pl.col("metric") == "irof")
    write_table(path, scores.with_columns(pl.when(wrong).then(pl.lit(0.99, pl.Float32)).otherwise("value").alias("value")))
    assert verdict(copy, "IROF") == "refuted"


def test_theorem_1_is_refuted_by_a_lower_deletion_area_than_the_exact_maximisers(copy: Path) -> None:
    assert verdict(copy, "maximiser of Eq. (1)") == "refuted"
    path = copy / "data/evaluation/toy_table/scores.parquet"
    scores = pl.read_parquet(path)
    exact = (pl.col("candidate") == "exact_banzhaf") & (pl.col("metric") == "del")
    write_table(path, scores.with_columns(pl.when(exact).then(pl.lit(-1, pl.Float32)).otherwise("value").alias("value")))
    assert verdict(copy, "maximiser of Eq. (1)") == "untestable"


def test_ceiling_claim_reads_the_gap_of_exact_games_only(copy: Path) -> None:
    def edit(value: dict) -> None:
        value["candidates"]["deepfaith"]["metrics"]["inf"]["mean"] = value["ceiling"]["mean"] - 0.01

    change(copy / "reports/evaluation/toy_table.json", edit)
    assert verdict(copy, "within 0.02") == "confirmed"
    change(copy / "reports/evaluation/toy_table.json", lambda value: value["ceiling"].update(mean=0.999))
    assert verdict(copy, "within 0.02") == "refuted"


def test_paired_interval_of_a_constant_difference_is_that_constant(made: Path) -> None:
    inputs = results.read(load(made), made)
    known = inputs.tasks["toy_table"]
    same = findings.paired(inputs, known, "lime", "lime", "inf")
    assert (same.mean, same.low, same.high) == (0, 0, 0)
    ours = findings.paired(inputs, known, "deepfaith", "random", "inf")
    assert ours.low is not None
    assert ours.high is not None
    assert 0 < ours.low < ours.high
    assert findings.paired(inputs, known, "random", "lime", "mc").mean is None, "nothing is paired where all is undefined"


# ----------------------------------------------------------------------------------------------------------------- tables


def test_heat_and_best_follow_the_direction_and_leave_references_out(made: Path) -> None:
    evaluation = results.read(load(made), made).tasks["toy_table"].evaluation
    table = {row.name: row for row in leaderboard.rows(evaluation, ["inf", "del"])}
    keys = [column.key for column in leaderboard.columns(["inf", "del"], ceiling=True)]
    pool = [name for name, row in evaluation.candidates.items() if row.role not in ("refined", "reference")]
    for key, pick in (("inf", max), ("del", min), ("mean_rank", min), ("inf_over_ceiling", max)):
        column = keys.index(key)
        value = {name: leaderboard._value(evaluation, name, key) for name in pool}
        best = pick(value, key=value.__getitem__)
        assert [name for name in table if table[name].cells[column].best] == [best]
        assert table[best].cells[column].heat == 1
        assert table["random"].cells[column].heat is not None
        assert table["banzhaf"].cells[column].heat is None
    assert table["mean_map"].cells[keys.index("inf")].null == 0
    fc = {row.name: row for row in leaderboard.rows(evaluation, ["fc"])}
    assert fc["mean_map"].cells[4].null == 3


def test_duplicates_are_marked_and_never_the_best(made: Path, page: Page) -> None:
    evaluation = results.read(load(made), made).tasks["toy_text"].evaluation
    assert "saliency" not in leaderboard.of_role(evaluation, "supervision")
    row = next(row for row in leaderboard.rows(evaluation, ["inf"]) if row.name == "saliency")
    assert row.duplicate_of == "deeplift"
    assert not any(cell.best for cell in row.cells)
    assert "same map as deeplift" in page.text


def test_rows_are_grouped_by_role_and_sorted_by_rank(made: Path) -> None:
    evaluation = results.read(load(made), made).tasks["toy_image"].evaluation
    names = leaderboard.ordered(evaluation.candidates)
    key = [(results.ROLES.index(evaluation.candidates[n].role), evaluation.candidates[n].mean_rank) for n in names]
    assert key == sorted(key)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(None, 3, "\N{EN DASH}"), (-0.4, 2, "\N{MINUS SIGN}0.40"), (-0.0001, 3, "0.000"), (0.6125, 3, "0.613")],
)
def test_numbers_have_a_true_minus_and_no_negative_zero(value: float | None, digits: int, text: str) -> None:
    assert leaderboard.number(value, digits) == text


# ---------------------------------------------------------------------------------------------------------------- figures


def test_band_is_exact_at_the_sweeps_own_steps_and_tight_for_equal_samples() -> None:
    fraction = [0.0, 0.5, 1.0]
    curves = pl.DataFrame(
        {"sample_id": [0] * 3 + [1] * 3, "sweep": ["morf"] * 6, "fraction": fraction * 2, "value": [1.0, 0.4, 0.0] * 2}
    )
    line = figures.band(curves, "morf", steps=2, draws=100, confidence=0.95, generator=np.random.default_rng(0))
    assert line is not None
    assert line["mean"] == pytest.approx([1.0, 0.4, 0.0])
    assert line["low"] == pytest.approx(line["high"])
    assert figures.band(curves, "lerf", steps=2, draws=100, confidence=0.95, generator=np.random.default_rng(0)) is None


def test_band_covers_the_spread_of_samples() -> None:
    rows = [(i, "morf", f, float(i % 2)) for i in range(100) for f in (0.0, 1.0)]
    curves = pl.DataFrame(rows, schema=["sample_id", "sweep", "fraction", "value"], orient="row")
    line = figures.band(curves, "morf", steps=1, draws=2000, confidence=0.95, generator=np.random.default_rng(0))
    assert line is not None
    # Binomial: 0.5 +- 1.96 * sqrt(.25 / 100).
    assert line["low"][0] == pytest.approx(0.402, abs=0.02)
    assert line["high"][0] == pytest.approx(0.598, abs=0.02)


def test_drawn_curves_are_a_handful_that_have_curves(made: Path) -> None:
    params = load(made)
    known = results.read(params, made).tasks["toy_table"]
    drawn = site.drawn(known, params)
    rows = known.evaluation.candidates
    assert drawn[:2] == ["deepfaith", "deepfaith_paper"]
    assert {"integrated_gradients", "random"} <= set(drawn)
    assert [name for name in drawn if rows[name].role == "reference"] == [
        min(("banzhaf", "exact_banzhaf"), key=lambda name: rows[name].mean_rank or 99)
    ]
    assert len(drawn) <= figures.COLOURS


@pytest.mark.parametrize(("low", "high", "expected"), [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (-3, 7, [-2, 0, 2, 4, 6])])
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert figures.ticks(low, high) == pytest.approx(expected)


def test_charts_put_better_left_and_top_and_escape_labels() -> None:
    chart = figures.cost_chart(
        [figures.Point("cheap", "k", 0, 1), figures.Point("dear", "k", 1000, 5)], title=HOSTILE, y_label="rank"
    )
    dots = re.findall(r'class="dot k" cx="([\d.]+)" cy="([\d.]+)"', chart)
    assert float(dots[0][0]) < float(dots[1][0])
    assert float(dots[0][1]) < float(dots[1][1])
    assert "<script" not in chart
    forest = figures.forest_chart([figures.Difference(HOSTILE, -1, -2, -0.5, "better")], title="t", x_label=HOSTILE)
    zero = float(re.findall(r'class="axis" d="M([\d.]+)', forest)[0])
    assert float(re.findall(r'class="dot" cx="([\d.]+)"', forest)[0]) < zero
    assert "<script" not in forest
    assert figures.line_chart([], title="t", x_label="x", y_label="y") == ""


# ---------------------------------------------------------------------------------------------------------------- gallery


def test_gallery_samples_follow_their_rules(made: Path) -> None:
    params = load(made)
    known = results.read(params, made).tasks["toy_table"]
    shown = gallery.build(known, params)
    rules = {entry.sample.rule: entry.sample.sample_id for entry in shown.entries}
    score = known.scores.filter((pl.col("candidate") == "deepfaith") & (pl.col("metric") == "inf"))
    by_value = dict(score.sort("value")["sample_id", "value"].iter_rows())
    drawn = rules["drawn at random"]
    assert rules["highest INF of deepfaith"] == [i for i in by_value if i != drawn][-1]
    assert rules["lowest INF of deepfaith"] == next(i for i in by_value if i not in (drawn, rules["highest INF of deepfaith"]))
    assert len(shown.entries) == len({entry.sample.sample_id for entry in shown.entries}) == params.report.gallery


def test_agreement_is_the_mean_pairwise_cosine() -> None:
    a, b = np.array([[1.0, 0.0], [1.0, 0.0], [2.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
    assert gallery.agreement([a, b]) == pytest.approx([1, 0, -1])
    zero = np.zeros((3, 2))
    assert gallery.agreement([a, zero]) == pytest.approx([0, 0, 0])


def test_scale_keeps_zero_and_sign_and_marks_what_is_not_finite() -> None:
    maps = np.array([[0.0, -2.0, 4.0], [0.0, 0.0, 0.0], [1.0, np.nan, 2.0]], dtype=np.float32)
    scaled = gallery.scale(maps, "table")
    assert scaled[:2].tolist() == [[0.0, -0.5, 1.0], [0.0, 0.0, 0.0]]
    assert np.isnan(scaled[2]).all()


def test_overlay_is_pale_at_zero_and_coloured_by_sign() -> None:
    pixels = gallery.overlay(np.zeros((1, 3)), np.array([[0.0, 1.0, -1.0]]))
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[0, 1, 0] > pixels[0, 1, 2]
    assert pixels[0, 2, 0] < pixels[0, 2, 2]


def test_a_map_that_is_not_finite_is_said_to_be_undefined(made: Path, page: Page) -> None:
    """LIME failed on the test images, and its maps are stored as zeros; zeros must not be shown as a map."""
    cells = [attrs for tag, attrs in page.tags if tag == "span" and attrs.get("class") == "undefined"]
    assert len(cells) == load(made).report.gallery
    assert not any(attrs.get("alt", "").startswith("map of lime") for tag, attrs in page.tags if tag == "img")  # type: ignore[union-attr]


# ----------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    "stale",
    [
        "reports/evaluation/old task.json",
        "reports/curate/old.json",
        "data/evaluation/old/scores.parquet",
        "data/attributions/toy_table/smooth_grad/part-0.parquet",
        "data/curves/toy_text/old.parquet",
        "models/explainers/toy_image/aha/model.json",
    ],
)
def test_leftovers_stop_the_report_and_name_the_command(copy: Path, stale: str) -> None:
    (copy / stale).parent.mkdir(parents=True, exist_ok=True)
    (copy / stale).write_text("{}")
    before = (copy / "reports/index.html").read_bytes()
    with pytest.raises(ArtifactError, match=r"no longer names") as error:
        site.write(load(copy), copy)
    top = Path(stale) if stale.startswith(("reports", "data/curves")) else Path(stale).parent
    assert f"rm -r -- {str(top)!r}" in str(error.value) if " " in stale else f"rm -r -- {top}" in str(error.value)
    assert (copy / "reports/index.html").read_bytes() == before


def test_files_that_git_and_dvc_keep_there_are_no_leftovers(copy: Path) -> None:
    (copy / "reports/evaluation/.gitignore").write_text("/x\n")
    (copy / "data/evaluation/.gitignore").write_text("/x\n")
    results.refuse_leftovers(load(copy), copy)


@pytest.mark.parametrize(
    "path",
    [
        "reports/evaluation/toy_table.json",
        "reports/curate/toy_text.json",
        "data/tasks/toy_image/task.json",
        "data/evaluation/toy_table/scores.parquet",
        "data/evaluation/toy_table/maps.parquet",
        "data/evaluation/toy_table/curves/deepfaith.parquet",
        "data/curves/toy_table/integrated_gradients.parquet",
        "data/attributions/toy_image/lime/part-00000.parquet",
        "models/target/toy_table/model.json",
        "models/target/toy_table/predictions.parquet",
        "models/explainers/toy_table/deepfaith/history.parquet",
    ],
)
def test_a_missing_or_truncated_file_is_named(copy: Path, path: str) -> None:
    whole = (copy / path).read_bytes()
    (copy / path).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArtifactError, match=re.escape(Path(path).name)):
        site.write(load(copy), copy)
    (copy / path).unlink()
    with pytest.raises(ArtifactError, match="is missing"):
        site.write(load(copy), copy)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda value: value["candidates"].pop("random"), "no row for random"),
        (lambda value: value["candidates"].pop("mean_map"), "no row for mean_map"),
        (lambda value: value.update(ceiling=None), r"no ceiling R\(x\)"),
        (lambda value: value["candidates"]["lime"]["metrics"].pop("inf"), "lime lacks metric inf"),
        (lambda value: value["candidates"]["lime"].update(family_rank=None), "lime has a mean rank but no family rank"),
        (
            lambda value: value["candidates"]["lime"]["metrics"]["inf"].update(low=None),
            "lime.inf has 24 values but no mean or interval",
        ),
        (lambda value: value["candidates"]["lime"].update(mean_rank=float("nan")), "not a result of `evaluate`.*mean_rank"),
        (lambda value: value.pop("versus"), "not a result of `evaluate`.*versus"),
    ],
)
def test_a_dishonest_or_broken_table_is_refused(copy: Path, edit: Callable[[dict], object], message: str) -> None:
    change(copy / "reports/evaluation/toy_table.json", edit)
    with pytest.raises(ArtifactError, match=message):
        site.write(load(copy), copy)
