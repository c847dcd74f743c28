"""Reads the rows of some partitions through the state and the changes that are not folded in yet."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from writetime.changes.model import change_schema
from writetime.lake.buckets import buckets_of
from writetime.lake.delta import BucketedTable, DataFile, TableVersion
from writetime.lake.parquet import conform
from writetime.lake.row_form import fit
from writetime.lake.state import pending
from writetime.lake.table import LakeTable
from writetime.lake.views import time_now
from writetime.merge import live_rows, merge
from writetime.schema.table import TableSchema


@dataclass(frozen=True)
class _Opened:
    """A table at its newest version."""

    state: TableVersion
    changes: TableVersion
    schema: TableSchema
    pending: dict[int, list[DataFile]]


class Reader:
    """Reads rows of one table. It stays open, and reads each time what is new in the logs."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self._state, self._changes = (
            BucketedTable(part.storage, keep_open=True) for part in (table.state, table.changes)
        )
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
        return fit(live_rows(merge(parts, schema), schema, time_now() // 1_000_000), schema, unfit)

    def _newest(self) -> _Opened:
        # The state first: changes that are folded and then merged away in between are in files that name their version.
        state = self._state.load()
        changes = self._changes.load()
        opened = self._opened
        if opened and state is opened.state and changes is opened.changes:
            return opened
        schema = self._table.schema(changes)
        self._opened = _Opened(state, changes, schema, pending(self._table, changes, state))
        return self._opened
