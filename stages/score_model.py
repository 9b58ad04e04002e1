"""Train (or convert) the score model of an image task: `python stages/score_model.py TASK` -> models/score_models/<task>/."""

from faithline import config


def main() -> None:
    """Make one score model, with the second classifier beside it."""
    params, (task,) = config.stage_arguments("task")

    from faithline import engine, score_models, seeding, workspace

    seeding.setup(params.seed)
    score_models.make(workspace.open_workspace(task, params))
    engine.forget(f"score_model-{task}")


if __name__ == "__main__":
    from faithline.errors import run_stage

    run_stage(main)
