"""Values that are different bytes to the database, in every place of a table, from a real server to the lake.

Oracle: the database's answer in raw bytes: the number of its rows, and their bytes.
"""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from cassandra import InvalidRequest
from cassandra.query import BoundStatement

from tests.capture.agents import with_lake
from tests.support import answers
from tests.support.captured import Captured
from tests.support.commands import run
from tests.support.generate import SEED
from tests.support.made import rewrite
from tests.support.settings import write_settings
from tests.support.value_forms import fields, forms, sequence
from tests.support.view_readers import by_duckdb, by_polars
from writetime.changes.position import AT, STATIC_POSITION, position_encoder
from writetime.clients.node_snapshots import take_snapshot
from writetime.lake import state, views
from writetime.lake.backfill import backfill, complete_schema, find_snapshots
from writetime.lake.table import LakeTable, create_table, open_table
from writetime.landing.landing import Landing
from writetime.row_events import publish, stream
from writetime.schema.serialise import loses_parts, partition_key, serialised_values
from writetime.schema.serialise_arrays import plain
from writetime.schema.table import TableSchema
from writetime.schema.types import CqlType, is_complex, parse_cql
from writetime.verify.comparison import VerifyReport, _lake_state, verify
from writetime.verify.lost_deletions import compared_rows

pytestmark = pytest.mark.long

KEYS = [
    *("boolean", "date", "decimal", "double", "inet", "int", "text", "timestamp", "timeuuid", "varint"),
    "frozen<tuple<int, int>>",
    "frozen<tuple<frozen<tuple<int, text>>, double>>",
    "frozen<set<double>>",
    "frozen<list<frozen<tuple<int, text>>>>",
    "frozen<map<frozen<tuple<int, boolean>>, double>>",
    "vector<float, 2>",
]


@pytest.fixture
def landed(captured: Captured, tmp_path: Path) -> Captured:
    """A captured keyspace, and a separate lake."""
    captured.settings = with_lake(captured.settings, tmp_path / "lake")
    return captured


def write_raw(captured: Captured, statement: str, values: list[bytes | None]) -> bool:
    """Write serialised values; return whether the database accepts them."""
    session = captured.node.session()
    bound = BoundStatement(session.prepare(statement.replace("{ks}", captured.keyspace)))
    bound.values = values
    try:
        session.execute(bound)
    except InvalidRequest:
        return False
    return True


def write_forms(captured: Captured, table: str, cql_type: str, r: Random) -> TableSchema:
    """Make a table with values of a type in each place, and write its forms to all of them."""
    captured.write(
        f"CREATE TABLE {{ks}}.{table} (p {cql_type}, q int, c {cql_type}, s {cql_type} static, v {cql_type}, "
        f"e set<{cql_type}>, m map<{cql_type}, {cql_type}>, l list<{cql_type}>, t tuple<{cql_type}, {cql_type}>, "
        "PRIMARY KEY ((p, q), c)) WITH cdc = true"
    )
    several = forms(parse_cql(cql_type), r, 7)
    where = "WHERE p = ? AND q = 1"
    static = f"UPDATE {{ks}}.{table} SET s = ? {where}"
    update = f"UPDATE {{ks}}.{table} SET v = ?, t = ?, m[?] = ?, m[?] = ? {where} AND c = ?"
    add = f"UPDATE {{ks}}.{table} SET e = e + ?, l = l + ? {where} AND c = ?"
    written = 0
    for p in several:
        write_raw(captured, static, [p, p])
        for c in several:
            written += write_raw(captured, update, [c, fields([c, p]), p, c, c, p, p, c])
            for elements in (several, [p, c]):
                # The database refuses an empty value of a native type, as it has no object for it.
                whole = sequence([each for each in elements if each], sum(map(bool, elements)))
                write_raw(captured, add, [whole, whole, p, c])
    assert written > len(several)
    return captured.schema(table)


def has_several(cql_type: CqlType) -> bool:
    """Whether elements may have several forms that are one to the database, which keeps the first or the last."""
    return is_complex(cql_type) and any(
        name in str(cql_type) for name in ("boolean", "decimal", "double", "float", "varint")
    )


def serialised_rows(values: pa.Table, lost: dict[str, pa.Array], types: dict[str, CqlType]) -> Iterator[Any]:
    columns = []
    for name, cql_type in types.items():
        others = lost[name].to_pylist() if name in lost else [None] * len(values)
        decoded = plain(values[name].combine_chunks()).to_pylist()
        columns.append(serialised_values(decoded, others, cql_type))
    return zip(*columns, strict=True)


def assert_same_bytes(captured: Captured, table: LakeTable, schema: TableSchema) -> int:
    """Compare the rows of the lake's state with the database's answer: places, and bytes where they may be lost."""
    with answers.raw_session(captured.node.port) as session:
        answer = answers.rows(session, schema)
    encode = position_encoder(schema.clustering)
    exact = {c.name: c.type for c in schema.static + schema.regular if loses_parts(c.type) and not has_several(c.type)}
    names = [c.name for c in schema.columns]
    n = len(schema.partition_key)
    places = [(partition_key(row[:n]), STATIC_POSITION if row[n] is None else encode([row[n]], AT)) for row in answer]
    assert len(set(places)) == len(answer)
    wanted = [
        (*place, *(row[names.index(name)] or b"" for name in exact)) for place, row in zip(places, answer, strict=True)
    ]
    rows = compared_rows(*_lake_state(views.bucket_views(table), table.schema()))
    found = serialised_rows(rows.values, dict(rows.lost_bytes), exact)
    ours = zip(rows.keys.to_pylist(), rows.positions.to_pylist(), strict=True)
    assert sorted((*place, *row) for place, row in zip(ours, found, strict=True)) == sorted(wanted)
    return len(answer)


def assert_equal(captured: Captured, table: LakeTable, schema: TableSchema) -> None:
    """Compare state, views, row events and `verify` with the database's answer."""
    count = assert_same_bytes(captured, table, schema)
    state.fold(table)
    assert_same_bytes(captured, table, schema)
    assert sum(part.num_rows for part in views.virtual(table)) == count
    assert rewrite(table) == count
    report = verify(captured.settings, table, 0)
    assert_proven(report, count)


def assert_proven(report: VerifyReport, count: int) -> None:
    assert report.differences == []
    assert report.proven
    assert sum(r.database_rows for r in report.ranges) == sum(r.lake_rows for r in report.ranges) == count


@pytest.mark.from_cassandra_5("vectors")
@pytest.mark.parametrize("cql_type", KEYS)
def test_forms_of_a_type(landed: Captured, tmp_path: Path, cql_type: str) -> None:
    schema = write_forms(landed, "t", cql_type, Random(f"{SEED} {cql_type}"))
    folders = take_snapshot(landed.settings, schema.full_name, tmp_path.name)
    found = complete_schema(landed.settings, find_snapshots([str(folder) for folder in folders]))
    table = create_table(landed.settings, found.schema)
    assert sum(changes for _, changes in backfill(table, found))
    assert_equal(landed, table, schema)


PAIRS = "(null, 1)", "(blobAsInt(0x), 1)"
# Each makes another row, or another value that is the same when it is decoded, in a partition of its own.
HIDDEN = [
    f"DELETE FROM {{ks}}.t WHERE k = 0 AND c = {PAIRS[0]}",
    *(
        f"{change} WHERE k = {k} AND c = {PAIRS[0]}"
        for k, change in enumerate(
            [
                f"UPDATE {{ks}}.t SET v = {PAIRS[1]}",
                f"DELETE e[{PAIRS[1]}] FROM {{ks}}.t",
                f"UPDATE {{ks}}.t SET m[{PAIRS[1]}] = 1, m[{PAIRS[0]}] = 2",
                "UPDATE {ks}.t SET f[blobAsInt(0x)] = 9",
            ],
            1,
        )
    ),
]


def captured_pairs(landed: Captured) -> tuple[LakeTable, TableSchema]:
    """Make a table of which a clustering, an element, a key and a value are a tuple with a null or an empty part."""
    pair = "frozen<tuple<int, int>>"
    landed.write(
        f"CREATE TABLE {{ks}}.t (k int, c {pair}, v {pair}, e set<{pair}>, m map<{pair}, int>, f map<int, int>, "
        "PRIMARY KEY (k, c)) WITH cdc = true",
    )
    with landed.agent():
        for k, c in product(range(len(HIDDEN)), PAIRS):
            landed.write(
                f"INSERT INTO {{ks}}.t (k, c, v, e, m, f) VALUES ({k}, {c}, {c}, {{{', '.join(PAIRS)}}}, "
                f"{{{PAIRS[0]}: 1, {PAIRS[1]}: 2}}, {{1: {k}, blobAsInt(0x): {k}}})"
            )
        landed.settle()
    schema = landed.schema("t")
    assert Landing(landed.settings, schema.full_name).drain()
    return open_table(landed.settings, schema.full_name), schema


def test_parts_that_are_null_or_empty_from_kafka(landed: Captured) -> None:
    table, schema = captured_pairs(landed)
    assert_equal(landed, table, schema)
    assert stream.extend(table) == publish.publish(landed.settings, table) == 2 * len(HIDDEN)


def test_verify_reports_bytes_that_differ(landed: Captured) -> None:
    table, _ = captured_pairs(landed)
    assert verify(landed.settings, table, 0).proven
    landed.write(*HIDDEN, f"INSERT INTO {{ks}}.t (k, c) VALUES (-1, {PAIRS[0]})")
    report = verify(landed.settings, table, 0)
    found = {(d.database or d.lake or {})["k"] for d in report.differences}
    assert found == {-1, *range(len(HIDDEN))}
    assert len(report.differences) == len(HIDDEN) + 1


def test_keys_of_maps_that_readers_think_equal(
    landed: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed.write(
        "CREATE TABLE {ks}.t (k int PRIMARY KEY, m map<double, int>, f frozen<map<frozen<list<float>>, int>>, "
        "e set<double>) WITH cdc = true"
    )
    with landed.agent():
        landed.write(
            "INSERT INTO {ks}.t (k, m, f, e) VALUES (1, {0.0: 1, -0.0: 2}, {[0.0]: 1, [-0.0]: 2}, {0.0, -0.0})"
        )
        landed.settle()
    name = f"{landed.keyspace}.t"
    assert Landing(landed.settings, name).drain()
    table = open_table(landed.settings, name)
    assert rewrite(table) == 1
    wanted = {
        n: [{"key": k, "value": v} for k, v in keys]
        for n, keys in {
            "m": [(-0.0, 2), (0.0, 1)],
            "f": [([-0.0], 2), ([0.0], 1)],
        }.items()
    } | {"k": 1, "e": [-0.0, 0.0]}
    for read in (by_duckdb, by_polars):
        (row,) = read(table.view.storage.address).select(["k", "m", "f", "e"]).to_pylist()
        # As text: 0.0 and -0.0 are equal in Python.
        assert str(row) == str({n: wanted[n] for n in row})
    write_settings(landed.settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    shown = json.loads(run("view", name, "--format", "jsonl"))
    assert {n: str(v) for n, v in shown.items()} == {n: str(v) for n, v in wanted.items()}
    assert verify(landed.settings, table, 0).proven
