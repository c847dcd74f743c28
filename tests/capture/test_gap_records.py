"""The records of writes that are in no segment, across restarts of an agent. No node is needed."""

from pathlib import Path
from typing import Any
from uuid import UUID

from writetime.capture.gap_records import GapRecords
from writetime.capture.log_coverage import Listing, LogCoverage
from writetime.capture.node_facts import NodeFacts
from writetime.capture.node_schemas import NodeTable, NodeTables
from writetime.capture.progress import OPEN
from writetime.capture.state_files import read_json
from writetime.core.config import Capture
from writetime.lake.views import time_now

TABLE = NodeTable(UUID(int=1), "ks", "t", captured=True, schema=None)


def record_after_a_start(capture: Capture, *not_durable: str) -> dict[str, Any]:
    """The record of the keyspace after an agent was started. The arguments are keyspaces without durable writes."""
    tables = NodeTables({TABLE.id: TABLE}, frozenset([TABLE.id]), frozenset(), frozenset(not_durable))
    LogCoverage(capture, tables, 0).note_not_logged(tables)
    found = read_json(GapRecords(capture).file("not-durable-ks"))
    assert found is not None
    return found


def test_durable_writes_that_were_switched_on_while_no_agent_ran_end_the_gap(tmp_path: Path) -> None:
    """Otherwise no snapshot would cover it."""
    capture = Capture(state_dir=tmp_path)
    for _ in range(2):
        assert record_after_a_start(capture, "ks")["written_before"] == OPEN
    ended = record_after_a_start(capture)
    assert ended["written_before"] < OPEN
    assert "has durable_writes = false" in ended["reason"]
    assert record_after_a_start(capture) == ended


def test_a_migration_from_accord_that_ended_while_no_agent_ran_ends_the_gap(tmp_path: Path) -> None:
    capture = Capture(state_dir=tmp_path)
    gaps = []
    for transactional in ([TABLE.id], [TABLE.id], [], []):
        tables = NodeTables({TABLE.id: TABLE}, frozenset([TABLE.id]), transactional=frozenset(transactional))
        LogCoverage(capture, tables, 0).note_not_logged(tables)
        gaps += GapRecords(capture).gaps()
    assert [gap.until == OPEN for gap in gaps] == [True, True, False, False]
    assert all("Accord writes to table ks.t" in gap.reason and gap.tables == {str(TABLE.id)} for gap in gaps)


def test_a_check_of_the_node_records_writes_that_are_not_durable(tmp_path: Path) -> None:
    """Since the check before it."""
    capture = Capture(state_dir=tmp_path)
    tables = NodeTables({TABLE.id: TABLE}, frozenset([TABLE.id]), frozenset(), frozenset(["ks"]))
    coverage = LogCoverage(capture, tables, 0)
    facts = NodeFacts("host", 1, time_now() + 10**9, True, str(tmp_path), True, 1 << 30, 1 << 20, (), 0)
    assert coverage.check(facts, Listing(tmp_path, [], {}), tables)
    [gap] = GapRecords(capture).gaps()
    assert (gap.until, gap.tables) == (OPEN, {str(TABLE.id)})
    assert gap.since < time_now()
