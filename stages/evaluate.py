"""Judge every candidate: `python stages/evaluate.py TASK` -> data/evaluation/<task>/, reports/evaluation|metrics/<task>.json."""

from faithline import config


def main() -> None:
    """Evaluate one task."""
    params, (task,) = config.stage_arguments("task")

    from faithline import evaluation, seeding, workspace

    seeding.setup(params.seed)
    evaluation.evaluate(workspace.open_workspace(task, params))


if __name__ == "__main__":
    from faithline.errors import run_stage

    run_stage(main)
