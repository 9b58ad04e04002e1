"""Choose the maps that teach: `python stages/curate.py TASK` -> data/curated/<task>/, reports/curate/<task>.json."""

from faithline import config


def main() -> None:
    """Curate one task."""
    params, (task,) = config.stage_arguments("task")

    from faithline import curating, seeding, workspace

    seeding.setup(params.seed)
    curating.curate(workspace.open_workspace(task, params))


if __name__ == "__main__":
    from faithline.errors import run_stage

    run_stage(main)
