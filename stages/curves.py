"""Sweep every method's maps: `python stages/curves.py TASK` -> data/curves/<task>/<method>.parquet."""

from faithline import config


def main() -> None:
    """Make the curves of all methods of a task; a method whose curves are known is not swept again."""
    params, (task,) = config.stage_arguments("task")

    from faithline import seeding, sweeping, workspace

    seeding.setup(params.seed)
    sweeping.sweep_methods(workspace.open_workspace(task, params))


if __name__ == "__main__":
    from faithline.errors import run_stage

    run_stage(main)
