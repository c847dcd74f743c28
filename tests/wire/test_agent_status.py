"""Reports in `writetime.watermarks` that no agent sends: either they are invalid, or each reader can read them.

Oracle: none about values: a report is refused, or each reader reads it.
"""

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.examples import examples
from writetime.capture.metrics import summary
from writetime.cli.status import _landing_parts, _parts
from writetime.core import config
from writetime.landing.reports import _of_landing, _of_sources
from writetime.wire.watermarks import LandingReport, SourceMarks, _read_message
from writetime_dagster.assets.capture import _faults_of_tables

TABLE = "ks.t"
SETTINGS = config.load()
NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([2**62, 2**63, 1e300, -1.0, 0]))
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=5))
NAMES = st.sampled_from([TABLE, "status", "fault", "until", "found", "changes", "lag_bytes", "segments", "at", "write"])
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3))
FIELDS = ["at", "address", "published_until", "held_by", "held", "not_captured", "logs", "snapshots", "changes"]
FIELDS += ["errors", "lag", "totals"]
# The report of a node's agent, and that of a ScyllaDB log's agent.
LAG = {"lag_bytes": 0, "lag_segments": 0, "lag_seconds": 0.5, "oldest_segment_seconds": 0.0, "backlog_bytes": 7}
LAG |= {"backlog_limit_bytes": 9, "aside_segments": 0}
TOTALS = dict.fromkeys(
    ("segments", "segments_set_aside", "segments_vanished", "mutations", "mutations_set_aside", "changes_set_aside"), 1
)
SNAPSHOT = {"status": "running", "sstables": 2, "sstables_read": 1, "changes": 3}
NODE = {"at": 1.0, "address": "127.0.0.1", "published_until": 5, "held_by": None, "held": {}, "not_captured": {}}
NODE |= {"snapshots": {TABLE: SNAPSHOT}, "changes": {TABLE: {"write": 3}}, "errors": {}, "lag": LAG, "totals": TOTALS}
LOG = {"at": 1.0, "logs": {TABLE: {"until": 5, "fault": "a gap", "found": {"late": 1}}}, "held_by": "a gap"}
LOG |= {"snapshots": {}, "changes": {}, "errors": {"read": 1}, "lag": LAG}


def read(status: Any, **others: Any) -> SourceMarks:
    """Read a message as from the topic."""
    _, found = _read_message(b"node", json.dumps({"tables": {}, "status": status} | others).encode())
    assert isinstance(found, SourceMarks)
    return found


def read_by_all(marks: SourceMarks) -> None:
    """Let every reader that has no boundary of its own read a report."""
    list(_of_sources(SETTINGS, TABLE, {"node": marks}, None))
    json.dumps(summary([marks.status]))
    _faults_of_tables(marks.status)


@pytest.mark.parametrize("status", [NODE, LOG, {}])
def test_reports_of_agents_are_read_completely(status: dict[str, Any]) -> None:
    marks = read(status)
    assert marks.status == status
    read_by_all(marks)
    if status:
        assert list(_parts(marks.status, everything=True))


@examples(400)
@given(st.sampled_from([NODE, LOG, {}]), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
@example(NODE, {"snapshots": {TABLE: 1}})
@example(NODE, {"held": [TABLE]})
@example(LOG, {"logs": {TABLE: {"until": 1e300}}})
@example(NODE, {"at": float("nan")})
@example({}, {"errors": {"read": "1"}})
def test_other_reports_are_invalid_or_read(status: dict[str, Any], odd: dict[str, Any]) -> None:
    try:
        marks = read(status | odd, tables={TABLE: {"until": 5}})
    except ValueError:
        return
    read_by_all(marks)


@examples(200)
@given(
    st.fixed_dictionaries({"at": NUMBERS, "since": NUMBERS, "fault": LEAVES, "attempts": NUMBERS, "changes": LEAVES})
)
@example({"at": time.time(), "since": 1e300, "fault": "a fault", "attempts": 1, "changes": 1})
def test_other_reports_of_landing_are_invalid_or_read(odd: dict[str, Any]) -> None:
    try:
        _, report = _read_message(b"landing/ks.t", json.dumps(odd | {"status": "set aside"}).encode())
    except ValueError:
        return
    assert isinstance(report, LandingReport)
    list(_of_landing(SETTINGS, report))
    list(_landing_parts({TABLE: report}, everything=True))
