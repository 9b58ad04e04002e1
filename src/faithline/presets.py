"""A params file for one task: everything of a scale, with one task entry in the place of its tasks. Light, as `config`."""

from pathlib import Path
from typing import Any

import yaml

from faithline import config


def compose(scale: str, name: str, entry: str) -> str:
    """The text of a params file.

    Args:
        scale: Text of a complete params file, for instance `params/paper.yaml`; its tasks are left out.
        name: What to call the task.
        entry: Text of the task's entry, for instance `params/tasks/imagenet_resnet50.yaml`.

    Raises:
        config.ConfigError: If one of them is no mapping, or the entry has no known modality.
    """
    params, task = _mapping(scale, "the scale"), _mapping(entry, f"the entry of {name}")
    modality = task.get("modality")
    if modality not in ("table", "text", "image"):
        raise config.ConfigError(f"the entry of {name}: modality = {modality!r}, must be table, text or image")
    params["tasks"] = {name: task}
    for section in ("table", "text", "image"):
        params[section]["tasks"] = [name] if section == modality else []
    for section in ("image", "table"):
        params["fud"][section]["tasks"] = []  # needs a score model that the task's entry does not name
    return yaml.safe_dump(params, sort_keys=False, width=10_000)


def compose_files(scale: Path, entry: Path) -> str:
    """The same of two files; the task is called as the entry's file is."""
    return compose(scale.read_text(encoding="utf-8"), entry.stem, entry.read_text(encoding="utf-8"))


def _mapping(text: str, what: str) -> dict[str, Any]:
    value = yaml.safe_load(text)
    if not isinstance(value, dict):
        raise config.ConfigError(f"{what} must hold a mapping, not {type(value).__name__}")
    return value
