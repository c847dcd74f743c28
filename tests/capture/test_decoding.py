"""The reader of an agent's segments follows the schemas, even if there is no memory for a new reader at first."""

import gc
import weakref
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from writetime.capture import decoding
from writetime.capture.decoding import Decoder
from writetime.capture.node_schemas import NodeTable, NodeTables
from writetime.schema.cql import parse_table
from writetime.storage.commitlog import CommitLogReader

ID = UUID("6d7a0c00-0000-11f0-8000-000000000001")


@dataclass
class Changing:
    """Schemas of one table; each call of `alter` adds a column."""

    tables: NodeTables = field(default_factory=lambda: NodeTables({}))
    _columns: list[str] = field(default_factory=list)
    _is_new: bool = False

    def alter(self) -> None:
        self._columns.append(f"v{len(self._columns)} int")
        schema = parse_table(f"CREATE TABLE ks.t (k int PRIMARY KEY, {', '.join(self._columns)}) WITH ID = {ID};")
        self.tables = NodeTables({ID: NodeTable(ID, "ks", "t", True, schema, "", 0)}, frozenset([ID]))
        self._is_new = True

    def refresh(self, *, always: bool = False) -> bool:
        del always
        found, self._is_new = self._is_new, False
        return found


def test_a_reader_that_cannot_be_made_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    schemas = Changing()
    schemas.alter()
    decoder = Decoder(None, schemas)
    assert decoder.refresh()
    assert not decoder.refresh()
    before = weakref.ref(decoder._reader)
    kept: list[bool] = []

    def without_memory(*_: Any, **__: Any) -> CommitLogReader:
        gc.collect()
        kept.append(before() is not None)
        raise OSError(12, "Cannot allocate memory")

    schemas.alter()
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "CommitLogReader", without_memory)
        for _ in range(2):
            with pytest.raises(OSError, match="Cannot allocate memory"):
                decoder.refresh()
    # The old one's memory was free by then, and it reads nothing with its old schemas.
    assert kept == [False, False]
    assert decoder.refresh()
    assert decoder._reader is not None
    assert [column.name for column in decoder._reader._plans[0].schema.regular] == ["v0", "v1"]
    assert not decoder.refresh()
