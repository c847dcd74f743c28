"""An SSTable has the same bytes however its changes are divided into batches, and no buffer of the writer is too small.

Oracle: the changes that were written, and the SSTable of one batch.
"""

import random
import struct
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.expected import without_origin
from tests.support.generated import SCHEMA, Change, change, table
from writetime.changes.model import change_schema
from writetime.changes.position import AFTER, AT, BEFORE, STATIC_POSITION, position_encoder
from writetime.core.arrow import pc
from writetime.merge.folding import merge
from writetime.schema.cql import parse_table
from writetime.schema.serialise import serialiser
from writetime.schema.table import TableSchema
from writetime.storage import sstable_writer
from writetime.storage.kernel.allocate import rooms
from writetime.storage.kernel.primitives import token
from writetime.storage.locations import Location, find_sstables
from writetime.storage.sstable import SSTable
from writetime.storage.sstable_writer import BadInput, SSTableWriter

pytestmark = pytest.mark.long

_GUARD = 1 << 12


@pytest.fixture(scope="module", autouse=True)
def check() -> Any:
    """Have bytes after each buffer of the writer. Return a function that checks that they are unchanged."""
    guards: list[np.ndarray] = []

    def guarded(wanted: list[tuple[int, type[np.generic]]]) -> list[np.ndarray]:
        found = []
        for count, dtype in wanted:
            more = -(-_GUARD // np.dtype(dtype).itemsize)
            (array,) = rooms([(count + more, dtype)])
            array[count:] = 0x5A
            guards.append(array[count:])
            found.append(array[:count])
        return found

    def unchanged() -> None:
        assert all((guard == 0x5A).all() for guard in guards)
        guards.clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sstable_writer, "rooms", guarded)
        patch.setattr(sstable_writer, "room", lambda count, dtype: guarded([(count, dtype)])[0])
        yield unchanged


def _key(p: int) -> bytes:
    return struct.pack(">i", p)


def _written(folder: Path, changes: pa.Table, schema: TableSchema, rows: int, **options: Any) -> Location:
    with SSTableWriter(str(folder), schema, **options) as writer:
        for batch in changes.to_batches(max_chunksize=rows):
            writer.write(batch)
    (location,) = find_sstables(str(folder))
    return location


def _compare(changes: pa.Table, schema: TableSchema, check: Callable[[], None], **options: Any) -> None:
    """Write changes in batches of several sizes, and compare the files, and the changes that are read from them."""
    changes = changes.combine_chunks()
    with TemporaryDirectory() as name:
        wanted = _written(Path(name, "whole"), changes, schema, len(changes), **options)
        check()
        for rows in (1, 2, 7):
            found = _written(Path(name, str(rows)), changes, schema, rows, **options)
            check()
            for component in wanted.read("TOC.txt").decode().split():
                assert found.read(component) == wanted.read(component), component
        assert _rows(without_origin(SSTable(wanted, schema).scan(), schema)) == _rows(changes.drop_columns(["origin"]))


def _rows(changes: pa.Table) -> list[Change]:
    """Return changes in their order, with null for a part of a column that has nothing."""
    order = ["token", "key", "position"]
    return [_some(row) for row in changes.sort_by([(name, "ascending") for name in order]).to_pylist()]


def _some(value: Any) -> Any:
    if not isinstance(value, dict):
        return value or None if isinstance(value, list) else value
    parts = {name: _some(part) for name, part in value.items()}
    return None if all(part is None for part in parts.values()) else parts


# The first partition has the smallest times, which the numbers of the others are relative to.
_FIRST_KEY = min(range(100), key=lambda p: token(_key(p)))
_FIRST: Change = {
    "kind": "row",
    "p": _FIRST_KEY,
    "key": _key(_FIRST_KEY),
    "token": token(_key(_FIRST_KEY)),
    "c": "1",
    "d": 0,
    "position": position_encoder(SCHEMA.clustering)([serialiser(SCHEMA.clustering[0].type)("1"), bytes(4)], AT),
    "marker": {"write_time": -1, "ttl": 1, "expiry": 100},
}


@given(st.lists(change(), max_size=30), st.sampled_from([1, 40, 1 << 16]), st.sampled_from(["nb", "oa"]))
def test_batches_do_not_change_the_files(
    check: Callable[[], None], changes: list[Change], block_size: int, version: str
) -> None:
    merged = merge([table([_FIRST, *changes])], SCHEMA)
    whole = merged.filter(pc.is_in(merged["kind"], pa.array(["range_tombstone", "partition_tombstone"])))
    early = version == "oa" and min((each["write_time"] for each in whole["tombstone"].to_pylist()), default=0) < 0
    with pytest.raises(BadInput, match="before 1970") if early else nullcontext():
        _compare(merged, SCHEMA, check, block_size=block_size, version=version, compressor=None)


# Columns and clusterings beyond the numbers at which encodings change (64 and 32), and all shapes of columns.
_CLUSTERINGS, _REGULARS, _STATICS = 34, 66, 65
_WIDE = parse_table(
    "CREATE TYPE k.pair (x int, y text); CREATE TABLE k.wide (p int, "
    + "".join(f"c{i} text, " for i in range(_CLUSTERINGS))
    + "".join(f"s{i} text static, " for i in range(_STATICS))
    + "".join(f"r{i} text, " for i in range(_REGULARS))
    + "u pair, l list<text>, m map<text, int>, PRIMARY KEY (p, "
    + ", ".join(f"c{i}" for i in range(_CLUSTERINGS))
    + "))"
)
_ENCODE = position_encoder(_WIDE.clustering)
# Differences to these take the most bytes that a number can have.
_TIMES = (-(1 << 62), 0, (1 << 62) - 1)
_LAST_SECOND = (1 << 31) - 2


def _tombstone(r: random.Random) -> Change:
    return {"write_time": r.choice(_TIMES), "deletion_time": r.choice([0, 1, _LAST_SECOND])}


def _cell(r: random.Random, value: Any) -> Change:
    if r.random() < 0.3:
        return {"tombstone": True, **_tombstone(r)}
    times = (
        {"ttl": r.choice([1, 630_720_000]), **_tombstone(r)} if r.random() < 0.6 else {"write_time": r.choice(_TIMES)}
    )
    return {"value": value, "tombstone": False, **times}


def _clustering(r: random.Random) -> list[str]:
    return [r.choice(["", "", "a", "b" * r.choice([1, 127, 128])]) for _ in range(_CLUSTERINGS)]


def _row(r: random.Random, position: bytes, values: list[str]) -> Change:
    made: Change = {"kind": "row", "position": position, **{f"c{i}": value for i, value in enumerate(values)}}
    some = r.choice([0, 0.1, 0.9, 1])
    made |= {f"r{i}": _cell(r, r.choice(["", "v"])) for i in range(_REGULARS) if r.random() < some}
    if r.random() < some:
        elements = [{"path": f"{i:03}", **_cell(r, 1)} for i in range(r.choice([1, 200]))]
        made["m"] = {"tombstone": r.choice([None, _tombstone(r)]), "elements": elements}
        made["l"] = {"tombstone": _tombstone(r), "elements": []}
        made["u"] = {"fields": {"x": _cell(r, 1), "y": None}}
    choice = r.random()
    if choice < 0.7:
        made["marker"] = {"write_time": r.choice(_TIMES), "ttl": 630_720_000, "expiry": _LAST_SECOND}
    return made | ({"tombstone": _tombstone(r)} if choice > 0.3 else {})


def _deleted_partition(p: int, tombstone: Change) -> Change:
    key = _key(p)
    fields = {"p": p, "key": key, "token": token(key), "position": b""}
    return {"kind": "partition_tombstone", **fields, "tombstone": tombstone}


def _partition(r: random.Random, p: int) -> list[Change]:
    """Make the changes of a partition: with a tombstone, a static row, rows and ranges, or without some of these."""
    made: list[Change] = []
    if r.random() < 0.5:
        cells = {f"s{i}": _cell(r, "s") for i in range(_STATICS) if r.random() < r.choice([0.1, 0.9])}
        made.append({"kind": "static", "position": STATIC_POSITION, "s0": _cell(r, "s"), **cells})
    rows = {
        _ENCODE([v.encode() for v in values], AT): values
        for values in (_clustering(r) for _ in range(r.choice([0, 9])))
    }
    bounds = {
        _ENCODE([v.encode() for v in _clustering(r)[: r.randint(0, _CLUSTERINGS)]], r.choice([BEFORE, AFTER]))
        for _ in range(r.choice([0, 1, 9]))
    }
    ends = sorted(bounds)
    ranges = [
        {"kind": "range_tombstone", "position": start, "end": end, "tombstone": {"write_time": i, "deletion_time": i}}
        for i, (start, end) in enumerate(pairwise(ends))
        if r.random() < 0.8
    ]
    made += sorted([*(_row(r, *each) for each in rows.items()), *ranges], key=lambda c: c["position"])
    deleted = _deleted_partition(p, _tombstone(r))
    key = {name: deleted[name] for name in ("p", "key", "token")}
    return [*([deleted] if r.random() < 0.3 or not made else []), *(key | each for each in made)]


@pytest.mark.parametrize("seed", range(4))
def test_many_columns_and_extreme_times(check: Callable[[], None], seed: int) -> None:
    r = random.Random(seed)
    keys = sorted(range(20), key=lambda p: token(_key(p)))
    first = _deleted_partition(keys[0], {})
    marker = {"write_time": _TIMES[0], "ttl": 1, "expiry": 0}
    clustering = {f"c{i}": "" for i in range(_CLUSTERINGS)}
    position = _ENCODE([b""] * _CLUSTERINGS, AT)
    made = [first | clustering | {"kind": "row", "position": position, "tombstone": None, "marker": marker}]
    made += [change for p in keys[1:] for change in _partition(r, p)]
    changes = pa.Table.from_pylist(made, change_schema(_WIDE))
    _compare(changes, _WIDE, check, block_size=r.choice([1, 300, 1 << 16]), compressor=None)


def test_a_row_index_with_long_bounds(check: Callable[[], None]) -> None:
    """Each block of the index has the clusterings of its first and its last row or bound."""
    schema = parse_table("CREATE TABLE k.t (p int, c text, PRIMARY KEY (p, c))")
    encode = position_encoder(schema.clustering)
    bounds = [encode([f"{i:03}".encode() + b"x" * 30_000], BEFORE) for i in range(100)]
    tombstone = {"write_time": 5, "deletion_time": 1000}
    made = [
        {**_deleted_partition(1, tombstone), "kind": "range_tombstone", "position": start, "end": end}
        for start, end in zip(bounds[::2], bounds[1::2], strict=True)
    ]
    _compare(pa.Table.from_pylist(made, change_schema(schema)), schema, check)
