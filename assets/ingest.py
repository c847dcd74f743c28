"""Ingest: HTTP events -> Kafka -> the table `user_events`, and the messages that could not be stored.

This module has the assets with their checks and metadata, and the jobs, sensors and schedules that start them.
`writetime.ingest` stores the events.
"""

import time

import dagster as dg
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from writetime.clients import great_expectations
from writetime.clients.consumer_groups import committed_offsets
from writetime.clients.great_expectations import Finding, gxe
from writetime.clients.topic_retention import waiting_too_long
from writetime.core.config import Settings
from writetime.core.counts import pluralize as counted
from writetime.ingest import dead_letter_rows, drain, readback
from writetime.ingest.drain import OffsetRange
from writetime.ingest.writer import WriteOutcome
from writetime_dagster.assets.automation import (
    asset_job,
    assets_that_failed_lately,
    is_under_way,
    on_schedule,
    sensor_of,
)
from writetime_dagster.assets.builders import check_of, observed_asset, written_asset
from writetime_dagster.assets.checks import from_faults, from_findings, from_waiting
from writetime_dagster.assets.naming import arrow_columns
from writetime_dagster.resources import DatabaseResource, KafkaResource, LakeResource, SparkResource

HTTP_EVENTS = dg.AssetKey(["sources", "http_events"])
USER_EVENTS_TOPIC = dg.AssetKey(["sources", "user_events_topic"])
DEAD_LETTER_TOPIC = dg.AssetKey(["ingest", "dead_letter_topic"])
USER_EVENTS = dg.AssetKey(["ingest", "user_events"])
DEAD_LETTERS = dg.AssetKey(["ingest", "dead_letters"])
DEAD_LETTERS_TABLE = "ingest/dead_letters"
DEAD_LETTERS_POOL = "ingest_dead_letters"
SINK_POOL = "ingest_sink"
# The share of dead letters above which the check warns.
USUAL_SHARE_OF_EVENTS = 0.99

http_events = dg.AssetSpec(
    HTTP_EVENTS,
    group_name="sources",
    kinds={"python"},
    description="Events that clients send to `POST /events` of `writetime serve`; 202 means that Kafka has them.",
)


@observed_asset(
    dg.AssetSpec(
        USER_EVENTS_TOPIC,
        deps=[HTTP_EVENTS],
        group_name="sources",
        kinds={"kafka"},
        description="The Kafka topic of acknowledged events, keyed by user id.",
    )
)
def user_events_topic(kafka: KafkaResource) -> dg.ObserveResult:
    """Observe how many messages the topic holds, and how many of them the sink has not stored."""
    ingest = kafka.settings.ingest
    progress = kafka.progress(ingest.topic, ingest.group)
    return dg.ObserveResult(
        metadata={
            "topic": ingest.topic,
            "end_offset": sum(progress.ends.values()),
            "consumer_lag": progress.total_lag,
            "lag_by_partition": dg.MetadataValue.json({str(p): n for p, n in progress.lag.items()}),
        },
    )


@check_of(
    USER_EVENTS_TOPIC,
    "No message has waited for more than half of the topic's retention, after which Kafka deletes it. No "
    "message was deleted before it was stored, and the topic has not lost its end.",
)
def lag_is_far_from_retention(kafka: KafkaResource) -> dg.AssetCheckResult:
    """Count the messages that have waited so long that Kafka will soon delete them; fail if messages were lost."""
    settings = kafka.settings
    topic, group = settings.ingest.topic, settings.ingest.group
    if lost := kafka.progress(topic, group).faults:
        return from_faults(lost, {"faults": len(lost)})
    stored = committed_offsets(settings, topic, group)
    return from_waiting(lambda: waiting_too_long(settings, topic, stored))


@written_asset(
    USER_EVENTS,
    deps=[USER_EVENTS_TOPIC],
    group_name="ingest",
    kinds={"spark", "cassandra"},
    pool=SINK_POOL,
    blocking={
        "all_messages_accounted_for": "Each message is stored, a duplicate or a dead letter. Only then are offsets "
        "committed.",
        "rows_are_in_the_database": "Great Expectations on the stored rows, read back from the database.",
    },
    checks={"messages_are_events": "Great Expectations on the messages taken."},
    metadata={
        "dagster/column_schema": dg.TableSchema(
            [
                dg.TableColumn("user_id", "text", description="Partition key."),
                dg.TableColumn("event_timestamp", "timestamp", description="Clustering key, newest first."),
                dg.TableColumn("event_id", "uuid", description="Clustering key."),
                dg.TableColumn("event_type", "text"),
                dg.TableColumn("payload", "text", description="JSON as the client sent it."),
                dg.TableColumn("origin", "text", description="The Kafka message that stored the row."),
            ]
        )
    },
)
def user_events(
    context: dg.AssetExecutionContext, spark: SparkResource, kafka: KafkaResource, database: DatabaseResource
) -> dg.MaterializeResult:
    """The table `user_events`: every acknowledged event once. A bounded drain of the topic, on Spark.

    Each task takes a Kafka partition and an offset range. Stored rows are read back and checked; only then are the
    offsets committed. After a failure, run it again.
    """
    settings = kafka.settings_with(database)
    session = spark.spark_session
    ranges = drain.plan(settings)
    context.log.info("draining %s", ", ".join(f"{r.partition}@{r.start}-{r.end}" for r in ranges) or "nothing")
    began = time.monotonic()
    receipts = drain.drain(session, settings, ranges)
    seconds = time.monotonic() - began
    rows = readback.read_back(receipts, settings).localCheckpoint(eager=True)
    counted = {row["outcome"]: row["count"] for row in receipts.groupBy("outcome").count().collect()}
    outcomes = {str(o): counted.get(o, 0) for o in WriteOutcome}
    checks = [
        _check_messages(receipts),
        _check_accounting(receipts, drain.count_messages(settings, ranges), ranges),
        _check_rows(receipts, rows),
    ]
    refused = [c.check_name for c in checks if not c.passed and c.severity is dg.AssetCheckSeverity.ERROR]
    if not refused:
        drain.commit(settings, ranges)
    progress = kafka.progress(settings.ingest.topic, settings.ingest.group)
    messages = sum(outcomes.values())
    return dg.MaterializeResult(
        metadata={
            "messages": messages,
            **{f"events_{outcome}": count for outcome, count in outcomes.items()},
            "drain_seconds": round(seconds, 2),
            "rows_per_second": round(messages / seconds, 1),
            "consumer_lag": progress.total_lag,
            "offsets_committed": not refused,
            "mode": settings.ingest.mode,
            "table": f"{settings.cassandra.keyspace}.{settings.ingest.table}",
        },
        check_results=checks,
    )


dead_letter_topic = dg.AssetSpec(
    DEAD_LETTER_TOPIC,
    deps=[USER_EVENTS],
    group_name="ingest",
    kinds={"kafka"},
    description="Messages that could not be stored, whole, with reason and origin as headers. "
    "`writetime dead-letters redrive` sends them again.",
)


@written_asset(
    DEAD_LETTERS,
    deps=[DEAD_LETTER_TOPIC, USER_EVENTS],
    group_name="ingest",
    kinds={"spark", "deltalake"},
    pool=DEAD_LETTERS_POOL,
    metadata=arrow_columns(dead_letter_rows.SCHEMA),
    checks={
        "every_dead_letter_is_explained": "Great Expectations on the new dead letters: each has an origin and a "
        "reason, and occurs once.",
    },
)
def dead_letters(spark: SparkResource, kafka: KafkaResource, lake: LakeResource) -> dg.MaterializeResult:
    """Messages that could not be stored, with reason and origin, as a table of the lake.

    The table records the offset up to which it has the topic, so a repeated run adds no duplicates. If the topic is
    another one, because Kafka lost its data, all of it is new. Without new messages, Spark does not start.
    """
    settings = kafka.settings
    topic_id, table = dead_letter_rows.topic_id(settings), lake.find(DEAD_LETTERS_TABLE)
    ranges = dead_letter_rows.unread(settings, topic_id, table)
    count, reasons, findings = _copy(spark.spark_session, settings, lake, topic_id, ranges) if ranges else (0, [], [])
    lines = ["| reason | messages |", "|---|---|", *(f"| {r['reason']} | {r['count']} |" for r in reasons)]
    now = lake.find(DEAD_LETTERS_TABLE)
    return dg.MaterializeResult(
        metadata={
            "rows_appended": count,
            "dagster/row_count": now.count() if now else 0,
            "reasons": dg.MetadataValue.md("\n".join(lines)),
            "path": dg.MetadataValue.path(lake.path(DEAD_LETTERS_TABLE)),
        },
        check_results=[from_findings("every_dead_letter_is_explained", findings)],
    )


def _copy(
    session: SparkSession, settings: Settings, lake: LakeResource, topic_id: int, ranges: list[OffsetRange]
) -> tuple[int, list[Row], list[Finding]]:
    """Append dead letters to the lake, each partition with its number. Return their count, the most frequent reasons
    with counts, and the findings.
    """
    rows = dead_letter_rows.read(session, settings, topic_id, ranges).localCheckpoint(eager=True)
    findings = great_expectations.validate(
        rows,
        "dead_letters",
        [
            gxe.ExpectColumnValuesToMatchRegex(column="origin", regex=r"^.+/\d+@\d+$"),
            gxe.ExpectColumnValueLengthsToBeBetween(column="reason", min_value=1),
            gxe.ExpectCompoundColumnsToBeUnique(column_list=["partition", "offset"]),
            gxe.ExpectTableRowCountToBeBetween(max_value=sum(r.end - r.start for r in ranges)),
        ],
    )
    for each in ranges:
        own = rows.where(F.col("partition") == each.partition)
        lake.append(own, DEAD_LETTERS_TABLE, dead_letter_rows.app_id(topic_id, each.partition), each.end)
    reasons = rows.groupBy("reason").count().orderBy(F.desc("count")).limit(10).collect()
    return rows.count(), reasons, findings


def _check_messages(receipts: DataFrame) -> dg.AssetCheckResult:
    """Warn when many messages are not events. Then a sender is broken, and not the platform."""
    findings = great_expectations.validate(
        receipts,
        "messages",
        [
            gxe.ExpectColumnValuesToNotBeNull(column=name, mostly=USUAL_SHARE_OF_EVENTS)
            for name in ("event_id", "user_id", "event_type", "event_timestamp")
        ],
    )
    return from_findings("messages_are_events", findings, dg.AssetCheckSeverity.WARN)


def _check_accounting(receipts: DataFrame, messages: int, ranges: list[OffsetRange]) -> dg.AssetCheckResult:
    """Compare the receipts with the topic itself, counted by another consumer."""
    findings = great_expectations.validate(
        receipts,
        "receipts",
        [
            gxe.ExpectTableRowCountToEqual(value=messages),
            gxe.ExpectCompoundColumnsToBeUnique(column_list=["partition", "offset"]),
            gxe.ExpectColumnValuesToBeInSet(column="outcome", value_set=[str(o) for o in WriteOutcome]),
        ],
    )
    check = from_findings("all_messages_accounted_for", findings)
    offsets = sum(r.end - r.start for r in ranges)
    return check._replace(metadata={**check.metadata, "messages_in_topic": messages, "offset_gaps": offsets - messages})


def _check_rows(receipts: DataFrame, rows: DataFrame) -> dg.AssetCheckResult:
    """Compare each stored event with the row that the database returns."""
    key = ["user_id", "event_timestamp", "event_id"]
    # In mode `upsert`, an event that came twice has two receipts and one row.
    stored = receipts.where("outcome = 'stored'").select(*key).dropDuplicates()
    joined = stored.join(rows.withColumn("has_row", F.lit(True)), key, "left").select(*key, "event_type", "has_row")
    findings = great_expectations.validate(
        joined,
        "rows",
        [
            gxe.ExpectColumnValuesToNotBeNull(column="has_row"),
            gxe.ExpectColumnValuesToNotBeNull(column="event_type"),
            gxe.ExpectCompoundColumnsToBeUnique(column_list=key),
        ],
    )
    return from_findings("rows_are_in_the_database", findings)


# --- jobs, sensors and schedules --------------------------------------------------------------------------------------

ingest_job = asset_job(
    "ingest",
    dg.AssetSelection.assets(USER_EVENTS, DEAD_LETTERS) | dg.AssetSelection.checks(lag_is_far_from_retention),
    description="Store the messages of the topic, check and commit them, and copy the dead letters to the lake.",
)
ingest_lag_job = asset_job(
    "ingest_lag",
    dg.AssetSelection.assets(USER_EVENTS_TOPIC),
    description="Observe how many messages are not stored, and check that they are far from the topic's retention.",
)
dead_letters_job = asset_job(
    "dead_letters",
    dg.AssetSelection.assets(DEAD_LETTERS),
    description="Copy the dead letters to the lake, including those of a `writetime sink`.",
)


@sensor_of(
    30,
    "Ingest: starts the job `ingest` when the topic has messages that are not stored, or has lost some. Does nothing "
    "while a run of it is under way, or while a `writetime sink` stores them.",
    fault="the lag cannot be read",
    job=ingest_job.name,
)
def user_events_lag(context: dg.SensorEvaluationContext, kafka: KafkaResource) -> dg.RunRequest | dg.SkipReason:
    """Request a run while there is lag or messages were lost. This includes the rest of a run that stored only a part.
    After a run that failed to store events, wait. Leave out the asset of dead letters if it failed recently.
    """
    if is_under_way(context.instance, ingest_job.name):
        return dg.SkipReason("a run of the job `ingest` is under way")
    failed = assets_that_failed_lately(context.instance, ingest_job.name)
    if USER_EVENTS in failed:
        return dg.SkipReason(
            "storing events failed in a run of the job `ingest`; it is retried 15 minutes after its end"
        )
    settings = kafka.settings.ingest
    progress = kafka.progress(settings.topic, settings.group)
    # A run reports messages that were lost.
    if progress.total_lag == 0 and not progress.faults:
        return dg.SkipReason(f"{settings.topic} has no messages to store")
    if kafka.group_is_live(settings.group):
        messages = counted(progress.total_lag, "message")
        return dg.SkipReason(f"a `writetime sink` is storing the {messages} of {settings.topic}")
    # A fault of the dead letters' table must not delay events.
    keys = [USER_EVENTS] if DEAD_LETTERS in failed else None
    return dg.RunRequest(asset_selection=keys, tags={"writetime/lag": str(progress.total_lag)})


definitions = dg.Definitions(
    assets=[http_events, user_events_topic, user_events, dead_letter_topic, dead_letters],
    asset_checks=[lag_is_far_from_retention],
    jobs=[ingest_job, ingest_lag_job, dead_letters_job],
    sensors=[user_events_lag],
    schedules=[
        on_schedule(
            dead_letters_job.name,
            "5-59/15 * * * *",
            "Ingest: copies new dead letters to the lake, for a `writetime sink`, too.",
        )
    ],
)
