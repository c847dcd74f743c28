"""Look-ups and conditions find the rows that DuckDB finds in the whole view.

Oracle: DuckDB, on the view.
"""

import shutil
import struct
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lookup.conftest import PARTITIONS
from tests.support.examples import is_long_run
from tests.support.made import SCHEMA, add, new_table, settings_at, write
from writetime.api.tables import open_table
from writetime.changes.position import AT
from writetime.cli.view import rows_where
from writetime.core.errors import WritetimeError
from writetime.delta.bucketed_table import BucketedTable
from writetime.delta.table_changes import TableChange
from writetime.files.key_ranges import KeyRanges, TokenRange
from writetime.lake import state, views
from writetime.lake.changes import ChangeWriter
from writetime.lake.table import LakeTable
from writetime.lookup import reading
from writetime.lookup.conditions import conditions_of
from writetime.lookup.keys import places_of_condition
from writetime.lookup.reading import RowReader
from writetime.schema.cql import parse_table
from writetime.schema.serialise import partition_key, serialiser
from writetime.schema.table import TableSchema
from writetime.storage.kernel.primitives import token

pytestmark = pytest.mark.slow

_EXAMPLES = settings(max_examples=60 if is_long_run() else 8)
_IDS = st.integers(-2, PARTITIONS + 1)


def whole(table: LakeTable) -> pa.Table:
    return pa.concat_tables(views.virtual(table))


def in_duckdb(rows: pa.Table, where: str) -> list[dict[str, Any]]:
    """The rows for which a condition is true, by DuckDB, in their order."""
    numbered = rows.append_column("row number", pa.array(range(rows.num_rows)))
    found = duckdb.from_arrow(numbered).filter(where).order('"row number"').fetch_arrow_table()
    return found.drop_columns(["row number"]).cast(rows.schema).to_pylist()


def by_condition(table: LakeTable, where: str) -> list[dict[str, Any]] | None:
    """The rows for which a condition is true, by a look-up; None if the condition names no keys."""
    if places_of_condition(conditions_of(where, ["id"]), table.schema()) is None:
        return None
    return [row for part in rows_where(table, where, None, Counter()) for row in part.to_pylist()]


def everything(reader: RowReader) -> pa.Table:
    """All rows, by a look-up."""
    return pa.concat_tables(rows.values for rows in reader.between(TokenRange(-(1 << 63), (1 << 63) - 1)))


@_EXAMPLES
@given(st.lists(st.tuples(_IDS, st.integers(0, 3)), max_size=12), st.booleans())
def test_look_ups(table: LakeTable, keys: list[tuple[int, int]], whole_key: bool) -> None:
    found = open_table("shop.items", settings_at(Path(table.changes.storage.address).parents[1]))
    asked = [{"id": i, "n": n} if whole_key else {"id": i} for i, n in keys]
    names = "(id, n)" if whole_key else "id"
    values = ", ".join(f"({i}, {n})" if whole_key else str(i) for i, n in keys)
    assert found.lookup(asked).to_pylist() == (in_duckdb(whole(table), f"{names} IN ({values})") if keys else [])


_LITERALS = st.one_of(_IDS.map(str), st.sampled_from(["NULL", "2.0", "'3'", "3000000000", "1e1", "id", "n + 1"]))
_PARTS = st.one_of(
    st.builds("id = {}".format, _LITERALS),
    st.builds('{} = "ID"'.format, _LITERALS),
    st.builds("id IN ({}, {})".format, _LITERALS, _LITERALS),
    st.builds("id <> {}".format, _LITERALS),
    st.builds("n = {}".format, _LITERALS),
    st.builds("v LIKE '{}%'".format, _IDS),
)
_CONDITIONS = st.recursive(
    _PARTS,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=4,
)


@_EXAMPLES
@given(_CONDITIONS)
def test_conditions(table: LakeTable, where: str) -> None:
    found = by_condition(table, where)
    if found is not None:
        assert found == in_duckdb(whole(table), where)


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("id = 5", [5]),
        ("5 = ID AND v LIKE 'x'", [5]),
        ("id IN (7, 8) AND (n = 1 OR v = 'a')", [7, 8]),
        ("id = -3 -- a comment", [-3]),
        ("id = 5 OR n = 1", None),
        ("n = 5", None),
        ("id > 5", None),
        ("id = '5'", None),
        ("id = 5.0", None),
        ("id = n", None),
        ("id = 3000000000", None),
        ("NOT (id = 5)", None),
        ("id = NULL", None),
        ("id = 5 UNION SELECT 1", None),
        ("id = 5 LIMIT 1", None),
        ("id = 5) OR (1 = 1", None),
        ("id = 5; SELECT 1", None),
        ("nonsense", None),
        ("", None),
        (f"id IN ({', '.join(map(str, range(10_001)))})", None),
    ],
)
def test_keys_of_a_condition(where: str, ids: list[int] | None) -> None:
    found = places_of_condition(conditions_of(where, ["id"]), SCHEMA)
    if ids is None:
        assert found is None
    else:
        assert isinstance(found, KeyRanges)
        assert {struct.unpack(">i", key)[0] for key in found.keys.to_pylist()} == set(ids)


# Types of partition keys with stored values, with one serialised form each; and some with several.
_KEYS: dict[str, list[Any]] = {
    "ascii": ["", "a", "'"],
    "text": ["", "a", "\U0001f600", "A"],
    "tinyint": [-128, 0, 127],
    "smallint": [-32768, 5],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 0, 2**63 - 1],
    "blob": [b"", b"\x00", b"\xff\x00"],
    "uuid": ["123e4567-e89b-42d3-a456-426614174000", "00000000-0000-0000-0000-000000000000"],
    "timeuuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "date": [0, -719162, 2932896],
    "time": [0, 86_399_999_999_999],
    "timestamp": [0, -1, 1_767_225_600_123],
    "boolean": [True, False],
    "double": [0.0, 1.5],
    "varint": ["0", "-1", "255"],
    "decimal": ["1.0", "1.00"],
    "inet": ["127.0.0.1", "::1"],
}


def keyed_table(folder: Path, types: Sequence[str]) -> LakeTable:
    """A table whose partition key has these types, with a row for each combination of their values."""
    columns = [f"k{i}" for i in range(len(types))]
    declared = ", ".join(f"{name} {kind}" for name, kind in zip(columns, types, strict=True))
    schema = parse_table(f"CREATE TABLE shop.keyed ({declared}, w int, PRIMARY KEY (({', '.join(columns)})))")
    table = new_table(folder, schema)
    combinations = [()]
    for kind in types:
        combinations = [(*before, value) for before in combinations for value in _KEYS[kind]]
    rows = [_row(schema, values, number) for number, values in enumerate(combinations)]
    writer = ChangeWriter.of(table, table.schema())
    fields = pa.schema(table.changes.load().table.schema())
    batch = pa.RecordBatch.from_pylist(rows, fields.remove(fields.get_field_index("token_bucket")))
    assert table.changes.append(writer.write([batch]), "test", 1)
    state.fold(table)
    return table


def _row(schema: TableSchema, values: Sequence[Any], number: int) -> dict[str, Any]:
    key = partition_key([serialiser(c.type)(v) for c, v in zip(schema.partition_key, values, strict=True)])
    return {
        "kind": "row",
        **{c.name: value for c, value in zip(schema.partition_key, values, strict=True)},
        "key": key,
        "token": token(key),
        "position": AT,
        "marker": {"write_time": 1},
        "w": {"value": number, "write_time": 1, "tombstone": False},
    }


@pytest.mark.parametrize(
    "types", [*((kind,) for kind in _KEYS), ("text", "int"), ("blob", "timestamp", "uuid"), ("boolean", "int")]
)
def test_types_of_keys(tmp_path: Path, types: tuple[str, ...]) -> None:
    table = keyed_table(tmp_path / "lake", types)
    rows = whole(table)
    found = open_table("shop.keyed", settings_at(tmp_path / "lake"))
    columns = rows.column_names[:-1]
    for i in range(rows.num_rows):
        key = rows.select(columns).slice(i, 1).to_pylist()[0]
        wanted = [row for row in rows.to_pylist() if all(row[name] == key[name] for name in columns)]
        assert found.lookup([key]).to_pylist() == wanted
    everything = rows.select(columns).to_pylist()
    assert found.lookup(everything).equals(rows)
    assert found.lookup([*everything, *everything]).equals(rows)
    assert found.lookup([dict.fromkeys(columns)]).num_rows == 0


@pytest.mark.parametrize("kind", [kind for kind, values in _KEYS.items() if isinstance(values[0], str)])
def test_conditions_on_texts(tmp_path: Path, kind: str) -> None:
    table = keyed_table(tmp_path / "lake", [kind])
    for value in [*_KEYS[kind], "nothing", *(text.upper() for text in _KEYS[kind])]:
        where = "k0 = '" + value.replace("'", "''") + "'"
        found = by_condition(table, where)
        if found is None:
            assert kind in ("varint", "decimal", "inet")
        else:
            assert found == in_duckdb(whole(table), where)


def test_a_reader_sees_each_commit(table: LakeTable, is_long: bool) -> None:
    reader = RowReader(table)
    # Enough levels that some are compacted.
    for number in range(10, 16 if is_long else 13):
        assert everything(reader).equals(whole(table))
        add(table, [write(i, 0, 20_000_000 + number, w=number) for i in range(number)], number)
        assert everything(reader).equals(whole(table))
        state.fold(table)
        assert everything(reader).equals(whole(table))
        state.compact(table)
    state.rebuild(table)
    assert everything(reader).equals(whole(table))


def test_a_reader_opens_only_changed_files(table: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = RowReader(table)
    first = everything(reader)

    def unexpected(*_: object) -> None:
        raise AssertionError("a look-up of the same version opened a table")

    with monkeypatch.context() as patched:
        for module, name in ((BucketedTable, "_open_at"), (reading, "contents")):
            patched.setattr(module, name, unexpected)
        assert everything(reader).equals(first)
    add(table, [write(1, 9, 50_000_000, w=1)], 9)
    assert everything(reader).num_rows == first.num_rows + 1


def test_a_reader_follows_a_table_that_is_created_again(table: LakeTable, tmp_path: Path) -> None:
    reader = RowReader(table)
    assert everything(reader).equals(whole(table))
    version = table.changes.load().version
    shutil.rmtree(tmp_path / "lake")
    again = new_table(tmp_path / "lake")
    for number in range(3):
        add(again, [write(number, 0, 1, v="again")], number)
    state.fold(again)
    assert again.changes.load().version == version
    assert everything(reader).equals(whole(again))
    assert everything(reader).num_rows == 3


def test_threads_share_a_reader(table: LakeTable) -> None:
    reader = RowReader(table)

    def read(_: int) -> int:
        return everything(reader).num_rows

    def commit(number: int) -> None:
        add(table, [write(1, 100 + number, 5, v="a")], 100 + number)

    before = everything(reader).num_rows
    with ThreadPoolExecutor(4) as pool:
        commits = pool.submit(lambda: [commit(number) for number in range(10)])
        seen = list(pool.map(read, range(30)))
        commits.result()
    assert set(seen) <= set(range(before, before + 11))
    assert everything(reader).equals(whole(table))
    assert everything(reader).num_rows == before + 10


def test_expired_data_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path / "lake")
    row = write(1, 1, 1_000_000, v="a")
    row["marker"] |= {"ttl": 10, "expiry": 1000}
    row["v"] |= {"ttl": 10, "deletion_time": 1000}
    add(table, [row], 1)
    reader = RowReader(table)
    for second, rows in ((999, 1), (1000, 0)):
        monkeypatch.setattr(reading, "time_now", lambda second=second: second * 1_000_000)
        assert everything(reader).num_rows == rows


def test_a_table_whose_files_are_removed(table: LakeTable, tmp_path: Path) -> None:
    found = open_table("shop.items", settings_at(tmp_path / "lake"))
    assert found.lookup([{"id": 1}]).num_rows
    for part in table.parts:
        files = part.load().files
        part.commit(part.load(), TableChange(files))
    assert found.lookup([{"id": 1}]).num_rows == 0


def test_a_missing_column(table: LakeTable, tmp_path: Path) -> None:
    del table
    found = open_table("shop.items", settings_at(tmp_path / "lake"))
    with pytest.raises(WritetimeError, match=r"shop\.items has no column 'nothing'; known are id, n, v, w"):
        found.lookup([{"nothing": 1}])
