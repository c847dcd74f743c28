"""Attacks the readers of SSTables and commit logs with files that nobody wrote:
`python -m tests.attack.files [--seconds N | --rounds N] [--seed S] [--first N]`.

It changes random bytes of files that databases wrote, and corrects their checksums, so that the readers decode the
changed bytes. The result must be changes or the documented error: no other error, no crash, no hang, and no excessive
memory. Closed pages follow all memory that compiled code reads and writes, so access beyond a buffer is a crash. Each
input follows from its number and the seed, and `--first` tries it again.
"""

import json
import random
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import click
import cramjam
import lz4.block
import zstandard

from tests.attack import corpus
from tests.attack.command import conclude, numbers, options
from tests.attack.mutate import mutate
from tests.attack.report import Report
from tests.attack.watched import Limits, watch, work
from tests.support.guarded import guard
from tests.support.rewriting import as_older, copy, make_plain, renamed, write_plain
from tests.support.segments import mutations_of, one_section
from writetime.schema.table import SchemaError, TableSchema
from writetime.storage import commitlog
from writetime.storage.commitlog import CommitLogReader, count_mutations
from writetime.storage.file_errors import StorageError
from writetime.storage.infer import infer_schema
from writetime.storage.locations import Location, find_sstables
from writetime.storage.segment import END, Segment, find_segments
from writetime.storage.sstable import MAX_TOKEN, MIN_TOKEN, WINDOW, OnCorrupt, SSTable

LIMITS = Limits()
# The documented exceptions of readers.
_DOCUMENTED = (StorageError, SchemaError)
_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "LZ4Compressor": lz4.block.compress,
    "SnappyCompressor": lambda data: bytes(cramjam.snappy.compress_raw(data)),
    "ZstdCompressor": zstandard.compress,
    "DeflateCompressor": zlib.compress,
}
_POLICIES: tuple[OnCorrupt, ...] = ("fail", "skip-partition", "skip-file")
Attempt = tuple[str, Callable[[], str]]


class SSTables:
    """Copies of one SSTable, as it is and uncompressed, of which one component is changed at a time."""

    def __init__(self, location: Location, folder: Path) -> None:
        self._schema = infer_schema([location])
        self._stored = copy(location, folder / "stored")
        self._plain = make_plain(location, folder / "plain") if location.exists("CompressionInfo.db") else self._stored
        self._chunks = _chunks(location) if location.exists("CompressionInfo.db") else []

    def attempt(self, r: random.Random) -> Attempt:
        """Choose a component and a change of it."""
        which, component = r.choice(
            [
                (self._plain, "Data.db"),
                (self._plain, "Data.db"),
                (self._plain, "CRC.db"),
                *(
                    (self._stored, path.name.rpartition("-")[2])
                    for path in sorted(Path(self._stored.folder).iterdir())
                    if not path.name.endswith(("Filter.db", "Summary.db", "Scylla.db"))
                ),
            ]
        )
        path = Path(which.path(component))
        sound = path.read_bytes()
        kind = component
        if component == "Data.db" and which is self._plain:
            broken, kind = mutate(sound, r), "Data.db, rows"
        elif component == "Data.db":
            broken, kind = self._broken_chunks(sound, r), "Data.db, chunks"
        elif component == "Statistics.db" and r.random() < 0.8:
            broken = _statistics(mutate(sound, r), checked=which.features.metadata_checksum)
        else:
            broken = mutate(sound, r)

        def run() -> str:
            others = {
                p: p.read_bytes() for p in (Path(which.path(c)) for c in ("CRC.db", "Digest.crc32")) if p.exists()
            }
            try:
                if kind == "Data.db, rows":
                    write_plain(which, broken)
                else:
                    path.write_bytes(broken)
                    if kind == "Data.db, chunks":
                        Path(which.path("Digest.crc32")).unlink(missing_ok=True)
                return self._read(which, r)
            finally:
                path.write_bytes(sound)
                for other, content in others.items():
                    if other != path:
                        other.write_bytes(content)

        return f"{which.version} {kind}", run

    def _broken_chunks(self, sound: bytes, r: random.Random) -> bytes:
        """Change stored chunks, each of which has its CRC32 again."""
        broken = bytearray(mutate(sound, r, same_length=True))
        for start, end in self._chunks:
            broken[end : end + 4] = struct.pack(">I", zlib.crc32(broken[start:end]))
        return bytes(broken)

    def read(self, r: random.Random) -> None:
        """Read valid files."""
        for which in (self._stored, self._plain):
            assert self._read(which, r) == "read"

    def _read(self, which: Location, r: random.Random) -> str:
        try:
            (location,) = find_sstables(which.folder)
            sstable = SSTable(location, r.choice([self._schema, None]))
            window = r.choice([1, WINDOW])
            policy = r.choice(_POLICIES)
            for batch in sstable.scan(window=window, on_corrupt=policy):
                batch.validate()
            for split in sstable.splits(r.choice([1, 500, 10_000]))[:50]:
                for batch in sstable.scan(split=split, window=window, on_corrupt=policy):
                    batch.validate()
            token = r.randint(MIN_TOKEN, MAX_TOKEN)
            tokens = token, min(token + (1 << 60), MAX_TOKEN)
            for split in sstable.splits(1000, tokens)[:20]:
                list(sstable.scan(split=split, tokens=tokens, window=window))
        except _DOCUMENTED:
            return "refused"
        return "read"


def rewritten(folder: Path) -> Iterator[Location]:
    """Write SSTables of the versions that no server here writes: `nb` files as `mc`, `md` and `na`, `mt` files as `ms`.

    The reader's rules of `na` are those of `nb`, and those of `ms` are those of `mt`.
    """
    of_nb = [location for location in corpus.sstables() if location.version == "nb"]
    # Older versions have no minimum ratio, and so no chunks that are stored as they are.
    plain = [
        location
        for location in of_nb
        if not location.exists("CompressionInfo.db") or b"min_compress_ratio" not in location.read("CompressionInfo.db")
    ]
    for version in ("mc", "md"):
        for i, location in enumerate(plain[:2]):
            yield as_older(location, folder / f"{version}{i}", version)
    for i, location in enumerate(of_nb[:2]):
        yield renamed(location, folder / f"na{i}", "na")
    of_mt = [location for location in corpus.sstables() if location.version == "mt"]
    for i, location in enumerate([of_mt[0], of_mt[-1]]):
        yield renamed(location, folder / f"ms{i}", "ms")


def _chunks(location: Location) -> list[tuple[int, int]]:
    """Return where each chunk starts, and where its CRC32 does."""
    data = SSTable(location).data
    info, size = location.read("CompressionInfo.db"), len(location.read("Data.db"))
    count = -(-data.length // data.chunk_length)
    # Compaction wrote one more.
    if struct.unpack_from(">i", info, len(info) - 8 * (count + 1) - 4)[0] == count + 1:
        count += 1
    offsets = [*struct.unpack(f">{count}q", info[-8 * count :]), size]
    return [(a, b - 4) for a, b in pairwise(offsets)]


def _statistics(data: bytes, *, checked: bool) -> bytes:
    """Make the checksums of Statistics.db right."""
    if not checked or len(data) < 12:
        return data
    broken = bytearray(data)
    count = struct.unpack_from(">i", data)[0]
    contents = 8 + 8 * count
    if not 0 < count <= 16 or len(data) < contents + 4:
        return data
    crc = zlib.crc32(data[:4])
    broken[4:8] = struct.pack(">I", crc)
    broken[contents : contents + 4] = struct.pack(">I", zlib.crc32(data[8:contents], crc))
    starts = sorted(struct.unpack_from(">i", data, 12 + 8 * i)[0] for i in range(count))
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        if contents + 4 <= start <= end - 4 <= len(data) - 4:
            broken[end - 4 : end] = struct.pack(">I", zlib.crc32(data[start : end - 4]))
    return bytes(broken)


class CommitLog:
    """A commit log's mutations, of which one is changed at a time; or its sections, compressed in any way."""

    def __init__(self, segment: Segment, schemas: Sequence[TableSchema], folder: Path) -> None:
        self._mutations = mutations_of(segment)
        self._path = folder / segment.name
        shutil.copyfile(segment.path, self._path)
        (self._segment,) = find_segments(str(self._path))
        self._readers = [
            CommitLogReader(schemas),
            CommitLogReader(schemas, on_unknown_table="skip", torn_tail="stop", on_corrupt="skip-file"),
        ]

    def attempt(self, r: random.Random) -> Attempt:
        """Choose the bytes to change."""
        kind = r.choice(["mutations", "mutations", "mutations", "sections", "parameters", "_cdc.idx"])
        index = b""
        match kind:
            case "mutations":
                chosen = r.choices(self._mutations, k=r.choice([1, 1, 3]))
                at = r.randrange(len(chosen))
                chosen[at] = mutate(chosen[at], r)
                broken = one_section(self._segment, [m for m in chosen if len(m) >= 10])
            case "sections":
                name = r.choice(["", *_COMPRESS])
                kind = f"sections, {name or 'plain'}"
                whole = self._compressed(r.choices(self._mutations, k=3), name)
                head = 18 + struct.unpack_from(">H", whole, 12)[0] + 8
                broken = whole[:head] + mutate(whole[head:], r)
            case "parameters":
                texts = [b"[" * 50_000, b'{"compressionClass": 7}', b"[]", b"null", b'{"a": ' * 9000, b'{"\xff": 1}']
                text = r.choice(
                    [*texts, mutate(b'{"compressionClass":"org.apache.cassandra.io.compress.LZ4Compressor"}', r)]
                )
                broken = self._with_parameters(text)
            case _:
                broken = one_section(self._segment, self._mutations[:3])
                index = r.choice([mutate(b"%d\nCOMPLETED\n" % len(broken), r), mutate(b"12345\n", r), "²".encode()])

        return f"commit log {self._segment.version} {kind}", lambda: self._read(broken, index, r)

    def read(self, r: random.Random) -> None:
        """Read valid files."""
        for name in ("", *_COMPRESS):
            assert self._read(self._compressed(self._mutations, name), b"", r) == "read"

    def _read(self, broken: bytes, index: bytes, r: random.Random) -> str:
        idx = self._path.with_name(self._path.stem + "_cdc.idx")
        self._path.write_bytes(broken)
        idx.unlink(missing_ok=True)
        if index:
            idx.write_bytes(index)
        try:
            for _, batch in r.choice(self._readers).read(self._segment):
                batch.validate()
            count_mutations(self._segment, END)
        except _DOCUMENTED:
            return "refused"
        return "read"

    def _with_parameters(self, text: bytes) -> bytes:
        low, high = self._segment.id & 0xFFFFFFFF, self._segment.id >> 32
        text = text[:65535]
        checked = struct.pack(">iIIi", self._segment.version, low, high, len(text))
        head = struct.pack(">iqH", self._segment.version, self._segment.id, len(text)) + text
        return head + struct.pack(">I", zlib.crc32(text, zlib.crc32(checked)))

    def _compressed(self, mutations: list[bytes], name: str) -> bytes:
        """Make a segment of one section, compressed."""
        plain = one_section(self._segment, mutations)
        if not name:
            return plain
        start = 18 + struct.unpack_from(">H", plain, 12)[0] + 8
        head = self._with_parameters(json.dumps({"compressionClass": name}).encode())
        body = struct.pack(">i", len(plain) - start) + _COMPRESS[name](plain[start:])
        low, high = self._segment.id & 0xFFFFFFFF, self._segment.id >> 32
        marker = struct.pack(">I", zlib.crc32(struct.pack(">IIi", low, high, len(head))))
        return head + struct.pack(">i", len(head) + 8 + len(body)) + marker + body


def _trials(
    seed: int, first: int, rounds: int | None, seconds: float | None
) -> Iterator[tuple[int, str, Callable[[], str]]]:
    guard()
    # Buffers of about the size of the input leave less room for reads beyond them.
    commitlog.WINDOW = 1 << 12
    with tempfile.TemporaryDirectory() as home:
        targets: list[SSTables | CommitLog] = []
        for i, location in enumerate([*corpus.sstables(), *rewritten(Path(home) / "rewritten")]):
            targets.append(SSTables(location, Path(home) / f"sstable{i}"))
        for i, (segment, schemas) in enumerate(corpus.segments()):
            folder = Path(home) / f"segment{i}"
            folder.mkdir()
            # As there are many more tables.
            targets += [CommitLog(segment, schemas, folder)] * 8
        # Functions that are compiled now do not delay an answer later.
        for target in dict.fromkeys(targets):
            target.read(random.Random(0))
        for number in numbers(first, rounds, seconds):
            r = random.Random(f"{seed}/{number}")
            target, run = r.choice(targets).attempt(r)
            yield number, target, run


def attack(
    seed: int = 1, *, rounds: int | None = None, seconds: float | None = None, first: int = 0, limits: Limits = LIMITS
) -> Report:
    """Try so many inputs, or for so many seconds; return the results."""
    report = Report()
    watch("files", seed, rounds, seconds, first, limits, report)
    return report


@options(seconds=60.0)
@click.option("--worker", is_flag=True, hidden=True)
def main(seconds: float | None, rounds: int | None, seed: int, first: int, worker: bool) -> None:
    """Attack the readers of files, and print the tries and findings."""
    if worker:
        work(_trials(seed, first, rounds, seconds), LIMITS)
        return
    report = attack(seed, rounds=rounds, seconds=seconds, first=first)
    conclude(report, "files", seed)


if __name__ == "__main__":
    main()
