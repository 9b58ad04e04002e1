"""Params files for one task: composed of a scale and an entry, and valid for each of the paper's twelve tasks."""

from pathlib import Path

import pytest
import yaml

from faithline import config, presets

ROOT = Path(__file__).parents[2]
ENTRIES = sorted((ROOT / "params/tasks").glob("*.yaml"))
PAPER = (ROOT / "params/paper.yaml").read_text()


def test_there_is_an_entry_for_each_of_the_twelve_tasks() -> None:
    images = {f"{data}_{target}" for data in ("imagenet", "oct") for target in ("resnet50", "efficientnet_b0", "deit_small")}
    texts = {f"{data}_{target}" for data in ("imdb", "ag_news") for target in ("lstm", "transformer")}
    assert {path.stem for path in ENTRIES} == images | texts | {"wholesale_mlp", "nhanes_age_mlp"}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda path: path.stem)
def test_an_entry_makes_a_valid_params_file_at_the_paper_s_scale(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = presets.compose(PAPER, entry.stem, entry.read_text())
    params, paper = config.parse(text), yaml.safe_load(PAPER)
    assert list(params.tasks) == [entry.stem]
    modality = params.tasks[entry.stem].modality
    assert {name: getattr(params, name).tasks for name in ("table", "text", "image")} == {
        name: [entry.stem] if name == modality else [] for name in ("table", "text", "image")
    }
    composed = yaml.safe_load(text)
    for section in set(paper) - {"tasks", "table", "text", "image", "fud"}:
        assert composed[section] == paper[section]
    for section in ("image", "table"):
        assert composed["fud"][section] == {**paper["fud"][section], "tasks": []}
    assert {**composed[modality], "tasks": []} == {**paper[modality], "tasks": []}


def test_the_targets_are_those_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    tasks = {
        path.stem: config.parse(presets.compose_files(ROOT / "params/paper.yaml", path)).tasks[path.stem] for path in ENTRIES
    }
    assert tasks["oct_deit_small"].target.architecture == "deit_small_patch16_224"  # type: ignore[union-attr]
    assert tasks["imagenet_resnet50"].target.architecture == "resnet50"  # type: ignore[union-attr]
    for name, task in tasks.items():
        if task.modality == "image":
            assert (task.dataset.image_size, task.dataset.patch) == (224, 16), name  # type: ignore[union-attr]
            assert task.target.epochs == 0, name
        if task.modality == "text":
            assert task.dataset.length == 300, name  # type: ignore[union-attr]
            assert name.endswith(task.target.architecture), name  # type: ignore[union-attr]
        if task.modality == "table":
            assert task.bank.exact, name


@pytest.mark.parametrize(
    ("scale", "entry", "message"),
    [
        ("- 1", "modality: text", "the scale must hold a mapping, not list"),
        (PAPER, "just words", "the entry of mine must hold a mapping, not str"),
        (PAPER, "modality: sound", "the entry of mine: modality = 'sound', must be table, text or image"),
    ],
)
def test_what_is_no_scale_or_no_entry_is_refused(scale: str, entry: str, message: str) -> None:
    with pytest.raises(config.ConfigError, match=message):
        presets.compose(scale, "mine", entry)
