"""The job `clean_up` and its schedule: they clean the lake's tables of dead letters, completed items and replay queues.

The job `maintain` cleans the followed tables (`writetime_dagster.assets.table_jobs`).
"""

from collections.abc import Sequence

from dagster import Definitions, JobDefinition, OpDefinition, OpExecutionContext, in_process_executor, job, op

from writetime_dagster.assets.automation import on_schedule
from writetime_dagster.assets.failures import retry_if_transient
from writetime_dagster.assets.ingest import DEAD_LETTERS_POOL, DEAD_LETTERS_TABLE
from writetime_dagster.assets.replay import name_of, table_of
from writetime_dagster.assets.workqueue import COMPLETED_POOL, COMPLETED_TABLE
from writetime_dagster.resources import LakeResource


def definitions(queues: Sequence[str]) -> Definitions:
    """Return the job that cleans these tables up every night. `queues` are the replay queues."""
    clean_up = clean_up_job(queues)
    return Definitions(
        jobs=[clean_up],
        schedules=[
            on_schedule(
                clean_up.name,
                "0 3 * * *",
                "All stages: cleans up dead letters, completed items and replay queues in the lake, every night.",
            )
        ],
    )


def clean_up_job(queues: Sequence[str]) -> JobDefinition:
    """Return the job. Each table has its own step, so a failure of one does not stop the others."""
    steps = [
        _clean_up(DEAD_LETTERS_TABLE, DEAD_LETTERS_POOL),
        _clean_up(COMPLETED_TABLE, COMPLETED_POOL),
        *(_clean_up(table_of(queue), name_of(queue)) for queue in queues),
    ]

    @job(
        name="clean_up",
        executor_def=in_process_executor,
        description="Merge small files of dead letters, completed items and replay queues in the lake, and delete "
        "files that no version needs.",
    )
    def clean_up() -> None:
        for step in steps:
            step()

    return clean_up


def _clean_up(table: str, pool: str) -> OpDefinition:
    """Return the step for a table. It shares the pool of the asset that writes the table, so the two never conflict."""

    @op(name=f"clean_up_{pool}", pool=pool, description=f"Cleans up the table `{table}` of the lake.")
    @retry_if_transient()
    def clean(context: OpExecutionContext, lake: LakeResource) -> None:
        context.add_output_metadata(lake.clean_up(table))

    return clean
