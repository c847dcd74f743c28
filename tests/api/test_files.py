"""The database's files, read as in a notebook."""

from pathlib import Path

import pytest

import writetime
from writetime.changes.model import change_schema
from writetime.core.errors import WritetimeError
from writetime.schema.cql import parse_schemas
from writetime.storage.infer import infer_schema
from writetime.storage.locations import find_sstables
from writetime.storage.sstable import SSTable

CASSANDRA = Path(__file__).parents[1] / "data" / "cassandra" / "oa"


def test_sstables_of_a_folder() -> None:
    folder = str(CASSANDRA / "mixed")
    locations = list(find_sstables(folder))
    schema = infer_schema(locations)
    rows = sum(batch.num_rows for location in locations for batch in SSTable(location, schema).scan())
    read = writetime.read_sstable(folder).read_all()
    assert rows > 0
    assert read.num_rows == rows
    assert read.schema == change_schema(schema)
    assert writetime.read_sstable(folder, fields=["token", "kind"]).read_all().column_names == ["token", "kind"]


def test_segments_of_a_folder() -> None:
    cql = (CASSANDRA / "schema.cql").read_text()
    tables = [schema.full_name for schema in parse_schemas(cql)]
    counts = {name: writetime.read_commitlog(str(CASSANDRA), cql, table=name).read_all().num_rows for name in tables}
    assert sum(counts.values()) > 0


@pytest.mark.parametrize("fields", [["nothing"], ["token", "nothing"]])
def test_a_field_that_does_not_exist(fields: list[str]) -> None:
    with pytest.raises(WritetimeError, match="no field nothing"):
        writetime.read_sstable(str(CASSANDRA / "mixed"), fields=fields)


def test_a_table_that_the_schema_lacks() -> None:
    cql = (CASSANDRA / "schema.cql").read_text()
    with pytest.raises(WritetimeError, match=r"shop\.nothing"):
        writetime.read_commitlog(str(CASSANDRA), cql, table="shop.nothing")


def test_the_public_names() -> None:
    assert set(writetime.__all__) <= set(dir(writetime))
    for name in writetime.__all__:
        assert getattr(writetime, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        writetime.nothing  # noqa: B018
