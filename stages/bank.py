"""Draw each sample's masks and play them once: `python stages/bank.py TASK` -> data/bank/<task>/<use>/."""

from faithline import config


def main() -> None:
    """Make the four uses of one task's bank."""
    params, (task,) = config.stage_arguments("task")

    import pyarrow as pa
    from torch import Tensor

    from faithline import bank, engine, seeding, workspace

    seeding.setup(params.seed)
    opened = workspace.open_workspace(task, params)
    settings = opened.settings
    for use in bank.USES:
        ids = bank.samples_of(use, opened.samples)

        def work(rows: range, use: bank.Use = use, ids: Tensor = ids) -> pa.Table:
            part = ids[rows.start : rows.stop]
            x, explained = opened.samples.x[part], opened.explained[part]
            return bank.compute(opened.game, x, explained, part, use, settings.bank, seed=params.seed, task=task)

        key = engine.content_key(
            [params.seed, task, use, settings.game.model_dump(), settings.bank.model_dump(), params.baselines.model_dump()],
            [*engine.loaded_code(), workspace.task_folder(task), workspace.target_folder(task)],
        )
        folder = workspace.bank_folder(task, use)
        engine.run_shards(work, len(ids), folder, stage=f"bank-{task}-{use}", key=key, metadata=opened.metadata())


if __name__ == "__main__":
    from faithline.errors import run_stage

    run_stage(main)
