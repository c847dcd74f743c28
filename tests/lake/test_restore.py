"""A table of the lake, written as SSTables as of an instant and imported: the node answers as it did then.

Oracle: the answers of CQL at that instant, with write times and TTLs; in tests without a server, the lake's own state.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import Session

from tests.support.loader import stream
from tests.support.made import SCHEMA, add, new_table, settings_at, write
from tests.support.timed_writes import COLUMNS, Answers, statements
from writetime.clients import node_snapshots
from writetime.clients.database import connect
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.lake import state
from writetime.lake.changes import ChangeWriter
from writetime.lake.history import raise_history
from writetime.lake.restore import MANIFEST, restore
from writetime.lake.table import LakeTable, create_table
from writetime.lake.views import bucket_views
from writetime.merge import merge
from writetime.runtime.nodetool import nodetool
from writetime.schema.system import read_schema
from writetime.storage.locations import find_sstables
from writetime.storage.sstable import SSTable

START = 1_700_000_000_000_000
HOUR = 3_600_000_000
_PHASES = 3


def _add_flushed(settings: Settings, lake: LakeTable, number: int) -> None:
    """Add the changes of all SSTables of the node: each has the writes of one flush, so the lake keeps its history."""
    schema = lake.schema()
    (folder,) = take_snapshot(settings, lake.name, f"flush{number}")
    batches = [batch for location in find_sstables(str(folder)) for batch in SSTable(location, schema).scan()]
    lake.changes.append(ChangeWriter.of(lake, schema).write(batches), "test", number)


@pytest.mark.slow
def test_as_of_instants(settings: Settings, tmp_path: Path) -> None:
    keyspace = settings.cassandra.keyspace
    names = [f"restored_{number}" for number in range(_PHASES)]
    with connect(settings) as session:
        lake, wanted = _with_history(settings, session, tmp_path, "restored", names)
        assert all(one.rows != other.rows for one, other in pairwise(wanted))
        _, port = node_snapshots.local_node(session)
        for number, name in enumerate(names):
            folder = tmp_path / name
            restore(lake, str(folder), START + number * HOUR + HOUR // 2)
            nodetool(port, "import", "--extended-verify", keyspace, name, str(folder))
            Answers.of(session, f"{keyspace}.{name}").assert_same(wanted[number])
            nodetool(port, "compact", keyspace, name)
            Answers.of(session, f"{keyspace}.{name}").assert_same(wanted[number])


@pytest.mark.slow
@pytest.mark.cassandra_5_only("the jars of others lack the driver that sstableloader uses")
def test_streamed_by_sstableloader(settings: Settings, cassandra_version: str, tmp_path: Path) -> None:
    keyspace = settings.cassandra.keyspace
    with connect(settings) as session:
        lake, wanted = _with_history(settings, session, tmp_path, "to_stream", ["streamed"])
        folder = tmp_path / keyspace / "streamed"
        restore(lake, str(folder))
        stream(folder, Path(settings.embedded.home) / "cassandra", settings.cassandra.port, cassandra_version)
        Answers.of(session, f"{keyspace}.streamed").assert_same(wanted[-1])


def _with_history(
    settings: Settings, session: Session, folder: Path, name: str, copies: Iterable[str]
) -> tuple[LakeTable, list[Answers]]:
    """Write to a table in phases, an hour apart, and bring each into a lake. Return this, and the answers after each.

    The copies are empty tables whose first compaction drops deletions.
    """
    table = f"{settings.cassandra.keyspace}.{name}"
    session.execute(f"CREATE TABLE {table} {COLUMNS}")
    for copy in copies:
        session.execute(f"CREATE TABLE {settings.cassandra.keyspace}.{copy} {COLUMNS} AND gc_grace_seconds = 0")
    lake = create_table(settings_at(folder / "lake", buckets=4), read_schema(session, table))
    wanted: list[Answers] = []
    for number in range(_PHASES):
        for statement in statements(table, random.Random(number), START + number * HOUR):
            session.execute(statement)
        wanted.append(Answers.of(session, table))
        _add_flushed(settings, lake, number)
        state.fold(lake)
    return lake, wanted


def _filled(folder: Path) -> LakeTable:
    table = new_table(folder)
    add(table, [write(i, n, 10 * i + n, v=f"v{i}") for i in range(50) for n in range(2)], 0)
    return table


def test_the_lake_reads_the_same_state(tmp_path: Path) -> None:
    table, out = _filled(tmp_path / "lake"), tmp_path / "out"
    sstables = restore(table, str(out))
    manifest = json.loads((out / MANIFEST).read_text())
    assert manifest["complete"]
    assert [each["file"] for each in manifest["sstables"]] == [each.file for each in sstables]
    assert sum(each.changes for each in sstables) == 100
    read = [batch for location in find_sstables(str(out)) for batch in SSTable(location, SCHEMA).scan()]
    assert merge(read, SCHEMA).equals(merge([view.state() for view in bucket_views(table)], SCHEMA))
    # The schema of the folder is read, too.
    assert SCHEMA.create_statement() in (out / "schema.cql").read_text()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    table, out = _filled(tmp_path / "lake"), tmp_path / "out"
    out.mkdir()
    (out / "nb-1-big-Data.db").write_bytes(b"of somebody")
    with pytest.raises(WritetimeError, match="out has files already: name a folder that is new or empty"):
        restore(table, str(out))
    assert (out / "nb-1-big-Data.db").read_bytes() == b"of somebody"
    restore(table, str(tmp_path / "other"))
    with pytest.raises(WritetimeError, match="other has files already"):
        restore(table, str(tmp_path / "other"))


@pytest.mark.parametrize("torn", [b"", b'{"table": "sho'])
def test_a_run_that_was_killed_while_it_wrote_its_list_is_repeated(tmp_path: Path, torn: bytes) -> None:
    table, out = _filled(tmp_path / "lake"), tmp_path / "out"
    restore(table, str(out))
    (out / MANIFEST).write_bytes(torn)
    sstables = restore(table, str(out), 205)
    assert len(list(find_sstables(str(out)))) == len(sstables)
    assert sum(each.changes for each in sstables) == 42


def test_a_run_that_was_killed_is_repeated(tmp_path: Path) -> None:
    table, out = _filled(tmp_path / "lake"), tmp_path / "out"

    class Killed(BaseException):
        pass

    def two(function: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterator[Any]:
        for number, task in enumerate(tasks):
            if number == 2:
                raise Killed
            yield function(task)

    with pytest.raises(Killed):
        restore(table, str(out), run=two)
    (out / "nb-9-big-Data.db").write_bytes(b"a part of an SSTable")
    sstables = restore(table, str(out), 205)
    assert len(list(find_sstables(str(out)))) == len(sstables)
    assert sum(each.changes for each in sstables) == 42


def test_an_instant_that_the_lake_cannot_show(tmp_path: Path) -> None:
    table = _filled(tmp_path / "lake")
    raise_history(table, 1000)
    with pytest.raises(WritetimeError, match=r"the lake can show only 1970-01-01T00:00:00.001000\+00:00 and later"):
        restore(table, str(tmp_path / "out"), 500)
    assert not (tmp_path / "out").exists()
