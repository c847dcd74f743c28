"""Each recorded table of a real ScyllaDB: its schema, its CDC log and its SSTables, compared with its rows."""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.recorded.conftest import RECORDED
from tests.recorded.recording import Recorded, Recording, Rows, answered, log_settings, pages_of, session_of, texts
from tests.support.expected import as_rows
from tests.support.merged import with_one_form, with_times_as_values
from writetime.changes.model import change_schema, field_name
from writetime.merge import live_rows, merge
from writetime.schema.cql import parse_schemas
from writetime.schema.system import schemas_of, settled_rows
from writetime.schema.table import DroppedColumn, TableSchema
from writetime.schema.types import Collection, is_complex, quote_name
from writetime.scylla_cdc import options
from writetime.scylla_cdc.log import LogError
from writetime.scylla_cdc.offsets import interval
from writetime.scylla_cdc.options import cdc_options
from writetime.scylla_cdc.source import CdcSource
from writetime.storage.infer import infer_schema
from writetime.storage.sstable import SSTable

pytestmark = pytest.mark.slow

# How long before the snapshot the table was read, and after it, at most, in seconds.
BEFORE, AFTER = 30, 30


def logged(recording: Recording, table: str) -> pa.Table:
    """Return the changes of a recorded CDC log."""
    source = CdcSource(session_of(recording), pages_of(recording), log_settings(), table)
    assert source.lack is None
    batches = source.read(interval(source, None, None, None))
    return pa.Table.from_batches(batches, schema=change_schema(source.schema))


def stored(recording: Recording, table: str, schema: TableSchema) -> list[pa.Table]:
    """Return the changes of each SSTable of a recorded snapshot."""
    return [
        pa.Table.from_batches(SSTable(location, schema).scan(), schema=change_schema(schema))
        for location in recording.sstables(table)
    ]


def instants(state: pa.Table, schema: TableSchema, snapshot_at: int) -> Iterator[int]:
    """Return every second at which the table may have been read, as far as anything expires between them."""
    first, last = snapshot_at - BEFORE, snapshot_at + AFTER
    ends = {first, snapshot_at, last}
    for column in ("marker", *(field_name(c) for c in schema.static + schema.regular)):
        found = set(_expiries(state[column].combine_chunks()))
        ends |= {second + shift for second in found for shift in (-1, 0) if first <= second + shift <= last}
    yield from sorted(ends, key=lambda second: abs(second - snapshot_at))


def _expiries(array: pa.Array) -> Iterator[int]:
    """Return the seconds at which something in a column expires, whatever is nested in it."""
    if pa.types.is_struct(array.type):
        for i, field in enumerate(array.type):
            if field.name in ("expiry", "deletion_time"):
                yield from np.unique(array.field(i).drop_null().cast(pa.int64())).tolist()
            else:
                yield from _expiries(array.field(i))
    elif pa.types.is_list(array.type):
        yield from _expiries(array.flatten())


def assert_answered(recording: Recording, table: str, changes: list[pa.Table], schema: TableSchema) -> list[int]:
    """Compare the merge of changes with `SELECT *`; return the seconds at which it may have been answered."""
    wanted = texts(answered(recording.of(table, "select"), schema))
    state = merge(changes, schema)
    tried = {
        second: texts(with_one_form(live_rows(state, schema, second), schema))
        for second in instants(state, schema, recording.snapshot_at(table))
    }
    equal = [second for second, rows in tried.items() if rows == wanted]
    assert equal or next(iter(tried.values())) == wanted
    return equal


def test_the_schema_is_the_one_that_the_statements_made(recorded: Recorded) -> None:
    recording, table = recorded
    schema = recording.schemas[table]
    statements = [s for s in recording.statements() if re.match(r"(CREATE|ALTER) (TYPE|TABLE)", s)]
    dated = [re.sub(r"( DROP (?:\"(?:[^\"]|\"\")+\"|\w+))$", r"\1 USING TIMESTAMP 0", s) for s in statements]
    made = next(s for s in parse_schemas(";\n".join(dated)) if s.full_name == table)
    assert replace(made, dropped=()) == replace(schema, dropped=())
    assert made.gc_grace_seconds == schema.gc_grace_seconds

    def gone(columns: tuple[DroppedColumn, ...]) -> dict[str, bool]:
        # The database keeps a user-defined type of a dropped column as a tuple.
        return {d.name: isinstance(d.type, Collection) and is_complex(d.type) for d in columns}

    assert gone(made.dropped) == gone(schema.dropped)
    for ours, found in ((d, e) for d in made.dropped for e in schema.dropped if d.name == e.name):
        # Without USING TIMESTAMP it is when the statement was executed, in microseconds.
        recently = abs(found.dropped_at / 1e6 - recording.snapshot_at(table)) < 600
        assert found.dropped_at == ours.dropped_at if ours.dropped_at else recently


def test_a_table_that_cannot_be_read_does_not_hide_the_others() -> None:
    recording = Recording(RECORDED / "rec101")
    session = session_of(recording)
    rows = settled_rows(lambda query: [row._asdict() for row in session.execute(query)])
    broken = {"t0": "COMPACT STORAGE", "t3": "unknown type 'nothing'", "x_1": "unknown type 'odd'"}
    next(row for row in rows["tables"] if row["table_name"] == "t0")["flags"] = ["dense"]
    next(row for row in rows["columns"] if row["table_name"] == "t3")["type"] = "nothing"
    next(row for row in rows["columns"] if row["table_name"] == "x_1")["type"] = "frozen<odd>"
    odd = {"keyspace_name": "rec101", "type_name": "odd", "field_names": ["a"], "field_types": ["nothing"]}
    rows["types"].append(odd)
    found = schemas_of(rows)
    for name, schema in found.items():
        reason = broken.get(name.partition(".")[2])
        if reason is None:
            assert schema == recording.schemas[name]
        else:
            assert reason in str(schema)


def test_the_options_of_the_log_are_those_that_the_statements_set(recorded: Recorded) -> None:
    recording, table = recorded
    created = next(s for s in recording.statements() if s.startswith(f"CREATE TABLE {_quoted(table)} "))
    match = re.search(r"cdc=({[^}]*})", created)
    assert match
    wanted = {"preimage": "false", "postimage": "false", "delta": "full", "ttl": "86400"}
    for name, value in re.findall(r"'(\w+)':'?(\w+)", match[1]):
        wanted[name] = value
    found = cdc_options(pages_of(recording), log_settings().scylla_cdc, *table.split("."))
    assert found.values == wanted


@pytest.mark.parametrize("data", ["", "05", "01000000", "0100000003000000616263", "00000000ff"])
def test_options_in_another_form_are_refused_by_the_name_of_their_table(data: str) -> None:
    with pytest.raises(LogError, match=r"options of k\.t .*0x" + data):
        options._options(bytes.fromhex(data), "k.t")


def _quoted(table: str) -> str:
    return ".".join(map(quote_name, table.split(".")))


def test_the_schema_is_the_one_of_the_snapshot(recorded: Recorded) -> None:
    recording, table = recorded
    schema = recording.schemas[table]
    found = infer_schema(recording.sstables(table))
    assert replace(found, dropped=()) == replace(schema, dropped=())
    # The headers have those that something was written to.
    assert {d.name for d in found.dropped} <= {d.name for d in schema.dropped}


def test_the_merged_log_matches_the_database(recorded: Recorded) -> None:
    recording, table = recorded
    assert_answered(recording, table, [logged(recording, table)], recording.schemas[table])


def test_merged_sstables_match_the_database(recorded: Recorded) -> None:
    recording, table = recorded
    schema = recording.schemas[table]
    changes = stored(recording, table, schema)
    seconds = assert_answered(recording, table, changes, schema)
    times = recording.of(table, "times")
    if times.rows:
        state = merge(changes, schema)
        # A separate query returned write times and TTLs, up to a few seconds later or earlier.
        near = {second + shift for second in seconds for shift in range(-5, 6)}
        assert any(_times(state, schema, second, times) == list(times.dicts()) for second in sorted(near))


def test_splits_make_the_changes_of_whole_sstables(recorded: Recorded) -> None:
    recording, table = recorded
    for location in recording.sstables(table):
        sstable = SSTable(location, recording.schemas[table])
        wanted = as_rows(sstable.scan())
        for target in (1, 1000):
            found = [row for split in sstable.splits(target) for row in as_rows(sstable.scan(split=split))]
            assert sorted(found) == wanted


def _times(state: pa.Table, schema: TableSchema, second: int, asked: Rows) -> list[dict[str, bytes | None]]:
    """Return what the query for write times and TTLs answers at a second; keys are compared elsewhere, and as asked."""
    written, ends = (
        live_rows(*with_times_as_values(state, schema, part), second) for part in ("write_time", "deletion_time")
    )
    if written.num_rows != len(asked.rows):
        return []
    found = list(asked.dicts())
    for name in [c.name for c in schema.static + schema.regular if not is_complex(c.type)]:
        for row, time, end in zip(found, written[name].to_pylist(), ends[name].to_pylist(), strict=True):
            row[f"writetime({name})"] = _number(time, 8)
            row[f"ttl({name})"] = _number(end and end - second, 4)
    return found


def _number(value: int | None, length: int) -> bytes | None:
    return None if value is None else value.to_bytes(length, "big", signed=True)
