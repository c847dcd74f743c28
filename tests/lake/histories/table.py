"""The table of one plan during a run: its commit log, its snapshots, its lake, and the comparisons."""

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from tests.lake.histories.node import Node
from tests.lake.histories.plan import Plan
from tests.support.event_replay import Consumer, in_order
from tests.support.expected import assert_same
from tests.support.lake_answers import unordered, view_rows
from tests.support.lake_views import looked_up
from tests.support.merged import with_one_form
from writetime.core import config
from writetime.delta import buckets
from writetime.files.cache import Cache
from writetime.files.row_form import to_micros
from writetime.lake import backfill as backfilling
from writetime.lake import retention, state, views
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.changes import ChangeWriter
from writetime.lake.table import LakeTable, create_table, view_schema
from writetime.row_events import packing, stream
from writetime.schema.table import TableSchema
from writetime.schema.types import CqlTypeError
from writetime.view import refreshing
from writetime.view.refreshing import refresh


class HistoryTable:
    """Runs the steps of a plan in the lake below a folder, and compares."""

    def __init__(self, plan: Plan, folder: Path, base: int) -> None:
        self.plan = plan
        self.schema = plan.schema
        self.comparisons = 0
        # The second that the next comparison is for.
        self._second = base
        self._folder = folder
        self._settings = config.load(lake={"path": str(folder / "lake"), "buckets": plan.buckets})
        self._lake: LakeTable | None = None
        self._log: list[pa.RecordBatch] = []
        self._pending: list[pa.RecordBatch] = []
        self._snapshots: list[Path] = []
        # Whether the lake has all that was written.
        self._complete = True
        self._snapshot_is_new = False
        self._batches = 0
        self._consumer = Consumer()

    def follow(self, schema: TableSchema) -> None:
        """Take the table's schema as the database now has it."""
        self.schema = schema
        self._lake = create_table(self._settings, schema)
        self._lake.cache = Cache(self._folder / "cache", 1 << 30, smallest=0)

    @property
    def lake(self) -> LakeTable:
        """The table in the lake."""
        assert self._lake is not None
        return self._lake

    def logged(self, batches: list[pa.RecordBatch]) -> None:
        """Read the new changes in the commit log."""
        self._log += batches
        self._pending += batches
        self._complete = self._complete and not batches
        self._snapshot_is_new = False

    def snapshot(self, folder: Path) -> None:
        """Take the snapshot that was made after all writes so far."""
        self._snapshots.append(folder)
        self._snapshot_is_new = True

    def step(self, text: str) -> None:
        """Do one step of a round."""
        name, number = text.split()
        steps: dict[str, Callable[[random.Random], Any]] = {
            "log": self._all,
            "some": self._some,
            "again": lambda r: self._append(_sample(r, self._log)),
            "snapshot": lambda _: self._backfill(-1),
            "replica": lambda _: self._backfill(-1, replica=True),
            "old": lambda r: self._backfill(r.randrange(len(self._snapshots) or 1), replica=True),
            "fold": lambda _: state.fold(self.lake),
            "compact": lambda _: state.compact(self.lake),
            "refresh": lambda r: self._refresh(whole=r.random() < 0.2),
            "extend": lambda _: self._extend(),
            "trim": lambda r: retention.trim_history(self.lake, r.choice([-1, 1000, views.time_now()])),
            "rebuild": lambda _: state.rebuild(self.lake),
            "pack": lambda _: self._pack(),
            "drop": lambda _: state.drop_tombstones(self.lake, self._second * 1_000_000),
        }
        chooser = random.Random(int(number))
        # Files of one bucket and files of all buckets are in one table.
        with patch.object(buckets, "FEW_ROWS", chooser.choice([0, 2, 4096])):
            steps[name](chooser)

    def _refresh(self, *, whole: bool = False) -> None:
        with patch.object(refreshing, "time_of_lake", lambda _: self._second * 1_000_000):
            refresh(self._settings, self.lake, whole=whole)

    def _extend(self) -> None:
        with patch.object(stream, "time_of_lake", lambda _: self._second * 1_000_000):
            stream.extend(self.lake)

    def compare(self, node: Node, seconds: int) -> None:
        """Move the clock and compare; see the package."""
        self._second += seconds
        rows = self._virtual(self._second)
        self._refresh()
        assert unordered([self.lake.view.read(rows.column_names)]) == unordered([rows])
        self._extend()
        self._consumer.follow(self.lake)
        assert in_order(self._consumer.rows) == view_rows([rows]), "the row events, replayed, are not the view"
        if self._complete:
            for second in (self._second, self._second + 4000):
                answer = to_micros(node.rows(self.schema, second), self.schema)
                found = self._virtual(second)
                assert_same(with_one_form(found, self.schema), with_one_form(answer, self.schema))
                assert_same(
                    with_one_form(looked_up(self.lake, second), self.schema), with_one_form(answer, self.schema)
                )
                self.comparisons += 1

    def _pack(self) -> None:
        if self.lake.row_events.exists():
            with patch.object(packing, "FAN", 2):
                packing.pack_events(self.lake)

    def _virtual(self, second: int) -> pa.Table:
        parts = [replace(view, as_of=second * 1_000_000).rows() for view in views.bucket_views(self.lake)]
        return pa.concat_tables([view_schema(self.schema).empty_table(), *parts])

    def _all(self, chooser: random.Random) -> None:
        self._append(self._pending, parts=chooser.randint(1, 3), chooser=chooser)
        self._pending = []
        self._complete = True

    def _some(self, chooser: random.Random) -> None:
        rows = [batch.slice(i, 1) for batch in self._pending for i in range(len(batch))]
        chooser.shuffle(rows)
        half = len(rows) // 2
        self._append(rows[:half])
        self._pending = rows[half:]
        if not self._pending:
            self._complete = True

    def _append(self, batches: list[pa.RecordBatch], parts: int = 1, chooser: random.Random | None = None) -> None:
        rows = [batch.slice(i, 1) for batch in batches for i in range(len(batch))]
        if chooser and parts > 1:
            chooser.shuffle(rows)
        for part in range(parts):
            files = ChangeWriter.of(self.lake, self.lake.schema()).write(rows[part::parts])
            self._batches += 1
            assert self.lake.changes.append(files, "histories/log", self._batches)

    def _backfill(self, number: int, *, replica: bool = False) -> None:
        if not self._snapshots:
            return
        folder = self._snapshots[number]
        if replica:
            self._batches += 1
            copy = self._folder / f"replica{self._batches}" / folder.parent.parent.name
            copy = shutil.copytree(folder, copy, copy_function=os.link)
            folder = copy
        if not any(folder.glob("*-Data.db")):
            return
        try:
            found = find_snapshots([str(folder)])
        except CqlTypeError:
            # The snapshot's `schema.cql` lacks a type that only columns without a value use.
            found = find_snapshots([str(folder)], self.schema)
        # The node has not dropped any tombstones, so a snapshot from before the horizon is as good as others.
        with patch.object(backfilling, "require_newer", lambda *_: None):
            for _ in backfill(create_table(self._settings, found.schema), found):
                pass
        if self._snapshot_is_new and number == -1:
            self._complete = True


def _sample(chooser: random.Random, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    rows = [batch.slice(i, 1) for batch in batches for i in range(len(batch))]
    return chooser.sample(rows, len(rows) // 2)
