"""Judge attributions by their in-distribution samples: `python stages/fud_score.py TASK` -> reports/fud/<task>.json."""

from faithline import config


def main() -> None:
    """Score all candidates and controls of an image task."""
    params, (task,) = config.stage_arguments("task")

    from faithline import fud_scoring, seeding, workspace

    seeding.setup(params.seed)
    fud_scoring.judge(workspace.open_workspace(task, params))


if __name__ == "__main__":
    from faithline.errors import run_stage

    run_stage(main)
