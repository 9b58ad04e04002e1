"""Run every benchmark of this folder and write `benchmarks/results.json` and `benchmarks/README.md`: `make bench`.

A benchmark is a file here with a function `measure()` that gives {name: {"ratio", "ours", "peer", "unit", "peer_name"}}: ours and
a peer, measured in the same run. Where both sides make maps, `our_calls`, `peer_calls` (model evaluations) and `difference` (of
the maps, as a share of their largest value) may be added. Seconds change from run to run: no number of the pipeline reads them.

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
README = FOLDER / "README.md"
KEYS = {"ratio", "ours", "peer", "unit", "peer_name"}
OF_MAPS = {"our_calls", "peer_calls", "difference"}
HEAD = """# Benchmarks

`make bench` runs the files of this folder and writes this table and `results.json`, which the report quotes. Both sides of a row
are measured in one process, in turns. Each file says at its top what it compares, and how.

| benchmark | ratio | ours | peer | unit | peer is | our calls | peer's calls | maps differ by |
|---|---|---|---|---|---|---|---|---|
"""
FOOT = """
* The ratio is the peer's time over ours (above 1: ours is faster); of `photos_masked_throughput` ours over the peer's, and of
  `explanation_in_target_forwards` ours over one forward pass of the target.
* Calls are inputs that went through the model; a gradient's backward pass is not counted again.
* Maps of the two sides are asserted to be equal: "maps differ by" is the largest difference, as a share of the largest value.
* `..._all_priors` is the sum over the methods that captum has too. RISE, Grad-CAM++ and Score-CAM are in no row: captum has none.
* Where captum runs its inputs as one batch, the calls are the same on both sides and so is most of the time; what is won there is
  won where captum takes one sample or one mask a pass.

`gpu.sh OUT PICTURES` runs the stages of `photos_effnet` on a GPU, or a smaller form of them on a CPU, and prints images a second.
"""


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
        if set(entry) - OF_MAPS != KEYS:
            raise ValueError(f"{path.name}: {name} has the keys {sorted(entry)}, not {sorted(KEYS)}")
    return results


def table(results: dict[str, Any]) -> str:
    """All results as a page."""
    rows = []
    for name, entry in sorted(results.items()):
        calls = [f"{entry[key]:,}" if key in entry else "" for key in ("our_calls", "peer_calls")]
        apart = f"{entry['difference']:.0e}" if "difference" in entry else ""
        numbers = [f"{entry[key]:.3g}" for key in ("ratio", "ours", "peer")]
        rows.append(" | ".join([f"| `{name}`", *numbers, entry["unit"], entry["peer_name"], *calls, f"{apart} |"]))
    return HEAD + "\n".join(rows) + "\n" + FOOT


def main() -> None:
    """Run the named benchmarks, or all, and print each ratio."""
    files = [path for path in sorted(FOLDER.glob("*.py")) if path != Path(__file__)]
    found = {path.stem: path for path in files if "\ndef measure(" in path.read_text(encoding="utf-8")}
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
        README.write_text(table(results), encoding="utf-8")


if __name__ == "__main__":
    main()
