"""A merge of the entries of files at some places equals the merge of everything, at these places.

Oracle: our own second path: the merge of everything, at the same places.
"""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import generated
from tests.support.examples import is_long_run
from tests.support.made import SCHEMA, batch, write
from writetime.changes.model import change_schema
from writetime.delta.parquet import conform, sort, without_empty
from writetime.files import decoded
from writetime.files.decoded import Decoded, decode
from writetime.files.key_ranges import KeyRanges, joined, keys_of_whole, partitions, places_of
from writetime.merge import merge

FULL = change_schema(generated.SCHEMA)


def in_file(changes: pa.Table, folder: Path, row_group_rows: int = 2) -> Decoded:
    """The changes in a decoded file; each row group is a batch, if these are small."""
    path = folder / "file.parquet"
    pq.write_table(without_empty(sort([changes])), path, row_group_size=row_group_rows)
    with pq.ParquetFile(path) as file:
        return decode(file)


def found_at(files: list[Decoded], places: KeyRanges) -> list[pa.Table]:
    return [conform(pa.Table.from_batches([part]), FULL, "a file") for file in files for part in file.rows(places)]


def at(places: KeyRanges, state: pa.Table) -> list[dict[str, object]]:
    """The rows of a state at some places, and the static rows and tombstones of their partitions."""
    wanted = list(zip(places.keys.to_pylist(), places.first.to_pylist(), places.end.to_pylist(), strict=True))
    touched = {key for key, _, _ in wanted}
    return [
        row
        for row in state.to_pylist()
        if (row["kind"] in {"static", "partition_tombstone"} and row["key"] in touched)
        or (
            row["kind"] == "row"
            and any(key == row["key"] and first <= row["position"] < end for key, first, end in wanted)
        )
    ]


CHANGES = st.lists(generated.change(), max_size=6)


@given(st.lists(CHANGES, min_size=1, max_size=4), CHANGES, st.randoms(use_true_random=False))
@settings(max_examples=60 if is_long_run() else 8)
def test_the_merge_at_places(
    tmp_path_factory: pytest.TempPathFactory,
    several: list[list[generated.Change]],
    touching: list[generated.Change],
    chooser: random.Random,
) -> None:
    folder = tmp_path_factory.mktemp("files")
    tables = [generated.table(changes) for changes in several if changes]
    added = merge([generated.table(touching)], generated.SCHEMA)
    # Changes as they were written, or a level of the state.
    tables = [merge([t], generated.SCHEMA) if chooser.random() < 0.5 else t for t in tables]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoded, "BATCH_BYTES", chooser.choice([1, 1 << 30]))
        files = [in_file(table, folder) for table in tables]
    places = places_of(added)
    if len(added) and chooser.random() < 0.5:
        whole = added.slice(chooser.randrange(len(added)), 1)
        places = joined([places, partitions(whole["token"].combine_chunks(), whole["key"].combine_chunks())])
    part = merge(found_at(files, places), generated.SCHEMA)
    everything = merge([t.select(FULL.names) for t in tables], generated.SCHEMA)
    assert at(places, part) == at(places, everything)
    # The deletions that reach the places are found, too.
    assert at(places, merge([part, added], generated.SCHEMA)) == at(
        places, merge([everything, added], generated.SCHEMA)
    )


def test_a_wide_partition_costs_the_rows_that_are_read(tmp_path: Path) -> None:
    rows = [write(1, n, 5, v=str(n)) for n in range(20_000)] + [write(2, n, 5, v="a") for n in range(3)]
    file = in_file(pa.Table.from_batches([batch(rows)]), tmp_path, 1 << 16)
    changed = merge([pa.Table.from_batches([batch([write(1, n, 6, v="b") for n in (7, 19_999, 20_001)])])], SCHEMA)
    found = pa.Table.from_batches(file.rows(places_of(changed)))
    assert found["n"].to_pylist() == [7, 19_999]


@pytest.mark.parametrize("row_group_rows", [30, 1 << 16])
def test_the_first_rows_of_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_group_rows: int) -> None:
    monkeypatch.setattr(decoded, "BATCH_BYTES", 1)
    rows = [write(id_, n, 5, v="a") for id_, count in ((1, 40), (2, 4), (3, 5), (4, 90)) for n in range(count)]
    file = in_file(pa.Table.from_batches([batch(rows)]), tmp_path, row_group_rows)
    # Before and after a batch, so twice.
    of_each = merge([pa.Table.from_batches([batch([write(i, 0, 5) for i in (1, 2, 3, 5)])])], SCHEMA)
    tokens, keys = (of_each[name].combine_chunks() for name in ("token", "key"))
    places = joined([partitions(tokens, keys), partitions(tokens, keys)])
    for count in (1, 4, 5, 100):
        narrowed = file.narrowed(places, count)
        found = [row for part in file.rows(narrowed) for row in part.select(["id", "n"]).to_pylist()]
        for id_, size in ((1, 40), (2, 4), (3, 5), (4, 0)):
            first = [row["n"] for row in found if row["id"] == id_]
            assert first == list(range(len(first)))
            # A partition may begin with a few rows at the end of a batch.
            assert min(count, size) <= len(first) <= min(2 * count, size)
        if row_group_rows > len(rows):
            assert len(keys_of_whole(narrowed)) == 2 * (4 if count > 40 else 1 + (count >= 4) + (count >= 5))


def test_places_within_tokens() -> None:
    keys = pa.array([b"a", b"b", b"c"])
    places = partitions(pa.array([-5, 0, 7]), keys)
    assert places.within((-4, 7)).keys.to_pylist() == [b"b", b"c"]
    assert np.array_equal(places.within((8, 9)).tokens, [])
    assert places.within(None) is places
