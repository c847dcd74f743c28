"""Faults on disk: a flipped bit raises an error, omitted parts are counted, and no bytes kill the process.

Oracle: the file before the damage: an error, or its changes.
"""

import random
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.storage.written import Written, changes, one_of_each
from tests.support.examples import is_long_run
from tests.support.expected import as_rows, assert_same
from tests.support.guarded import guard, in_a_process
from tests.support.rewriting import break_chunk, copy, make_plain, write_plain
from writetime.schema.table import SchemaError
from writetime.storage.file_errors import CorruptFile, StorageError
from writetime.storage.infer import infer_schema
from writetime.storage.locations import Location, find_sstables
from writetime.storage.sstable import WINDOW, OnCorrupt, ScanReport, SSTable

FLIPS_A_FILE = 40 if is_long_run() else 4
BROKEN_STREAMS = 150 if is_long_run() else 20


def test_a_flipped_bit_raises(written: Written, tmp_path: Path) -> None:
    """In the data always; in Statistics.db where it has checksums; in the index files if the flip matters."""
    flipped = random.Random(7)
    tried = 0
    for n, (schema, location) in enumerate(one_of_each(written)):
        here = copy(location, tmp_path / str(n))
        wanted = changes(here, schema)
        for component in ("Data.db", "Statistics.db", "CompressionInfo.db"):
            path = Path(here.path(component))
            if not path.exists():
                continue
            sound = path.read_bytes()
            for _ in range(FLIPS_A_FILE):
                bit = flipped.randrange(8 * len(sound))
                broken = bytearray(sound)
                broken[bit // 8] ^= 1 << bit % 8
                path.write_bytes(broken)
                tried += 1
                try:
                    found = changes(here, schema)
                except (StorageError, SchemaError):
                    continue
                # CompressionInfo.db has no checksum: a flip in an option that no reader uses changes nothing.
                assert component != "Data.db"
                if component == "Statistics.db":
                    assert not _is_covered(sound, bit // 8)
                assert_same(found, wanted)
            path.write_bytes(sound)
    print(f"{tried} flips tried")


def _is_covered(statistics: bytes, offset: int) -> bool:
    """Whether a reader uses this byte: of the table of contents, the partitioner or the header."""
    count = struct.unpack_from(">i", statistics)[0]
    contents = sorted((o, k) for k, o in (struct.unpack_from(">ii", statistics, 8 + 8 * i) for i in range(count)))
    ends = [o for o, _ in contents[1:]] + [len(statistics)]
    return not any(start <= offset < end and kind in (1, 2) for (start, kind), end in zip(contents, ends, strict=True))


def rows_outside(location: Location, broken: list[int]) -> tuple[list[str], list[str]]:
    """The changes of partitions that touch none of these chunks, and those of all."""
    sstable = SSTable(location)
    size = sstable.data.chunk_length
    sound: list[str] = []
    everything: list[str] = []
    for split in sstable.splits(1):
        rows = as_rows(sstable.scan(split=split))
        everything += rows
        if not any(split.start.offset < (c + 1) * size and c * size < split.end.offset for c in broken):
            sound += rows
    return sorted(sound), sorted(everything)


@pytest.mark.parametrize("broken", [[0], [3], [2, 3], [1, 5], [-1]])
def test_only_partitions_of_a_corrupt_chunk_are_left_out(written: Written, tmp_path: Path, broken: list[int]) -> None:
    schema, (location,) = written.handmade("many")
    here = copy(location, tmp_path / "many")
    data = SSTable(here, schema).data
    chunks = -(-data.length // data.chunk_length)
    assert chunks > 7
    broken = [c % chunks for c in broken]
    sound, everything = rows_outside(here, broken)
    for chunk in broken:
        break_chunk(here, chunk)
    sstable = SSTable(here, schema)
    with pytest.raises(CorruptFile, match=f"chunk {broken[0]} does not match its CRC32"):
        list(sstable.scan())
    report = ScanReport()
    found = as_rows(sstable.scan(on_corrupt="skip-partition", report=report))
    # The rows of a partition before the corrupt chunk may be returned, but no wrong ones.
    assert set(sound) <= set(found) <= set(everything)
    assert len(found) - len(sound) <= len(broken)
    assert len(report.skipped) == len(broken)
    assert all(f"chunk {c} does not" in text for c, text in zip(broken, report.skipped, strict=False))
    assert 0 < report.skipped_bytes <= (len(broken) + 1) * data.chunk_length
    report = ScanReport()
    found = as_rows(sstable.scan(on_corrupt="skip-file", report=report))
    before = [row for row in everything if row in set(found)]
    assert found == before
    assert len(report.skipped) == 1
    assert report.skipped_bytes == data.length - broken[0] * data.chunk_length


@pytest.mark.parametrize("policy", ["skip-partition", "skip-file"])
def test_pieces_leave_out_the_same_parts_as_the_whole(written: Written, tmp_path: Path, policy: OnCorrupt) -> None:
    schema, (location,) = written.handmade("many")
    here = copy(location, tmp_path / "many")
    splits = SSTable(here, schema).splits(3000)
    sound, everything = rows_outside(here, [2])
    break_chunk(here, 2)
    sstable = SSTable(here, schema)
    report = ScanReport()
    found = [row for s in splits for row in as_rows(sstable.scan(split=s, on_corrupt=policy, report=report))]
    assert set(found) <= set(everything)
    assert len(found) == len(set(found))
    if policy == "skip-partition":
        assert set(sound) <= set(found)
    assert report.skipped
    wide_schema, (wide,) = written.handmade("wide")
    here = copy(wide, tmp_path / "wide")
    splits = SSTable(here, wide_schema).splits(2000)
    everything = as_rows(SSTable(here, wide_schema).scan())
    break_chunk(here, 4)
    found = [
        row
        for s in splits
        for row in as_rows(SSTable(here, wide_schema).scan(split=s, on_corrupt=policy, report=report))
    ]
    assert len(everything) // 2 < len(found) < len(everything)
    assert set(found) < set(everything)


def test_a_digest_of_another_file(written: Written, tmp_path: Path) -> None:
    """Every chunk has its checksum, but the file is not the one that was written."""
    for name, table in (("compressed", "many"), ("plain", "many")):
        schema, (location,) = written.handmade(table)
        here = copy(location, tmp_path / name) if name == "compressed" else make_plain(location, tmp_path / name)
        whole = as_rows(SSTable(here, schema).scan())
        digest = Path(here.path("Digest.crc32"))
        for text in (str(int(digest.read_text()) ^ 1), "", "x"):
            digest.write_text(text)
            with pytest.raises(CorruptFile, match=r"Digest\.crc32"):
                list(SSTable(here, schema).scan(window=1))
            report = ScanReport()
            assert as_rows(SSTable(here, schema).scan(on_corrupt="skip-file", report=report)) == whole
            assert "Digest.crc32" in report.skipped[0]
        digest.unlink()
        assert as_rows(SSTable(here, schema).scan()) == whole


def scan_broken_streams(folders: list[str], seed: int, count: int) -> None:
    """Scan streams with random bytes changed, with right checksums, so that the kernel has to cope with them."""
    guard()
    for folder in folders:
        scan_broken_stream(folder, seed, count)


def scan_broken_stream(folder: str, seed: int, count: int) -> None:
    """Scan the stream of one SSTable so."""
    (location,) = find_sstables(folder)
    schema = infer_schema([location])
    sound = Path(location.path("Data.db")).read_bytes()
    whole = pa.Table.from_batches(SSTable(location, schema).scan())
    offsets = whole["origin"].combine_chunks().field("offset").to_numpy()
    chooser = random.Random(seed)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(count):
        broken = bytearray(sound)
        changed = [chooser.randrange(len(broken)) for _ in range(chooser.choice([1, 1, 2, 8]))]
        for at in changed:
            broken[at] = chooser.choice([0, 1, 0x7F, 0x80, 0xFF, chooser.randrange(256)])
        write_plain(location, bytes(broken))
        batches: list[pa.RecordBatch] = []
        try:
            batches.extend(SSTable(location, schema).scan(window=chooser.choice([1, WINDOW])))
            outcomes["read"] += 1
        except StorageError:
            outcomes["refused"] += 1
        # Of the changes that start before the first changed byte, the last one may end after it; and with a static row
        # goes the partition's tombstone.
        before = max(0, int(np.searchsorted(offsets, min(changed), "left")) - 2)
        if batches:
            found = pa.Table.from_batches(batches).drop_columns(["origin"])
            found.validate()
            assert found.num_rows >= before
            assert_same(found.slice(0, before), whole.drop_columns(["origin"]).slice(0, before))
    print(outcomes)


def test_random_streams_never_kill_the_process(written: Written, tmp_path: Path) -> None:
    folders = [make_plain(location, tmp_path / schema.name).folder for schema, location in one_of_each(written)[:8]]
    answer = in_a_process(scan_broken_streams, folders, 1, BROKEN_STREAMS, seconds=600)
    assert answer.returncode == 0, answer.stderr[-2000:]
    assert len(answer.stdout.splitlines()) == len(folders)
