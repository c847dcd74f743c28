"""Our reader of files of changes, compared with Parquet's own reader of the same files."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.made import SCHEMA, batch, cell, write
from writetime.changes.model import change_schema
from writetime.delta.parquet import HOT_LAYOUT, conform, without_empty, write_file
from writetime.delta.storage import Storage
from writetime.files.change_files import open_changes, read_changes, read_groups

FULL = change_schema(SCHEMA)
DELETED = {"write_time": 9, "deletion_time": 1, "tombstone": True}
# More than a row group of 65,536 rows, so that some have a tombstone and some do not.
TIMES = 20_000
KINDS: dict[str, list[dict[str, Any]]] = {
    "live": [write(i, i, 5 + i, v="x" * i, w=i) for i in range(4)],
    "some are deleted": [*(write(1, i, 5, v="y") for i in range(3)), {**write(1, 4, 7), "w": DELETED}],
    "a flag that is null": [write(1, 1, 5, v="z"), {**write(1, 2, 6), "w": {**cell(1, 6), "tombstone": None}}],
    "no cells": [write(i, 1, i) for i in range(4)],
}


def made(folder: Path, kind: str, times: int) -> tuple[Storage, str]:
    storage = Storage(str(folder))
    rows = pa.Table.from_batches([batch(KINDS[kind])])
    if kind == "some are deleted":
        live = pa.Table.from_batches([batch(KINDS["live"])])
        rows = pa.concat_tables([*[live] * times, rows])
    else:
        rows = pa.concat_tables([rows] * times)
    written = write_file(storage, without_empty(rows.combine_chunks()), 0, rows["token"], layout=HOT_LAYOUT)
    return storage, written.path


def plain(files: list[tuple[Storage, str]]) -> pa.Table:
    tables = [pq.read_table(f"{storage.address}/{path}") for storage, path in files]
    return pa.concat_tables(conform(table, FULL, "") for table in tables)


def whole(files: list[tuple[Storage, str]]) -> list[tuple[Storage, str, None]]:
    """Files to be read completely."""
    return [(storage, path, None) for storage, path in files]


@pytest.mark.parametrize("kind", KINDS)
def test_one_file(tmp_path: Path, kind: str) -> None:
    files = [made(tmp_path, kind, TIMES)]
    (found,) = read_changes(whole(files), FULL)
    assert found.cast(FULL).equals(plain(files))
    storage, path = files[0]
    with open_changes(storage, path) as file:
        last = file.num_row_groups - 1
        group = conform(read_groups(file, [last], FULL.names), FULL, "")
    assert group.equals(plain(files).slice(len(found) - len(group)))


def test_files_of_several_kinds(tmp_path: Path) -> None:
    files = [made(tmp_path, kind, 1000) for kind in KINDS]
    # Its keys do not repeat, so they have no dictionary, and its fields are those of the first.
    rows = pa.Table.from_batches([batch([write(i, i, 5, v=str(i), w=i) for i in range(2000)])])
    files.append((files[0][0], write_file(files[0][0], without_empty(rows), 0, rows["token"]).path))
    found = read_changes(whole([*files, files[0]]), FULL)
    assert len(found) < len(files)
    wanted = plain([*files, files[0]])
    assert counted(pa.concat_tables(table.cast(FULL) for table in found)) == counted(wanted)


def counted(changes: pa.Table) -> Counter[str]:
    """How often each change is there."""
    return Counter(str(row) for row in changes.to_pylist())
