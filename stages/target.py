"""Train the model to be explained, or take it as it is: `python stages/target.py TASK` -> models/target/<task>/."""

from faithline import config


def main() -> None:
    """Build, train and save one task's target with its predictions."""
    params, (task,) = config.stage_arguments("task")

    from faithline import dataset, seeding, targets

    seeding.setup(params.seed)
    settings = params.tasks[task]
    samples = dataset.read(f"data/tasks/{task}")
    model = targets.build_model(settings, samples, params.seed)
    history = targets.train_target(model, samples, settings.target, params.seed)
    targets.save_target(f"models/target/{task}", model, samples, settings, params.seed, history)


if __name__ == "__main__":
    from faithline.errors import run_stage

    run_stage(main)
