"""Train one explainer: `python stages/explain.py TASK EXPLAINER` -> models/explainers/<task>/<explainer>/."""

from faithline import config


def main() -> None:
    """Train (or finish training) one explainer of one task and publish it."""
    params, (task, explainer) = config.stage_arguments("task", "explainer")

    from faithline import explaining, seeding, workspace

    seeding.setup(params.seed)
    explaining.explain(workspace.open_workspace(task, params), explainer)


if __name__ == "__main__":
    from faithline.errors import run_stage

    run_stage(main)
