"""Remove features in-distribution: `python stages/fud.py TASK METHOD|EXPLAINER|controls` -> data/fud/<task>/<name>/."""

from faithline import config


def main() -> None:
    """Sample the removals of one candidate of an image task, or of all controls."""
    params, (task, candidate) = config.stage_arguments("task", "judged")

    from faithline import fud_sampling, seeding, workspace

    seeding.setup(params.seed)
    fud_sampling.sample(workspace.open_workspace(task, params), candidate)


if __name__ == "__main__":
    from faithline.errors import run_stage

    run_stage(main)
