"""Values that are valid in the database but have no direct form in Arrow, Spark or Python, from capture to the views.

The oracle is the database's answer in raw bytes, as the driver raises on such values.
"""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cassandra import InvalidRequest
from click.testing import CliRunner

from tests.capture.agents import with_lake
from tests.support import answers
from tests.support.captured import Captured
from tests.support.event_replay import Consumer, in_order
from tests.support.lake_answers import view_rows
from tests.support.lake_views import answered, assert_lake
from tests.support.messages import decoded
from tests.support.odd_texts import PIECES
from tests.support.settings import write_settings
from writetime.changes.model import RESERVED
from writetime.cli.main import main
from writetime.cli.view import filtered
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.printing import printable
from writetime.lake import views
from writetime.lake.backfill import backfill, complete_schema, find_snapshots
from writetime.lake.table import LakeTable, create_table, open_table
from writetime.landing.landing import Landing
from writetime.row_events import publish, stream
from writetime.schema.text import bytes_of_text
from writetime.verify.comparison import verify
from writetime.wire.topic_names import row_events_topic

pytestmark = pytest.mark.long

LAST = (1 << 63) - 1
# Milliseconds: the limits of CQL's range, and of that of microseconds.
MILLIS = (0, -1, LAST, -LAST - 1, LAST // 1000, -(LAST // 1000), LAST // 1000 + 1, -(LAST // 1000) - 1)


@pytest.fixture
def landed(captured: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Captured:
    """A captured keyspace, and a separate lake."""
    captured.settings = with_lake(captured.settings, tmp_path / "lake")
    write_settings(captured.settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    return captured


def assert_row_events(captured: Captured, table: LakeTable) -> None:
    """Compare the row events, replayed, with the view, and count them in Kafka."""
    stream.extend(table)
    consumer = Consumer()
    consumer.follow(table)
    rows = view_rows(views.virtual(table))
    assert in_order(consumer.rows) == rows
    assert publish.publish(captured.settings, table) == len(rows)
    events: list[dict[str, Any]] = decoded(captured.settings, row_events_topic(table.name))
    assert sorted(event["event_id"] for event in events) == sorted(consumer.event_ids)


def assert_whole_way(captured: Captured, name: str, tmp_path: Path) -> Counter[str]:
    """Compare the captured changes, and those of a snapshot, with the database's answer."""
    schema = captured.schema(name)
    wanted = answered(captured.node.port, schema)
    assert wanted.num_rows
    assert Landing(captured.settings, schema.full_name).drain()
    table = open_table(captured.settings, schema.full_name)
    unfit = assert_lake(table, wanted, schema)
    assert_row_events(captured, table)
    report = verify(captured.settings, table, 0)
    assert report.differences == []
    assert sum(r.database_rows for r in report.ranges) == wanted.num_rows
    folders = take_snapshot(captured.settings, schema.full_name, tmp_path.name)
    settings = with_lake(captured.settings, tmp_path / "backfilled")
    found = complete_schema(settings, find_snapshots([str(folder) for folder in folders]))
    backfilled = create_table(settings, found.schema)
    assert sum(changes for _, changes in backfill(backfilled, found))
    assert assert_lake(backfilled, wanted, schema) == unfit
    assert verify(settings, backfilled, 0).differences == []
    return unfit


@pytest.mark.from_cassandra_5("vectors")
def test_timestamps_beyond_microseconds(landed: Captured, tmp_path: Path, *, is_long: bool) -> None:
    # Of each partition: itself, and some more.
    others = len(MILLIS) if is_long else 3
    landed.write(
        "CREATE TYPE {ks}.u (a timestamp, b int)",
        "CREATE TABLE {ks}.t (p timestamp, q frozen<map<timestamp, int>>, c timestamp, "
        "d frozen<tuple<timestamp, int>>, st timestamp static, v timestamp, tie timestamp, "
        "l list<timestamp>, s set<timestamp>, m map<timestamp, int>, "
        "n map<int, timestamp>, u u, fu frozen<u>, t tuple<timestamp, int>, e vector<timestamp, 2>, "
        "mm frozen<map<frozen<map<timestamp, int>>, timestamp>>, PRIMARY KEY ((p, q), c, d)) WITH cdc = true "
        "AND CLUSTERING ORDER BY (c DESC, d ASC)",
    )
    with landed.agent():
        for number, p in enumerate(MILLIS):
            landed.write(f"UPDATE {{ks}}.t SET st = {p} WHERE p = {p} AND q = {{{p}: 1, 5: 2}}")
            for c in (*MILLIS, *MILLIS)[number : number + others]:
                landed.write(
                    "INSERT INTO {ks}.t (p, q, c, d, v, l, s, m, n, u, fu, t, e, mm) VALUES "
                    f"({p}, {{{p}: 1, 5: 2}}, {c}, ({c}, 1), {c}, [{c}, 7, {p}], {{{c}, {p}}}, {{{c}: 1, 0: 2}}, "
                    f"{{1: {c}, 2: 3}}, {{a: {c}, b: 1}}, {{a: {c}, b: 2}}, ({c}, 3), [{c}, 9], "
                    f"{{{{{c}: 1}}: {p}, {{8: 2}}: 8}})",
                )
                for tie in (c, p):  # Of two values with one write time the greater bytes win.
                    landed.write(
                        f"UPDATE {{ks}}.t USING TIMESTAMP 1000 SET tie = {tie} "
                        f"WHERE p = {p} AND q = {{{p}: 1, 5: 2}} AND c = {c} AND d = ({c}, 1)"
                    )
        landed.settle()
    unfit = assert_whole_way(landed, "t", tmp_path)
    assert unfit["p"] == unfit["c"] == unfit["st"] == unfit["v"] == others * 4
    assert set(unfit) == {c.name for c in landed.schema("t").columns}


def accepted(captured: Captured, cql_type: str, candidates: list[bytes]) -> list[bytes]:
    """Return those of some byte strings that the database accepts as values of a type."""
    table = f"checked_{cql_type}"
    captured.write(f"CREATE TABLE {{ks}}.{table} (v {cql_type} PRIMARY KEY)")
    taken = []
    for data in candidates:
        try:
            captured.write(f"INSERT INTO {{ks}}.{table} (v) VALUES (blob_as_{cql_type}(0x{data.hex()}))")
        except InvalidRequest:
            continue
        taken.append(data)
    with answers.raw_session(captured.node.port) as session:
        answer = session.execute(f"SELECT v, {cql_type}_as_blob(v) FROM {captured.keyspace}.{table}")
        assert {(bytes(v), bytes(blob)) for v, blob in answer} == {(v, v) for v in taken}
    return taken


def is_strict(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def texts_of_cassandra(captured: Captured) -> list[bytes]:
    """Bytes that Cassandra's validator accepts as text: also surrogates, C0 80, and code points beyond U+10FFFF."""
    r = random.Random(5)
    candidates = [piece for piece in PIECES if piece]
    candidates += [b"".join(r.choices(PIECES, k=3)) for _ in range(60)]
    candidates += [r.randbytes(3) for _ in range(20)]
    candidates = sorted({c for c in candidates if c})
    texts = accepted(captured, "text", candidates)
    for data in (b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xf7\xbf\xbf\xbf", "\ufdd0".encode()):
        assert data in texts
    for data in (b"\xff", b"\x80", b"\xc1\x81", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xef\xb7"):
        assert data not in texts
    assert all(data in texts for data in candidates if is_strict(data))
    assert all(data.isascii() for data in accepted(captured, "ascii", candidates))
    return texts


@pytest.mark.from_cassandra_5("vectors")
def test_text_that_is_not_utf8(landed: Captured, tmp_path: Path) -> None:
    texts = texts_of_cassandra(landed)
    landed.write(
        "CREATE TYPE {ks}.w (a text, b int)",
        "CREATE TABLE {ks}.t (p text, q frozen<list<text>>, c text, d frozen<tuple<text, int>>, st text static, "
        "v text, tie text, l list<text>, s set<text>, m map<text, text>, u w, fu frozen<w>, t tuple<text, int>, "
        "e vector<text, 2>, mm frozen<map<frozen<map<text, int>>, text>>, PRIMARY KEY ((p, q), c, d)) WITH cdc = true "
        "AND CLUSTERING ORDER BY (c DESC, d ASC)",
    )
    odd = [data for data in texts if not is_strict(data) or "\ufdd0" in data.decode()]
    assert len(odd) > 20
    with landed.agent():
        for number, data in enumerate(texts):
            x, y = (f"blob_as_text(0x{d.hex()})" for d in (data, odd[number % len(odd)]))
            key = f"p = {x} AND q = [{y}]"
            row = f"{key} AND c = {y} AND d = ({x}, 1)"
            landed.write(
                f"UPDATE {{ks}}.t SET st = {x} WHERE {key}",
                "INSERT INTO {ks}.t (p, q, c, d, v, l, s, m, u, fu, t, e, mm) VALUES "
                f"({x}, [{y}], {y}, ({x}, 1), {x}, [{y}, {x}], {{{x}, {y}}}, {{{x}: {y}}}, {{a: {y}, b: 1}}, "
                f"{{a: {x}, b: 2}}, ({y}, 3), [{x}, {y}], {{{{{y}: 1}}: {x}}})",
                # Of two values with one write time the greater bytes win.
                *(f"UPDATE {{ks}}.t USING TIMESTAMP 1000 SET tie = {tie} WHERE {row}" for tie in (x, y)),
                f"DELETE s[{y}] FROM {{ks}}.t WHERE {row}",
            )
        landed.settle()
    assert not assert_whole_way(landed, "t", tmp_path)
    # The original bytes are in the lake.
    table = open_table(landed.settings, f"{landed.keyspace}.t")
    found = pa.concat_tables(views.virtual(table))
    assert {bytes_of_text(text) for text in found["p"].to_pylist()} == set(texts)


# Bytes of text, and the text that stands for them: each byte that is not UTF-8 is escaped.
FORMS = {
    "61eda08062": "a\ufdd0ed\ufdd0a0\ufdd080b",
    "61c08062": "a\ufdd0c0\ufdd080b",
    "61f580808062": "a\ufdd0f5\ufdd080\ufdd080\ufdd080b",
    "6162": "ab",
}


def command(*arguments: str) -> str:
    answer = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def snapshot_of_forms(captured: Captured, tag: str) -> tuple[str, str]:
    """A table with such texts in all places: its name, and the folder of its snapshot."""
    captured.write("CREATE TABLE {ks}.t (p text, c text, v text, m map<text, text>, PRIMARY KEY (p, c))")
    for data in FORMS:
        text = f"blobAsText(0x{data})"
        captured.write(f"INSERT INTO {{ks}}.t (p, c, v, m) VALUES ({text}, {text}, {text}, {{{text}: {text}}})")
    table = f"{captured.keyspace}.t"
    [folder] = take_snapshot(captured.settings, table, tag)
    return table, str(folder)


def test_sstable_prints_text_that_is_not_utf8(landed: Captured, tmp_path: Path) -> None:
    table, folder = snapshot_of_forms(landed, tmp_path.name)
    changes = [json.loads(line) for line in command("sstable", folder).splitlines()]
    assert [change["kind"] for change in changes] == ["row"] * len(FORMS)
    found = {change["p"]: change for change in changes}
    assert found.keys() == set(FORMS.values())
    for text, change in found.items():
        assert (change["c"], change["v"]["value"]) == (text, text)
        [element] = change["m"]["elements"]
        assert (element["path"], element["value"]) == (text, text)
        assert bytes_of_text(text).hex() in FORMS
    command("sstable", folder, "--output", str(tmp_path / "changes.parquet"))
    assert set(pq.read_table(tmp_path / "changes.parquet")["p"].to_pylist()) == set(FORMS.values())
    assert json.loads(command("sstable", folder, "--stats"))[table]["changes"] == len(FORMS)


def test_view_prints_text_that_is_not_utf8(landed: Captured, tmp_path: Path) -> None:
    table, folder = snapshot_of_forms(landed, tmp_path.name)
    assert "4 changes added" in command("backfill", table, folder)
    rows = [json.loads(line) for line in command("view", table, "--format", "jsonl").splitlines()]
    assert {row["p"] for row in rows} == set(FORMS.values())
    assert all(row == {"p": row["p"], "c": row["p"], "v": row["p"], "m": {row["p"]: row["p"]}} for row in rows)
    head, *lines = command("view", table).splitlines()
    assert head.split() == ["p", "c", "m", "v"]
    assert len(lines) == len(FORMS)
    # On a terminal, U+FDD0 is shown as an escape.
    for text in FORMS.values():
        assert any(line.startswith(printable(text)) for line in lines)


def test_names_that_are_alike(landed: Captured, tmp_path: Path) -> None:
    """Reserved and generated names, names in quotes, and names that differ in case only, of columns and fields."""
    r = random.Random(3)
    written = [*RESERVED, "column_key", "column_column_key", "KEY", "Kind", "kinD", "END", "token_bucket"]
    written += ["Token_Bucket", "writetime_row", "writetime_row_2", "name", "Name", "NAME", "name_2", "a.value", "a"]
    written += ["marker.expiry", "a b", "a_x20_b", "1st", "_1st", "_x31_st", 'quo"te', "it's", "semi;colon", "select"]
    written += ["écran", "ÉCRAN", "straße", "STRASSE", "ı", "i", "İ", "`tick`", "(a, b)", "before", "after", "sequence"]
    r.shuffle(written)
    partition, clustering, static, *regular = written
    fields = ["f", "F", "f_2", "a.b", "a", "x y", "x_x20_y", "value", "VALUE", "tombstone"]
    columns = ", ".join(f"{quoted(name)} int" for name in regular)
    landed.write(
        f"CREATE TYPE {{ks}}.u ({', '.join(f'{quoted(name)} int' for name in fields)})",
        f"CREATE TABLE {{ks}}.t ({quoted(partition)} int, {quoted(clustering)} int, {quoted(static)} int static, "
        f'{columns}, u u, "U" frozen<u>, "L" list<frozen<u>>, l map<text, int>, '
        f"PRIMARY KEY ({quoted(partition)}, {quoted(clustering)})) WITH cdc = true",
    )
    udt = "{" + ", ".join(f"{quoted(name)}: {i}" for i, name in enumerate(fields)) + "}"
    with landed.agent():
        write_all(landed, [partition, clustering, static, *regular], udt, 0)
        landed.settle()
        assert not assert_whole_way(landed, "t", tmp_path / "first")
        before = {c.name: c.label for c in open_table(landed.settings, f"{landed.keyspace}.t").schema().columns}
        # Names that conflict with existing ones, and one that is added again: no label changes.
        more = ["naME", "KinD", "a.value.b", "L_2"]
        gone = next(name for name in regular if name != before[name])
        landed.write(f"ALTER TABLE {{ks}}.t DROP {quoted(gone)}")
        landed.write(*(f"ALTER TABLE {{ks}}.t ADD {quoted(name)} int" for name in [*more, gone]))
        write_all(landed, [partition, clustering, static, *regular, *more], udt, 100)
        landed.settle()
    assert not assert_whole_way(landed, "t", tmp_path / "second")
    table = open_table(landed.settings, f"{landed.keyspace}.t")
    after = {c.name: c.label for c in table.schema().columns}
    assert before.items() <= after.items()
    assert_rows_found_by_labels(pa.concat_tables(views.virtual(table)), after)


def assert_rows_found_by_labels(rows: pa.Table, labels: dict[str, str]) -> None:
    """A condition on any column finds the rows with its value, and no others."""
    for name, label in labels.items():
        if name not in ("u", "U", "L", "l"):
            wanted = max(v for v in rows[label].to_pylist() if v is not None)
            found = filtered(rows, f"{quoted(label)} = {wanted}")
            assert wanted in found[label].to_pylist()
            assert set(found[label].to_pylist()) == {wanted}


def quoted(name: str) -> str:
    """A name in quotes, whatever it is."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def write_all(captured: Captured, columns: list[str], udt: str, start: int) -> None:
    """Write two rows with another number in each column, an update, and a deletion of cells."""
    partition, clustering, *others = map(quoted, columns)
    named = ", ".join([partition, clustering, *others, "u", '"U"', '"L"', "l"])
    for row in (1, 2):
        numbers = ", ".join(str(start * 10 + row * 1000 + i) for i in range(len(others)))
        captured.write(
            f"INSERT INTO {{ks}}.t ({named}) VALUES ({start}, {row}, {numbers}, {udt}, {udt}, [{udt}], {{'x': {row}}})"
        )
    where = f"WHERE {partition} = {start} AND {clustering} = 1"
    captured.write(
        f"UPDATE {{ks}}.t SET u.{quoted('F')} = {start}, {others[-1]} = 7 {where}",
        f"DELETE {others[-2]}, u.{quoted('f')} FROM {{ks}}.t {where}",
    )


def test_maps_with_an_empty_key(landed: Captured, tmp_path: Path) -> None:
    """They are null in a column, and in another value."""
    landed.write(
        "CREATE TABLE {ks}.t (k int PRIMARY KEY, m map<int, int>, f frozen<map<int, int>>, "
        "l frozen<list<frozen<map<int, int>>>>) WITH cdc = true",
    )
    with landed.agent():
        for k, empty in enumerate(("{1: 1}", "{blobAsInt(0x): 1, 2: 3}")):
            landed.write(f"INSERT INTO {{ks}}.t (k, m, f, l) VALUES ({k}, {empty}, {empty}, [{{1: 1}}, {empty}])")
        landed.settle()
    assert not assert_whole_way(landed, "t", tmp_path)
