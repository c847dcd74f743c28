"""The tables that `writetime follow` follows, as Dagster shows them.

This module has the sensor that records the progress of these tables. It also returns the tables that `follow` does not
follow now, which schedules then handle. The program itself is `writetime.follow`.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from writetime.clients.kafka import client_config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.lake.followed_tables import FollowedTable
from writetime.landing.reports import followed
from writetime.wire.watermarks import LandingReport, StepReport, WatermarkTopic
from writetime_dagster.assets.automation import sensor_of
from writetime_dagster.assets.cursors import of_cursor
from writetime_dagster.assets.naming import key_of
from writetime_dagster.resources import KafkaResource

# The asset of each step of `writetime follow`.
_ASSETS = {
    "row events": "row_events",
    "publishing": "row_topic",
    "view": "view",
    "replication": "replica",
    "upkeep": "state",
}
EXPECTED = "rows_are_as_expected"
# How often the progress of a table is recorded. A step that is behind for longer than this is recorded at once.
_RECORD_SECONDS = 300.0
# The topic of the watermarks by the options of its clients, and the time since which it is shared.
_topics: dict[tuple[tuple[str, Any], ...], tuple[float, WatermarkTopic]] = {}


def shared_watermarks(settings: Settings, shared_seconds: float = 600.0) -> WatermarkTopic:
    """Return the topic of the watermarks. Ticks and steps of this process share it for some seconds, so each reads only
    new reports. Then it is read again from the beginning, because Kafka may have lost it.
    """
    of_cluster = tuple(client_config(settings).items())
    began, topic = _topics.get(of_cluster, (0.0, None))
    if topic is None or time.monotonic() - began > shared_seconds:
        topic = WatermarkTopic(settings)
        _topics[of_cluster] = time.monotonic(), topic
    return topic


def left(settings: Settings, tables: Sequence[FollowedTable]) -> list[dg.AssetKey]:
    """Return the states, views, row events and replicas of the tables that `writetime follow` does not follow now.
    While Kafka does not answer, return those of all tables.
    """
    try:
        topic = shared_watermarks(settings)
        topic.read()
        others = followed(topic.reports)
    except WritetimeError:
        others = set()
    return [key_of(table.name, part) for table in tables if table.name not in others for part in _parts(table)]


def _parts(table: FollowedTable) -> list[str]:
    """Return the parts of a table that `writetime follow` renews."""
    wanted = {"row_events": table.entry.row_events, "row_topic": table.entry.row_events}
    wanted["replica"] = table.entry.replicate_to is not None
    return [part for part in _ASSETS.values() if wanted.get(part, True)]


@dataclass(frozen=True)
class _Recorded:
    """By table: when its report was recorded, and the digest of its state then."""

    recorded: dict[str, tuple[float, str]]


def progress(tables: Sequence[FollowedTable]) -> dg.SensorDefinition:
    """Return the sensor that records the progress of the tables that `writetime follow` follows."""

    @sensor_of(
        30,
        "Tables: records the progress of `writetime follow` per table, as observations of the assets, and checks "
        "whether the rows of the view are as expected: every five minutes, and at once when this result or a fault "
        "changes. It starts nothing.",
        fault="the reports of `writetime follow` cannot be read",
        records=[key_of(table.name, part) for table in tables for part in ("changes", *_parts(table))],
    )
    def followed_tables(context: dg.SensorEvaluationContext, kafka: KafkaResource) -> dg.SensorResult:
        topic = shared_watermarks(kafka.settings)
        topic.read()
        running = followed(topic.reports)
        last = of_cursor(context.cursor, _Recorded)
        recorded = last.recorded if last else {}
        new = {
            name: report
            for name, report in topic.reports.items()
            if name in running and _is_news(report, *recorded.get(name, (0.0, "")))
        }
        events = [event for table in tables if table.name in new for event in _events(table, new[table.name])]
        return dg.SensorResult(
            asset_events=events,
            cursor=json.dumps({"recorded": recorded | {name: (r.at, _digest(r)) for name, r in new.items()}}),
            skip_reason=dg.SkipReason(
                f"recorded: {', '.join(table.name for table in tables if table.name in new)}"
                if events
                else "`writetime follow` has reported nothing else since"
            ),
        )

    return followed_tables


def _is_news(report: LandingReport, at: float, digest: str) -> bool:
    """Return whether a report must be recorded, because its state has changed since the last record, or that record is
    old. Other reports are not recorded, because Dagster keeps each observation forever.
    """
    return report.at - at >= _RECORD_SECONDS or (report.at != at and _digest(report) != digest)


def _digest(report: LandingReport) -> str:
    """Return a digest of a table's faults, of its steps that are behind, and of whether rows are unexpected. A step of
    a table with many writes is often behind for a moment, so a short time does not count.
    """
    steps = {
        name: (step.fault, step.unexpected, 0 < step.behind_since < report.at - _RECORD_SECONDS)
        for name, step in sorted(report.steps.items())
    }
    return hashlib.sha256(json.dumps([report.fault, steps]).encode()).hexdigest()[:16]


def _events(table: FollowedTable, report: LandingReport) -> Iterator[dg.AssetObservation | dg.AssetCheckEvaluation]:
    """Yield the metadata of a report for Dagster."""
    landed = {"changes_landed": report.changes, "reported": dg.MetadataValue.timestamp(report.at)}
    yield dg.AssetObservation(key_of(table.name, "changes"), metadata=landed | _fault(report.fault))
    for name, part in _ASSETS.items():
        if name not in report.steps or part not in _parts(table):
            continue
        key, step = key_of(table.name, part), report.steps[name]
        yield dg.AssetObservation(key, metadata=_progress(step, report.at))
        if part == "view" and table.entry.expect:
            fault = _fault(step.fault) if step.unexpected else {}
            yield dg.AssetCheckEvaluation(
                key,
                EXPECTED,
                not step.unexpected,
                fault,
                severity=dg.AssetCheckSeverity.ERROR,
                description=step.fault if step.unexpected else None,
            )


def _progress(step: StepReport, at: float) -> dict[str, Any]:
    return {
        "rows": step.rows,
        "rows_of_the_last_batch": step.batch,
        "milliseconds_of_the_last_batch": round(step.delay * 1000),
        "behind_seconds": round(max(at - step.behind_since, 0.0), 1) if step.behind_since else 0.0,
        "reported": dg.MetadataValue.timestamp(at),
        **_fault(step.fault),
    }


def _fault(text: str | None) -> dict[str, Any]:
    return {"fault": text} if text else {}
