"""Each engine reads the rows of the database from a view's Iceberg table, after each refresh of many: with packing,
trimming, deletions, late and expiring writes, and columns that are added, dropped and added again.

Oracle: the database: `SELECT *` of a real Cassandra at each refresh.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from tests.iceberg.followed_table import PACE, REWRITTEN, VECTORS, FollowedTable, in_order, plain
from tests.support.generate import SEED
from tests.support.iceberg_readers import READERS, Reader, opened
from tests.support.other_engines import CLICKHOUSE, SPARK, OtherEngines, other_engines
from tests.support.written import PARTITIONS, Row
from writetime.clients import database
from writetime.core.config import Settings
from writetime.runtime import jars

pytestmark = pytest.mark.long

_BATCHES, _BATCHES_LONG = 14, 1000
# Its lists cannot be null.
_EMPTY = {"f": []}


@pytest.fixture
def engines(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[OtherEngines | None]:
    """Engines with packages of their own, if there are any."""
    with ExitStack() as stack:
        packages = pytestconfig.getoption("--iceberg-engines")
        (jar,) = jars.fetch("iceberg-spark") if packages else (Path(),)
        yield stack.enter_context(other_engines(Path(packages), jar, tmp_path)) if packages else None


@pytest.fixture
def followed(cassandra: Settings, tmp_path: Path) -> Iterator[FollowedTable]:
    with database.connect(cassandra) as session:
        table = FollowedTable(session, cassandra.cassandra.keyspace, tmp_path, SEED)
        yield table
        session.execute(f"DROP TABLE {table.name}")


def rows_of(found: pa.Table, columns: list[str]) -> list[Row]:
    return in_order(list(zip(*(map(plain, found[name].to_pylist()) for name in columns), strict=True)))


def assert_read(followed: FollowedTable, wanted: list[Row], name: str, reader: Reader, view: str) -> None:
    """Compare all rows of a view, and after each fifth refresh their number, and those of one partition."""
    folder, columns, place = followed.folder(view), followed.all_columns, (name, view, followed.batches)
    if name == CLICKHOUSE:
        wanted = [tuple(_EMPTY.get(n) if v is None else v for n, v in zip(columns, row, strict=True)) for row in wanted]
    assert rows_of(reader.rows(folder, None), columns) == wanted, place
    if followed.batches % 5 == 0:
        assert reader.count(folder) == len(wanted), place
        id_ = followed.batches % PARTITIONS
        assert rows_of(reader.rows(folder, id_), columns) == [row for row in wanted if row[0] == id_], place


def test_each_reader_after_each_refresh(followed: FollowedTable, engines: OtherEngines | None, is_long: bool) -> None:
    readers = [(name, reader, view) for name, reader in READERS.items() for view in (VECTORS, REWRITTEN)]
    if engines:
        readers += [(SPARK, engines.reader(SPARK), view) for view in (VECTORS, REWRITTEN)]
        readers += [(CLICKHOUSE, engines.reader(CLICKHOUSE), REWRITTEN)]
    for _ in range(_BATCHES_LONG if is_long else _BATCHES):
        wanted = followed.step()
        for name, reader, view in readers:
            assert_read(followed, wanted, name, reader, view)
    assert followed.packed > 8


def test_a_snapshot_stays_for_forty_minutes(followed: FollowedTable) -> None:
    """Who has opened one can still read it, while later refreshes replace, pack and delete files."""
    wanted = [followed.step() for _ in range(4)][-1]
    table = opened(followed.folder(VECTORS))
    for _ in range(2400 // PACE):
        # Fields are added at the time of the machine's clock.
        followed.step(alters=False)
    assert rows_of(table.scan().to_arrow(), followed.all_columns) == wanted
    before = set(table.inspect.files()["file_path"].to_pylist())
    for _ in range(2400 // PACE + 2):
        followed.step(alters=False)
    assert not all(Path(path.removeprefix("file://")).exists() for path in before)


def has_vectors(folder: Path) -> bool:
    snapshot = opened(folder).current_snapshot() if (folder / "metadata").exists() else None
    return bool(snapshot and snapshot.summary and snapshot.summary["total-delete-files"] != "0")


def test_clickhouse_refuses_vectors(followed: FollowedTable, engines: OtherEngines | None) -> None:
    """ClickHouse raises an error, and returns no wrong rows. If this test fails, update docs/engines.md."""
    if engines is None:
        pytest.skip("make test-iceberg runs it")
    while not has_vectors(followed.folder(VECTORS)):
        followed.step()
    with pytest.raises(ValueError, match="Position deletes are supported only for parquet format"):
        engines.reader(CLICKHOUSE).rows(followed.folder(VECTORS), None)
