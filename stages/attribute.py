"""Explain samples with one prior method: `python stages/attribute.py TASK METHOD` -> data/attributions/<task>/<method>/."""

from faithline import config


def main() -> None:
    """Attribute the supervised and test samples (the test samples only, where the method does not supervise).

    A method that does not fit the target is no fault: what is published then says so, and later stages leave it out.
    """
    params, (task, method) = config.stage_arguments("task", "method")

    from faithline import attributing, engine, maps, seeding, workspace
    from faithline.attributions.query import DoesNotFit

    seeding.setup(params.seed)
    opened = workspace.open_workspace(task, params)
    settings = getattr(params.modality(task).methods, method)
    job = attributing.Job(opened, method, settings)
    key = engine.content_key(
        [params.seed, task, method, settings.model_dump(), opened.settings.game.model_dump(), params.baselines.model_dump()],
        [
            *engine.loaded_code(),
            workspace.task_folder(task),
            workspace.target_folder(task),
            *(workspace.bank_folder(task, use) for use in job.uses()),
        ],
    )
    folder = workspace.attribution_folder(task, method)
    stage = f"attribute-{task}-{method}"
    try:
        engine.run_shards(job.rows, len(job.sample_ids), folder, stage=stage, key=key, metadata=job.metadata())
    except DoesNotFit as misfit:
        maps.write_misfit(folder, str(misfit), job.metadata())


if __name__ == "__main__":
    from faithline.errors import run_stage

    run_stage(main)
