"""The job `clean_up` and its schedule: they clean the lake's tables of dead letters, completed items and replay queues.

The job `maintain` cleans the followed tables (`writetime_dagster.assets.table_jobs`).
"""

from collections.abc import Sequence

import dagster as dg

from writetime_dagster.assets.automation import on_schedule, step_job
from writetime_dagster.assets.failures import retried
from writetime_dagster.assets.ingest import DEAD_LETTERS_POOL, DEAD_LETTERS_TABLE
from writetime_dagster.assets.replay import name_of, table_of
from writetime_dagster.assets.workqueue import COMPLETED_POOL, COMPLETED_TABLE
from writetime_dagster.resources import LakeResource


def definitions(queues: Sequence[str]) -> dg.Definitions:
    """Return the job that cleans these tables up every night. `queues` are the replay queues."""
    description = "All stages: cleans up dead letters, completed items and replay queues in the lake, every night."
    return dg.Definitions(jobs=[clean_up_job(queues)], schedules=[on_schedule("clean_up", "0 3 * * *", description)])


def clean_up_job(queues: Sequence[str]) -> dg.JobDefinition:
    """Return the job. Each table has its own step, so a failure of one does not stop the others."""
    return step_job(
        "clean_up",
        "Merge small files of dead letters, completed items and replay queues in the lake, and delete files that no "
        "version needs.",
        [
            _clean_up(DEAD_LETTERS_TABLE, DEAD_LETTERS_POOL),
            _clean_up(COMPLETED_TABLE, COMPLETED_POOL),
            *(_clean_up(table_of(queue), name_of(queue)) for queue in queues),
        ],
    )


def _clean_up(table: str, pool: str) -> dg.OpDefinition:
    """Return the step for a table. It shares the pool of the asset that writes the table, so the two never conflict."""

    @dg.op(name=f"clean_up_{pool}", pool=pool, description=f"Cleans up the table `{table}` of the lake.")
    @retried
    def clean(context: dg.OpExecutionContext, lake: LakeResource) -> None:
        context.add_output_metadata(lake.clean_up(table))

    return clean
