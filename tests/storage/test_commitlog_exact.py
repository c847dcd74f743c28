"""Each change in the commit logs of generated tables, compared with the output of Cassandra's `CommitLogReader`."""

import pyarrow as pa

from tests.storage.written import Written
from tests.support.expected import assert_same, expected_changes, segment_lines, without_origin
from tests.support.generate import KEYSPACE
from writetime.storage.commitlog import CommitLogReader, SegmentReport
from writetime.storage.segment import find_segments


def read_all(written: Written) -> dict[str, list[pa.RecordBatch]]:
    reader = CommitLogReader(written.all_schemas, [s.full_name for s in written.schemas])
    found: dict[str, list[pa.RecordBatch]] = {}
    for segment in find_segments(str(written.server.cdc_raw)):
        report = SegmentReport()
        for schema, batch in reader.read(segment, report=report):
            found.setdefault(schema.name, []).append(batch)
        index = segment.cdc_index()
        # A segment without an index has no changes to capture; one with an index, also compressed, was read completely.
        assert report.position == index.offset if index else report.mutations == 0
    return found


def test_every_change_matches_the_database(written: Written) -> None:
    live = [s for s in written.all_schemas if s.keyspace == KEYSPACE]
    wanted = segment_lines(live, [s.path for s in find_segments(str(written.server.cdc_raw))])
    assert len(wanted) == len(written.schemas)
    found = read_all(written)
    for schema in live:
        assert_same(without_origin(found[schema.name], schema), expected_changes(wanted[schema.name], schema))
