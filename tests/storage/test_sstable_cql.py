"""Data from a real server's files, compared with the server's own rows by CQL."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.storage import handmade
from tests.storage.written import Written, handmade_changes
from tests.support.expected import assert_same, expected_changes, plain, without_origin
from writetime.changes.model import change_schema
from writetime.merge import live_rows, merge
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector
from writetime.storage.commitlog import CommitLogReader
from writetime.storage.infer import schema_of_headers
from writetime.storage.segment import find_segments
from writetime.storage.sstable import SSTable
from writetime.storage.statistics import read_header

Cell = dict[str, Any]


def visible(written: Written, table: str) -> dict[tuple[int, int | None], dict[str, Cell]]:
    """Merge the changes of a table whose key is `k` and `c`: the newest cell that nothing newer deleted, by row.

    Rows with nothing but a marker have no cells; a static row is that of `c` None.
    """
    schema, _ = written.handmade(table)
    everything = list(handmade_changes(written, table))
    rows: dict[tuple[int, int | None], dict[str, Cell]] = {}
    for change in everything:
        if change["kind"] not in ("row", "static"):
            continue
        deleted = max((time for time in _deletions(everything, change)), default=-(1 << 63))
        row = rows.setdefault((change["k"], change.get("c")), {})
        if change["marker"] and change["marker"]["write_time"] > deleted:
            row.setdefault("", {"write_time": change["marker"]["write_time"], "tombstone": False})
        for column in schema.static + schema.regular:
            cell = change[column.name]
            if cell and cell["write_time"] > max(deleted, row.get(column.name, {"write_time": deleted})["write_time"]):
                row[column.name] = cell
    live = {key: {n: c for n, c in row.items() if not c["tombstone"]} for key, row in rows.items()}
    return {key: row for key, row in live.items() if row}


def _deletions(everything: Iterable[dict[str, Any]], change: dict[str, Any]) -> Iterator[int]:
    for other in everything:
        if other["key"] != change["key"] or not other["tombstone"]:
            continue
        if (
            other["kind"] == "partition_tombstone"
            or (other["kind"] == "range_tombstone" and other["position"] <= change["position"] < other["end"])
            or (other["kind"] == "row" and other["position"] == change["position"])
        ):
            yield other["tombstone"]["write_time"]


def answered(written: Written, table: str, static: tuple[str, ...] = ()) -> dict[tuple[int, int | None], Cell]:
    """The rows of CQL in the same form, with the static values separate."""
    found: dict[tuple[int, int | None], Cell] = {}
    for row in written.answers.rows[table]:
        statics = {name: row.pop(name) for name in static}
        if any(value is not None for value in statics.values()):
            found[row["k"], None] = statics
        if row["c"] is not None:
            found[row["k"], row["c"]] = {n: v for n, v in row.items() if v is not None and n not in ("k", "c")}
    return found


def test_counters_match_cql(written: Written) -> None:
    found = {key: {n: c["value"] for n, c in row.items()} for key, row in visible(written, "counted").items()}
    assert found == answered(written, "counted", ("s",))
    assert found[0, 9]["n"] == 2  # 2^63 - 1 was subtracted twice


def test_dropped_columns_are_void_up_to_their_drop(written: Written) -> None:
    found = {}
    for key, row in visible(written, "dropped").items():
        found[key] = {n: c["value"] for n, c in row.items() if n}
        found[key] |= {f"{n}_time": c["write_time"] for n, c in row.items() if n}
    assert found == answered(written, "dropped")
    assert sorted(key for key, row in found.items() if "again" in row) == [(0, 3), (0, 4), (3, 3), (3, 4)]


def test_every_handmade_change_matches_the_database(written: Written) -> None:
    """Counters, altered types and wide partitions; the oracle does not know dropped columns."""
    for table in ("counted", "altered", "wide", "plain"):
        schema, locations = written.handmade(table)
        for location in locations:
            wanted = expected_changes(written.lines[location.path("Data.db")], schema)
            assert_same(without_origin(SSTable(location, schema).scan(), schema), wanted)


@pytest.mark.parametrize("table", handmade.COMPACTED)
def test_compacted_tables_of_each_compressor_match_cql(written: Written, table: str) -> None:
    (location,) = written.handmade(table)[1]
    assert len(SSTable(location).splits(1)) == 40
    found = {
        change["k"]: (change["v"]["value"], change["v"]["write_time"]) for change in handmade_changes(written, table)
    }
    assert found == {row["k"]: (row["v"], row["v_time"]) for row in written.answers.rows[table]}


def test_a_type_with_added_fields(written: Written) -> None:
    schema, locations = written.handmade("altered")
    old, new = (without_origin(SSTable(location, schema).scan(), schema).to_pylist() for location in locations)
    assert old[0]["f"]["value"] == {"a": 1, "b": None}
    assert new[0]["f"]["value"] == {"a": 2, "b": "new"}
    assert [old[0]["u"]["fields"]["a"]["value"], old[0]["u"]["fields"]["b"]] == [1, None]
    assert [e["value"]["b"] for e in new[0]["l"]["elements"]] == ["new", "new"]


def test_a_type_inside_the_key_that_has_grown(written: Written) -> None:
    """By SSTables and by commit logs, the rows are those that CQL answers, whether their keys have the new fields."""
    schema, locations = written.handmade("keyed")
    arrow = change_schema(schema)
    types = {c.name: c.type for c in schema.columns}
    wanted = sorted(
        repr([_as_arrow(types[name], row[name]) for name in types]) for row in written.answers.rows["keyed"]
    )
    assert len(wanted) > 20
    reader = CommitLogReader(written.all_schemas, [schema.full_name])
    segments = find_segments(str(written.server.cdc_raw))
    by_log = [batch for segment in segments for _, batch in reader.read(segment)]
    by_files = [batch for location in locations for batch in SSTable(location, schema).scan()]
    of_headers = schema_of_headers([(location, read_header(location)) for location in locations])
    assert [c.type for c in of_headers.clustering] == [c.type for c in schema.clustering]
    for batches in (by_log, by_files, by_log + by_files):
        state = merge([pa.Table.from_batches(batches, schema=arrow)], schema)
        rows = live_rows(state, schema, written.answers.asked[1])
        found = [repr([plain(rows[name][i]) for name in types]) for i in range(len(rows))]
        assert sorted(found) == wanted


def _as_arrow(cql_type: CqlType, value: Any) -> Any:
    """A value as the driver gives it, in the form of `plain`."""
    match cql_type:
        case _ if value is None:
            return None
        case Collection("map", (k, v)):
            return [{"key": _as_arrow(k, a), "value": _as_arrow(v, b)} for a, b in value.items()]
        case Collection(_, (element,)) | Vector(element, _):
            return [_as_arrow(element, v) for v in value]
        case Tuple(arguments):
            return {f"_{i}": _as_arrow(t, v) for i, (t, v) in enumerate(zip(arguments, value, strict=True), 1)}
        case Udt(_, _, fields):
            return {name: _as_arrow(t, getattr(value, name)) for name, t in fields}
        case Native("decimal" | "varint" | "uuid" | "timeuuid"):
            return str(value)
        case Native("date"):
            return value.days_from_epoch
        case Native("time"):
            return value.nanosecond_time
        case Native("duration"):
            return {"months": value.months, "days": value.days, "nanoseconds": value.nanoseconds}
    return value


def test_inserted_cells_match_cql(written: Written) -> None:
    schema, _ = written.handmade("plain")
    types = {c.name: c.type for c in schema.regular}
    found = {change["k"]: change for change in handmade_changes(written, "plain")}
    answers = written.answers.rows["plain"]
    first, last = written.answers.asked
    assert sorted(found) == sorted(row["k"] for row in answers)
    for row in answers:
        change = found[row["k"]]
        for name, cql_type in types.items():
            cell, wanted = change[name], _as_arrow(cql_type, row[name])
            if name in handmade.COMPLEX:
                elements = cell["elements"] if cell else []
                assert {e["write_time"] for e in elements} <= {1000 + row["k"]}
                parts = {"list": "value", "set": "path"}
                kind = handmade.plain_columns()[name].partition("<")[0]
                if kind == "map":
                    values = [{"key": e["path"], "value": e["value"]} for e in elements]
                else:
                    values = [e[parts[kind]] for e in elements]
                assert repr(values or None) == repr(wanted)
                continue
            assert repr(cell and cell["value"]) == repr(wanted), (row["k"], name)
            assert (cell and cell["write_time"]) == row[f"{name}_time"]
            ttl = row[f"{name}_ttl"]
            assert (cell is not None and cell["ttl"] is not None) == (ttl is not None)
            if ttl is not None:
                assert cell is not None
                assert first <= cell["deletion_time"] - ttl <= last
