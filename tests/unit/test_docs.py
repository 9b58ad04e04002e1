"""docs/in-distribution.md: its Python runs, its keys are the schema's, its costs are the plan's. Links of all pages."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from faithline.diffusion.plan import cost, plan
from faithline.diffusion.presets import PRESETS
from faithline.diffusion.schedule import linear_schedule
from faithline.fud_sampling import preset_of
from faithline.schemas.fud import FudSettings, ImageFudSettings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/in-distribution.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.usefixtures("one_thread")
def test_the_python_of_the_page_runs() -> None:
    names: dict[str, Any] = {}
    results = []
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(block, "docs/in-distribution.md", "exec"), names)
        results.append(names["judged"])
    first = results[0]
    assert set(first) == {"random", "ig", "upside_down"}
    assert first["ig"].score > first["random"].score > first["upside_down"].score
    assert first["ig"].above_random[1] > 0, "the interval excludes 0"
    assert set(results[1]) == {"random", "ig"}


def keys(kind: Any) -> set[str]:
    """Names of all fields of a section, those of its own sections too."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return set().union(*(keys(part) for part in get_args(kind)))
    return set(kind.model_fields).union(*(keys(field.annotation) for field in kind.model_fields.values()))


def test_every_key_of_fud_is_explained() -> None:
    section = PAGE[PAGE.index("## Every key") : PAGE.index("## Read the results")]
    missing = {key for key in keys(FudSettings) if f"`{key}`" not in section}
    assert not missing


def rows(text: str) -> dict[str, tuple[int, int]]:
    """Preset -> the two numbers of its row."""
    found = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| ([\d,]+) \|$", text, re.M)
    return {name: (int(first.replace(",", "")), int(second.replace(",", ""))) for name, first, second in found}


def test_costs_are_those_of_the_plan() -> None:
    schedule = linear_schedule(1000, 1e-4, 0.02)
    spent = {name: cost(plan(preset, schedule)) for name, preset in PRESETS.items()}
    one, published = PAGE[PAGE.index("## What it costs") :].split("The published setting")
    assert rows(one) == {name: (item.calls, item.gradients) for name, item in spent.items()}
    found = rows(published)
    assert found == {name: (9 * spent[name].calls, 9 * 22_000 * spent[name].calls) for name in ("annealed", "paper", "repaint")}


@pytest.mark.parametrize(("name", "tasks"), [("params.yaml", 1), ("params/photos_gpu.yaml", 1), ("params/paper.yaml", 0)])
def test_costs_of_a_scale_are_those_of_its_params(name: str, tasks: int) -> None:
    settings = ImageFudSettings.model_validate(yaml.safe_load((ROOT / name).read_text())["fud"]["image"])
    assert len(settings.tasks) == tasks
    levels = settings.score_model.schedule
    schedule = linear_schedule(levels.steps, levels.first, levels.last)
    candidates, controls = len(settings.methods) + len(settings.explainers), len(settings.controls)
    each = settings.draws * len(settings.levels)
    calls = cost(plan(preset_of(settings.sampler), schedule)).calls
    main = settings.samples * (each * (2 * candidates + controls) + settings.draws) * calls
    variants = sum(cost(plan(preset_of(own), schedule)).calls for own in settings.samplers().values())
    variants *= settings.variant_samples * each * (candidates + controls)
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}`")]
    assert row.split(" | ")[1:] == [f"{calls}", f"{main:,}", f"{variants:,} |"]
    assert f"{settings.samples:,} images, {candidates} candidates" in row


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        to = page.parent / name if name else page
        assert to.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", to.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target
