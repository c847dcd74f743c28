"""Capture: the nodes' commit logs -> the topics `changes.<keyspace>.<table>` -> the lake's changes.

What belongs here: the asset that lands changes, what starts it, and what the agents say of themselves. Not here: the
agents, which are services of the nodes (`writetime agent`), and how landing works (`writetime.capture.landing`).
"""

import time
from collections.abc import Iterator

from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetKey,
    AssetSelection,
    AssetSpec,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    MaterializeResult,
    MetadataValue,
    ObserveResult,
    RunConfig,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    SensorEvaluationContext,
    SkipReason,
    asset,
    define_asset_job,
    in_process_executor,
    multi_observable_source_asset,
    sensor,
)

from assets.automation import TABLE_TAG, UNFINISHED
from assets.lake import LANDED, TableConfig
from resources import KafkaResource, LakeResource, SparkResource
from writetime.capture.landing import Landing, captured_tables, not_landed, watermarks_not_landed
from writetime.capture.metrics import summary
from writetime.capture.watermarks import WatermarkTopic, statuses
from writetime.errors import WritetimeError
from writetime.lake.horizon import captured_until
from writetime.lake.spark import in_spark
from writetime.lake.table import open_table

COMMIT_LOGS = AssetKey(["sources", "commit_logs"])
TOPICS = AssetKey(["capture", "changes_topics"])

commit_logs = AssetSpec(
    COMMIT_LOGS,
    group_name="sources",
    kinds={"cassandra"},
    description="The commit logs of the nodes of Cassandra, with the writes to tables with `cdc = true`.",
)


@multi_observable_source_asset(
    specs=[
        AssetSpec(
            TOPICS,
            deps=[COMMIT_LOGS],
            group_name="capture",
            kinds={"kafka"},
            description="What the agents publish: the changes of each captured table, in `changes.<keyspace>.<table>`.",
        )
    ]
)
def changes_topics(kafka: KafkaResource) -> ObserveResult:
    """Observe the agents by what they say in Kafka: the numbers of their metrics and of `writetime status`."""
    found = statuses(kafka.settings)
    numbers = summary(found.values())
    return ObserveResult(
        asset_key=TOPICS,
        metadata={
            **{name: round(number, 3) for name, number in numbers.items()},
            "held_by": MetadataValue.json({s: f["held_by"] for s, f in found.items() if f.get("held_by")}),
            "by_agent": MetadataValue.json({source: dict(status) for source, status in found.items()}),
        },
    )


@asset(
    key=LANDED,
    deps=[TOPICS],
    group_name="capture",
    kinds={"spark", "deltalake"},
    pool="capture_landing",
    check_specs=[
        AssetCheckSpec(
            "lake_is_fresh",
            asset=LANDED,
            description="All that every node, or the table's CDC log, had until `capture.stale_seconds` ago is in the "
            "lake. If not, an agent is behind or down, has a segment set aside or a gap, or its node is gone and was "
            "not retired.",
        )
    ],
)
def landed_changes(
    config: TableConfig, spark: SparkResource, lake: LakeResource, kafka: KafkaResource
) -> MaterializeResult:
    """The captured changes of a table, from Kafka in the lake's `changes`, each message once.

    A run lands what the topic holds when it starts; one that fails is simply run again.
    """
    began = time.monotonic()
    landed = Landing(kafka.settings, config.table).drain(in_spark(spark.spark_session))
    seconds = time.monotonic() - began
    changes = open_table(lake.settings, config.table).changes.load()
    files = changes.files
    until = captured_until(changes) / 1_000_000
    age = time.time() - until
    freshness = {"captured_until": MetadataValue.timestamp(until), "age_seconds": round(age, 1)} if until else {}
    return MaterializeResult(
        metadata={
            "changes_landed": landed,
            "changes_not_landed": not_landed(kafka.settings, config.table),
            "changes": sum(file.rows for file in files),
            "bytes": sum(file.size for file in files),
            "files": len(files),
            "landing_seconds": round(seconds, 2),
            "table": config.table,
            **freshness,
        },
        check_results=[
            AssetCheckResult(
                check_name="lake_is_fresh",
                passed=bool(until) and age <= lake.settings.capture.stale_seconds,
                severity=AssetCheckSeverity.WARN,
                metadata={"table": config.table, **freshness},
            )
        ],
    )


land_job = define_asset_job(
    "land",
    AssetSelection.assets(LANDED),
    description="Bring the captured changes of a table from Kafka into the lake.",
    executor_def=in_process_executor,
)

agents_job = define_asset_job(
    "agents",
    AssetSelection.assets(TOPICS),
    description="Observe how far the agents are.",
    executor_def=in_process_executor,
)

agents_schedule = ScheduleDefinition(
    job=agents_job,
    cron_schedule="*/5 * * * *",
    default_status=DefaultScheduleStatus.STOPPED,
    description="Observes the agents every five minutes.",
)


@sensor(
    job=land_job,
    minimum_interval_seconds=30,
    default_status=DefaultSensorStatus.STOPPED,
    description="Starts the job `land` for each table whose topic has changes that are not in the lake, and at times "
    "for one without, so that the lake knows that there are none. Not needed where `writetime land --follow` runs.",
)
def captured_changes(context: SensorEvaluationContext, kafka: KafkaResource) -> Iterator[RunRequest | SkipReason]:
    """Ask for a run for each table that is behind, unless one is under way."""
    asked = 0
    settings = kafka.settings
    try:
        sources = WatermarkTopic(settings).read()
        for table in captured_tables(settings):
            tags = {TABLE_TAG: table}
            filters = RunsFilter(job_name=land_job.name, tags=tags, statuses=UNFINISHED)
            if context.instance.get_runs(filters, limit=1):
                continue
            behind = not_landed(settings, table)
            if behind or watermarks_not_landed(settings, table, sources) > settings.capture.stale_seconds / 2:
                config = RunConfig({"capture__landed_changes": TableConfig(table=table)})
                yield RunRequest(run_config=config, tags=tags | {"writetime/lag": str(behind)})
                asked += 1
    except WritetimeError as e:
        yield SkipReason(f"the lag cannot be seen: {e}")
        return
    if not asked:
        yield SkipReason("no captured table has changes to land")
