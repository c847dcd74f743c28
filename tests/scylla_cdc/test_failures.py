"""Servers that answer with an error: a cluster with one node, and temporary failures.

Oracle: the writer of the logs (`tests.scylla_cdc.writer`), by ScyllaDB's rules: the origins of all its groups.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cassandra import OperationTimedOut, ReadFailure, ReadTimeout, Unauthorized, Unavailable
from cassandra.cluster import NoHostAvailable, Session
from cassandra.protocol import OverloadedErrorMessage, ServerError  # type: ignore[attr-defined]

from tests.scylla_cdc.agents import insert, land, settings_for, wait_until
from tests.scylla_cdc.conftest import Logged, Written
from tests.scylla_cdc.databases import SECOND, CdcDatabase, now, stream_set
from tests.scylla_cdc.logs import origins
from tests.support.generate import SEED
from tests.support.programs import agent
from tests.support.status import status_lines
from tests.support.waiting import wait_for
from writetime.capture.metrics import read_status
from writetime.clients.database import DatabaseUnreachable
from writetime.clients.untyped_pages import PageProtocol
from writetime.scylla_cdc.offsets import interval
from writetime.scylla_cdc.source import open_source


def test_one_node_is_queried_for_the_streams_of_a_keyspace_with_three_replicas(
    cdc: CdcDatabase, logged: list[Logged], written: Written
) -> None:
    """ScyllaDB makes `system_distributed` with replication factor 3, also where it has one node."""
    keyspace = "cdc_three_replicas"
    cdc.copy_generations(keyspace)
    settings = cdc.with_options(
        generation_times=f"{keyspace}.cdc_generation_timestamps",
        generation_streams=f"{keyspace}.cdc_streams_descriptions_v2",
    )
    table = logged[0]
    with open_source(settings, table.schema.full_name) as source:
        assert source.sets.times == [s.time for s in table.sets]
        streams = {piece.stream for piece in interval(source, written.base, None, None)}
    assert streams == {stream for s in table.sets for stream in s.streams}


class Failing:
    """Lets reads fail as ScyllaDB does while tablets are split: the request for a page."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, which: Callable[[int], bool], *faults: Exception) -> None:
        self.which = which
        self.failed: Counter[str] = Counter()
        self._asked = 0
        self._faults = faults
        execute = Session.execute_async

        def execute_async(session: Session, query: Any, *values: Any, **options: Any) -> Any:
            future = execute(session, query, *values, **options)
            return (
                Answer(self, future, query.query_string) if session.client_protocol_handler is PageProtocol else future
            )

        monkeypatch.setattr(Session, "execute_async", execute_async)
        monkeypatch.setattr("writetime.scylla_cdc.pages.PAUSES", (0.001,) * 20)

    def next(self, query: str) -> None:
        """Fail, or not."""
        self._asked += 1
        if self.which(self._asked):
            self.failed[query.partition(" FROM ")[2].split()[0]] += 1
            raise self._faults[self._asked % len(self._faults)]


class Answer:
    """A future whose pages fail now and then; like the driver's, it cannot be used after that."""

    def __init__(self, failing: Failing, future: Any, query: str) -> None:
        self._failing, self._future, self._query = failing, future, query
        self._broken = False

    def result(self) -> Any:
        assert not self._broken
        self._broken = True
        self._failing.next(self._query)
        self._broken = False
        return self._future.result()

    def start_fetching_next_page(self) -> None:
        self._future.start_fetching_next_page()


READ_FAILURE = ReadFailure("Operation failed for system.cdc_timestamps - received 0 responses and 1 failures")
PASSING = (
    READ_FAILURE,
    ReadTimeout("Operation timed out"),
    Unavailable("Cannot achieve consistency level QUORUM"),
    OverloadedErrorMessage(0x1001, "too many in-flight reads", None),
    ServerError(0, "stream is closed", None),
    OperationTimedOut(),
    NoHostAvailable("no host", {}),
)


def test_reads_that_fail_are_repeated_where_they_were(
    cdc: CdcDatabase, logged: list[Logged], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No page of the log is lost or read twice, and tables of streams are queried again."""
    r = random.Random(SEED)
    failing = Failing(monkeypatch, lambda _: r.random() < 0.3, *PASSING)
    monkeypatch.setattr("writetime.scylla_cdc.pages.PAGE_ROWS", 5)
    for table in logged[:2]:
        with open_source(cdc.settings, table.schema.full_name) as source:
            pieces = interval(source, table.sets[0].time, None, None)
            found = Counter(o for batch in source.read(pieces, ["origin"]) for o in origins(batch))
        assert found == Counter(table.origins)
    assert {name.endswith("_scylla_cdc_log") for name in failing.failed} == {False, True}


def test_failures_that_do_not_pass(cdc: CdcDatabase, logged: list[Logged], monkeypatch: pytest.MonkeyPatch) -> None:
    name = logged[1].schema.full_name
    failing = Failing(monkeypatch, lambda _: True, READ_FAILURE)
    with (
        pytest.raises(DatabaseUnreachable, match="received 0 responses and 1 failures"),
        open_source(cdc.settings, name),
    ):
        pass
    assert sum(failing.failed.values()) == 21
    refused = Failing(monkeypatch, lambda _: True, Unauthorized("no SELECT permission"))
    with pytest.raises(DatabaseUnreachable, match="no SELECT permission"), open_source(cdc.settings, name):
        pass
    assert sum(refused.failed.values()) == 1


def test_a_failure_names_the_log_but_no_column_and_no_attempt(
    cdc: CdcDatabase, logged: list[Logged], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent logs it, for each of its tables, as long as a node is down."""
    table = logged[1]
    name = table.schema.full_name
    caplog.set_level("INFO")
    with open_source(cdc.settings, name) as source:
        pieces = interval(source, table.sets[0].time, None, None)
        Failing(monkeypatch, lambda _: True, NoHostAvailable("no host", {"10.0.0.1": READ_FAILURE}))
        said = rf"`SELECT \.\.\. FROM {name}_scylla_cdc_log WHERE .*`: Operation failed"
        with pytest.raises(DatabaseUnreachable, match=said):
            list(source.read(pieces))
    assert not [record for record in caplog.records if record.name == "writetime.scylla_cdc.pages"]


def test_failures_that_pass_are_not_errors_of_the_agent(
    cdc: CdcDatabase, late: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even those that last for longer than a read is repeated; those that stay are."""
    late.sets = [stream_set(random.Random(1), now() - SECOND, [0, (1 << 63) - 1])]
    cdc.announce_tablets(late.schema, late.sets)
    settings = settings_for(cdc, tmp_path, late, window_seconds=0.5)
    failing = Failing(monkeypatch, lambda i: i % 10 == 0, *PASSING)
    monkeypatch.setattr("writetime.scylla_cdc.pages.PAUSES", ())
    with agent(settings):
        for key in range(20):
            insert(cdc, late, key)
            time.sleep(0.1)
        wait_until(settings, late, now())
        assert failing.failed
        status = read_status(settings.capture.state_dir)
        assert status is not None
        assert (status["errors"], status["held_by"]) == ({}, None)
        assert not [r for r in caplog.records if r.levelname == "ERROR" and r.name.startswith("writetime")]
        failing.which = lambda _: True
        wait_for(
            lambda: any("received 0 responses" in line or "did not answer" in line for line in status_lines(settings))
        )
    assert land(settings, late).keys() == set(late.origins)
