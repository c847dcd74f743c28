"""Each change of generated tables, compared with the output of Cassandra's own classes for the same files."""

from tests.storage.conftest import WRITES
from tests.storage.written import Written
from tests.support.expected import assert_same, expected_changes, without_origin
from writetime.storage.sstable import SSTable


def test_every_change_matches_the_database(written: Written) -> None:
    compared = 0
    for schema in written.schemas:
        for location in written.sstables[schema.name]:
            wanted = expected_changes(written.lines[location.path("Data.db")], schema)
            found = without_origin(SSTable(location, schema).scan(), schema)
            assert_same(found, wanted)
            compared += found.num_rows
    print(f"{compared} changes of {len(written.schemas)} tables compared, after {WRITES} writes to each")
