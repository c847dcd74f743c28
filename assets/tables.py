"""The jobs of captured tables, and what the schedules start for each table of `lake.tables`.

What belongs here: jobs, schedules, and the upkeep that makes no asset. Not here: assets.
"""

from collections.abc import Iterator, Sequence

from dagster import (
    AssetSelection,
    DefaultScheduleStatus,
    OpExecutionContext,
    RunConfig,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
    define_asset_job,
    in_process_executor,
    job,
    op,
    schedule,
)

from assets import lake, rows
from assets.automation import TABLE_TAG, UNFINISHED
from assets.lake import TableConfig
from resources import LakeResource, SparkResource
from writetime.lake.spark import in_spark
from writetime.lake.table import open_table
from writetime.maintain import maintain

backfill_job = define_asset_job(
    "backfill",
    AssetSelection.assets(lake.CHANGES),
    description="Bring snapshots of a table into the lake, a range of tokens a run; then run the job `lake`.",
    executor_def=in_process_executor,
)

lake_job = define_asset_job(
    "lake",
    AssetSelection.assets(lake.STATE, lake.VIEW),
    description="Fold what is new of a table into its state, renew its view, and prove it against the database.",
    executor_def=in_process_executor,
)

rows_job = define_asset_job(
    "rows",
    AssetSelection.assets(rows.EVENTS, rows.TOPIC),
    description="Find the row events of a table since the last time, keep them in the lake, publish them to Kafka.",
    executor_def=in_process_executor,
)

verify_job = define_asset_job(
    "verify",
    AssetSelection.checks(lake.rows_are_those_of_the_database),
    description="Prove a table's view against the database.",
    executor_def=in_process_executor,
)


@op(pool="lake_state", description="Folds, compacts and refreshes a table, and deletes what no version needs.")
def maintain_table(context: OpExecutionContext, config: TableConfig, spark: SparkResource, lake: LakeResource) -> None:
    """Do what keeps a table of the lake small and quick to read."""
    done = maintain(lake.settings, open_table(lake.settings, config.table), in_spark(spark.spark_session))
    context.add_output_metadata({**done, "table": config.table})


@job(name="maintain", executor_def=in_process_executor, description="Keep a table of the lake small: on a schedule.")
def maintain_job() -> None:
    """Maintain one table."""
    maintain_table()


def _each_table(job_name: str, steps: Sequence[str], cron: str, description: str) -> ScheduleDefinition:
    """Return a schedule that starts a job for each table of `lake.tables` that has no run of it under way."""

    @schedule(
        name=f"{job_name}_schedule",
        job_name=job_name,
        cron_schedule=cron,
        default_status=DefaultScheduleStatus.STOPPED,
        description=description,
    )
    def each_table(context: ScheduleEvaluationContext, lake: LakeResource) -> Iterator[RunRequest | SkipReason]:
        tables = lake.settings.lake.tables
        if not tables:
            yield SkipReason("`lake.tables` in writetime.toml names no table")
        for table in tables:
            tags = {TABLE_TAG: table}
            if not context.instance.get_runs(RunsFilter(job_name=job_name, tags=tags, statuses=UNFINISHED), limit=1):
                config = RunConfig({step: TableConfig(table=table) for step in steps})
                run_key = f"{table} {context.scheduled_execution_time.isoformat()}"
                yield RunRequest(run_key, run_config=config, tags=tags)

    return each_table


VERIFY_STEP = "lake__view_rows_are_those_of_the_database"

schedules = [
    _each_table(
        "lake",
        ["lake__state", "lake__view", VERIFY_STEP],
        "*/15 * * * *",
        "Brings state and view of each table of `lake.tables` up to date.",
    ),
    _each_table(
        "rows",
        ["rows__events", "rows__topic"],
        "7-59/15 * * * *",
        "Finds and publishes the row events of each table of `lake.tables`.",
    ),
    _each_table("verify", [VERIFY_STEP], "30 3 * * *", "Proves each view against the database, every night."),
    _each_table("maintain", ["maintain_table"], "30 2 * * *", "Keeps each table small, every night."),
]
