"""What counts as the code of a job: every file of ours that it runs, and of a file all but its words."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from faithline.code_manifests import INERT, closure, code_sha256, manifests

ROOT = Path(__file__).parents[2]

CODE = '''"""Doc."""

SEPARATOR = "# no comment"  # a comment
LINES = """a

  b"""


class A:
    """Doc of a class,

    in two paragraphs."""

    size = 1
    """Doc of an attribute."""

    def f(self) -> str:
        """Doc."""  # and a comment
        return f"""{self.size}

        x"""
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# a comment", "# another"),
        ("  # a comment", ""),
        ("Doc of a class,", "Ünlike"),
        ("in two paragraphs", "in\n    three\n\n    paragraphs"),
        ("Doc of an attribute", "-"),
        ('"""Doc."""  # and a comment', '"""Doc.\n\n        More."""'),
        ("\n\n\nclass A", "\n\nclass A"),
        ("size = 1", "size = 1   "),
    ],
)
def test_words_are_no_code(old: str, new: str) -> None:
    assert old in CODE
    assert code_sha256(CODE.replace(old, new)) == code_sha256(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("size = 1", "size = 2"),
        ("# no comment", "# No comment"),
        ("a\n\n  b", "a\n  b"),
        ("a\n\n  b", "a\n\n b"),
        ("}\n\n        x", "}\n        x"),
        ("    def f", "def f"),
    ],
)
def test_everything_else_is(old: str, new: str) -> None:
    assert old in CODE
    assert code_sha256(CODE.replace(old, new, 1)) != code_sha256(CODE)


def test_editing_a_method_changes_its_manifest_only(tmp_path: Path) -> None:
    before = manifests(_copy(tmp_path))
    path = tmp_path / "src/faithline/attributions/lime.py"
    path.write_text(path.read_text() + "\nX = 1\n")
    after = manifests(tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"attribute-lime.txt"}


def test_a_file_that_all_share_and_the_libraries_change_every_manifest(tmp_path: Path) -> None:
    before = manifests(_copy(tmp_path))
    for file in ("constraints.txt", "src/faithline/artifacts.py"):
        path = tmp_path / file
        path.write_text(path.read_text() + "\nX = 1\n" if file.endswith(".py") else path.read_text() + "x==1\n")
        after = manifests(tmp_path)
        assert all(before[name] != after[name] for name in before)
        before = after


def test_the_libraries_of_fud_change_its_manifests_only(tmp_path: Path) -> None:
    before = manifests(_copy(tmp_path))
    path = tmp_path / "constraints-fud.txt"
    path.write_text(path.read_text() + "x==1\n")
    after = manifests(tmp_path)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"score_model.txt", "fud.txt", "fud_score.txt", "fud_table.txt"}


def test_what_a_task_file_imports_is_in_every_manifest_and_the_task_file_is_not(tmp_path: Path) -> None:
    before = manifests(_copy(tmp_path))
    lines = {line.split("  ")[1] for line in before["dataset.txt"].splitlines()}
    assert {"src/faithline/networks.py", "src/faithline/tables.py", "src/faithline/tasks/digits_cnn.py"} <= lines
    for file, changed in (("networks.py", set(before)), ("tasks/digits_cnn.py", set(before)), ("tasks/digits_vit.py", set())):
        path = tmp_path / "src/faithline" / file
        path.write_text(path.read_text() + "\nX = 1\n")
        after = manifests(tmp_path)
        assert {name for name in before if before[name] != after[name]} == changed, file
        before = after


def test_inert_files_exist_and_are_left_out() -> None:
    for file in INERT:
        assert (ROOT / file).is_file()
        assert all(file not in text for text in manifests(ROOT).values())


def test_modules_are_loaded_by_name_in_known_places_only() -> None:
    """A name that is not in the code is not in a manifest either: methods have one each, task files are deps themselves."""
    users = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "src").rglob("*.py")
        if re.search(r"import_module\(|__import__\(|spec_from_file_location\(", path.read_text())
    }
    assert users == {"src/faithline/__init__.py", "src/faithline/attributions/run.py", "src/faithline/targets.py"}


@pytest.mark.parametrize("script", ["attribute.py", "evaluate.py", "fud_score.py", "report.py"])
def test_what_a_stage_loads_is_in_its_closure(script: str) -> None:
    """The reading of imports against Python's own: everything that importing the script's imports brings in is listed."""
    found = {path.relative_to(ROOT).as_posix() for path in closure(ROOT / "stages" / script, ROOT / "src")}
    text = (ROOT / "stages" / script).read_text()
    imports = "\n".join(line.strip() for line in text.splitlines() if re.match(r"\s*(from|import) ", line))
    probe = f"{imports}\nimport sys\nfor m in list(sys.modules.values()):\n    print(getattr(m, '__file__', None) or '')"
    printed = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout.splitlines()
    ours = {Path(line).relative_to(ROOT).as_posix() for line in printed if line.startswith(str(ROOT / "src"))}
    assert ours <= found
    assert len(ours) > 2


def _copy(folder: Path) -> Path:
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "stages").glob("*.py"), *ROOT.glob("constraints*.txt")]:
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return folder
