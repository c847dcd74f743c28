"""Data files of a real ScyllaDB and a real Cassandra that are cut. The error names the data file."""

from pathlib import Path

import pytest

from tests.support.recordings import SCYLLA
from tests.support.rewriting import copy
from writetime.storage.file_errors import CorruptFile
from writetime.storage.locations import Location, find_sstables
from writetime.storage.sstable import SSTable

CASSANDRA = SCYLLA.parent / "cassandra"


def sstables() -> list[Location]:
    """The smallest SSTable of each folder, of each compressor."""
    folders = sorted({path.parent for place in (SCYLLA, CASSANDRA) for path in place.rglob("*-Data.db")})
    found = [min(find_sstables(str(folder)), key=lambda each: len(each.read("Data.db"))) for folder in folders]
    kinds = {
        (
            each.format,
            each.read("CompressionInfo.db")[:20] if each.exists("CompressionInfo.db") else each.exists("CRC.db"),
        ): each
        for each in found
    }
    return list(kinds.values())


def read(table: SSTable, *, split: bool) -> int:
    """Read all rows, or those of the last piece; return their number."""
    batches = table.scan(split=table.splits(1)[-1]) if split else table.scan()
    return sum(batch.num_rows for batch in batches)


@pytest.mark.parametrize("location", sstables(), ids=lambda each: f"{Path(each.folder).name}-{each.id}")
def test_a_data_file_that_is_cut(location: Location, tmp_path: Path) -> None:
    here = copy(location, tmp_path / "cut")
    data = Path(here.path("Data.db"))
    whole = data.read_bytes()
    assert read(SSTable(here), split=False) > 0
    lengths = {0, 1, len(whole) // 3, len(whole) // 2, *range(max(0, len(whole) - 12), len(whole))}
    for length in sorted(lengths):
        data.write_bytes(whole[:length])
        for split in (False, True):
            with pytest.raises(CorruptFile, match=rf"^{data}"):
                read(SSTable(here), split=split)
