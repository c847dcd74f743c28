"""A table of the lake follows its schemas, even after a kill."""

from dataclasses import replace
from pathlib import Path
from uuid import uuid1

import pytest

from tests.support.made import SCHEMA, settings_at
from writetime.lake.history import history_from
from writetime.lake.table import LakeTable, table_storage
from writetime.lake.views import time_now
from writetime.landing import schema_changes
from writetime.landing.schema_changes import LakeSchemas
from writetime.schema.table import Column, DroppedColumn
from writetime.schema.types import Native
from writetime.wire.change_messages import change_avro
from writetime.wire.publishing import RegisteredSchema


def die(*_: object) -> None:
    raise RuntimeError("killed")


@pytest.mark.parametrize("killed_at", ["raise_history", "begin"])
def test_a_table_shows_no_time_from_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str) -> None:
    """That was created, or created again, even if landing was killed between the two steps."""
    settings = settings_at(tmp_path)
    table = LakeTable(table_storage(settings, SCHEMA.full_name))
    schemas = LakeSchemas(settings, table)
    for offset in range(2):
        schema = replace(SCHEMA, id=uuid1())
        seen = [RegisteredSchema(offset, offset, change_avro(schema))]
        before = time_now()
        with monkeypatch.context() as patch:
            patch.setattr(LakeTable if killed_at == "begin" else schema_changes, killed_at, die)
            if bool(offset) == (killed_at == "begin"):
                with pytest.raises(RuntimeError, match="killed"):
                    schemas.follow(seen)
        now = schemas.follow(seen)
        assert now is not None
        assert (history_from(now) or 0) >= before
        assert table.schema().id == schema.id


def test_a_column_that_is_back_with_another_type(tmp_path: Path) -> None:
    """Each landing sees both schemas, the older one too, and the lake's stays as it is."""
    settings = settings_at(tmp_path)
    table = LakeTable(table_storage(settings, SCHEMA.full_name))
    schemas = LakeSchemas(settings, table)
    text, ascii_ = Native("text"), Native("ascii")
    was = replace(SCHEMA, id=uuid1(), regular=(Column("v", ascii_), Column("w", Native("int"))))
    dropped = (DroppedColumn("v", ascii_, False, 10),)
    back = replace(was, regular=(Column("v", text), *was.regular[1:], Column("x", text)), dropped=dropped)
    seen = [RegisteredSchema(offset, offset, change_avro(schema)) for offset, schema in enumerate((was, back))]
    first = schemas.follow(seen)
    assert first is not None
    for again in (seen, seen[::-1], seen):
        now = schemas.follow(again)
        assert now is not None
        assert now.version == first.version
    assert [(c.name, c.type) for c in table.schema().regular] == [("v", text), ("w", Native("int")), ("x", text)]
