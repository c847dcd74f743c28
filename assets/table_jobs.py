"""Jobs, schedules and sensors that start the assets of followed tables.

There is one of each for all tables. A run handles all tables, one after the other, and a failure of one table does not
stop the others. To run one table, select its assets.
"""

import hashlib
import json
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import dagster as dg
from pydantic import Field

from writetime.clients.kafka import TopicEnds, ends_of_topics, topic_ids
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError, reason_of
from writetime.core.outages import is_outage
from writetime.delta.bucketed_table import BucketedTable
from writetime.delta.versions import TableVersion
from writetime.lake.followed_tables import FollowedTable, followed_tables
from writetime.lake.state import count_tombstones
from writetime.lake.table import open_table, table_storage
from writetime.landing.landed_offsets import waiting
from writetime.landing.reports import followed
from writetime.schema.describe import to_cql
from writetime.view.upkeep import upkeep
from writetime.wire.topic_names import changes_topic
from writetime.wire.watermarks import Sources
from writetime_dagster.assets.automation import (
    asset_job,
    assets_that_failed_lately,
    assets_under_way,
    is_under_way,
    on_schedule,
    sensor_of,
    step_job,
)
from writetime_dagster.assets.backfill import new_backups
from writetime_dagster.assets.cursors import of_cursor
from writetime_dagster.assets.erase import erase_job
from writetime_dagster.assets.failures import retried
from writetime_dagster.assets.followed import left, progress, shared_watermarks
from writetime_dagster.assets.naming import key_of
from writetime_dagster.assets.restore import restore_job
from writetime_dagster.assets.undo import undo_jobs
from writetime_dagster.resources import DatabaseResource, KafkaResource, LakeResource, SparkResource

# Checks that are not part of an asset's run.
PROOF, ALL_ROWS = "rows_are_those_of_the_database", "all_rows_are_as_expected"
LOGGED = "changes_are_logged"
BEHIND = ("lag_is_bounded", "lake_is_fresh", "landing_goes_on")
LAND = "land"
"""The job that lands captured changes."""
# The runs of one job must leave room for the runs of others (`max_concurrent_runs` in dagster.yaml).
_MOST_RUNS = 2


def definitions(tables: Sequence[FollowedTable]) -> dg.Definitions:
    """Return the jobs of these tables, with their schedules and sensors."""
    if not tables:
        return dg.Definitions()
    captured = [table for table in tables if table.entry.capture]
    with_backups = [table for table in tables if table.entry.snapshots]
    schedules = [
        on_schedule(
            "catch_up",
            "*/15 * * * *",
            "Tables: brings states, views and row events up to date, but not those of tables that `writetime follow` "
            "follows. The sensor `captured_changes` lands the changes.",
            lambda settings: left(settings, tables),
        ),
        on_schedule("maintain", "30 2 * * *", "Tables: compacts and cleans the tables of the lake, every night."),
    ]
    if len(with_backups) < len(tables):
        schedules.append(on_schedule("snapshot", "0 1 * * 0", "Tables: takes snapshots, every Sunday."))
    sensors: list[dg.SensorDefinition] = [
        schema_changes(tables),
        dg.AutomationConditionSensorDefinition(
            "new_snapshots",
            target=dg.AssetSelection.groups("backfill"),
            default_status=dg.DefaultSensorStatus.STOPPED,
            description="Tables: copies each new snapshot or backup into the lake, some token ranges per run.",
        ),
    ]
    if with_backups:
        sensors.append(new_backups(with_backups))
    if captured:
        sensors += [captured_changes(captured), progress(captured)]
    maintain = maintain_job([table.name for table in tables])
    return dg.Definitions(
        jobs=[
            *(asset_job(name, selection, description=text) for name, (selection, text) in _selections(tables).items()),
            maintain,
            restore_job(),
            *undo_jobs(),
            erase_job(),
        ],
        schedules=schedules,
        sensors=sensors,
    )


def _selections(tables: Sequence[FollowedTable]) -> dict[str, tuple[dg.AssetSelection, str]]:
    """Return the assets and checks of each job, and its description."""
    captured = [table for table in tables if table.entry.capture]
    without_backups = [table for table in tables if not table.entry.snapshots]
    on_whole_views = _checks(tables, "view", PROOF)
    if expecting := [table for table in tables if table.entry.expect]:
        on_whole_views |= _checks(expecting, "view", ALL_ROWS)

    def renewed(*keys: dg.AssetKey) -> dg.AssetSelection:
        # Otherwise each job would also verify the views that it refreshed, and read whole tables each time.
        return dg.AssetSelection.assets(*keys) - on_whole_views

    landed = _keys(captured, "changes")
    refreshed = _keys(tables, "state", "view")
    events = _keys([table for table in tables if table.entry.row_events], "row_events", "row_topic")
    replicas = _keys([table for table in tables if table.entry.replicate_to], "replica")
    looks = renewed(*_keys(tables, "table"), *_keys(captured, "topic"))
    if captured:
        looks |= _checks(captured, "table", LOGGED) | _checks(captured, "changes", *BEHIND)
    found = {
        "tables_lag": (
            looks,
            "Observe the tables and their topics, and check that changes are logged, landed and fresh.",
        ),
        "backfill": (
            renewed(*_keys(tables, "backfill")),
            "Copy snapshots into the lake, some token ranges per run; then run the job `views`.",
        ),
        "views": (renewed(*refreshed), "Fold new changes into the tables' states, and refresh their views."),
        "catch_up": (
            renewed(*landed, *refreshed, *events, *replicas),
            "Process new changes: land them, merge them, refresh the views, publish row events, replicate them.",
        ),
        "verify": (
            on_whole_views,
            "Verify the views against the database, and check expectations on all their rows.",
        ),
    }
    if without_backups:
        taken = renewed(*_keys(without_backups, "snapshots"))
        found["snapshot"] = taken, "Take snapshots on the Cassandra node of this machine."
    if landed:
        found[LAND] = renewed(*landed), "Land captured changes from Kafka in the lake."
    if events:
        description = "Compute the row events since the last run, store them in the lake, and publish them to Kafka."
        found["row_events"] = renewed(*events), description
    return found


def _keys(of: Iterable[FollowedTable], *parts: str) -> list[dg.AssetKey]:
    return [key_of(table.name, part) for table in of for part in parts]


def _checks(of: Iterable[FollowedTable], part: str, *names: str) -> dg.AssetSelection:
    return dg.AssetSelection.checks(*(dg.AssetCheckKey(key, name) for key in _keys(of, part) for name in names))


def maintain_job(names: Sequence[str]) -> dg.JobDefinition:
    """Return the job that compacts and cleans tables of the lake: all followed tables, or those that a run names."""

    class MaintainConfig(dg.Config):
        """The tables of the lake to maintain."""

        tables: list[str] = Field(default=list(names), description="As keyspace.table; default: all followed tables.")

    @dg.op(
        pool="maintain",
        description="Drops old tombstones, merges old history and row events, deletes files that no version needs, and "
        "observes how many tombstones each state then has. It does not fold changes or refresh views: the job `views` "
        "does that, with its checks.",
    )
    @retried
    def maintain_tables(
        context: dg.OpExecutionContext, config: MaintainConfig, spark: SparkResource, lake: LakeResource
    ) -> None:
        done: dict[str, dict[str, int]] = {}
        faults: dict[str, Exception] = {}
        for name in config.tables:
            try:
                table = open_table(lake.settings, name)
                done[name] = upkeep(lake.settings, table, spark.run)
                now = table.state.load()
                counts = {"tombstones": count_tombstones(table, now), "levels": len(now.files)}
                context.log_event(dg.AssetObservation(key_of(name, "state"), metadata=counts))
            except Exception as e:
                context.log.error(f"{name} was not maintained", exc_info=e)
                faults[name] = e
        totals = {what: sum(of[what] for of in done.values()) for what in next(iter(done.values()), {})}
        context.add_output_metadata({**totals, "tables": len(done), "by_table": dg.MetadataValue.json(done)})
        if faults:
            kind = Transient if all(map(is_outage, faults.values())) else WritetimeError
            raise kind("; ".join(f"{name}: {reason_of(e)}" for name, e in faults.items()))

    return step_job("maintain", "Compact and clean the tables of the lake, every night.", [maintain_tables])


def captured_changes(
    tables: Sequence[FollowedTable], *, lake_seconds: float = 20.0, patience_seconds: float = 120.0
) -> dg.SensorDefinition:
    """Return the sensor that starts the job `land` for captured changes.

    Args:
        tables: the tables.
        lake_seconds: the time in which a tick reads the lake. Dagster ends a tick after 60 seconds.
        patience_seconds: the time after a request in which no tick requests another run while the first is under way.
            Most runs take less, and each starts Spark.
    """
    newest_changes = _NewestChanges()

    @sensor_of(
        30,
        "Tables: starts the job `land` for the tables whose topics have changes that are not in the lake, and "
        "sometimes for the others, so that the lake records that there are none. It starts nothing for tables that "
        "`writetime follow` follows, nothing within two minutes after an unfinished run, and no third run.",
        fault="the lag cannot be read",
        job=LAND,
    )
    def captured_changes(context: dg.SensorEvaluationContext, kafka: KafkaResource) -> dg.RunRequest | dg.SkipReason:
        if is_under_way(context.instance, LAND, time.time() - patience_seconds):
            return dg.SkipReason("a run of the job `land` is under way")
        if is_under_way(context.instance, LAND, runs=_MOST_RUNS):
            return dg.SkipReason(f"{_MOST_RUNS} runs of the job `land` are under way")
        settings = kafka.settings
        failed = assets_that_failed_lately(context.instance, LAND)
        paused = {table.name for table in tables if key_of(table.name, "changes") in failed}
        # A run that takes long, as for a table with a backlog, must not delay the other tables.
        under_way = assets_under_way(context.instance, LAND)
        busy = {table.name for table in tables if key_of(table.name, "changes") in under_way}
        topics = _Topics.read(settings, {table.name for table in tables} - paused - busy)
        # The cursor is the topic at which the last tick stopped, so that each topic has its turn.
        lag, late = newest_changes.lag(settings, topics, context.cursor or "", lake_seconds)
        context.update_cursor(late[0] if late else "")
        if lag:
            return dg.RunRequest(
                asset_selection=[key_of(name, "changes") for name in lag],
                tags={"writetime/lag": str(sum(lag.values()))},
            )
        return dg.SkipReason("; ".join(_nothing_to_land(topics, late, paused, busy)))

    return captured_changes


def _nothing_to_land(topics: "_Topics", late: Sequence[str], paused: set[str], busy: set[str]) -> Iterator[str]:
    """Yield the reasons why a tick requests no run. `late` are topics; `paused` and `busy` are tables."""
    yield "no captured table has changes to land"
    yield from map(str, topics.found.faults.values())
    if late:
        yield f"the lake was not read in time for {', '.join(topics.tables[name] for name in late)}"
    if paused:
        yield f"landing of {', '.join(sorted(paused))} failed; it is tried again 15 minutes after the end of that run"
    if busy:
        yield f"runs of the job `land` are landing {', '.join(sorted(busy))}"


@dataclass(frozen=True)
class _Topics:
    """The topics of some tables: the table, the end offsets and the id of each, and the watermarks read before them."""

    tables: Mapping[str, str]
    found: TopicEnds
    ids: Mapping[str, int]
    sources: Sources

    @classmethod
    def read(cls, settings: Settings, names: set[str]) -> Self:
        """Return the topics of these tables, but not of those that `writetime follow` follows."""
        topic = shared_watermarks(settings)
        sources = topic.read()
        tables = {changes_topic(name): name for name in names - followed(topic.reports)}
        found = ends_of_topics(settings, lambda name: name in tables)
        return cls(tables, found, topic_ids(settings, sorted(found.ends)), sources)


class _NewestChanges:
    """The changes of some tables in the lake, which stay open between the ticks of a sensor. So a tick reads only new
    commits, whatever the length of a log and the number of files.
    """

    def __init__(self) -> None:
        self._open: dict[str, BucketedTable] = {}

    def lag(self, settings: Settings, topics: _Topics, begin: str, seconds: float) -> tuple[dict[str, int], list[str]]:
        """Return the number of waiting messages of each table to land, and the topics that were not reached in time.
        Read the lake for some seconds at most, but for at least one table: first that of the topic `begin`.
        """
        there = sorted(topics.found.ends)
        first = bisect_left(there, begin)
        order = [*there[first:], *there[:first]]
        deadline = time.monotonic() + seconds
        lag: dict[str, int] = {}
        for place, topic in enumerate(order):
            if place and time.monotonic() > deadline:
                return lag, order[place:]
            name = topics.tables[topic]
            try:
                now = self.of(settings, name)
                left = waiting(now, name, topics.found.ends[topic], topics.ids.get(topic, 0), topics.sources)
                if left.messages or left.seconds > settings.capture.stale_seconds / 2:
                    lag[name] = left.messages
            except Exception:
                # Its run will report the fault, and land the other tables.
                lag[name] = 0
        return lag, []

    def of(self, settings: Settings, name: str) -> TableVersion | None:
        """Return the newest version of the changes of a table; None if the lake does not have the table."""
        storage = table_storage(settings, name).folder("changes")
        # A tick that Dagster has given up may still use the object, which is for one thread.
        changes = self._open.pop(name, None)
        if changes is None or changes.storage != storage:
            changes = BucketedTable(storage)
        now = changes.find()
        self._open[name] = changes
        return now


def schema_changes(tables: Sequence[FollowedTable]) -> dg.SensorDefinition:
    """Return the sensor that records schema changes."""
    names = {table.name for table in tables}

    @sensor_of(
        60,
        "Tables: records each change of a table's schema as an observation of the table. Schema changes reach the lake "
        "automatically; reload the code location to see the new columns.",
        records=_keys(tables, "table"),
    )
    def schema_changes(
        context: dg.SensorEvaluationContext, database: DatabaseResource
    ) -> dg.SensorResult | dg.SkipReason:
        now = {t.name: to_cql(t.schema) for t in followed_tables(database.settings)[0] if t.schema and t.name in names}
        if not now:
            return dg.SkipReason("the schemas cannot be read")
        known = of_cursor(context.cursor, dict[str, str]) or {}
        seen = {name: hashlib.sha256(cql.encode()).hexdigest() for name, cql in now.items()}
        changed = [name for name, digest in seen.items() if known.get(name) != digest]
        observations = [
            dg.AssetObservation(key_of(name, "table"), metadata={"cql": dg.MetadataValue.md(f"```sql\n{now[name]}```")})
            for name in changed
        ]
        return dg.SensorResult(
            asset_events=observations,
            cursor=json.dumps(known | seen),
            skip_reason=dg.SkipReason(f"recorded: {', '.join(changed)}" if changed else "no schema has changed"),
        )

    return schema_changes
