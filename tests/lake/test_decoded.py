"""Decoded files: they hold what the file of the lake holds, or are found damaged."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.generate import SEED
from writetime.lake import decoded
from writetime.lake.decoded import Damaged, Decoded, decode, read, write

ROWS = 3000


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
    return [row for batch in found.rows(tokens) for row in batch.to_pylist()]


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


def test_a_cut_file_is_damaged(source: Path) -> None:
    path = written(source)
    whole = path.read_bytes()
    for length in {0, 1, 15, 16, len(whole) - 1, *random.Random(SEED).sample(range(len(whole)), 100)}:
        path.write_bytes(whole[:length])
        with pytest.raises(Damaged):
            read(path, 1)


def test_a_changed_file_is_damaged_or_unused(source: Path) -> None:
    path = written(source)
    whole = path.read_bytes()
    rows = pq.read_table(source).to_pylist()
    tokens = np.unique([row["token"] for row in rows])
    for place in random.Random(SEED).sample(range(len(whole)), 200):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises(Damaged):
            held(read(path, 1), tokens)


def test_only_what_is_used_is_checked(source: Path) -> None:
    path = written(source)
    whole = bytearray(path.read_bytes())
    tokens = np.unique(pq.read_table(source)["token"])
    # A byte of the first batch.
    whole[len(whole) // 100] ^= 1
    path.write_bytes(whole)
    found = read(path, 1)
    assert held(found, tokens[-1:])
    with pytest.raises(Damaged):
        held(found, tokens[:1])


def test_another_version_and_another_source_are_damaged(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(source)
    with pytest.raises(Damaged):
        read(path, 2)
    monkeypatch.setattr(decoded, "VERSION", decoded.VERSION + 1)
    with pytest.raises(Damaged):
        read(path, 1)


def test_a_file_without_rows(tmp_path: Path) -> None:
    source = tmp_path / "source.parquet"
    pq.write_table(pa.schema([("token", pa.int64())]).empty_table(), source)
    assert held(read(written(source), 1), np.array([1])) == []


def test_rows_outlive_the_file(source: Path) -> None:
    path = written(source)
    found = read(path, 1)
    path.unlink()
    assert len(held(found, np.unique(pq.read_table(source)["token"]))) == ROWS


def test_when_data_ends(tmp_path: Path) -> None:
    source = tmp_path / "source.parquet"
    cell = pa.struct([("value", pa.string()), ("deletion_time", pa.int64())])
    kept = [{"value": "a", "deletion_time": None}, {"value": "b", "deletion_time": 7}, None]
    markers = [{"expiry": 9}, None, {"expiry": None}]
    columns = {"token": [1, 2, 3], "c": pa.array(kept, cell), "marker": pa.array(markers)}
    pq.write_table(pa.table(columns), source, row_group_size=1)
    assert read(written(source), 1).ending == (7, 9)
    pq.write_table(pa.table(columns).select(["token"]), source)
    assert read(written(source), 1).ending is None
    pq.write_table(pa.table(columns), source, write_statistics=False)
    first, last = read(written(source), 1).ending or (0, 0)
    assert first < 7
    assert last > 9
