"""Reads the rows of some partitions through the state and the changes that are not folded in yet."""

import threading
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from writetime.lake.buckets import buckets_of
from writetime.lake.contents import Contents, combined
from writetime.lake.delta import BucketedTable
from writetime.lake.row_form import fit
from writetime.lake.state import contents
from writetime.lake.table import LakeTable
from writetime.lake.versions import TableVersion
from writetime.lake.views import time_now
from writetime.merge import live_rows, merge
from writetime.schema.table import TableSchema


@dataclass(frozen=True)
class _Opened:
    """A table at its newest version, with what its buckets hold."""

    state: TableVersion
    changes: TableVersion
    schema: TableSchema
    contents: dict[int, Contents]


class Reader:
    """Reads rows of one table, which stays open: each time it looks for a newer version. Threads may share it."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self._state, self._changes = (BucketedTable(part.storage) for part in (table.state, table.changes))
        self._opened: _Opened | None = None
        self._lock = threading.Lock()

    @property
    def schema(self) -> TableSchema:
        """The table's schema at its newest version."""
        return self._newest().schema

    def rows(self, tokens: np.ndarray, unfit: Counter[str] | None = None) -> pa.Table:
        """Return the rows that live now in the partitions with these tokens (sorted, each once), in the order of the
        database, as `views.virtual` does; `unfit` is as for `row_form.fit`.
        """
        opened = self._newest()
        owners = np.unique(buckets_of(pa.array(tokens, pa.int64()), self._table.buckets)).tolist()
        found = [opened.contents[bucket] for bucket in owners if bucket in opened.contents]
        state = combined(found).merged(opened.schema, tokens) if found else merge([], opened.schema)
        return fit(live_rows(state, opened.schema, time_now() // 1_000_000), opened.schema, unfit)

    def _newest(self) -> _Opened:
        with self._lock:
            # The state first: changes that are folded and then merged away in between are in files that name their
            # version.
            state, changes = self._state.load(), self._changes.load()
            opened = self._opened
            if opened is None or opened.state is not state or opened.changes is not changes:
                held = contents(self._table, state, changes)
                opened = _Opened(state, changes, self._table.schema(changes), held)
                self._opened = opened
            return opened
