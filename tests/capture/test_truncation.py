"""TRUNCATE, and DROP followed by CREATE of the same name: the lake discards the same data as the database."""

from pathlib import Path
from typing import Any

import pytest

from tests.capture.agents import until, with_lake
from tests.support.captured import Captured
from tests.support.event_replay import Consumer, in_order
from tests.support.lake_answers import cql_rows, view_rows
from tests.support.made import rewrite
from tests.support.waiting import wait_for
from writetime.capture.metrics import read_status
from writetime.capture.node_schemas import Node
from writetime.lake import state, views
from writetime.lake.horizon import captured_until
from writetime.lake.table import LakeTable, open_table
from writetime.landing.landing import Landing
from writetime.row_events import stream
from writetime.verify.comparison import verify

pytestmark = pytest.mark.long

FUTURE = "USING TIMESTAMP 4000000000000000"


@pytest.fixture
def landed(captured: Captured, tmp_path: Path) -> Captured:
    """A captured keyspace, and a separate lake."""
    captured.settings = with_lake(captured.settings, tmp_path / "lake")
    return captured


def land(captured: Captured) -> LakeTable:
    """Land table `t`, and compare its views, row events and `verify` with the database's answer."""
    name = f"{captured.keyspace}.t"
    captured.settle()
    landing = Landing(captured.settings, name)
    assert landing.drain() == landing.offsets_landed
    table = open_table(captured.settings, name)
    wanted = cql_rows(captured.node.session(), captured.schema("t"))
    assert view_rows(views.virtual(table)) == wanted
    state.fold(table)
    assert rewrite(table) == len(wanted)
    kept = table.view.read([c.label for c in table.schema().columns])
    assert sorted(map(repr, view_rows([kept]))) == sorted(map(repr, wanted))
    stream.extend(table)
    consumer = Consumer()
    consumer.follow(table)
    assert in_order(consumer.rows) == wanted
    report = verify(captured.settings, table, 0)
    assert report.differences == []
    return table


@pytest.mark.parametrize("snapshot", ["schema-only", "initial"])
def test_a_table_that_is_truncated(landed: Captured, snapshot: str) -> None:
    """Writes before the truncation are deleted, also with later write times; writes after it count, also with earlier
    ones.
    """
    landed.settings = landed.with_options(snapshot=snapshot)
    landed.write(
        "CREATE TABLE {ks}.t (k int, c int, s text static, v text, m map<int, text>, PRIMARY KEY (k, c)) "
        "WITH cdc = true",
        *(f"INSERT INTO {{ks}}.t (k, c, v, m) VALUES ({i}, {i}, 'old', {{1: 'old'}}) {FUTURE}" for i in range(20)),
    )
    with landed.agent():
        first = land(landed)
        landed.write("UPDATE {ks}.t SET s = 'old' WHERE k = 1", "TRUNCATE {ks}.t")
        table = land(landed)
        assert view_rows(views.virtual(table)) == []
        landed.write(
            "INSERT INTO {ks}.t (k, c, v, m) VALUES (1, 1, 'new', {2: 'new'}) USING TIMESTAMP 5",
            f"UPDATE {{ks}}.t {FUTURE} SET s = 'lost' WHERE k = 1",
            "TRUNCATE {ks}.t",
            "UPDATE {ks}.t USING TIMESTAMP 7 SET v = 'last', m[3] = 'last' WHERE k = 1 AND c = 1",
        )
        table = land(landed)
        assert view_rows(views.virtual(table)) == [{"k": 1, "c": 1, "s": None, "v": "last", "m": [[3, "last"]]}]
        before = captured_until(table.changes.load())
        landed.write("INSERT INTO {ks}.t (k, c, v) VALUES (2, 2, 'more')")
        assert captured_until(land(landed).changes.load()) >= before
    assert first.name == table.name


def test_a_table_that_is_truncated_while_the_agent_is_down(landed: Captured) -> None:
    landed.write("CREATE TABLE {ks}.t (k int PRIMARY KEY, v text) WITH cdc = true")
    with landed.agent():
        landed.write(*(f"INSERT INTO {{ks}}.t (k, v) VALUES ({k}, 'old')" for k in range(5)))
        land(landed)
    landed.write(
        "INSERT INTO {ks}.t (k, v) VALUES (1, 'never seen')",
        "TRUNCATE {ks}.t",
        "INSERT INTO {ks}.t (k, v) VALUES (3, 'new')",
    )
    with landed.agent():
        table = land(landed)
    assert view_rows(views.virtual(table)) == [{"k": 3, "v": "new"}]


@pytest.mark.parametrize(
    ("snapshot", "is_down"),
    [
        ("schema-only", False),
        ("initial", True),
        pytest.param("schema-only", True, marks=pytest.mark.long_only("both values are tried")),
        pytest.param("initial", False, marks=pytest.mark.long_only("both values are tried")),
    ],
)
def test_a_table_that_is_dropped_and_created_again(landed: Captured, snapshot: str, is_down: bool) -> None:
    """With the same columns, and with others."""
    landed.settings = landed.with_options(snapshot=snapshot)
    definitions = [
        ("(k int PRIMARY KEY, v text)", "(k, v) VALUES (1, 'first')"),
        ("(k int PRIMARY KEY, v text)", "(k, v) VALUES (2, 'second')"),
        ("(k text, v int, w blob, PRIMARY KEY (k, v))", "(k, v, w) VALUES ('a', 1, 0x01)"),
    ]
    for number, (columns, values) in enumerate(definitions):
        landed.write(f"CREATE TABLE {{ks}}.t {columns} WITH cdc = true")
        with landed.agent():
            landed.write(f"INSERT INTO {{ks}}.t {values}")
            land(landed)
            landed.write(f"INSERT INTO {{ks}}.t {values} USING TTL 1000")
            if not is_down and number < 2:
                # The table is dropped before its changes land.
                landed.write("DROP TABLE {ks}.t")
        if is_down and number < 2:
            landed.write("DROP TABLE {ks}.t")
    assert len(view_rows(views.virtual(open_table(landed.settings, f"{landed.keyspace}.t")))) == 1


def test_a_table_that_is_created_again_while_the_agent_runs(landed: Captured) -> None:
    """With the columns of the table before, with others, and with those of the first one."""
    two, three = "(k int PRIMARY KEY, v text)", "(k int PRIMARY KEY, v text, w int)"
    with landed.agent():
        for number, columns in enumerate((two, two, three, two)):
            landed.write(f"CREATE TABLE {{ks}}.t {columns} WITH cdc = true")
            landed.write(f"INSERT INTO {{ks}}.t (k, v) VALUES ({number}, 'a')")
            assert [row["k"] for row in view_rows(views.virtual(land(landed)))] == [number]
            landed.write("DROP TABLE {ks}.t")
        # The agent of the next test would not know the table.
        landed.settle()


def test_a_table_that_is_dropped_after_a_truncation(landed: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node deletes its record of the truncation, too, which may be between two queries of the agent."""
    landed.write("CREATE TABLE {ks}.t (k int PRIMARY KEY, v text) WITH cdc = true")
    answer = Node.rows
    drops = iter(["DROP TABLE {ks}.t"])
    is_due = False

    def rows(node: Node, query: str) -> list[dict[str, Any]]:
        if is_due and "truncated_at" in query:
            landed.write(*drops)
        return answer(node, query)

    monkeypatch.setattr(Node, "rows", rows)
    with landed.agent():
        landed.write("INSERT INTO {ks}.t (k, v) VALUES (1, 'old')", "TRUNCATE {ks}.t")
        assert view_rows(views.virtual(land(landed))) == []
        is_due = True
        landed.settle()
        assert not list(drops)
        landed.settle()
    assert not list(landed.settings.capture.state_dir.glob("aside/truncation-undone-*"))


def test_a_record_that_cannot_be_read_does_not_stop_other_tables(
    landed: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table's watermark waits, as it is not known which of its changes count. Once readable, the record counts."""
    for table in ("bad", "t"):
        landed.write(f"CREATE TABLE {{ks}}.{table} (k int PRIMARY KEY, v text) WITH cdc = true")
        landed.write(f"INSERT INTO {{ks}}.{table} (k, v) VALUES (1, 'old')")
    bad = f"{landed.keyspace}.bad"
    table_id = landed.schema("bad").id
    answer = Node.rows

    def rows(node: Node, query: str) -> list[dict[str, Any]]:
        found = answer(node, query)
        if "truncated_at" in query:
            records = found[0]["truncated_at"] or {}
            found[0]["truncated_at"] = {k: b"\0" if k == table_id else v for k, v in records.items()}
        return found

    def status() -> dict[str, Any]:
        return read_status(landed.settings.capture.state_dir) or {}

    with landed.agent():
        landed.settle()
        with monkeypatch.context() as patch:
            patch.setattr(Node, "rows", rows)
            landed.write("TRUNCATE {ks}.bad", "TRUNCATE {ks}.t", "INSERT INTO {ks}.t (k, v) VALUES (2, 'new')")
            landed.write("INSERT INTO {ks}.bad (k, v) VALUES (3, 'new')")
            wait_for(lambda: bad in status().get("held", {}))
            assert "0x00" in status()["held"][bad]
            assert view_rows(views.virtual(land(landed))) == [{"k": 2, "v": "new"}]
            assert until(landed, "bad") == 0
        wait_for(lambda: until(landed, "bad") > 0)
        wait_for(lambda: not status()["held"])
        landing = Landing(landed.settings, bad)
        landing.drain()
        landed.settle()
        landing.drain()
    table = open_table(landed.settings, bad)
    assert view_rows(views.virtual(table)) == cql_rows(landed.node.session(), landed.schema("bad"))
