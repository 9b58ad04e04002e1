"""List the code that each job runs: `python stages/manifest.py` -> data/manifests/."""

from pathlib import Path

from faithline import code_manifests
from faithline.artifacts import publish


def main() -> None:
    """Write all manifests; a job whose manifest did not change is not run again."""
    with publish("data/manifests") as folder:
        for name, text in code_manifests.manifests(Path.cwd()).items():
            (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    from faithline.errors import run_stage

    run_stage(main)
