"""A store that fails for a moment while the version of the last batch is opened: a retry succeeds, at the same cost."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import deltalake
import pytest

from tests.support.made import SCHEMA, add, new_table, settings_at, write
from writetime.core.errors import Transient
from writetime.delta.bucketed_table import BucketedTable
from writetime.lake import state
from writetime.lake.table import LakeTable, open_table
from writetime.row_events import stream
from writetime.schema.table import Column, DroppedColumn
from writetime.schema.types import Native
from writetime.view.refreshing import refresh


def column_is_back(table: LakeTable) -> None:
    """Drop a column, and add it again."""
    left = tuple(column for column in SCHEMA.regular if column.name != "w")
    dropped = (DroppedColumn("w", Native("int"), False, 9),)
    table.follow(replace(SCHEMA, regular=left, dropped=dropped))
    table.follow(replace(SCHEMA, regular=(*left, Column("w", Native("int"))), dropped=dropped))


@pytest.mark.parametrize("change", [lambda _: None, column_is_back], ids=["changes", "a column that is back"])
def test_a_moment_without_the_store_is_not_too_late(tmp_path: Path, change: Callable[[LakeTable], None]) -> None:
    table, settings = new_table(tmp_path), settings_at(tmp_path)
    add(table, [write(i, 1, 1, v="a") for i in range(50)], 1)
    for step in (lambda: stream.extend(table), lambda: refresh(settings, table), lambda: state.fold(table)):
        step()
    change(table)
    add(table, [write(2, 1, 2, v="b")], 2)
    table = open_table(settings, table.name)
    open_at = BucketedTable._open_at

    def opened(self: BucketedTable, version: int | None) -> deltalake.DeltaTable:
        if version is not None and self.storage.address.endswith("/changes"):
            raise Transient("Generic S3 error: status code: 503")
        return open_at(self, version)

    steps: list[Callable[[], Any]] = [
        lambda: stream.extend(table),
        lambda: refresh(settings, table),
        lambda: state.fold(table),
    ]
    for step in steps:
        with patch.object(BucketedTable, "_open_at", opened), pytest.raises(Transient, match="503"):
            step()
    assert stream.extend(table) == 1
    assert state.fold(table) == 1
