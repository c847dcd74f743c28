"""Old row events are replaced by the resulting rows. The stream still gives the view; unpublished events stay.

Oracle: our own second path: `replayed(table) == view_rows(...)`.
"""

import random
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import generated
from tests.support.event_replay import SECOND, events, replayed
from tests.support.examples import examples
from tests.support.lake_answers import view_rows
from tests.support.made import add, new_table, write
from writetime.delta import buckets
from writetime.files import merging
from writetime.lake import views
from writetime.lake.projection import ROW_EVENTS
from writetime.lake.table import LakeTable
from writetime.row_events import stream, trimming
from writetime.row_events.publish import PUBLISHED, Reached, _parts
from writetime.row_events.stream_files import merged_to
from writetime.row_events.trimming import merge_events


def published(table: LakeTable, sequence: int) -> None:
    """Record that batches are in Kafka, as `publish` does."""
    table.row_events.append([], PUBLISHED, sequence)


@given(st.lists(st.lists(generated.change(), max_size=4), min_size=2, max_size=5), st.randoms(use_true_random=False))
@examples(12)
def test_the_stream_is_the_view(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[generated.Change]], chooser: random.Random
) -> None:
    table = new_table(tmp_path_factory.mktemp("lake"), generated.SCHEMA, buckets=2)
    for number, changes in enumerate(batches):
        # So that files of one bucket and of all buckets follow each other.
        with patch.object(buckets, "FEW_ROWS", chooser.choice([0, 1, 4096])):
            add(table, changes, number, generated.SCHEMA)
            stream.extend(table, (99 + 2 * number) * SECOND)
            position = ROW_EVENTS.position(table.row_events.load())
            assert position is not None
            published(table, chooser.randint(0, position.batch.sequence))
            if chooser.random() < 0.6:
                with patch.object(merging, "PORTION_BYTES", chooser.choice([1, 10_000, 1 << 20])):
                    merge_events(table, views.time_now())
    stream.extend(table, 110 * SECOND)
    assert replayed(table) == view_rows(views.virtual(table))


def test_files_of_one_bucket_and_of_all_are_merged_in_the_order_of_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(tmp_path, buckets=4)
    for number, few in enumerate((0, 4096, 0, 4096), 1):
        monkeypatch.setattr(buckets, "FEW_ROWS", few)
        add(table, [write(i, 1, number, v=str(number)) for i in range(40)], number)
        stream.extend(table)
    assert {file.bucket == buckets.ALL for file in table.row_events.load().files} == {True, False}
    published(table, 3)
    assert merge_events(table, views.time_now()) == 80
    assert set(replayed_values(table)) == {"4"}
    published(table, 4)
    monkeypatch.setattr(buckets, "FEW_ROWS", 0)
    assert merge_events(table, views.time_now()) == 40
    assert set(replayed_values(table)) == {"4"}


def test_the_base_is_made_once_for_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cost does not depend on files times rows."""
    table = new_table(tmp_path, buckets=1)
    for number in range(1, 9):
        add(table, [write(i, 1, number, v=str(number)) for i in range(10)], number)
        stream.extend(table)
    published(table, 8)
    merged: list[int] = []
    last_of_each = trimming._last_of_each

    def counted(events: pa.Table) -> pa.Table:
        merged.append(len(events))
        return last_of_each(events)

    monkeypatch.setattr(trimming, "_last_of_each", counted)
    assert merge_events(table, views.time_now()) == 70
    assert merged == [80]
    assert set(replayed_values(table)) == {"8"}


def positions(table: LakeTable, start: Reached) -> list[Reached]:
    """The positions of the published events, from one position on."""
    stream = table.row_events.load()
    return [reached for reached, _ in _parts(stream, table.row_events.storage, table.schema(), start)]


def replayed_values(table: LakeTable) -> list[str]:
    """The values of `v` that a reader of the stream has."""
    assert replayed(table) == view_rows(views.virtual(table))
    return [row["v"] for row in replayed(table)]


def test_batches_that_stay(tmp_path: Path) -> None:
    table = new_table(tmp_path, buckets=1)
    assert merge_events(table, views.time_now()) == 0
    for number in range(1, 5):
        add(table, [write(i, 1, number, v=str(number)) for i in range(10)], number)
        assert stream.extend(table) == 10
    # Not published, so nothing goes.
    assert merge_events(table, views.time_now()) == 0
    published(table, 2)
    assert merge_events(table, views.time_now()) == 10
    assert merged_to(table.row_events.load()) == 2
    assert [sorted(set(part["sequence"].to_pylist())) for part in events(table)] == [[2], [3], [4]]
    # A new topic gets the base, too, as batch 0.
    assert positions(table, Reached(0, 0)) == [Reached(0, 10), Reached(3, 10), Reached(4, 10)]
    assert positions(table, Reached(2, 10)) == [Reached(3, 10), Reached(4, 10)]
    published(table, 4)
    # Too young.
    assert merge_events(table, views.time_now() - 3600 * SECOND) == 0
    assert merge_events(table, views.time_now()) == 20
    assert merge_events(table, views.time_now()) == 0
    assert replayed(table) == view_rows(views.virtual(table))
    # A stream that was rebuilt is not in Kafka yet.
    assert stream.extend(table, rebuild=True) == 10
    assert merge_events(table, views.time_now()) == 0
    published(table, 5)
    assert merge_events(table, views.time_now()) == 0
    assert replayed(table) == view_rows(views.virtual(table))
