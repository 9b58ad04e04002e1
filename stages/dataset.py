"""Freeze one task's samples, splits and features: `python stages/dataset.py TASK` -> data/tasks/<task>/."""

from faithline import config


def main() -> None:
    """Make the samples with the task's own file, check them and write them."""
    params, (task,) = config.stage_arguments("task")

    from faithline import augmentation, dataset, seeding, targets

    seeding.setup(params.seed)
    settings = params.tasks[task]
    samples = targets.load_samples(settings, params.seed)
    dataset.freeze(augmentation.augment(samples, settings.dataset.augmented, params.seed), f"data/tasks/{task}")


if __name__ == "__main__":
    from faithline.errors import run_stage

    run_stage(main)
