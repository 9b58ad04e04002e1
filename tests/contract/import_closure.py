"""Which files of ours a script runs: its imports, theirs, and so on, by reading the code."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def module_file(src: Path, dotted: str) -> Path | None:
    """The file of a first-party module or package, or None."""
    path = src.joinpath(*dotted.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


@cache
def imported_names(path: Path, src: Path) -> tuple[str, ...]:
    """Dotted names a file imports anywhere, also inside functions; relative ones are resolved."""
    return tuple(_names(path, src))


def _names(path: Path, src: Path) -> Iterator[str]:
    package = path.relative_to(src).with_suffix("").parts if src in path.parents else ()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                parents = package[: len(package) - node.level + (path.name == "__init__.py")]
                module = ".".join([*parents, *([module] if module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def closure(entry: Path, src: Path) -> set[Path]:
    """The script itself and every first-party file it runs; parents' `__init__.py` included."""
    todo, seen = [entry], set()
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in imported_names(file, src):
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                if (found := module_file(src, ".".join(parts[:end]))) is not None:
                    todo.append(found)
    return seen
