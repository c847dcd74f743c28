"""The valid files that attacks begin with: those in tests/data, which Cassandra and ScyllaDB wrote."""

from collections.abc import Iterator
from pathlib import Path

from writetime.schema.cql import parse_schemas
from writetime.schema.table import TableSchema
from writetime.storage.locations import Location, find_sstables
from writetime.storage.segment import Segment, find_segments

_DATA = Path(__file__).parents[1] / "data"
CASSANDRA = _DATA / "cassandra"
_SCYLLA = _DATA / "scylla"


def sstables() -> Iterator[Location]:
    """Yield SSTables of all versions, small ones."""
    for version in ("nb", "oa", "da", "pa", "ea"):
        for folder in sorted((CASSANDRA / version).iterdir()):
            if folder.is_dir():
                yield from find_sstables(str(folder))
    # `me` and `mt`.
    for folder in sorted([*_SCYLLA.glob("rec10[15]/*.sstables"), *_SCYLLA.glob("rec109/*.sstables")]):
        yield max(find_sstables(str(folder)), key=lambda x: len(x.read("Data.db")))
    # With several blocks in a partition.
    for folder in sorted(_SCYLLA.glob("wide/*.sstables")):
        yield from find_sstables(str(folder))


def segments() -> Iterator[tuple[Segment, list[TableSchema]]]:
    """Yield commit logs of all versions, each with the schemas of its tables."""
    for version in ("nb", "da", "pa"):
        (segment,) = find_segments(str(CASSANDRA / version))
        yield segment, parse_schemas((CASSANDRA / version / "schema.cql").read_text())
