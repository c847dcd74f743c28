"""Tables of a real ScyllaDB in a lake, restored into Cassandra. Oracle: what ScyllaDB answered, with write times."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from cassandra.cluster import Session

from tests.support import answers
from tests.support.expected import plain
from tests.support.recordings import RecordedTable
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.lake.changes import ChangeWriter
from writetime.lake.table import create_table
from writetime.restore.into import restore_into
from writetime.schema.types import is_complex
from writetime.storage.sstable import SSTable

pytestmark = pytest.mark.long

# No cell of their answers has a TTL. They have static columns, lists, types of the keyspace, vectors, and the version
# `mt`.
TABLES = ["rec101/Tab4", "rec101/t0", "rec102/x_0", "rec103/x_2", "rec103/x_3", "rec104/x_0", "rec105/x_4"]
TABLES += ["rec109/Tab4"]


@pytest.fixture
def keyspace(settings: Settings) -> Iterator[str]:
    """A keyspace without types."""
    name = f"copy_{uuid.uuid4().hex[:10]}"
    with connect(settings) as session:
        session.execute(
            f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        yield name
        session.execute(f"DROP KEYSPACE {name}")


@pytest.fixture
def raw(settings: Settings) -> Iterator[Session]:
    with answers.raw_session(settings.cassandra.port) as session:
        yield session


def texts(rows: pa.Table) -> list[str]:
    """Return rows in the form of `RecordedTable.answer`."""
    return sorted(repr([(n, plain(rows[n][i])) for n in sorted(rows.column_names)]) for i in range(len(rows)))


@pytest.mark.from_cassandra_5("some tables have vectors")
@pytest.mark.parametrize("name", TABLES)
def test_into_cassandra(settings: Settings, keyspace: str, raw: Session, tmp_path: Path, name: str) -> None:
    recorded = RecordedTable(*name.split("/"))
    lake = create_table(settings, recorded.schema)
    for number, location in enumerate(recorded.locations):
        files = ChangeWriter.of(lake, recorded.schema).write(SSTable(location, recorded.schema).scan())
        lake.changes.append(files, "test", number)
    report = restore_into(settings, lake, str(tmp_path / "out"), f"{keyspace}.{recorded.schema.name}")
    assert report.comparison is not None
    assert report.comparison.proven
    schema = replace(recorded.schema, keyspace=keyspace)
    assert texts(answers.decoded(answers.rows(raw, schema), schema)) == recorded.answer()
    times = answers.write_times(raw, schema)
    found = {
        column.name: {row[column.name] for row in times} - {None}
        for column in schema.regular
        if not is_complex(column.type)
    }
    assert found == recorded.write_times()
    assert times or not found
