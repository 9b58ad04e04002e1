"""Run one stage script as it is, and write how long it took and how many images went through the target.

python benchmarks/gpu/stage.py OUT.json stages/bank.py photos_effnet
"""

import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the stage in this process, with every game noted as it is made."""
    out, script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]

    from faithline.masking import MaskedModel

    games: dict[int, MaskedModel] = {}
    build = MaskedModel.__init__

    def noted(self: MaskedModel, model: Any, *args: Any, **kwargs: Any) -> None:
        build(self, model, *args, **kwargs)
        games.setdefault(id(model), self)  # the counter of a model's first game counts every road to it

    MaskedModel.__init__ = noted  # type: ignore[method-assign]
    start = time.perf_counter()
    runpy.run_path(script, run_name="__main__")
    seconds = time.perf_counter() - start
    images = sum(game.passes for game in games.values())
    Path(out).write_text(json.dumps({"seconds": seconds, "images": images}), encoding="utf-8")


if __name__ == "__main__":
    main()
