"""SSTables that Cassandra's own writer made from data that no client can write, those that were recorded, and the rests
of small files.

Oracle: the data that Cassandra's writer was given; for splits, our own second path: the changes of the whole file.
"""

import random
from pathlib import Path

import numpy as np
import pytest

from tests.support import oracle
from tests.support.examples import is_long_run
from tests.support.expected import as_rows, assert_same, expected_changes, without_origin
from tests.support.generate import SEED
from tests.support.rewriting import copy, make_plain
from writetime.schema.values import read_vint
from writetime.storage.file_errors import StorageError
from writetime.storage.kernel import primitives
from writetime.storage.locations import Location, find_sstables
from writetime.storage.sstable import SSTable

pytestmark = pytest.mark.long

_VERSIONS = ["nb", "oa", "da"]
_FROM_6 = ["pa", "ea"]
by_version = pytest.mark.parametrize(
    "version", [*_VERSIONS, *(pytest.param(v, marks=pytest.mark.from_cassandra_6("the oracle's")) for v in _FROM_6)]
)
RECORDED = Path(__file__).parents[1] / "data" / "cassandra"
TABLES = ("blocks", "counted", "many", "mixed", "wide")
# With a dictionary.
_TRAINED = dict.fromkeys(_FROM_6, ("trained",))
CUT = ("CompressionInfo", "CRC", "Data", "Digest", "Index", "Partitions", "Rows", "Statistics", "TOC")


@pytest.fixture(scope="module")
def versions(cassandra_version: str) -> list[str]:
    """The versions that the oracle knows."""
    return [*_VERSIONS, *_FROM_6] if cassandra_version == "6.0" else _VERSIONS


@pytest.fixture(scope="module")
def crafted(versions: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Location]:
    """SSTables by version and table."""
    home = tmp_path_factory.mktemp("crafted")
    oracle.craft(home)
    return {
        (version, table): next(find_sstables(str(home / version / table)))
        for version in versions
        for table in ("counters", "times")
    }


@pytest.fixture(scope="module")
def lines(crafted: dict[tuple[str, str], Location]) -> dict[str, list[dict[str, object]]]:
    return oracle.sstables(location.path("Data.db") for location in crafted.values())


def read(location: Location) -> list[str]:
    return as_rows(SSTable(location).scan())


@by_version
def test_counters_of_many_nodes_and_times_at_their_ends(
    version: str, crafted: dict[tuple[str, str], Location], lines: dict[str, list[dict[str, object]]]
) -> None:
    for table in ("counters", "times"):
        location = crafted[version, table]
        sstable = SSTable(location)
        wanted = expected_changes(lines[location.path("Data.db")], sstable.schema)
        assert_same(without_origin(sstable.scan(), sstable.schema), wanted)


@pytest.fixture(scope="module")
def recorded(versions: list[str]) -> dict[tuple[str, str], Location]:
    """SSTables that servers wrote, by version and table."""
    return {
        (version, table): next(find_sstables(str(RECORDED / version / table)))
        for version in versions
        for table in (*TABLES, *_TRAINED.get(version, ()))
    }


@by_version
def test_recorded_changes_match_the_database(version: str, recorded: dict[tuple[str, str], Location]) -> None:
    """Whole and in pieces, some of which start inside of a range tombstone."""
    tables = (*TABLES, *_TRAINED.get(version, ()))
    paths = [recorded[version, table].path("Data.db") for table in tables]
    lines = oracle.sstables(paths)
    assert list(lines) == paths
    for table, path in zip(tables, paths, strict=True):
        sstable = SSTable(recorded[version, table])
        wanted = expected_changes(lines[path], sstable.schema)
        assert_same(without_origin(sstable.scan(), sstable.schema), wanted)
        assert read_split(recorded[version, table]) == read(recorded[version, table])
    starts = [split.start for split in SSTable(recorded[version, "blocks"]).splits(1)]
    assert len(starts) > 5
    assert any(start.open is not None for start in starts)


def test_vints_of_every_length() -> None:
    """Compared with `VIntCoding`: the limits of 1 to 9 bytes, as the kernel reads them and as Python does."""
    values = [0, -1, 1 << 62, (1 << 63) - 1, -(1 << 63)]
    values += [(1 << bits) + d for bits in range(7, 64, 7) for d in (-2, -1, 0, 1)]
    encoded = oracle.vints([v for v in values if v < 1 << 63])
    assert {len(data) for data in encoded.values()} == set(range(1, 10))
    for value, data in encoded.items():
        assert read_vint(data, 0) == (value % (1 << 64), len(data))
        buffer = np.frombuffer(data, np.uint8)
        start = buffer.ctypes.data
        assert primitives.read_vint(start, start + len(data)) == (value, start + len(data))
        for length in range(len(data)):
            assert primitives.read_vint(start, start + length) == (0, start + length + 1)


@by_version
def test_a_file_cut_anywhere_never_gives_a_wrong_answer(
    version: str, crafted: dict[tuple[str, str], Location], tmp_path: Path
) -> None:
    """At bytes of every component, of a compressed and an uncompressed table: refused, or the whole answer."""
    compressed = copy(crafted[version, "counters"], tmp_path / "compressed")
    plain = make_plain(crafted[version, "counters"], tmp_path / "plain")
    whole = read(compressed)
    tried = 0
    for location in (compressed, plain):
        for path in Path(location.folder).iterdir():
            component = path.name.rpartition("-")[2]
            if component.partition(".")[0] not in CUT or (component == "Statistics.db" and location is plain):
                continue
            sound = path.read_bytes()
            needed = component in ("Data.db", "CompressionInfo.db", "CRC.db")
            for length in lengths_of(sound):
                path.write_bytes(sound[:length])
                tried += 1
                try:
                    found = [row for place in find_sstables(location.folder) for row in read_split(place)]
                except StorageError:
                    continue
                assert not needed, (component, length)
                # Without its table of contents, an SSTable does not count as complete.
                assert found == whole or (component == "TOC.txt" and not found), (component, length)
            path.write_bytes(sound)
    print(f"{tried} cuts tried")


def lengths_of(sound: bytes) -> list[int]:
    """The lengths to which a file is truncated: all in a long run, otherwise a twelfth of them."""
    count = len(sound) if is_long_run() else min(len(sound), max(3, len(sound) // 12))
    return random.Random(SEED).sample(range(len(sound)), count)


def read_split(location: Location) -> list[str]:
    """Read by splits, so that the index counts."""
    sstable = SSTable(location)
    return sorted(row for split in sstable.splits(1) for row in as_rows(sstable.scan(split=split)))
