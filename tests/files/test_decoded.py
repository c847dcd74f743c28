"""Decoded files: they have the rows of the lake's file, or are recognised as damaged.

Oracle: pyarrow, which reads the rows of the Parquet file.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import generated
from tests.support.examples import rounds
from tests.support.generate import SEED
from writetime.delta.parquet import COLD_LAYOUT, PLACE, write_file
from writetime.delta.storage import Storage
from writetime.files import decoded
from writetime.files.decoded import DamagedDecodedFile, Decoded, decode, read, write

pytestmark = pytest.mark.slow

ROWS = 3000


def expiring(second: int) -> dict[str, Any]:
    return {"write_time": 1, "ttl": 1, "deletion_time": second, "tombstone": False}


_OWN = {"kind": "row", "key": b"k", "position": b"\x40"}
_DELETED = {"write_time": 1, "deletion_time": 8, "tombstone": True}
EXPIRING = [
    _OWN | {"token": 1, "marker": {"write_time": 1, "ttl": 1, "expiry": 5}, "i": expiring(9), "t": expiring(9)},
    _OWN | {"token": 2, "i": expiring(6), "t": _DELETED, "tombstone": {"write_time": 1, "deletion_time": 7}},
    _OWN | {"token": 3, "u": {"fields": {"y": expiring(7)}}},
    _OWN | {"token": 4, "e": {"elements": [{"path": "1"} | expiring(8)]}},
    _OWN | {"token": 5, "i": {"write_time": 1, "tombstone": False}},
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Rows of random tokens, some with many rows, in row groups of 100."""
    chooser = np.random.default_rng(SEED)
    tokens = np.sort(chooser.choice(chooser.integers(-(2**63), 2**63 - 1, ROWS // 3), ROWS))
    cells = pa.array([{"value": str(i), "write_time": i} if i % 7 else None for i in range(ROWS)])
    pq.write_table(pa.table({"token": tokens, "c": cells}), tmp_path / "source.parquet", row_group_size=100)
    return tmp_path / "source.parquet"


def written(source: Path, batch_bytes: int = 10_000) -> Path:
    path = source.with_suffix(".decoded")
    with pq.ParquetFile(source) as file:
        write(file, path, 1, batch_bytes)
    assert {source, path} == set(source.parent.iterdir())
    return path


def held(found: Decoded, tokens: np.ndarray) -> list[dict[str, object]]:
    return [row for token in tokens for batch in found.between(token, token) for row in batch.to_pylist()]


@pytest.mark.parametrize("batch_bytes", [1, 10_000, 1 << 30])
def test_rows_are_those_of_the_file(source: Path, batch_bytes: int) -> None:
    path = written(source, batch_bytes)
    with pq.ParquetFile(source) as file:
        in_memory = decode(file)
    rows = pq.read_table(source).to_pylist()
    tokens = np.unique([row["token"] for row in rows])
    chooser = random.Random(SEED)
    for found in (read(path, 1), in_memory):
        for size in (1, 2, 100, len(tokens)):
            wanted = {int(token) for token in chooser.sample(list(tokens), size)}
            absent = {token + 1 for token in wanted if token + 1 not in tokens}
            expected = [row for row in rows if row["token"] in wanted]
            assert held(found, np.array(sorted(wanted | absent))) == expected
        assert held(found, np.array([], np.int64)) == []


def _all_of(path: Path, tokens: np.ndarray) -> None:
    found = read(path, 1)
    found.expiring(0, 1)
    held(found, tokens)


def test_a_cut_file_is_damaged(source: Path) -> None:
    path = written(source)
    whole = path.read_bytes()
    for length in {0, 1, 15, 16, len(whole) - 1, *random.Random(SEED).sample(range(len(whole)), rounds(100))}:
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedDecodedFile):
            read(path, 1)


def test_a_changed_file_is_damaged_or_unused(source: Path) -> None:
    path = written(source)
    whole = path.read_bytes()
    rows = pq.read_table(source).to_pylist()
    tokens = np.unique([row["token"] for row in rows])
    for place in random.Random(SEED).sample(range(len(whole)), rounds(200)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises(DamagedDecodedFile):
            _all_of(path, tokens)


def test_only_used_parts_are_checked(source: Path) -> None:
    path = written(source)
    whole = bytearray(path.read_bytes())
    tokens = np.unique(pq.read_table(source)["token"])
    # A byte of the first batch.
    whole[len(whole) // 100] ^= 1
    path.write_bytes(whole)
    found = read(path, 1)
    assert held(found, tokens[-1:])
    with pytest.raises(DamagedDecodedFile):
        held(found, tokens[:1])


def test_another_version_and_another_source_are_damaged(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(source)
    with pytest.raises(DamagedDecodedFile):
        read(path, 2)
    monkeypatch.setattr(decoded, "VERSION", decoded.VERSION + 1)
    with pytest.raises(DamagedDecodedFile):
        read(path, 1)


def test_a_file_without_rows(tmp_path: Path) -> None:
    source = tmp_path / "source.parquet"
    pq.write_table(pa.schema([("token", pa.int64())]).empty_table(), source)
    assert held(read(written(source), 1), np.array([1])) == []


def test_only_the_places_of_a_view_are_decoded(tmp_path: Path) -> None:
    """So only these count for the size of a batch, however large the values are."""
    places = [{"token": i, "key": b"%d" % i, "position": b"\x40"} for i in range(ROWS)]
    values = [str(i) * 200 for i in range(ROWS)]
    table = pa.table({"v": values, "a.b": values, PLACE: pa.array(places)})
    pq.write_table(table, tmp_path / "view.parquet", row_group_size=100)
    (batch,) = read(written(tmp_path / "view.parquet", 300_000), 1).between(0, ROWS)
    assert batch.to_pylist() == places


def test_one_batch_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the batch before is held while the columns of the next one are read."""
    text = [str(i) * 2000 for i in range(400)]
    pq.write_table(pa.table({"token": range(400), "t": text}), tmp_path / "wide.parquet", row_group_size=100)
    column, held = decoded._column, []

    def noted(file: pq.ParquetFile, groups: Sequence[int], name: str) -> pa.ChunkedArray:
        held.append(pa.total_allocated_bytes())
        return column(file, groups, name)

    monkeypatch.setattr(decoded, "_column", noted)
    written(tmp_path / "wide.parquet", 1)
    assert len(held) == 4 * 2
    # A batch has half a megabyte.
    assert max(held[::2]) < held[0] + 100_000


@pytest.mark.parametrize("places", [False, True])
def test_batches_are_bounded_by_their_rows_in_memory(tmp_path: Path, *, places: bool) -> None:
    """A few large rows are among many small ones, and long values repeat: neither the size of an average row nor that
    of encoded values shows this. A row that is larger is alone.
    """
    most, chooser, storage = 1 << 20, random.Random(SEED), Storage(str(tmp_path))
    texts = ["a"] * 50_000
    for size in (most // 9, most // 3, most + 1):
        for _ in range(5):
            start = chooser.randrange(len(texts))
            texts[start:start] = ["x" * size] * chooser.randint(1, 5)
    rows = pa.table({"token": pa.array(range(len(texts))), "key": texts, "v": [text[:100] for text in texts[::-1]]})
    wanted = rows.select(["token", "key"]) if places else rows
    stored = pa.table({"v": rows["v"], PLACE: wanted.to_struct_array()}) if places else rows
    file = write_file(storage, stored, 0, rows["token"], layout=replace(COLD_LAYOUT, row_group_bytes=most // 4))
    with pq.ParquetFile(tmp_path / file.path) as opened:
        groups = [opened.read_row_group(group) for group in range(opened.num_row_groups)]
        assert all(group.num_rows == 1 or group.nbytes <= most for group in groups)
        # Small rows are not in more row groups because of the large ones.
        assert len(groups) < 8 * stored.nbytes / most
        write(opened, tmp_path / "decoded", 1, most)
    found = read(tmp_path / "decoded", 1).between(0, len(texts))
    assert all(batch.num_rows == 1 or batch.nbytes <= most for batch in found)
    assert len(found) < 4 * wanted.nbytes / most
    assert pa.Table.from_batches(found).equals(wanted)


def test_rows_outlive_the_file(source: Path) -> None:
    path = written(source)
    found = read(path, 1)
    path.unlink()
    assert len(held(found, np.unique(pq.read_table(source)["token"]))) == ROWS


def due(found: Decoded, after: int, until: int) -> list[int]:
    return [row["token"] for batch in found.expiring(after, until) for row in batch.to_pylist()]


@pytest.mark.parametrize("batch_bytes", [1, 1 << 30])
def test_data_that_expires_is_found(tmp_path: Path, batch_bytes: int) -> None:
    source = tmp_path / "source.parquet"
    pq.write_table(generated.table(EXPIRING), source, row_group_size=1)
    with pq.ParquetFile(source) as file:
        in_memory = decode(file)
    path = written(source, batch_bytes)
    for found in (read(path, 1), in_memory):
        # 5: a marker, 6: a cell, 7: a field, 8: an element, 9: two cells of a row.
        assert [due(found, second - 1, second) for second in range(4, 11)] == [[], [1], [2], [3], [4], [1], []]
        assert due(found, 4, 9) == [1, 2, 3, 4]
        assert due(found, 9, 100) == []
    whole = path.read_bytes()
    pq.write_table(generated.table([]), source)
    assert due(read(written(source), 1), 0, 100) == []
    # The index is checked when it is first used.
    place = len(whole) - len(whole[whole.rindex(b'{"version"') :]) - 1
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(DamagedDecodedFile):
        due(read(path, 1), 0, 100)
