"""Reads the rows of some partitions through the state and the changes that are not folded in yet."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from writetime.changes.model import change_schema
from writetime.lake.buckets import buckets_of
from writetime.lake.delta import DataFile, TableVersion
from writetime.lake.parquet import conform
from writetime.lake.row_form import fit
from writetime.lake.state import pending
from writetime.lake.table import LakeTable
from writetime.lake.views import time_now
from writetime.merge import live_rows, merge
from writetime.schema.table import TableSchema

# After so long (microseconds) the tables are opened again in any case, because Delta deletes old files of its log.
_OPEN_FOR = 600_000_000


@dataclass(frozen=True)
class _Opened:
    """A table at its newest version."""

    state: TableVersion
    changes: TableVersion
    schema: TableSchema
    pending: dict[int, list[DataFile]]
    at: int


class Reader:
    """Reads rows of one table. It keeps what it has opened, and looks for a newer version each time."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self._opened: _Opened | None = None

    @property
    def schema(self) -> TableSchema:
        """The table's schema at its newest version."""
        return self._newest().schema

    def rows(self, tokens: np.ndarray, unfit: Counter[str] | None = None) -> pa.Table:
        """Return the rows that live now in the partitions with these tokens (sorted, each once), in the order of the
        database, as `views.virtual` does; `unfit` is as for `row_form.fit`.
        """
        opened = self._newest()
        schema = opened.schema
        full = change_schema(schema)
        buckets = buckets_of(pa.array(tokens, pa.int64()), self._table.buckets)
        parts = []
        for bucket in np.unique(buckets):
            wanted = tokens[buckets == bucket]
            for storage, files in (
                (self._table.state.storage, opened.state.by_bucket.get(int(bucket), ())),
                (self._table.changes.storage, opened.pending.get(int(bucket), ())),
            ):
                for file in files:
                    if found := self._table.cache.rows(storage, file, wanted):
                        parts.append(conform(pa.Table.from_batches(found), full, file.path))
        now = time_now()
        return fit(live_rows(merge(parts, schema), schema, now // 1_000_000), schema, unfit)

    def _newest(self) -> _Opened:
        opened, now = self._opened, time_now()
        if opened and 0 <= now - opened.at < _OPEN_FOR and self._is_newest(opened):
            return opened
        # The state first: changes that are folded and then merged away in between are in files that name their version.
        state = self._table.state.load()
        changes = self._table.changes.load()
        schema = self._table.schema(changes)
        self._opened = _Opened(state, changes, schema, pending(self._table, changes, state), now)
        return self._opened

    def _is_newest(self, opened: _Opened) -> bool:
        parts = ((self._table.state, opened.state), (self._table.changes, opened.changes))
        return all(part.is_newest(found.version) for part, found in parts)
