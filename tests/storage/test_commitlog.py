"""Commit logs: truncation, flipped bits, offsets to go on from, unknown tables."""

import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from tests.storage.conftest import Written
from tests.storage.expected import assert_same, without_origin
from tests.storage.generate import KEYSPACE
from writetime.schema.table import SchemaError, TableSchema
from writetime.storage.commitlog import CommitLogReader, SegmentReport
from writetime.storage.errors import Missing, StorageError
from writetime.storage.segment import Segment, find_segments

Read = dict[str, list[pa.RecordBatch]]


def segment_of(written: Written, folder: Path | None = None) -> Segment:
    """The segment that holds the writes; copied, without its `_cdc.idx`, if a folder is given."""
    segments = find_segments(str(written.server.cdc_raw))
    largest = max(segments, key=lambda s: (s.cdc_index() is not None and s.cdc_index().offset) or 0)  # type: ignore[union-attr]
    if folder is None:
        return largest
    shutil.copy(largest.path, folder)
    return find_segments(str(folder / largest.name))[0]


def generated(written: Written) -> list[TableSchema]:
    return [s for s in written.all_schemas if s.keyspace == KEYSPACE]


def read(reader: CommitLogReader, segment: Segment, **options: object) -> Read:
    found: Read = {}
    for schema, batch in reader.read(segment, **options):  # type: ignore[arg-type]
        found.setdefault(schema.name, []).append(batch)
    return found


def same(written: Written, one: Read, other: Read) -> None:
    for schema in generated(written):
        a, b = (without_origin(found.get(schema.name, []), schema) for found in (one, other))
        assert_same(a, b)


def test_reading_goes_on_where_it_stopped(written: Written) -> None:
    segment = segment_of(written)
    reader = CommitLogReader(written.all_schemas, [s.full_name for s in generated(written)])
    whole = read(reader, segment)
    index = segment.cdc_index()
    assert index is not None
    chooser = random.Random(3)
    for _ in range(3):
        cut = chooser.randrange(index.offset)
        report = SegmentReport()
        first = read(reader, segment, until=cut, report=report)
        rest = read(reader, segment, start=report.position)
        names = {*first, *rest}
        same(written, {n: first.get(n, []) + rest.get(n, []) for n in names}, whole)


def test_a_tail_that_was_not_finished(written: Written, tmp_path: Path) -> None:
    segment = segment_of(written, tmp_path)
    path = Path(segment.path)
    sound = path.read_bytes()
    schemas = generated(written)
    tolerant = CommitLogReader(schemas, on_unknown_table="skip", torn_tail="stop")
    whole = read(tolerant, segment)
    chooser = random.Random(5)
    end = len(sound.rstrip(b"\0"))
    for _ in range(15):
        path.write_bytes(sound[: chooser.randrange(end)])
        try:
            found = read(tolerant, segment)
        except StorageError:
            continue
        for schema in schemas:
            part = without_origin(found.get(schema.name, []), schema)
            assert_same(part, without_origin(whole.get(schema.name, []), schema).slice(0, part.num_rows))
    path.write_bytes(sound)


def test_a_flipped_bit_raises(written: Written, tmp_path: Path) -> None:
    segment = segment_of(written, tmp_path)
    path = Path(segment.path)
    sound = path.read_bytes()
    end = len(sound.rstrip(b"\0"))
    reader = CommitLogReader(generated(written), on_unknown_table="skip")
    whole = read(reader, segment)
    chooser = random.Random(11)
    for _ in range(25):
        bit = chooser.randrange(8 * end)
        broken = bytearray(sound)
        broken[bit // 8] ^= 1 << bit % 8
        path.write_bytes(broken)
        with pytest.raises(StorageError):
            read(reader, segment)
    path.write_bytes(sound)
    same(written, read(reader, segment), whole)


def test_an_unknown_table_is_refused_or_counted(written: Written) -> None:
    segment = segment_of(written)
    known, *unknown = generated(written)
    with pytest.raises(SchemaError, match="is not known"):
        read(CommitLogReader([known]), segment)
    report = SegmentReport()
    found = read(CommitLogReader([known], on_unknown_table="skip"), segment, report=report)
    assert set(found) == {known.name}
    assert {s.id for s in unknown} <= set(report.unknown_tables)


def test_a_segment_that_vanished(written: Written, tmp_path: Path) -> None:
    segment = segment_of(written, tmp_path)
    Path(segment.path).unlink()
    with pytest.raises(Missing, match="does not exist"):
        read(CommitLogReader(generated(written)), segment)
