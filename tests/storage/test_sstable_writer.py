"""SSTables that are written, as Cassandra's own classes read them: the same cells as in the files of Cassandra.

Oracle: `SSTableReader` on both files.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.storage.written import Written, changes
from tests.support import oracle
from tests.support.expected import assert_same
from writetime.core.arrow import pc
from writetime.schema.table import TableSchema
from writetime.storage.data_writer import COMPRESSORS
from writetime.storage.locations import Location, find_sstables
from writetime.storage.sstable import SSTable
from writetime.storage.sstable_writer import SSTableWriter


def _in_order(table: pa.Table) -> pa.Table:
    order = pc.sort_indices(table, sort_keys=[("token", "ascending"), ("key", "ascending"), ("position", "ascending")])
    return table.take(order)


def _rewritten(
    location: Location, schema: TableSchema, folder: Path, *, rows: int = 1000, **options: object
) -> Location:
    """Read an SSTable and write its changes again, in batches of some rows."""
    table = _in_order(changes(location, schema))
    with SSTableWriter(str(folder), schema, **options) as writer:  # type: ignore[arg-type]
        for batch in table.to_batches(max_chunksize=rows):
            writer.write(batch)
    (found,) = find_sstables(str(folder))
    return found


def _comparable(line: dict[str, Any]) -> dict[str, Any]:
    """Leave out the values of a bound, which may have another form, such as 1 for 1.0. `bound` has its position."""
    return {name: value for name, value in line.items() if name != "values" or "bound" not in line}


def _compare_statistics(ours: str, theirs: str, *, all_clusterings: bool = False) -> None:
    """Compare what `StatsMetadata` has. `all_clusterings`: ours has no smallest and largest one."""
    found, wanted = oracle.statistics([ours, theirs])
    if all_clusterings:
        wanted["clusterings"] = "ALL"
    assert found["keys"] == found["filtered"] == found["indexed"] == wanted["keys"]
    # A filter finds one of a hundred other keys by chance, and more in a small one with luck.
    assert found["others"] <= 5 * found["keys"]
    for each in (found, wanted):
        for name in ("keys", "filtered", "indexed", "others"):
            del each[name]
    assert found == wanted


def test_cassandra_reads_the_same_cells(written: Written, tmp_path: Path) -> None:
    compared = 0
    for number, schema in enumerate(written.schemas):
        compressor = [*COMPRESSORS, None][number % (len(COMPRESSORS) + 1)]
        # Cassandra reads the version of ScyllaDB, too.
        version = ("nb", "me")[number % 2] if written.version == "nb" else "oa"
        for location in written.sstables[schema.name]:
            folder = tmp_path / "ks" / f"{schema.name}-{location.id}"
            again = _rewritten(
                location,
                schema,
                folder,
                rows=(1, 7, 1000)[number % 3],
                version=version,
                compressor=compressor,
                chunk_length=4096,
                block_size=(64, 300, 1 << 16)[number % 3],
            )
            path = again.path("Data.db")
            (lines,) = oracle.sstables([path]).values()
            for found, wanted in zip(lines, written.lines[location.path("Data.db")], strict=True):
                assert _comparable(found) == _comparable(wanted)
            written_again = _in_order(changes(again, schema))
            assert_same(written_again, _in_order(changes(location, schema)))
            # ScyllaDB looks for the clusterings that a file covers, which the deletion of a partition does.
            covered = version == "me" and "partition_tombstone" in written_again["kind"].to_pylist()
            _compare_statistics(path, location.path("Data.db"), all_clusterings=covered)
            compared += len(lines)
    print(f"{compared} lines compared")


@pytest.fixture(scope="module")
def crafted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crafted")
    oracle.craft(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("version", ["nb", "oa"])
@pytest.mark.parametrize("table", ["counters", "times"])
def test_counters_and_extreme_times(crafted: Path, tmp_path: Path, version: str, table: str) -> None:
    for location in find_sstables(str(crafted / version / table)):
        again = _rewritten(location, SSTable(location).schema, tmp_path / "craft" / location.id, version=version)
        ours, theirs = again.path("Data.db"), location.path("Data.db")
        lines = oracle.sstables([ours, theirs])
        assert lines[ours] == lines[theirs]
