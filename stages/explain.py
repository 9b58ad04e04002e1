"""Train one explainer: `python stages/explain.py TASK EXPLAINER` -> models/explainers/<task>/<explainer>/."""

import sys

from faithline import config


def main() -> None:
    """Train (or finish training) one explainer of one task and publish it."""
    task, explainer = sys.argv[1:3]
    params = config.load()

    from faithline import explaining, seeding, workspace

    seeding.setup(params.seed)
    explaining.explain(workspace.open_workspace(task, params), explainer)


if __name__ == "__main__":
    from faithline.errors import run_stage

    run_stage(main)
