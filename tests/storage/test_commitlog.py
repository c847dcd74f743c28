"""Commit logs: truncation, flipped bits, offsets to continue from, unknown tables.

Oracle: our own second path: the changes of a whole read. `test_commitlog_exact` compares them with Cassandra's reader.
"""

import io
import pickle
import random
import shutil
import struct
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import fs

from tests.storage.written import Written
from tests.support import oracle
from tests.support.examples import is_long_run, rounds, some
from tests.support.expected import assert_same, without_origin
from tests.support.format_server import cql_with_ids
from tests.support.generate import SEED
from tests.support.guarded import guard, in_a_process
from tests.support.segments import mutations_of, one_section
from writetime.cli.main import main
from writetime.core.errors import WritetimeError
from writetime.schema.cql import parse_schemas
from writetime.schema.table import SchemaError, TableSchema
from writetime.sources.commitlog import CommitLogSource, CommitLogStreamReader
from writetime.storage import segment as segment_module
from writetime.storage.commitlog import CommitLogReader, SegmentReport, count_mutations
from writetime.storage.file_errors import CorruptFile, MissingFile, StorageError, TornTail
from writetime.storage.segment import END, Segment, find_segments

pytestmark = pytest.mark.long

_CUTS = 3
BROKEN_MUTATIONS = 1500 if is_long_run() else 200

Read = dict[str, list[pa.RecordBatch]]


def segment_of(written: Written, folder: Path | None = None) -> Segment:
    """The segment that holds the writes; copied, without its `_cdc.idx`, if a folder is given."""
    if folder is None:
        return written.segment
    shutil.copy(written.segment.path, folder)
    return find_segments(str(folder / written.segment.name))[0]


def read(reader: CommitLogReader, segment: Segment, **options: object) -> Read:
    found: Read = {}
    for schema, batch in reader.read(segment, **options):  # type: ignore[arg-type]
        found.setdefault(schema.name, []).append(batch)
    return found


def same(written: Written, one: Read, other: Read) -> None:
    for schema in written.generated:
        a, b = (without_origin(found.get(schema.name, []), schema) for found in (one, other))
        assert_same(a, b)


def test_reading_continues_where_it_stopped(written: Written, is_long: bool) -> None:
    segment = segment_of(written)
    reader = CommitLogReader(written.all_schemas, [s.full_name for s in written.generated])
    whole = read(reader, segment)
    index = segment.cdc_index()
    assert index is not None
    chooser = random.Random(SEED)
    for _ in range(_CUTS if is_long else 1):
        cut = chooser.randrange(index.offset)
        report = SegmentReport()
        first = read(reader, segment, until=cut, report=report)
        rest = read(reader, segment, start=report.position)
        names = {*first, *rest}
        same(written, {n: first.get(n, []) + rest.get(n, []) for n in names}, whole)


def test_reading_continues_at_a_marker(written: Written) -> None:
    """By the same report, nothing twice and nothing missing, at whatever offsets it stops in between."""
    segment = segment_of(written)
    reader = CommitLogReader(written.all_schemas, [s.full_name for s in written.generated])
    whole = read(reader, segment)
    ends = [s.offset + len(s.data) for s in segment.sections()]
    chooser = random.Random(4)
    found: Read = {}
    report = SegmentReport()
    for until in [*sorted([*chooser.sample(ends, 4), chooser.randrange(ends[-1])]), END]:
        for window in reader.windows(segment, start=report.position, until=until, report=report):
            for schema, batch in window:
                found.setdefault(schema.name, []).append(batch)
        assert report.place is None or report.place.offset <= report.position
        assert report.mutations == count_mutations(segment, min(until, ends[-1]))
    same(written, found, whole)


def cut(segment: Segment, folder: Path, *, size: int, zeros: int = 0) -> Segment:
    """Copy the first bytes of a segment, and some zeros after them, as a file system may leave them."""
    folder.mkdir()
    path = folder / segment.name
    with Path(segment.path).open("rb") as file:
        path.write_bytes(file.read(size) + bytes(zeros))
    (found,) = find_segments(str(path))
    return found


def end_of(reader: CommitLogReader, segment: Segment) -> tuple[str, int | None]:
    """How a strict reader finds the end of a segment, and where it is torn."""
    try:
        read(reader, segment)
    except TornTail as e:
        return "torn", e.offset
    except CorruptFile:
        # Of a checksum a part is there.
        return "corrupt", None
    return "an end", None


def test_a_tail_cut_off_at_every_byte(written: Written, tmp_path: Path) -> None:
    """Our reader takes as many mutations as Cassandra does when it starts, whichever byte is the last one.

    In a long run every byte, without compression and with LZ4; sections are the same with Zstandard, so of `da` every
    fifth.
    """
    segment = segment_of(written)
    step = 5 if written.version == "da" else 1
    sizes = some(range(SEED % step, 700, step), SEED)
    cuts = [cut(segment, tmp_path / f"{n}", size=n) for n in sizes]
    cuts += [cut(segment, tmp_path / f"{n}-zeros", size=n, zeros=4096) for n in sizes]
    wanted = oracle.accepted([s.path for s in cuts])
    # Without a table to read, mutations are only checked and counted.
    tolerant = CommitLogReader(written.all_schemas, [], torn_tail="stop")
    strict = CommitLogReader(written.all_schemas, [])
    reader = CommitLogReader(written.all_schemas, torn_tail="stop")
    whole = read(reader, segment)
    outcomes: Counter[str] = Counter()
    seen = 0
    for each, ends in zip(cuts, wanted, strict=True):
        report = SegmentReport()
        with suppress(CorruptFile):
            read(tolerant, each, report=report)
        assert report.mutations == len(ends)
        assert not ends or report.position == ends[-1]
        outcome, torn_at = end_of(strict, each)
        outcomes[outcome] += 1
        assert report.torn_at == torn_at
        if len(ends) != seen and outcome != "corrupt":
            seen = len(ends)
            assert_begins_with(written, whole, read(reader, each))
    print(outcomes, seen)
    assert seen > 2
    # Only between two sections does a cut look like an end.
    assert outcomes["an end"] + outcomes["corrupt"] < 200 / step


def assert_begins_with(written: Written, whole: Read, found: Read) -> None:
    """The changes that were read are the first ones of the whole segment, for each table."""
    for schema in written.all_schemas:
        part = without_origin(found.get(schema.name, []), schema)
        assert_same(part, without_origin(whole.get(schema.name, []), schema).slice(0, part.num_rows))


def test_a_complete_segment_that_is_cut_off(written: Written, tmp_path: Path) -> None:
    """All bytes up to the offset in `_cdc.idx` are read, or the reader raises: also between two sections."""
    segment = segment_of(written)
    index = Path(segment.path.replace(".log", "_cdc.idx"))
    reader = CommitLogReader(written.all_schemas, [], torn_tail="stop")
    ends = [s.offset + len(s.data) for s in segment.sections()]
    end = len(Path(segment.path).read_bytes().rstrip(b"\0"))
    for i, size in enumerate([0, 100, *random.Random(5).sample(range(end), 8), *ends[:-1:150]]):
        short = cut(segment, tmp_path / str(i), size=min(size, end - 1))
        shutil.copy(index, Path(short.path).parent)
        with pytest.raises(StorageError):
            read(reader, short)


def test_a_flipped_bit_raises_or_changes_nothing(written: Written, tmp_path: Path) -> None:
    segment = segment_of(written, tmp_path)
    path = Path(segment.path)
    sound = path.read_bytes()
    end = len(sound.rstrip(b"\0"))
    reader = CommitLogReader(written.generated, on_unknown_table="skip")
    whole = read(reader, segment)
    chooser = random.Random(11)
    raised = 0
    for _ in range(flips := rounds(25)):
        bit = chooser.randrange(8 * end)
        broken = bytearray(sound)
        broken[bit // 8] ^= 1 << bit % 8
        path.write_bytes(broken)
        try:
            found = read(reader, segment)
        except StorageError:
            raised += 1
        else:
            # A bit of a compressed section that its mutations do not depend on.
            same(written, found, whole)
    assert raised >= flips - 2
    path.write_bytes(sound)
    same(written, read(reader, segment), whole)


def test_the_rest_of_a_corrupt_segment_is_left_out_and_reported(written: Written, tmp_path: Path) -> None:
    segment = segment_of(written, tmp_path)
    path = Path(segment.path)
    broken = bytearray(path.read_bytes())
    broken[len(bytes(broken).rstrip(b"\0")) // 3] ^= 0xFF
    path.write_bytes(broken)
    report = SegmentReport()
    found = read(CommitLogReader(written.all_schemas, on_corrupt="skip-file"), segment, report=report)
    with pytest.raises(CorruptFile) as fault:
        read(CommitLogReader(written.all_schemas), segment)
    assert report.skipped == [str(fault.value)]
    assert segment.name in report.skipped[0]
    intact = segment_of(written)
    end = max(section.offset + len(section.data) for section in intact.sections())
    assert 0 < report.position < end
    same(written, found, read(CommitLogReader(written.all_schemas), intact, until=report.position))
    schema = tmp_path / "schema.cql"
    schema.write_text(cql_with_ids(written.all_schemas))
    command = ["commitlog", segment.path, "--schema", str(schema), "--stats"]
    assert CliRunner().invoke(main, command).exit_code == 1
    answer = CliRunner().invoke(main, [*command, "--on-corrupt", "skip-file"], catch_exceptions=False)
    assert f"left out: {report.skipped[0]}" in answer.stderr
    options = {"schema": schema.read_text(), "table": written.generated[0].full_name, "path": str(tmp_path)}
    source = CommitLogSource(options | {"on_corrupt": "skip-partition"})
    with pytest.raises(WritetimeError, match="on_corrupt is 'skip-partition'; it must be one of fail, skip-file"):
        source.reader(source.schema())


def test_a_section_of_a_wrong_length(written: Written, tmp_path: Path) -> None:
    """The uncompressed length of a section has no checksum."""
    segment = segment_of(written, tmp_path)
    path = Path(segment.path)
    sound = path.read_bytes()
    at = 18 + struct.unpack_from(">H", sound, 12)[0] + 8
    if written.version == "nb":
        return
    for length in ((1 << 31) - 1, 1 << 30, -1):
        path.write_bytes(sound[:at] + struct.pack(">i", length) + sound[at + 4 :])
        with pytest.raises(CorruptFile, match=r"cannot come out of|a compressed section was expected"):
            read(CommitLogReader(written.all_schemas), segment)


def read_broken_mutations(path: str, cql: str, folder: str, count: int) -> None:
    """Read mutations with random bytes changed, with right checksums, so that the kernel has to cope with them."""
    guard()
    (segment,) = find_segments(path)
    schemas = parse_schemas(cql)
    ids = [s.id.bytes for s in schemas if s.id]
    sound = [mutation for mutation in mutations_of(segment) if any(i in mutation for i in ids)]
    target = Path(folder) / segment.name
    target.write_bytes(one_section(segment, sound))
    (plain,) = find_segments(str(target))
    reader = CommitLogReader(schemas, on_unknown_table="skip")
    report = SegmentReport()
    read(reader, plain, report=report)
    assert report.mutations == len(sound) > 100
    chooser = random.Random(1)
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        broken = bytearray(chooser.choice(sound))
        for _ in range(chooser.choice([1, 1, 2, 8])):
            broken[chooser.randrange(len(broken))] = chooser.choice([0, 1, 0x7F, 0x80, 0xFF, chooser.randrange(256)])
        if chooser.random() < 0.2:
            del broken[chooser.randrange(10, len(broken)) :]
        target.write_bytes(one_section(segment, [bytes(broken)]))
        try:
            read(reader, plain)
            outcomes["read"] += 1
        except StorageError:
            outcomes["refused"] += 1
    print(dict(outcomes))


def test_broken_mutations_with_right_checksums(written: Written, tmp_path: Path) -> None:
    """In a separate process, because a fault in the kernel may end it."""
    path, cql = segment_of(written).path, cql_with_ids(written.generated)
    answer = in_a_process(read_broken_mutations, path, cql, str(tmp_path), BROKEN_MUTATIONS)
    assert answer.returncode == 0, answer.stderr[-2000:]
    print(answer.stdout)


def test_an_unknown_table_is_refused_or_counted(written: Written) -> None:
    segment = segment_of(written)
    known, *unknown = written.generated
    with pytest.raises(SchemaError, match="is not known"):
        read(CommitLogReader([known]), segment)
    report = SegmentReport()
    found = read(CommitLogReader([known], on_unknown_table="skip"), segment, report=report)
    assert set(found) == {known.name}
    assert {s.id for s in unknown} <= set(report.unknown_tables)


def test_a_segment_that_vanished(written: Written, tmp_path: Path) -> None:
    segment = segment_of(written, tmp_path)
    Path(segment.path).unlink()
    with pytest.raises(MissingFile, match="does not exist"):
        read(CommitLogReader(written.generated), segment)


class Recorder(io.FileIO):
    """A file that notes the size of its largest read."""

    largest = 0

    def read(self, size: int | None = -1, /) -> bytes:
        Recorder.largest = max(Recorder.largest, size or 0)
        return super().read(size)


class Recording(fs.FSSpecHandler):
    """A remote file system, with the methods that a reader of segments uses."""

    def open_input_file(self, path: str) -> pa.PythonFile:
        return pa.PythonFile(Recorder(path), mode="r")


def test_memory_follows_the_section_on_a_remote_file_system(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_module, "BLOCK_BYTES", 32768)
    sound = segment_of(written)
    remote = replace(sound, filesystem=fs.PyFileSystem(Recording(fsspec.filesystem("file"))))
    reader = CommitLogReader(written.all_schemas, [s.full_name for s in written.generated])
    found = read(reader, remote)
    largest = max(len(section.data) for section in sound.sections())
    assert 0 < Recorder.largest <= max(32768, largest + 64) < Path(sound.path).stat().st_size / 4
    same(written, found, read(reader, sound))


def stream(folder: Path, schemas: list[TableSchema], **options: str) -> CommitLogStreamReader:
    """A stream reader of the first of some tables."""
    named = {"schema": cql_with_ids(schemas), "table": schemas[0].full_name, "on_unknown_table": "skip"}
    source = CommitLogSource({"path": str(folder), **named, **options})
    return source.streamReader(source.schema())


def append(folder: Path, segment: Segment, number: int, index: str) -> Path:
    """Make a segment of a folder, with another's mutations and an id of its own, and its `_cdc.idx`."""
    path = folder / f"CommitLog-{segment.version}-{number}.log"
    path.write_bytes(one_section(replace(segment, id=number), mutations_of(segment)))
    path.with_name(path.stem + "_cdc.idx").write_text(index.format(path.stat().st_size))
    return path


def test_a_stream_by_its_offsets(written: Written, tmp_path: Path) -> None:
    """Which parts are read between two offsets, also of segments that grow, are complete, or of a node that crashed."""
    segment = segment_of(written)
    reader = stream(tmp_path, written.generated, segments_per_batch="2")
    limit = reader.getDefaultReadLimit()
    zero = reader.initialOffset()
    assert reader.latestOffset(zero, limit) == zero
    one = append(tmp_path, segment, 11, "{}")
    size = one.stat().st_size
    (tmp_path / f"CommitLog-{segment.version}-12.log").write_bytes(b"")  # nothing to capture in it yet
    first = reader.latestOffset(zero, limit)
    assert first == {"segment": 11, "position": size, "since": []}
    assert [(p.segment.id, p.start, p.until) for p in reader.partitions(zero, first)] == [(11, 0, size)]
    index = one.with_name(one.stem + "_cdc.idx")
    index.write_text("")  # as the node leaves it for a moment
    assert reader.latestOffset(first, limit) == first
    index.write_text(str(size))
    for number in (13, 14, 15):
        append(tmp_path, segment, number, "{}\nCOMPLETED" if number < 15 else "{}")
    second = reader.latestOffset(first, limit)
    assert second == {"segment": 13, "position": None, "since": []}
    # The node crashed in 11, because a later one has changes: its valid part is read.
    assert [(p.segment.id, p.start, p.until) for p in reader.partitions(first, second)] == [
        (11, size, END),
        (13, 0, END),
    ]
    third = reader.latestOffset(second, limit)
    assert third == {"segment": 15, "position": size, "since": [14]}
    reader.prepareForTriggerAvailableNow()
    append(tmp_path, segment, 16, "{}")
    assert reader.latestOffset(third, limit) == third
    parts = [pickle.loads(pickle.dumps(p)) for p in reader.partitions(second, third)]
    rows = [sum(batch.num_rows for batch in reader.read(p)) for p in parts]
    assert len(rows) == 2
    assert rows[0] == rows[1] > 0


def test_a_segment_that_vanished_from_a_stream(written: Written, tmp_path: Path) -> None:
    """It may go once it was read to its end, and is an error before, wherever the stream is."""
    segment = segment_of(written)
    paths = [append(tmp_path, segment, number, "{}\nCOMPLETED") for number in (11, 12)]
    paths.append(append(tmp_path, segment, 13, "{}"))
    reader = stream(tmp_path, written.generated)
    limit = reader.getDefaultReadLimit()
    zero = reader.initialOffset()
    end = reader.latestOffset(zero, limit)
    parts = reader.partitions(zero, end)
    assert len(parts) == 3
    paths[1].unlink()
    with pytest.raises(MissingFile, match=r"CommitLog-\*-12.log.*put it back"):
        reader.partitions(zero, end)
    with pytest.raises(MissingFile, match=r"-12.log does not exist.*put it back"):
        list(reader.read(parts[1]))
    # The stream continues in 13, so the others are no longer needed.
    paths[0].unlink()
    assert reader.latestOffset(end, limit) == end
    paths[2].unlink()
    with pytest.raises(MissingFile, match=r"CommitLog-\*-13.log"):
        reader.latestOffset(end, limit)
    done = {**end, "position": None}
    append(tmp_path, segment, 14, "{}")
    assert [p.segment.id for p in reader.partitions(done, reader.latestOffset(done, limit))] == [14]
