"""Changes made by hand, for tests without a database."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from writetime.changes.model import change_schema
from writetime.changes.position import AT, position_encoder
from writetime.core import config
from writetime.core.config import Settings
from writetime.files.merging import Runner
from writetime.lake.changes import ChangeWriter
from writetime.lake.table import LakeTable, create_table
from writetime.schema.cql import parse_table
from writetime.schema.serialise import serialiser
from writetime.schema.table import TableSchema
from writetime.schema.types import Native
from writetime.storage.kernel.primitives import token
from writetime.view.refreshing import refresh

SCHEMA = parse_table("CREATE TABLE shop.items (id int, n int, v text, w int, PRIMARY KEY (id, n))")


def settings_at(folder: Path, **lake: Any) -> Settings:
    """Settings of a lake in a folder, and of no servers: nothing listens at port 1, but `writetime up` may have started
    servers at the default addresses.
    """
    return config.load(
        cassandra={"port": 1},
        kafka={"bootstrap_servers": "127.0.0.1:1"},
        lake={"path": str(folder), "cache": f"{folder}.cache", "buckets": 4, **lake},
    )


def new_table(folder: Path, schema: TableSchema = SCHEMA, **lake: Any) -> LakeTable:
    """Create a lake with one table."""
    return create_table(settings_at(folder, **lake), schema)


def rewrite(table: LakeTable, run: Runner = map) -> int:
    """Write all rows of the compacted view, without deletion vectors; return their number."""
    return refresh(settings_at(Path(table.storage.address).parent, view="rewritten"), table, run, whole=True).rows


def cell(value: Any, write_time: int) -> dict[str, Any]:
    """A live cell."""
    return {"value": value, "write_time": write_time, "tombstone": False}


def write(id_: int, n: int, write_time: int, **values: Any) -> dict[str, Any]:
    """One INSERT into `SCHEMA`, or a table like it."""
    key = serialiser(Native("int"))(id_)
    clustering = [serialiser(Native("int"))(n)]
    return {
        "kind": "row",
        "id": id_,
        "key": key,
        "token": token(key),
        "n": n,
        "position": position_encoder(SCHEMA.clustering)(clustering, AT),
        "marker": {"write_time": write_time},
        **{name: cell(value, write_time) for name, value in values.items()},
    }


def batch(rows: Iterable[dict[str, Any]], schema: TableSchema = SCHEMA) -> pa.RecordBatch:
    """Changes as a reader yields them."""
    return pa.RecordBatch.from_pylist(list(rows), change_schema(schema))


def add(table: LakeTable, rows: Iterable[dict[str, Any]], number: int, schema: TableSchema = SCHEMA) -> bool:
    """Append a batch of changes."""
    files = ChangeWriter.of(table, schema).write([batch(rows, schema)])
    return table.changes.append(files, "test", number)


def add_large(table: LakeTable, number: int, rows: int = 8) -> None:
    """Add rows of 64 KiB that do not compress well."""
    chooser = random.Random(number)
    add(table, [write(100 * number + n, 1, number, v=chooser.randbytes(1 << 15).hex()) for n in range(rows)], number)
