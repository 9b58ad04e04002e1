"""Which code each job runs, as one small text file a job: what DVC compares to decide whether code changed.

A job depends on its manifest instead of on twenty source files. Comments, docstrings and blank lines are no part of it, so that
rewording one reruns nothing. Light: no library is imported.
"""

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

INERT = {
    "src/faithline/config.py",  # earned by test_config.py::test_no_value_has_a_default: params.yaml holds all values
    "src/faithline/engine.py",  # earned by test_engine.py::test_kill_loses_no_shard_and_changes_no_byte
    "src/faithline/schemas/section.py",  # as config.py
    "src/faithline/schemas/fud.py",  # as config.py
}
"""Files that decide no byte of an output, each with the test that proves it."""


def manifests(root: Path) -> dict[str, str]:
    """The text of every manifest by its name: one a stage script, and of `attribute` one a method.

    A manifest starts with the pinned libraries, then lists every file of ours that the job runs.

    Args:
        root: The repository.

    Returns:
        Lines of `<sha256>  <path>`, ascending by path. A job loads one task file by a name that is not in its code: `dvc.yaml`
        lists the file itself, and what the task files of the package import is in every manifest.
    """
    methods = sorted(
        path
        for path in (root / "src/faithline/attributions").glob("*.py")
        if "\ndef attribute(" in path.read_text(encoding="utf-8")  # what makes a module a method, see attributions/run.py
    )
    entries = {path.stem: [path] for path in sorted((root / "stages").glob("*.py")) if path.stem != "manifest"}
    attribute = entries.pop("attribute")
    entries |= {f"attribute-{path.stem}": [*attribute, path] for path in methods}
    shared = sorted(
        {found for task in (root / "src/faithline/tasks").glob("*.py") for found in closure(task, root / "src") - {task}}
    )
    return {f"{name}.txt": _manifest(root, [*files, *shared]) for name, files in entries.items()}


def closure(entry: Path, src: Path) -> set[Path]:
    """A script and every file of ours that it imports, directly or not; `__init__.py` of the packages included.

    Modules loaded by a name that is not in the code (a method, a task file) are not found.
    """
    todo, seen = [entry], set()
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in _imported_names(file, src):
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                if (found := _module_file(src, ".".join(parts[:end]))) is not None:
                    todo.append(found)
    return seen


@cache
def code_sha256(text: str) -> str:
    """Digest of Python code without its comments, docstrings, blank lines and trailing spaces."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    literal: set[int] = set()  # rows inside a string that runs over several lines: every space counts there
    words: set[ast.expr] = set()  # docstrings, and the bare strings that document an attribute
    for node in ast.walk(ast.parse(text)):  # a statement comes before what is in it
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            words.add(node.value)
            _blank(lines, node)
        elif node not in words and isinstance(node, ast.Constant | ast.JoinedStr):
            literal.update(range(node.lineno - 1, (node.end_lineno or node.lineno) - 1))
    kept = [line if row in literal else line.rstrip() for row, line in enumerate(lines) if row in literal or line.strip()]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()


def _blank(lines: list[str], node: ast.Expr) -> None:
    """Take a statement out and leave its rows; columns of `ast` count UTF-8 bytes."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    tail = lines[last].encode()[node.end_col_offset :].decode()
    lines[first] = lines[first].encode()[: node.col_offset].decode() + (tail if first == last else "")
    for row in range(first + 1, last + 1):
        lines[row] = tail if row == last else ""


def _manifest(root: Path, entries: list[Path]) -> str:
    files = {path for entry in entries for path in closure(entry, root / "src")}
    digests = {
        relative: code_sha256(path.read_text(encoding="utf-8"))
        for path in files
        if (relative := path.relative_to(root).as_posix()) not in INERT and path.name != "__init__.py"
    }
    pins = ["constraints.txt", *(["constraints-fud.txt"] if any("diffusion" in path.parts for path in files) else [])]
    digests |= {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in pins}
    return "".join(f"{digest}  {relative}\n" for relative, digest in sorted(digests.items()))


@cache
def _module_file(src: Path, dotted: str) -> Path | None:
    path = src.joinpath(*dotted.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


@cache
def _imported_names(path: Path, src: Path) -> tuple[str, ...]:
    return tuple(_names(path, src))


def _names(path: Path, src: Path) -> Iterator[str]:
    """Dotted names a file imports anywhere, also inside functions; relative ones are resolved."""
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
