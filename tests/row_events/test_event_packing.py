"""The files of the stream: there are few for any number of batches, with the same events in the same order."""

import os
import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.event_replay import replayed
from tests.support.lake_answers import view_rows
from tests.support.made import SCHEMA, add, new_table, settings_at, write
from writetime.delta import buckets
from writetime.delta.bucketed_table import BucketedTable, Conflict
from writetime.delta.buckets import ALL
from writetime.delta.checkpoints import read_checkpoint
from writetime.delta.parquet import write_file
from writetime.delta.table_changes import FORGET_REMOVED
from writetime.lake import retention, state, views
from writetime.lake.projection import ROW_EVENTS
from writetime.lake.table import LakeTable, create_table, open_table
from writetime.row_events import packing, stream
from writetime.row_events.packing import pack_events
from writetime.row_events.publish import PUBLISHED, PartLimits, Reached, _parts, not_published
from writetime.row_events.stream_files import batch_files, events_since, merged_to
from writetime.row_events.trimming import merge_events
from writetime.schema.cql import parse_table
from writetime.view.upkeep import keep_up, upkeep

pytestmark = pytest.mark.long


def batches(table: LakeTable, count: int, *, first: int = 1, rows: int = 3) -> list[dict[str, Any]]:
    """Make batches of row events, and return the events, each read when its batch was new."""
    seen: list[dict[str, Any]] = []
    for number in range(first, first + count):
        changed = random.Random(number).sample(range(40), rows)
        add(table, [write(i, 0, number, v=f"{number}-{i}") for i in changed], number)
        assert stream.extend(table) == rows
        seen += events(table, number)
    return seen


def events(table: LakeTable, first: int = 1) -> list[dict[str, Any]]:
    return [event for part in events_since(table, first) for event in part.to_pylist()]


def test_files_stay_few(tmp_path: Path, is_long: bool) -> None:
    table = new_table(tmp_path)
    # More than there may be files.
    count = 100 if is_long else 40
    seen = batches(table, count)
    files = table.row_events.load().files
    assert len(files) < 2 * packing.FAN
    assert sum(file.rows for file in files) == 3 * count
    assert events(table) == seen
    for first in (2, 16, 17, count // 2, count, count + 1):
        assert events(table, first) == [event for event in seen if event["sequence"] >= first]
    assert replayed(table) == view_rows(views.virtual(table))


def test_batches_without_events_between_stop_no_packing(tmp_path: Path) -> None:
    """As of upkeep, every night, of a table with one batch each day: all batches with events have odd numbers."""
    table = new_table(tmp_path)
    # More batches than there may be files.
    for number in range(1, packing.FAN + 4):
        batches(table, 1, first=number)
        table.changes.append([], "watermarks", number)
        upkeep(settings_at(tmp_path), table)
    assert len(table.row_events.load().files) < packing.FAN


def test_large_batches_stay_and_small_ones_are_packed_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(tmp_path, buckets=1)
    monkeypatch.setattr(packing, "FAN", 2)
    monkeypatch.setattr(stream, "FAN", 1000)
    seen = batches(table, 2) + batches(table, 1, first=3, rows=20) + batches(table, 3, first=4)
    sizes = [file.size for _, file in batch_files(table.row_events.load())]
    monkeypatch.setattr(packing, "SIZE_CLASSES", (sizes[2] - 1, sizes[2] - 1))
    assert pack_events(table) == 5
    assert [last for last, _ in batch_files(table.row_events.load())] == [2, 3, 6]
    # Those before the large batch are one file, and nothing is left to do.
    assert pack_events(table) == 0
    assert events(table) == seen


@pytest.mark.parametrize("length", [1, 2000, 30_000])
def test_events_that_compress_well(length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing holds few bytes at once, and packs each event a few times only. The files of all batches are small, but
    several batches of long values, or one of the longest, fill the memory.
    """
    most = 64 << 10
    monkeypatch.setattr(packing, "FAN", 4)
    monkeypatch.setattr(packing, "SORTED_AT_ONCE", most)
    written: list[pa.Table] = []

    def noted(storage: Any, rows: pa.Table, *given: Any) -> Any:
        written.append(rows)
        return write_file(storage, rows, *given)

    monkeypatch.setattr(packing, "write_file", noted)
    table, seen = new_table(tmp_path, buckets=1), []
    for number in range(1, 33):
        add(table, [write(number, 1, number, v="x" * length)], number)
        stream.extend(table)
        pack_events(table)
        seen += events(table, number)
    assert all(file.size < 16 << 10 for file in table.row_events.load().files)
    assert max((rows.nbytes for rows in written), default=0) <= most
    assert sum(len(rows) for rows in written) <= 32 * 8
    assert (written == []) == (length == 30_000)
    assert events(table) == seen


def test_each_position_of_the_stream_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    monkeypatch.setattr(packing, "FAN", 3)
    with patch.object(buckets, "FEW_ROWS", 0):
        batches(table, 3)
    batches(table, 3, first=4)

    def after(start: Reached) -> list[tuple[Reached, dict[str, Any]]]:
        """The events after a position, each with the position that a publisher would reach."""
        version, storage, one = table.row_events.load(), table.row_events.storage, PartLimits(events=1)
        parts = _parts(version, storage, table.schema(), start, one)
        return [(reached, event) for reached, part in parts for event in part.to_pylist()]

    assert {file.bucket == ALL for _, file in batch_files(table.row_events.load())} == {True, False}
    before = after(Reached(1, 0))
    assert [reached for reached, _ in before] == [Reached(s, n) for s in range(1, 7) for n in range(1, 4)]
    table.row_events.append([], PUBLISHED, 4)
    assert pack_events(table) > 6
    ((last, file),) = batch_files(table.row_events.load())
    assert (last, file.bucket, file.rows) == (6, ALL, 18)
    for number in range(18):
        assert after(before[number][0]) == before[number + 1 :]
    # A batch that is published is one of the packed ones, too.
    assert not_published(table) == 6


def test_killed_while_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    monkeypatch.setattr(packing, "FAN", 4)
    seen = batches(table, 4)
    commit = BucketedTable._commit

    class Killed(BaseException):
        pass

    def dies(*, after: bool) -> Any:
        def commits(self: BucketedTable, *arguments: Any) -> None:
            if after:
                commit(self, *arguments)
            raise Killed

        return commits

    for after, left in ((False, len(table.row_events.load().files)), (True, 1)):
        with patch.object(BucketedTable, "_commit", dies(after=after)), pytest.raises(Killed):
            pack_events(table)
        assert len(table.row_events.load().files) == left
        assert events(table) == seen
    assert pack_events(table) == 0
    assert events(table) + batches(table, 1, first=5) == events(table)


def test_two_that_pack_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    monkeypatch.setattr(packing, "FAN", 4)
    seen = batches(table, 4)
    read_file = packing.read_file

    def other_first(*arguments: Any) -> pa.Table:
        monkeypatch.setattr(packing, "read_file", read_file)
        assert pack_events(LakeTable(_folder(table))) > 0
        return read_file(*arguments)

    monkeypatch.setattr(packing, "read_file", other_first)
    with pytest.raises(Conflict):
        pack_events(table)
    assert events(table) == seen


def _folder(table: LakeTable) -> Any:
    storage = table.changes.storage
    return type(storage)(storage.address.rpartition("/")[0], storage.options)


def test_the_base_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    monkeypatch.setattr(packing, "FAN", 4)
    batches(table, 3)
    table.row_events.append([], PUBLISHED, 3)
    merge_events(table, views.time_now() + 10**6)
    assert merged_to(table.row_events.load()) == 3
    batches(table, 4, first=4)
    assert pack_events(table) == 4
    assert [last for last, _ in batch_files(table.row_events.load())] == [3, 7]
    wanted = view_rows(views.virtual(table))
    assert replayed(table) == wanted
    # Packed batches are merged like others, once they are published.
    merge_events(table, views.time_now() + 10**6)
    assert merged_to(table.row_events.load()) == 3
    table.row_events.append([], PUBLISHED, 7)
    merge_events(table, views.time_now() + 10**6)
    assert merged_to(table.row_events.load()) == 7
    assert replayed(table) == wanted


def test_columns_that_were_dropped_stay_in_old_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    monkeypatch.setattr(packing, "FAN", 4)
    monkeypatch.setattr(stream, "FAN", 1000)
    batches(table, 2)
    wider = parse_table("CREATE TABLE shop.items (id int, n int, v text, w int, x list<text>, PRIMARY KEY (id, n))")
    table.follow(wider)
    add(table, [write(1, 1, 10, v="a", w=1)], 10, SCHEMA)
    stream.extend(table)
    add(table, [write(1, 1, 11, v="b", w=1)], 11, wider)
    stream.extend(table)

    def stored() -> list[dict[str, Any]]:
        return table.row_events.load().table.to_pyarrow_table().sort_by("event_id").to_pylist()

    before = [{**event, "token_bucket": ALL} for event in stored()]
    assert pack_events(table) > 0
    assert len(table.row_events.load().files) == 1
    assert [{**event, "token_bucket": ALL} for event in stored()] == before


def test_the_next_batch_reads_no_changes_of_those_before(tmp_path: Path, is_long: bool) -> None:
    settings = settings_at(tmp_path)
    table = create_table(settings, SCHEMA)
    for number in range(1, 40 if is_long else 15):
        add(table, [write(number % 5, n, number, v=str(number)) for n in range(3)], 2 * number)
        stream.extend(table)
        # It lands after the batch, and is left for the next one.
        add(table, [write(9, number, number, v="later")], 2 * number + 1)
        keep_up(settings, table, number, [ROW_EVENTS])
        held, changes = table.state.load(), table.changes.load()
        position = ROW_EVENTS.position(table.row_events.load())
        assert position is not None
        assert state.folded_version(held) == position.changes.version == changes.version - 1
        assert [file.rows for file in state.files_since(table, changes, position.changes.version)] == [1]
        assert all(len(levels) < state.FAN for levels in held.by_folder.values())
    stream.extend(table)
    assert replayed(table) == view_rows(views.virtual(table))


def test_checkpoints_soon_forget_the_files_that_were_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    seen = batches(table, 15)
    assert FORGET_REMOVED.items() <= table.row_events.load().properties.items()
    # As in a stream of an earlier release, which gets the property with its next batch.
    name, value = next(iter(FORGET_REMOVED.items()))
    table.row_events.set_property(name, "interval 1 week")
    seen += batches(table, 1, first=16)
    assert table.row_events.load().properties[name] == value
    # Hours later:
    storage = table.row_events.storage
    monkeypatch.setattr(stream, "FORGET_REMOVED", {name: "interval 0 hours"})
    seen += batches(table, 4, first=17)
    version = table.row_events.load().version
    DeltaTable(storage.address).create_checkpoint()
    assert read_checkpoint(storage, version, "remove") == (version, [])
    for file in Path(storage.address).glob("*/batch-*.parquet"):
        os.utime(file, (0, 0))
    # They are deleted all the same.
    assert len(retention.vacuum(table, 168)) >= 16
    assert len(list(Path(storage.address).glob("*/batch-*.parquet"))) == len(table.row_events.load().files)
    assert events(open_table(settings_at(tmp_path), table.name)) == seen
