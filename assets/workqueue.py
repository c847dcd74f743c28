"""The work queue: items in the database, processed by workers; completed items go to the lake.

This module has the assets with their checks and metadata. `writetime.workqueue` processes the items.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import dagster as dg
import pyarrow as pa
from pydantic import Field
from pyspark.sql import functions as F

from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.core.handlers import load_handler
from writetime.workqueue import cancel, cancel_all, completed, pause, redrive, resume, spark_workers
from writetime.workqueue.inspect import inspecting, worker_faults
from writetime.workqueue.items import ItemPartition
from writetime_dagster.assets.automation import asset_job, is_under_way, on_schedule, sensor_of, step_job
from writetime_dagster.assets.builders import check_of, observed_asset, written_asset
from writetime_dagster.assets.checks import from_faults
from writetime_dagster.assets.cursors import of_cursor
from writetime_dagster.assets.failures import for_each_queue, retried
from writetime_dagster.assets.naming import arrow_columns
from writetime_dagster.resources import DatabaseResource, LakeResource, SparkResource

EVENT_QUEUE = dg.AssetKey(["workqueue", "event_queue"])
COMPLETED = dg.AssetKey(["workqueue", "completed_events"])
COMPLETED_TABLE = "workqueue/completed_events"
COMPLETED_POOL = "completed_events"
_SHOWN = 20
# How often stuck work is reported again.
_AGAIN_SECONDS = 3600.0


@observed_asset(
    dg.AssetSpec(
        EVENT_QUEUE,
        group_name="workqueue",
        kinds={"cassandra"},
        description="Work items of all queues, enqueued by `POST /queues/<queue>/items` or `writetime.workqueue`.",
    )
)
def event_queue(database: DatabaseResource) -> dg.ObserveResult:
    """Observe the depth of the queues, the age of their oldest item, and their dead items."""
    with inspecting(database.settings) as inspector:
        found, faults = for_each_queue(inspector.queues(), inspector.state)
    states = list(found.values())
    return dg.ObserveResult(
        metadata={
            "queues": len(states),
            "queues_failed": dg.MetadataValue.json(faults),
            "depth": sum(s.depth for s in states),
            "processing": sum(s.processing for s in states),
            "waiting_for_another_attempt": sum(s.retry for s in states),
            "oldest_seconds": max((s.oldest_seconds for s in states), default=0.0),
            "most_attempts": max((s.most_attempts for s in states), default=0),
            "dead_letters": sum(s.dead_letters - s.redriven for s in states),
            "workers": len({w for s in states for w in s.workers}),
            "depth_by_queue": dg.MetadataValue.json({s.queue: s.depth for s in states}),
        },
    )


@check_of(
    EVENT_QUEUE,
    "Queried by CQL: each item is open, completed, cancelled, or dead with a dead letter; no closed bucket has "
    "unfinished items.",
)
def no_item_is_lost(database: DatabaseResource) -> dg.AssetCheckResult:
    """Compare all items with all states."""
    with inspecting(database.settings) as inspector:
        found, faults = for_each_queue(inspector.queues(), inspector.account)
    accounts = found.values()
    lost = sum(a.lost + a.dead_without_letter for a in accounts)
    return from_faults(
        [*([f"{pluralize(lost, 'item', ',')} lost"] if lost else []), *_failed(faults)],
        {
            "items": sum(a.items for a in accounts),
            "completed": sum(a.completed for a in accounts),
            "dead": sum(a.dead for a in accounts),
            "cancelled": sum(a.cancelled for a in accounts),
            "open": sum(a.open for a in accounts),
            "lost": lost,
            "queues_failed": dg.MetadataValue.json(faults),
        },
    )


@check_of(
    EVENT_QUEUE,
    "No item waits for longer than `workqueue.stuck_seconds`, no queue has more unfinished items than its "
    "`max_depth`, and no worker has reported a fault within the last hour.",
)
def no_work_is_stuck(database: DatabaseResource) -> dg.AssetCheckResult:
    """Warn of queues whose oldest unfinished item is too old, of queues with too many items, and of worker faults."""
    old, deep, faults = _stuck(database)
    of_workers = [f"queue {f.queue}, {f.place}: {f.reason}" for f in worker_faults(database.settings)]
    return from_faults(
        [
            *(f"queue {name}: an item has waited for {age} s" for name, age in old.items()),
            *(f"queue {name}: {pluralize(depth, 'item')} not finished" for name, depth in deep.items()),
            *_failed(faults),
            *of_workers,
        ],
        {
            "worker_faults": len(of_workers),
            "stuck_queues": len(old),
            "oldest_seconds_by_queue": dg.MetadataValue.json(old),
            "deep_queues": len(deep),
            "depth_by_queue": dg.MetadataValue.json(deep),
        },
        severity=dg.AssetCheckSeverity.WARN,
    )


@written_asset(
    COMPLETED,
    deps=[EVENT_QUEUE],
    group_name="workqueue",
    kinds={"spark", "deltalake"},
    pool=COMPLETED_POOL,
    metadata=arrow_columns(completed.SCHEMA.append(pa.field("read_at", pa.int64()))),
    checks={
        "every_queue_is_read": "The completed items of each queue could be read. Those of other queues are in the lake."
    },
)
def completed_events(spark: SparkResource, database: DatabaseResource, lake: LakeResource) -> dg.MaterializeResult:
    """Completed items with their results, as a table of the lake.

    A run rewrites the buckets that are open, or were closed since they were last written. So a repeated run adds no
    duplicates, and the cost grows with the new items. Spark starts only if there are such buckets.
    """
    written = _written(lake)
    places: list[ItemPartition] = []
    with inspecting(database.settings) as inspector:
        now = inspector.now()
        # No item is completed before its bucket has begun.
        found, faults = for_each_queue(inspector.queues(), lambda name: inspector.buckets(name, now))
    for buckets in found.values():
        places += [at for at, closed in buckets.items() if closed is None or written.get(at, 0) <= closed]
    count = 0
    unread: dict[ItemPartition, str] = {}
    if places:
        read = completed.read(spark.spark_session, database.settings, places).persist()
        unread = completed.faults(read)
        rows = completed.sound(read).withColumn("read_at", F.lit(now).cast("long"))
        count = rows.count()
        lake.replace_partitions(rows, COMPLETED_TABLE, completed.PARTITION)
        read.unpersist()
    table = lake.find(COMPLETED_TABLE)
    return dg.MaterializeResult(
        metadata={
            "queues_failed": dg.MetadataValue.json(faults),
            "buckets_written": len(places) - len(unread),
            "buckets_failed": len(unread),
            "first_buckets_failed": dg.MetadataValue.json(
                [{**place._asdict(), "reason": reason} for place, reason in [*unread.items()][:_SHOWN]]
            ),
            "rows_written": count,
            "dagster/row_count": table.count() if table else 0,
            "path": dg.MetadataValue.path(lake.path(COMPLETED_TABLE)),
        },
        check_results=[
            from_faults(
                [*_failed(faults), *_unread(unread)],
                {"queues_failed": dg.MetadataValue.json(faults), "buckets_failed": len(unread)},
            )
        ],
    )


@check_of(
    COMPLETED,
    "Queried by CQL: the lake has all completed items of each bucket that was read after it closed, and "
    "no extra items of other buckets.",
)
def lake_has_what_is_completed(database: DatabaseResource, lake: LakeResource) -> dg.AssetCheckResult:
    """Compare the table of the lake with all states."""
    have = completed.in_lake(lake.settings, COMPLETED_TABLE)
    with inspecting(database.settings) as inspector:
        answers, faults = for_each_queue(inspector.queues(), lambda name: inspector.compare(name, have))
    found = list(answers.values())
    differing = [place for brought in found for place in brought.differing]
    return from_faults(
        [
            *(
                f"the lake and bucket {place.bucket} of shard {place.shard} of queue {place.queue} differ"
                for place in differing[:_SHOWN]
            ),
            *_failed(faults),
        ],
        {
            "completed": sum(brought.completed for brought in found),
            "in_the_lake": sum(brought.in_lake for brought in found),
            "not_in_the_lake_yet": sum(brought.waiting for brought in found),
            "buckets_differing": len(differing),
            "queues_failed": dg.MetadataValue.json(faults),
            "first_buckets_differing": dg.MetadataValue.json([place._asdict() for place in differing[:_SHOWN]]),
        },
    )


class DrainConfig(dg.Config):
    """The queue to process."""

    queue: str = Field(description="The queue, as `writetime queue inspect` lists it.")
    handler: str = Field(description="Its handler, as module:function; Spark's Python must find the module.")
    tasks: int = Field(default=2, ge=1, description="Spark tasks, each a worker that owns shards.")


@dg.op
@retried
def drain_queue_op(
    context: dg.OpExecutionContext, config: DrainConfig, spark: SparkResource, database: DatabaseResource
) -> None:
    """Process the items of a queue on Spark."""
    handler = load_handler(config.handler)
    outcomes = spark_workers.drain(spark.spark_session, database.settings, config.queue, handler, config.tasks)
    context.add_output_metadata({"queue": config.queue, **dict(outcomes)})


class PauseConfig(dg.Config):
    """Start no more items."""

    action: Literal["pause"] = "pause"
    key: str | None = Field(default=None, description="Only the items of this key.")

    def apply(self, settings: Settings, queue: str) -> dict[str, Any]:
        """Carry it out."""
        return {"changed": pause(settings, queue, self.key)}


class ResumeConfig(dg.Config):
    """Start items again."""

    action: Literal["resume"] = "resume"
    key: str | None = Field(default=None, description="Only the items of this key.")

    def apply(self, settings: Settings, queue: str) -> dict[str, Any]:
        """Carry it out."""
        return {"changed": resume(settings, queue, self.key)}


class CancelItemConfig(dg.Config):
    """Cancel an item."""

    action: Literal["cancel_item"] = "cancel_item"
    item_id: str = Field(description="The item's id, a UUID.")

    def apply(self, settings: Settings, queue: str) -> dict[str, Any]:
        """Carry it out."""
        return {"status": cancel(settings, queue, UUID(self.item_id)).status}


class CancelItemsConfig(dg.Config):
    """Cancel all unfinished items that fit."""

    action: Literal["cancel_items"] = "cancel_items"
    key: str | None = Field(default=None, description="Only the items of this key.")
    older_than_seconds: float | None = Field(default=None, ge=0, description="Only items that are so many seconds old.")
    all_items: bool = Field(default=False, description="Needed to cancel items without one of the conditions.")

    def apply(self, settings: Settings, queue: str) -> dict[str, Any]:
        """Carry it out. Raises `WritetimeError` without a condition."""
        if self.key is None and self.older_than_seconds is None and not self.all_items:
            raise WritetimeError("name the items to cancel: key, older_than_seconds, or all_items: true")
        return {"cancelling": cancel_all(settings, queue, key=self.key, older_than_seconds=self.older_than_seconds)}


class RedriveConfig(dg.Config):
    """Enqueue the dead letters that were not redriven yet once more."""

    action: Literal["redrive"] = "redrive"
    key: str | None = Field(default=None, description="Only those of this key.")
    error: str | None = Field(default=None, description="Only those whose error contains this text.")

    def apply(self, settings: Settings, queue: str) -> dict[str, Any]:
        """Carry it out."""
        return {"redriven": redrive(settings, queue, key=self.key, error=self.error)}


class ControlConfig(dg.Config):
    """The queue, and what to do with it."""

    queue: str = Field(description="The queue, as `writetime queue inspect` lists it.")
    control: PauseConfig | ResumeConfig | CancelItemConfig | CancelItemsConfig | RedriveConfig = Field(
        discriminator="action", description="One action with its conditions."
    )


@dg.op
@retried
def control_queue_op(context: dg.OpExecutionContext, config: ControlConfig, database: DatabaseResource) -> None:
    """Pause or resume a queue or a key, cancel items, or redrive dead letters, as `writetime queue` does."""
    found = config.control.apply(database.settings, config.queue)
    context.add_output_metadata({"queue": config.queue, "action": config.control.action, **found})


queue_health_job = asset_job(
    "queue_health",
    dg.AssetSelection.assets(EVENT_QUEUE) - dg.AssetSelection.checks(no_item_is_lost),
    description="Observe the depth and age of the queues, and check that no work is stuck. Reads unfinished items.",
)


@dataclass(frozen=True)
class _Reported:
    """The queues whose work was stuck at the last run, by reason, and when it was requested."""

    stuck: list[list[str]]
    at: float


@sensor_of(
    60,
    "Work queues: starts the job `queue_health`, whose check then warns, if an item waits too long or too many items "
    "wait; again when other queues are stuck, and once an hour.",
    fault="the queues cannot be read",
    job=queue_health_job.name,
)
def stuck_work(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.RunRequest | dg.SkipReason:
    """Request a run when the stuck work is not that of the last run, and once per hour while work is stuck."""
    if is_under_way(context.instance, queue_health_job.name):
        return dg.SkipReason("a run of the job `queue_health` is under way")
    old, deep, faults = _stuck(database)
    if not old and not deep and not faults:
        context.update_cursor("")
        return dg.SkipReason("no work is stuck")
    stuck, names = [sorted(old), sorted(deep), sorted(faults)], ", ".join(sorted({*old, *deep, *faults}))
    last = of_cursor(context.cursor, _Reported)
    if last and last.stuck == stuck and 0 <= time.time() - last.at < _AGAIN_SECONDS:
        return dg.SkipReason(f"a run has reported that work of {names} is stuck; the next one starts an hour after it")
    context.update_cursor(json.dumps({"stuck": stuck, "at": time.time()}))
    return dg.RunRequest(tags={"writetime/stuck": names[:200]})


def _written(lake: LakeResource) -> dict[ItemPartition, int]:
    """Return the time (milliseconds) at which each bucket in the lake was read. The table's log has the least `read_at`
    of each file, so no rows are read.
    """
    if (table := lake.find(COMPLETED_TABLE)) is None:
        return {}
    files = pa.table(table.get_add_actions(flatten=True))
    found: dict[ItemPartition, int] = {}
    for file in files.to_pylist():
        place = ItemPartition(*(file[f"partition.{name}"] for name in ItemPartition._fields))
        # A file without statistics counts as old, so its bucket is written again.
        read_at = file["min.read_at"] or 0
        found[place] = min(found.get(place, read_at), read_at)
    return found


def _unread(places: Mapping[ItemPartition, str]) -> list[str]:
    """Return one sentence per queue with buckets that cannot be read. It names the first such bucket."""
    found: dict[str, list[str]] = {}
    for place, reason in places.items():
        found.setdefault(place.queue, []).append(f"bucket {place.bucket} of shard {place.shard}: {reason}")
    return [
        f"queue {name}: {len(some)} of its buckets cannot be read, such as {some[0]}" for name, some in found.items()
    ]


def _failed(faults: Mapping[str, str]) -> list[str]:
    return [f"queue {name} cannot be read: {reason}" for name, reason in faults.items()]


def _stuck(database: DatabaseResource) -> tuple[dict[str, float], dict[str, int], dict[str, str]]:
    """Return the queues with an item that is too old and its age, those with too many items and their number, and those
    with faults and the reasons.
    """
    own = database.settings.workqueue
    bounds = {name: queue.max_depth for name, queue in own.queues.items() if queue.max_depth is not None}
    with inspecting(database.settings) as inspector:
        ages, faults = for_each_queue(inspector.queues(), inspector.oldest_seconds)
        # Items that become due much later are never stuck, but they count for the depth.
        depths, more = for_each_queue(
            [name for name in ages if name in bounds], lambda name: inspector.unfinished(name).depth
        )
    return (
        {name: round(age, 1) for name, age in ages.items() if age > own.stuck_seconds},
        {name: depth for name, depth in depths.items() if depth > bounds[name]},
        faults | more,
    )


completed_events_job = asset_job(
    "completed_events",
    dg.AssetSelection.assets(COMPLETED) - dg.AssetSelection.checks(lake_has_what_is_completed),
    description="Copy completed items to the lake.",
)

definitions = dg.Definitions(
    assets=[event_queue, completed_events],
    asset_checks=[no_item_is_lost, no_work_is_stuck, lake_has_what_is_completed],
    jobs=[
        completed_events_job,
        queue_health_job,
        asset_job(
            "queue_audit",
            dg.AssetSelection.checks(no_item_is_lost, lake_has_what_is_completed),
            description="Check that no item of any queue is lost, and that the lake has all completed items. Reads all "
            "items.",
        ),
        step_job(
            "drain_queue",
            "Process the items of a queue: bounded, on Spark, tasks own shards. Name queue and handler in the "
            "launchpad.",
            [drain_queue_op],
        ),
        step_job(
            "control_queue",
            "Pause or resume a queue or a key, cancel items, or redrive dead letters. Name the queue and one action in "
            "the launchpad.",
            [control_queue_op],
        ),
    ],
    sensors=[stuck_work],
    schedules=[
        on_schedule(
            completed_events_job.name, "25 * * * *", "Work queues: copies completed items to the lake, every hour."
        )
    ],
)
