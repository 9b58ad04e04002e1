"""Judge attributions of a table task in-distribution: `python stages/fud_table.py TASK` -> reports/fud/<task>.json."""

from faithline import config


def main() -> None:
    """Sample and score all candidates and controls of a table task."""
    params, (task,) = config.stage_arguments("task")

    from faithline import fud_tables, seeding, workspace

    seeding.setup(params.seed)
    fud_tables.judge(workspace.open_workspace(task, params))


if __name__ == "__main__":
    from faithline.errors import run_stage

    run_stage(main)
