"""Replay queues: batches in the database -> rows in the lake, one partition of the asset per batch.

This module has the assets of the queues that `replay.queues` names, their checks, and the sensors that start their
runs. `writetime.replay` publishes and reads the batches.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile

import dagster as dg

from writetime.clients import great_expectations
from writetime.clients.great_expectations import gxe
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.replay import advance, check, extent, lag, sealed, trim
from writetime.replay.batch_rows import SCHEMA, read
from writetime_dagster.assets.automation import (
    PAUSE_SECONDS,
    asset_job,
    failed_lately,
    is_under_way,
    on_schedule,
    sensor_of,
    step_job,
)
from writetime_dagster.assets.builders import check_of, observed_asset, written_asset
from writetime_dagster.assets.checks import from_faults, from_findings
from writetime_dagster.assets.copied_batches import CopiedBatches, all_copied
from writetime_dagster.assets.failures import ToCorrect, for_each_queue, retried
from writetime_dagster.assets.naming import arrow_columns
from writetime_dagster.resources import DatabaseResource, LakeResource, SparkResource

# The most partitions that one tick of a sensor adds.
NEW_PARTITIONS = 5_000
_FAULTS_SHOWN = 20
# The pause after a batch has failed alone.
_ALONE_SECONDS = 3600.0
# The number of failed runs that the sensor considers.
_FAILED_RUNS = 100
# The name of the lake among the processors of each queue.
PROCESSOR = "lake"
# Dagster's tags of a run over a range of partitions.
RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"


def source_key(queue: str) -> dg.AssetKey:
    """Return the key of the queue in the database."""
    return dg.AssetKey(["queues", queue])


def batches_key(queue: str) -> dg.AssetKey:
    """Return the key of its batches in the lake."""
    return dg.AssetKey(["replay", queue])


def table_of(queue: str) -> str:
    """Return the table of the lake that holds the items of a queue."""
    return f"replay/{queue}"


def partitions_of(queue: str) -> dg.DynamicPartitionsDefinition:
    """Return the partitions, one per batch, named by its number. The sensor adds them in order."""
    return dg.DynamicPartitionsDefinition(name=f"replay/{queue}")


def name_of(queue: str) -> str:
    """Return the name of a queue's job, sensor and pool. Dagster allows no '-' and '.' in these."""
    return f"batches_{re.sub('[.-]', '_', queue)}"


def queue_in_database(queue: str, upstream: dg.AssetKey | None = None) -> dg.AssetsDefinition:
    """Return the asset that observes the queue; `upstream` is the asset that publishes to it, if there is one."""

    @observed_asset(
        dg.AssetSpec(
            source_key(queue),
            deps=[upstream] if upstream else [],
            group_name="replay",
            kinds={"cassandra"},
            description="Batches that `writetime.replay` published, and the progress of the queue's processors.",
        ),
        name=f"{name_of(queue)}_lag",
    )
    def observe(database: DatabaseResource) -> dg.ObserveResult:
        """Observe the newest batch, and how far each processor is behind."""
        processors = lag(database.settings, queue)
        metadata: dict[str, int | float] = {
            "newest_batch": extent(database.settings, queue)[1],
            "processors": len(processors),
            "lag_batches": max((p.batches for p in processors), default=0),
            "lag_seconds": max((p.seconds for p in processors), default=0.0),
        }
        for p in processors:
            metadata |= {f"lag_batches/{p.processor}": p.batches, f"lag_seconds/{p.processor}": p.seconds}
        return dg.ObserveResult(metadata=metadata)

    return observe


def batches_are_complete(queue: str) -> dg.AssetChecksDefinition:
    """Return the check that the queue has all batches as they were published."""

    @check_of(source_key(queue), "Reads all batches: numbers have no gap; items and SHA-256 match the sealed ones.")
    def batches_are_complete(database: DatabaseResource) -> dg.AssetCheckResult:
        """Read all batches."""
        found = check(database.settings, queue)
        shown = found.faults[:_FAULTS_SHOWN]
        return from_faults(
            list(map(str, shown)),
            {
                "batches": found.batches,
                "items": found.items,
                "faults": len(found.faults),
                "first_faults": dg.MetadataValue.json(shown),
            },
        )

    return batches_are_complete


def batches_in_lake(queue: str) -> dg.AssetsDefinition:
    """Return the asset that holds the items of a queue as rows."""
    table = table_of(queue)

    @written_asset(
        batches_key(queue),
        deps=[source_key(queue)],
        group_name="replay",
        kinds={"spark", "deltalake"},
        partitions_def=partitions_of(queue),
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=name_of(queue),
        metadata=arrow_columns(SCHEMA),
        blocking={
            "rows_are_the_items": "Great Expectations on the rows, against the sealed batches, before they are in the "
            "lake.",
        },
        description="The items of a replay queue as rows, one partition per batch, read by Spark. A batch that "
        "already exists is replaced, so a backfill is a replay.",
    )
    def batches(
        context: dg.AssetExecutionContext, spark: SparkResource, lake: LakeResource, database: DatabaseResource
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        """Copy a range of batches into the lake, in one commit."""
        session = spark.spark_session
        numbers = sorted(map(int, context.partition_keys))
        first, last = numbers[0], numbers[-1]
        seals = sealed(database.settings, queue, first, last)
        items = {seal.n: seal.items for seal in seals}
        # Otherwise the library would report an outage of the database as wrong rows.
        rows = read(session, database.settings, seals).localCheckpoint(eager=True)
        findings = great_expectations.validate(rows, "items", _of_items(items))
        yield from_findings("rows_are_the_items", findings)
        if not all(finding.success for finding in findings):
            raise ToCorrect(
                f"queue {queue}: the rows of batches {first} to {last} are not the items; the lake keeps its: "
                + great_expectations.failed(findings)
            )
        lake.replace_where(rows, table, f"n BETWEEN {first} AND {last}")
        for n in numbers:
            context.add_asset_metadata({"items": items[n]}, partition_key=str(n))
        yield dg.MaterializeResult(
            metadata={
                "batches_in_run": len(items),
                "rows_in_run": sum(items.values()),
                "path": dg.MetadataValue.path(lake.path(table)),
            }
        )

    return batches


def _of_items(items: Mapping[int, int]) -> "list[gxe.Expectation]":
    """Return the expectations of the rows of some batches, by the number of items of each batch."""
    return [
        gxe.ExpectTableRowCountToEqual(value=sum(items.values())),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=["n", "position"]),
        gxe.ExpectColumnValuesToBeBetween(column="position", min_value=0, max_value=max(items.values())),
    ]


def new_batches(queue: str) -> dg.SensorDefinition:
    """Return the sensor that adds a partition for each batch, and requests runs."""
    key, partitions = batches_key(queue), partitions_of(queue)

    @sensor_of(
        30,
        "Replay queues: adds a partition for each new batch, and copies missing batches to the lake: one run at a "
        "time, of at most `replay.batches_per_run` batches. Failed batches are requested again, after the others and "
        "in shorter runs, so that a damaged batch does not delay the others.",
        fault="the queue cannot be read",
        name=name_of(queue),
        job=name_of(queue),
    )
    def tick(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SensorResult:
        """Compare the newest batch with the batches that Dagster has materialized."""
        instance, settings = context.instance, database.settings
        first, head = extent(settings, queue)
        before = CopiedBatches.of_cursor(context.cursor, first, head)
        known = (before and before.read_on(instance, key)) or all_copied(instance, key, str(partitions.name))
        new = known.new(first, head, NEW_PARTITIONS)
        copied = known.extended(first, new)
        # Retention waits for the lake, and its lag is reported like that of any other processor.
        if before is None or copied.in_lake != before.in_lake:
            advance(settings, queue, PROCESSOR, copied.in_lake)
        added = [partitions.build_add_request([str(n) for n in new])] if new else []
        missing = copied.missing
        if not missing:
            reason = f"all {pluralize(head, 'batch')} are in the lake" if head else "the queue has no batches yet"
            return dg.SensorResult([], reason, copied.cursor, added)
        failed = _failed_runs(instance, name_of(queue))
        under_way = is_under_way(instance, name_of(queue))
        paused = failed_lately(instance, name_of(queue)) and not _was_repeated(failed)
        found = [] if under_way or paused else due(missing, settings.replay.batches_per_run, failed, time.time())
        if found:
            request = dg.RunRequest(tags={RANGE_START: str(found[0]), RANGE_END: str(found[-1])})
            return dg.SensorResult([request], None, copied.cursor, added)
        if under_way:
            reason = "a run is under way"
        elif paused:
            reason = "the last run failed; the next one starts 15 minutes after its end"
        else:
            reason = (
                f"{pluralize(len(missing), 'batch')} failed, the first is {missing[0]}: each is tried again 15 minutes "
                "after its run, in shorter runs, and one that failed alone after an hour"
            )
        return dg.SensorResult([], reason, copied.cursor, added)

    return tick


@dg.op
@retried
def trim_queues_op(context: dg.OpExecutionContext, database: DatabaseResource) -> None:
    """Delete old batches of all queues that have `replay.keep_days`."""
    settings = database.settings
    found, faults = for_each_queue(settings.replay.keep_days, lambda queue: trim(settings, queue))
    context.add_output_metadata(
        {
            "batches_deleted": sum(t.deleted for t in found.values()),
            "by_queue": dg.MetadataValue.json({queue: asdict(t) for queue, t in found.items()}),
        }
    )
    if faults:
        reasons = "; ".join(f"queue {queue}: {reason}" for queue, reason in faults.items())
        raise ToCorrect(f"batches of some queues were not deleted: {reasons}")


def stretch(numbers: Sequence[int], most: int) -> list[int]:
    """Return the first consecutive numbers of a sorted sequence, at most `most` of them."""
    return [n for _, n in takewhile(lambda pair: pair[1] == numbers[0] + pair[0], enumerate(numbers[:most]))]


@dataclass(frozen=True)
class FailedRun:
    """A failed run over consecutive batches, and when it ended, in seconds since 1970."""

    batches: range
    ended: float


def due(missing: Sequence[int], most: int, failed: Sequence[FailedRun], now: float) -> list[int]:
    """Return the consecutive batches to copy next, first those that have not failed. A failed batch is due after a
    pause, in a run with half as many batches as its shortest failed run had. So a damaged batch fails alone in the end.

    Args:
        missing: the sorted numbers of the batches that the lake does not have.
        most: the most batches per run.
        failed: the failed runs.
        now: the current time, in seconds since 1970.
    """
    of = {n: [run for run in failed if n in run.batches] for n in missing}
    if untried := [n for n in missing if not of[n]]:
        return stretch(untried, most)
    sizes = {n: min(len(run.batches) for run in of[n]) for n in missing}
    pauses = {n: _ALONE_SECONDS if size == 1 else PAUSE_SECONDS for n, size in sizes.items()}
    again = [n for n in missing if now >= max(run.ended for run in of[n]) + pauses[n]]
    if several := [n for n in again if sizes[n] > 1]:
        return stretch(several, min(most, sizes[several[0]] // 2))
    return again[:1]


def _failed_runs(instance: dg.DagsterInstance, job_name: str) -> list[FailedRun]:
    """Return the failed runs of a queue's job over ranges of batches, the newest first."""
    runs = dg.RunsFilter(job_name=job_name, statuses=[dg.DagsterRunStatus.FAILURE])
    return [
        FailedRun(range(int(tags[RANGE_START]), int(tags[RANGE_END]) + 1), record.end_time or 0.0)
        for record in instance.get_run_records(runs, limit=_FAILED_RUNS)
        if {RANGE_START, RANGE_END} <= (tags := record.dagster_run.tags).keys()
    ]


def _was_repeated(failed: Sequence[FailedRun]) -> bool:
    """Return whether the newest of these runs repeated batches that had failed before. Then the cause is in these
    batches, and not in a server, so other batches need not wait.
    """
    return any(failed[0].batches.start in run.batches for run in failed[1:])


def definitions(queues: Sequence[str], upstream: Mapping[str, dg.AssetKey]) -> dg.Definitions:
    """Return the definitions of these queues. `upstream` has the assets that publish to them, by queue name.

    Raises:
        WritetimeError: two names are the same for Dagster.
    """
    names = [name_of(queue) for queue in queues]
    if same := [queue for queue in queues if names.count(name_of(queue)) > 1]:
        raise WritetimeError(f"replay.queues: Dagster cannot distinguish {' and '.join(same)}")
    if not queues:
        return dg.Definitions()
    checks = [batches_are_complete(queue) for queue in queues]
    trim_job = step_job(
        "queues_trim",
        "Delete batches that all processors have done and that are older than their queue's `replay.keep_days`.",
        [trim_queues_op],
    )
    jobs = [
        asset_job(
            "queues_lag",
            dg.AssetSelection.assets(*map(source_key, queues)).without_checks(),
            description="Observe the progress of the queues' processors.",
        ),
        asset_job(
            "queues_check",
            dg.AssetSelection.checks(*checks),
            description="Check that the queues have all batches as they were published.",
        ),
        *(
            asset_job(
                name_of(queue),
                dg.AssetSelection.assets(batches_key(queue)),
                description="Copy batches of a replay queue into the lake.",
            )
            for queue in queues
        ),
    ]
    return dg.Definitions(
        assets=[*(queue_in_database(queue, upstream.get(queue)) for queue in queues), *map(batches_in_lake, queues)],
        asset_checks=checks,
        jobs=[*jobs, trim_job],
        sensors=[new_batches(queue) for queue in queues],
        schedules=[
            on_schedule(
                trim_job.name,
                "45 2 * * *",
                "Replay queues: deletes old batches of queues with `replay.keep_days`, every night.",
            ),
        ],
    )
