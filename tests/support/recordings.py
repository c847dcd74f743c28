"""The files and answers of a real ScyllaDB in tests/data/scylla; see the README there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.expected import plain
from writetime.changes.model import change_schema, field_name
from writetime.merge import live_rows, merge
from writetime.schema.mapping import stored_type
from writetime.schema.table import TableSchema
from writetime.schema.types import is_complex
from writetime.schema.values import decoder
from writetime.storage.infer import infer_schema
from writetime.storage.locations import Location, find_sstables
from writetime.storage.sstable import SSTable

SCYLLA = Path(__file__).parents[1] / "data" / "scylla"


def dictionary_table(name: str) -> Location:
    """Return the SSTable of a table of `dictionaries`."""
    (location,) = find_sstables(str(SCYLLA / "dictionaries" / f"{name}.sstables"))
    return location


def _jsonl(path: Path) -> tuple[list[str], list[list[Any]]]:
    """Return the names of the columns, and the rows."""
    first, *rows = map(json.loads, path.read_text().splitlines())
    return [name for name, _ in first["columns"]], rows


class RecordedTable:
    """One table of a recording: its schema, its SSTables, and the answer to SELECT *."""

    def __init__(self, recording: str, table: str) -> None:
        self._folder = SCYLLA / recording
        self._table = table
        locations = list(find_sstables(str(self._folder / f"{table}.sstables")))
        table_id = bytes.fromhex(self._table_id())
        # Some folders hold the snapshot of an earlier table of the same name, too. Scylla.db has the table's id.
        self.locations = [location for location in locations if table_id in location.read("Scylla.db")]
        self.schema: TableSchema = infer_schema(self.locations)

    def _table_id(self) -> str:
        names, rows = _jsonl(self._folder / "system" / "system_schema.tables.jsonl")
        table, id_ = names.index("table_name"), names.index("id")
        return next(row[id_] for row in rows if bytes.fromhex(row[table]).decode() == self._table)

    def answer(self) -> list[str]:
        """Return the rows of SELECT *, as sorted texts."""
        names, rows = _jsonl(self._folder / f"{self._table}.select.jsonl")
        types = {c.name: c.type for c in self.schema.columns}
        columns = []
        for i, name in enumerate(names):
            decode = decoder(types[name])
            values = [None if row[i] is None else decode(bytes.fromhex(row[i])) for row in rows]
            columns.append(pa.array(values, stored_type(types[name])))
        return sorted(
            repr([(n, plain(c[i])) for n, c in sorted(zip(names, columns, strict=True))]) for i in range(len(rows))
        )

    def state(self) -> pa.Table:
        """Return the changes of all SSTables, merged."""
        arrow = change_schema(self.schema)
        changes = [pa.Table.from_batches(SSTable(x, self.schema).scan(), schema=arrow) for x in self.locations]
        return merge(changes, self.schema)

    def live(self, state: pa.Table) -> Iterator[list[str]]:
        """Yield the rows that live in each second around the snapshot, in the form of `answer`."""
        # The manifest may be that of the earlier table.
        for second in range(self.snapshot_at - 10, self.snapshot_at + 120):
            yield self.texts(live_rows(state, self.schema, second))

    @property
    def snapshot_at(self) -> int:
        """About when the snapshot was taken, in seconds."""
        manifest = json.loads((self._folder / f"{self._table}.sstables" / "manifest.json").read_text())
        return manifest["snapshot"]["created_at"]

    @staticmethod
    def texts(rows: pa.Table) -> list[str]:
        """Return rows in the form of `answer`."""
        return sorted(repr([(n, plain(rows[n][i])) for n in sorted(rows.column_names)]) for i in range(len(rows)))

    def write_times(self) -> dict[str, set[int]]:
        """Return the write times that SELECT writetime(...) answered, by regular column."""
        names, rows = _jsonl(self._folder / f"{self._table}.times.jsonl")
        found: dict[str, set[int]] = {}
        for column in self.schema.regular:
            for i, name in enumerate(names):
                if name in (f"writetime({column.name})", f'writetime("{column.name}")'):
                    found[column.name] = {int(row[i], 16) for row in rows if row[i] is not None}
        return found

    def state_write_times(self, state: pa.Table) -> dict[str, set[int]]:
        """Return the write times of the cells in a state that are no tombstones, by regular column of one cell."""
        found = {}
        for column in self.schema.regular:
            if not is_complex(column.type):
                cells = state[field_name(column)].combine_chunks().drop_null()
                parts = [cells.field(name).to_pylist() for name in ("write_time", "tombstone")]
                found[column.name] = {time for time, tombstone in zip(*parts, strict=True) if not tombstone}
        return found


def recorded(version: str) -> list[Location]:
    folders = sorted({path.parent for path in SCYLLA.rglob(f"{version}-*-TOC.txt")})
    return [location for folder in folders for location in find_sstables(str(folder))]


WIDE = next(location for location in recorded("mt") if "mt_wide" in location.folder)
