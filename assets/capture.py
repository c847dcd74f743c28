"""Capture: the nodes' commit logs, or ScyllaDB's CDC logs -> the topics `changes.<keyspace>.<table>`.

This module shows the state of agents and topics. The agents themselves are services on the nodes (`writetime agent`).
`writetime_dagster.assets.changes` lands their changes.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from writetime.capture.metrics import summary
from writetime.clients.kafka import beginning_offsets, end_offsets
from writetime.clients.topic_retention import waiting_too_long
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.views import time_now
from writetime.landing.landed_offsets import landed_offsets, not_landed
from writetime.landing.topics import is_published
from writetime.wire.topic_names import changes_topic
from writetime.wire.watermarks import statuses
from writetime_dagster.assets.automation import asset_job
from writetime_dagster.assets.builders import check_of, observed_asset
from writetime_dagster.assets.checks import from_faults, from_waiting
from writetime_dagster.assets.followed import shared_watermarks
from writetime_dagster.assets.naming import PARTS, documents, key_of, pool_of
from writetime_dagster.resources import KafkaResource

COMMIT_LOGS = dg.AssetKey(["sources", "commit_logs"])
AGENTS = dg.AssetKey(["capture", "agents"])

commit_logs = dg.AssetSpec(
    COMMIT_LOGS,
    group_name="sources",
    kinds={"cassandra"},
    description="The commit logs of Cassandra's nodes, with the writes to tables with `cdc = true`, or the CDC logs of "
    "ScyllaDB tables.",
    metadata=documents("docs/formats.md", "docs/scylla-cdc.md"),
)


@observed_asset(
    dg.AssetSpec(
        AGENTS,
        deps=[COMMIT_LOGS],
        group_name="capture",
        kinds={"python", "kafka"},
        description="The agents (`writetime agent`), one per node, which publish changes to Kafka.",
        metadata=documents("docs/capture.md"),
    ),
    name="observe_agents",
)
def agents(kafka: KafkaResource) -> dg.ObserveResult:
    """Observe the agents by their reports in Kafka: the numbers of their metrics and of `writetime status`."""
    found = statuses(shared_watermarks(kafka.settings).read())
    numbers = summary(found.values())
    return dg.ObserveResult(
        metadata={
            **{name: round(number, 3) for name, number in numbers.items()},
            "held_by": dg.MetadataValue.json({s: f["held_by"] for s, f in found.items() if f.get("held_by")}),
            "by_agent": dg.MetadataValue.json({source: dict(status) for source, status in found.items()}),
        },
    )


@check_of(
    AGENTS,
    "Each agent has reported within `capture.stale_seconds` and captures all its tables. Nothing holds up its "
    "watermark: no segment set aside or vanished, no gap, no failed snapshot, no refused schema.",
)
def no_agent_is_held_up(kafka: KafkaResource) -> dg.AssetCheckResult:
    """Find agents that are silent, or whose watermark cannot move."""
    found = statuses(shared_watermarks(kafka.settings).read())
    held = {source: str(s["held_by"]) for source, s in found.items() if s.get("held_by")}
    faults = {source: of_tables for source, s in found.items() if (of_tables := _faults_of_tables(s))}
    since = time.time() - kafka.settings.capture.stale_seconds
    silent = {source: at for source, s in found.items() if (at := s.get("at", 0.0)) < since}
    reasons = [
        *(
            f"{source} has not reported since {datetime.fromtimestamp(at, UTC):%F %T} UTC"
            for source, at in silent.items()
        ),
        *(f"{source} is held up by {reason}" for source, reason in held.items()),
        *(f"{source}, {table}: {fault}" for source, of_tables in faults.items() for table, fault in of_tables.items()),
    ]
    return from_faults(
        reasons,
        {
            "agents_held": len(held),
            "tables_with_faults": dg.MetadataValue.json(faults),
            "agents_silent": len(silent),
            "held_by": dg.MetadataValue.json(held),
            "silent_since": dg.MetadataValue.json(silent),
        },
    )


def _faults_of_tables(status: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables that an agent does not capture or whose snapshot failed, with the reasons."""
    failed = {
        table: "its snapshot failed; the agent's log has the reason"
        for table, snapshot in status.get("snapshots", {}).items()
        if snapshot.get("status") == "failed"
    }
    return failed | {table: str(fault) for table, fault in status.get("not_captured", {}).items()}


def build_changes_topic_asset(table: FollowedTable) -> dg.AssetsDefinition:
    """Return the asset that observes the topic of a table's changes."""

    @observed_asset(
        dg.AssetSpec(
            key_of(table.name, "topic"),
            deps=[key_of(table.name, "table"), AGENTS],
            group_name=PARTS["topic"],
            kinds={"kafka"},
            description=f"The changes that agents publish to the topic `{changes_topic(table.name)}`: "
            "each write with its write times, keyed and ordered by the partition key.",
            metadata=documents("docs/capture.md"),
        ),
        name=pool_of(table.name, "topic"),
    )
    def observe(kafka: KafkaResource) -> dg.ObserveResult:
        settings, name = kafka.settings, changes_topic(table.name)
        if not is_published(settings, table.name):
            return dg.ObserveResult(metadata={"topic": name, "messages": 0})
        firsts, ends = beginning_offsets(settings, name), end_offsets(settings, name)
        sources = shared_watermarks(settings).read()
        marks = [found.tables[table.name] for found in sources.of(table.name).values()]
        until = min((mark.until for mark in marks), default=0)
        behind = {"watermark_age_seconds": round((time_now() - until) / 1e6, 3)} if until else {}
        return dg.ObserveResult(
            metadata={
                "topic": name,
                "messages": sum(ends.values()) - sum(firsts.values()),
                "end_offset": sum(ends.values()),
                "changes_not_landed": not_landed(settings, table.name),
                "sources": len(marks),
                **behind,
            },
        )

    return observe


def build_retention_check(table: FollowedTable) -> dg.AssetChecksDefinition:
    """Return the check that Kafka does not soon delete changes that have not landed."""

    @check_of(
        key_of(table.name, "topic"),
        "No change waits to land for longer than half of the topic's retention. Kafka deletes it at the end of the "
        "retention; then only a new snapshot closes the gap.",
    )
    def lag_is_far_from_retention(kafka: KafkaResource) -> dg.AssetCheckResult:
        settings = kafka.settings
        if not is_published(settings, table.name):
            return from_waiting(dict)
        landed = landed_offsets(settings, table.name)
        return from_waiting(lambda: waiting_too_long(settings, changes_topic(table.name), landed))

    return lag_is_far_from_retention


definitions = dg.Definitions(
    assets=[commit_logs, agents],
    asset_checks=[no_agent_is_held_up],
    jobs=[
        asset_job(
            "agents",
            dg.AssetSelection.assets(AGENTS) | dg.AssetSelection.checks(no_agent_is_held_up),
            description="Observe the progress of the agents, and check that none is held up.",
        )
    ],
)
