"""Splits: all pieces together give the changes of the whole file, at any cuts, and a wrong index is always detected.

Oracle: our own second path: the changes of a whole read. `test_sstable_dump` compares them with the database.
"""

import dataclasses
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from tests.storage import tries
from tests.storage.written import Written, one_of_each
from tests.support.examples import is_long_run
from tests.support.expected import as_rows
from tests.support.guarded import guard, in_a_process
from tests.support.rewriting import as_older, copy
from writetime.schema.table import TableSchema
from writetime.storage.file_errors import CorruptFile, StorageError
from writetime.storage.locations import Location, find_sstables
from writetime.storage.row_index import read_blocks
from writetime.storage.split import Cut, Split
from writetime.storage.sstable import SSTable

pytestmark = pytest.mark.long

FLIPS_AN_INDEX = 40 if is_long_run() else 5


def wide(written: Written) -> tuple[TableSchema, Location]:
    schema, (location,) = written.handmade("wide")
    return schema, location


def pieces(sstable: SSTable, splits: list[Split], **options: object) -> Iterator[pa.RecordBatch]:
    for split in splits:
        yield from sstable.scan(split=split, **options)  # type: ignore[arg-type]


def test_any_split_gives_the_same_changes(written: Written) -> None:
    for schema, location in one_of_each(written):
        sstable = SSTable(location, schema)
        assert as_rows(pieces(sstable, sstable.splits(1))) == as_rows(sstable.scan())


@pytest.mark.parametrize("target", [1, 900, 2500, 10_000])
def test_wide_partitions_are_cut_at_any_block(written: Written, target: int) -> None:
    schema, location = wide(written)
    sstable = SSTable(location, schema)
    splits = sstable.splits(target)
    whole = as_rows(sstable.scan())
    assert as_rows(pieces(sstable, splits)) == whole
    assert as_rows(pieces(sstable, splits, window=1)) == whole
    if target == 1:
        blocks = 0
        for i in range(len(sstable.index.positions)):
            found = read_blocks(location, sstable.header.clustering, sstable.index, i)
            assert found is not None
            blocks += len(found.offsets)
        assert len(splits) == len(sstable.index.positions) + blocks
        assert sum(split.start.open is not None for split in splits) > 20


def split_with_guards(folder: str) -> None:
    """Read all pieces of an SSTable with the smallest window."""
    guard()
    (location,) = find_sstables(folder)
    sstable = SSTable(location)
    splits = sstable.splits(1)
    assert len(splits) > 5
    assert as_rows(pieces(sstable, splits, window=1)) == as_rows(sstable.scan())


def test_a_key_longer_than_a_window(written: Written) -> None:
    """Where a piece starts inside of a partition, its key is not of the window."""
    _, (location,) = written.handmade("long")
    answer = in_a_process(split_with_guards, location.folder)
    assert answer.returncode == 0, answer.stderr[-2000:]


def test_pieces_of_one_partition_by_its_token(written: Written) -> None:
    schema, location = wide(written)
    sstable = SSTable(location, schema)
    for token in {token for batch in sstable.scan(["token"]) for token in batch["token"].to_pylist()}:
        tokens = (token, token)
        splits = sstable.splits(1, tokens)
        assert len(splits) > 5
        assert as_rows(pieces(sstable, splits, tokens=tokens)) == as_rows(sstable.scan(tokens=tokens))
        assert not list(pieces(sstable, splits, tokens=(token + 1, token + 1)))


def test_wide_partitions_of_scylladb_are_cut_at_any_block(written: Written, tmp_path: Path) -> None:
    """Cassandra's file of version `nb`, with the index that ScyllaDB writes for version `mt`."""
    schema, location = wide(written)
    if location.version != "nb":
        return
    here = as_older(location, tmp_path / "wide", "mt")
    found = tries.partitions(here)
    whole = as_rows(SSTable(location, schema).scan())
    targets = (1, 2500, 10_000)
    for block, few in {5000: targets[2:], 1024: targets[1:2], 1: targets[:1]}.items():
        tries.index_again(here, block, found)
        sstable = SSTable(here, schema)
        for target in targets if is_long_run() else few:
            assert as_rows(pieces(sstable, sstable.splits(target))) == whole
    # Cassandra's own index of the data has the same range tombstones where its blocks start.
    sstable = SSTable(location, schema)
    places = {at - p.start: is_open for p in found for at, is_open in p.places if p is found[-1]}
    blocks = read_blocks(location, sstable.header.clustering, sstable.index, len(found) - 1)
    assert blocks is not None
    for i, offset in enumerate(blocks.offsets.tolist()):
        assert blocks.open_at(i) == places[offset]


def test_an_invalid_cut_is_refused(written: Written) -> None:
    schema, location = wide(written)
    sstable = SSTable(location, schema)
    start, end = next(
        (split.start, split.end) for split in sstable.splits(1) if split.end.open and split.start.partition is not None
    )
    assert end.open is not None
    wrong = [
        dataclasses.replace(end, offset=end.offset + 1),
        dataclasses.replace(end, partition=1),
        dataclasses.replace(end, partition=None),
        dataclasses.replace(end, open=None),
        dataclasses.replace(end, open=(end.open[0] + 1, end.open[1])),
        dataclasses.replace(end, open=(end.open[0], end.open[1] + 1)),
    ]
    for cut in wrong:
        with pytest.raises(CorruptFile):
            list(sstable.scan(split=Split(start, cut)))
    inside = Split(Cut(start.offset + 1, start.partition, start.open), end)
    with pytest.raises(CorruptFile):
        list(sstable.scan(split=inside))


def test_a_wrong_index_never_gives_a_wrong_answer(written: Written, tmp_path: Path) -> None:
    """Indexes have no checksums: a flipped bit in them raises an error, or changes nothing."""
    schema, location = wide(written)
    here = copy(location, tmp_path / "index")
    whole = as_rows(SSTable(here, schema).scan())
    tokens = sorted({token for batch in SSTable(here, schema).scan(["token"]) for token in batch["token"].to_pylist()})
    by_tokens = {(t, t): as_rows(SSTable(here, schema).scan(tokens=(t, t))) for t in tokens}
    flipped = random.Random(3)
    outcomes = {"refused": 0, "same": 0}
    for component in ("Index.db", "Partitions.db", "Rows.db"):
        path = Path(here.path(component))
        if not path.exists():
            continue
        sound = path.read_bytes()
        for _ in range(FLIPS_AN_INDEX):
            bit = flipped.randrange(8 * len(sound))
            broken = bytearray(sound)
            broken[bit // 8] ^= 1 << bit % 8
            path.write_bytes(broken)
            try:
                sstable = SSTable(here, schema)
                splits = sstable.splits(1)
                assert all(a.end == b.start for a, b in pairwise(splits))
                assert as_rows(pieces(sstable, splits)) == whole
                outcomes["same"] += 1
            except StorageError:
                outcomes["refused"] += 1
            for tokens, wanted in by_tokens.items():
                try:
                    sstable = SSTable(here, schema)
                    found = as_rows(pieces(sstable, sstable.splits(1 << 30, tokens), tokens=tokens))
                except StorageError:
                    continue
                assert found == wanted
        path.write_bytes(sound)
    print(outcomes)
    assert outcomes["refused"] > 0
