"""Run every benchmark of this folder and write `benchmarks/results.json`: `make bench`.

A benchmark is a file here with a function `measure()` that gives {name: {"ratio", "ours", "peer", "unit", "peer_name"}}: ours and
a peer, measured in the same run. Seconds change from run to run, so nothing that DVC hashes reads this file.

    python benchmarks/run.py            # all
    python benchmarks/run.py scoring    # one; the entries of the others stay
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from faithline.artifacts import read_json, write_json

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"
KEYS = {"ratio", "ours", "peer", "unit", "peer_name"}


def measure(path: Path) -> dict[str, Any]:
    """Results of one benchmark file.

    Raises:
        ValueError: If it gives something else than its docstring above says.
    """
    spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results = module.measure()
    for name, entry in results.items():
        if set(entry) != KEYS:
            raise ValueError(f"{path.name}: {name} has the keys {sorted(entry)}, not {sorted(KEYS)}")
    return results


def main() -> None:
    """Run the named benchmarks, or all, and print each ratio."""
    found = {path.stem: path for path in sorted(FOLDER.glob("*.py")) if path != Path(__file__)}
    unknown = [name for name in sys.argv[1:] if name not in found]
    if unknown:
        sys.exit(f"error: no benchmark {unknown}; there are {list(found)}")
    chosen = sys.argv[1:] or list(found)
    # A full run starts afresh, so that a benchmark that is gone leaves no number behind.
    results = read_json(RESULTS) if sys.argv[1:] and RESULTS.exists() else {}
    for name in chosen:
        made = measure(found[name])
        results |= made
        for key, entry in made.items():
            both = f"{entry['ours']:.4g} against {entry['peer']:.4g} {entry['unit']}"
            print(f"{key}: {entry['ratio']:.3g}x ({both}, {entry['peer_name']})")
        write_json(RESULTS, results)


if __name__ == "__main__":
    main()
