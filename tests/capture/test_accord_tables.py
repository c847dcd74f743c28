"""Tables that Accord writes to, in Cassandra 6.0: capture holds them by name, and their SSTables are read exactly.

Oracle: the node's answers to `SELECT`.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cassandra import ConsistencyLevel

from tests.capture.agents import passes, restart, status_of
from tests.capture.endtoend import NODE
from tests.support.captured import Captured, captured_keyspace
from tests.support.format_server import KilledServer
from tests.support.lake_answers import cql_rows, view_rows
from tests.support.servers import running
from tests.support.waiting import wait_for
from writetime.core.config import Settings
from writetime.files.row_form import to_micros
from writetime.merge import live_rows, merge
from writetime.storage.sstable import SSTable

pytestmark = [pytest.mark.long, pytest.mark.from_cassandra_6("Accord")]

_ON = "transactional_mode = 'full'"


class AccordNode(KilledServer):
    """A node on which tables may be transactional."""

    def session(self) -> Any:
        """Return a session with a consistency level that Accord has."""
        session = super().session()
        session.default_consistency_level = ConsistencyLevel.QUORUM
        return session


@pytest.fixture(scope="module")
def accord_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccordNode]:
    """A node for all tests of the module."""
    with running(AccordNode(tmp_path_factory.mktemp("accord"), "oa", **NODE, accord={"enabled": True})) as server:
        yield server


@pytest.fixture
def captured(accord_node: AccordNode, kafka: Settings, tmp_path: Path) -> Iterator[Captured]:
    """A captured keyspace of that node. Keyspaces with transactional tables cannot be dropped."""
    with captured_keyspace(accord_node, kafka, tmp_path) as made:
        try:
            yield made
        finally:
            made.write("DROP TABLE IF EXISTS {ks}.t")


def held(captured: Captured) -> dict[str, str]:
    """The tables whose watermarks wait, with the reasons."""
    return status_of(captured).get("held", {})


def test_a_transactional_table_is_held_by_name(captured: Captured) -> None:
    """Also after a restart, and no other table is."""
    name = f"{captured.keyspace}.t"
    captured.write("CREATE TABLE {ks}.plain (k int PRIMARY KEY) WITH cdc = true")
    with captured.agent():
        captured.write(f"CREATE TABLE {{ks}}.t (k int PRIMARY KEY, v int) WITH cdc = true AND {_ON}")
        wait_for(lambda: f"Accord writes to table {name}" in held(captured).get(name, ""))
        captured.write("INSERT INTO {ks}.t (k, v) VALUES (1, 1)", "INSERT INTO {ks}.plain (k) VALUES (1)")
        captured.settle()
        passes(captured)
        restart(captured)
        captured.write("INSERT INTO {ks}.t (k, v) VALUES (2, 2)", "INSERT INTO {ks}.plain (k) VALUES (2)")
        passes(captured)
        assert list(held(captured)) == [name]
    captured.assert_same("plain")


def test_a_table_that_becomes_transactional_is_held_until_its_migration_has_ended(captured: Captured) -> None:
    name = f"{captured.keyspace}.t"
    captured.write("CREATE TABLE {ks}.t (k int PRIMARY KEY, v int) WITH cdc = true")
    with captured.agent():
        passes(captured)
        assert not held(captured)
        for value in (_ON, "transactional_mode = 'off'"):
            captured.write(f"ALTER TABLE {{ks}}.t WITH {value}")
            wait_for(lambda: f"Accord writes to table {name}" in held(captured).get(name, ""))
            passes(captured)
            assert "(until 20" not in held(captured)[name]


def _write_rows(captured: Captured) -> None:
    captured.write(
        f"CREATE TABLE {{ks}}.t (k int, c int, v text, l list<int>, m map<text, int>, s int STATIC, PRIMARY KEY (k, c))"
        f" WITH cdc = true AND {_ON}",
        "INSERT INTO {ks}.t (k, c, v, l, m, s) VALUES (1, 1, 'a', [1, 2], {'a': 1}, 1)",
        "UPDATE {ks}.t SET l = l + [3], m['b'] = 2, v = 'b' WHERE k = 1 AND c = 1",
        "INSERT INTO {ks}.t (k, c, v) VALUES (1, 2, 'ttl') USING TTL 100000",
        "BEGIN TRANSACTION UPDATE {ks}.t SET l += [7], v = 'in a transaction' WHERE k = 2 AND c = 1;"
        " INSERT INTO {ks}.t (k, c, v) VALUES (2, 9, 'other'); COMMIT TRANSACTION",
        "UPDATE {ks}.t SET v = 'if' WHERE k = 2 AND c = 9 IF v = 'other'",
        "INSERT INTO {ks}.t (k, c, v, m) VALUES (3, 1, 'gone', {'x': 1})",
        "DELETE FROM {ks}.t WHERE k = 3 AND c = 1",
        "DELETE m['a'] FROM {ks}.t WHERE k = 1 AND c = 1",
        "DELETE FROM {ks}.t WHERE k = 1 AND c > 5",
    )


def test_the_sstables_of_a_transactional_table_are_read_exactly(captured: Captured) -> None:
    _write_rows(captured)
    captured.node.nodetool("flush", captured.keyspace)
    schema = captured.schema("t")
    batches = [b for where in captured.node.sstables(captured.keyspace, "t") for b in SSTable(where, schema).scan()]
    merged = merge([pa.Table.from_batches(batches)], schema)
    rows = live_rows(merged, schema, as_of=int(time.time()))
    wanted = cql_rows(captured.node.session(), schema)
    assert len(wanted) == 4
    assert view_rows([to_micros(rows, schema)]) == wanted
    answers = captured.node.session().execute(f"SELECT k, c, WRITETIME(v) AS at FROM {schema.full_name}")
    cells = {(row["k"], row["c"]): row["v"] for row in merged.select(["k", "c", "v"]).to_pylist() if row["v"]}
    assert {place: cell["write_time"] for place, cell in cells.items() if cell["value"] is not None} == {
        (row.k, row.c): row.at for row in answers
    }
