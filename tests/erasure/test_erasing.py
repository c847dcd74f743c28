"""Erased partitions leave no byte below the lake, and nothing else changes.

Oracle: a search of all files by other programs (`tests.support.bytes_left`), and the rows and events from before.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from tests.erasure.people import Lake, Person, all_values, people
from tests.support.iceberg_tables import published
from tests.support.lake_answers import view_rows
from tests.support.made import batch
from writetime.changes.starts import Start, Truncation
from writetime.core.errors import WritetimeError
from writetime.erasure.erasing import Erasing
from writetime.erasure.finding import find_places
from writetime.erasure.places import in_places, place_of
from writetime.files.cache import Cache
from writetime.iceberg.catalogs import NAME
from writetime.lake import state, views
from writetime.lake.changes import ChangeWriter
from writetime.lake.generation import renew
from writetime.row_events.publish import PUBLISHED
from writetime.row_events.trimming import merge_events

pytestmark = pytest.mark.slow


def filled(folder: Path, **more: object) -> tuple[Lake, list[Person], list[Person]]:
    """A lake, with people who are to be erased, and others."""
    everyone = people(9)
    lake = Lake(folder, **more)
    lake.fill(everyone, everyone[:3])
    assert lake.left_of(everyone[:3]).keys() == all_values(everyone[:3])
    return lake, everyone[:3], everyone[3:]


def is_erased(lake: Lake, gone: Sequence[Person], others: Sequence[Person]) -> bool:
    return not lake.left_of(gone) and lake.left_of(others).keys() == all_values(others)


@pytest.mark.parametrize("view", ["vectors", "rewritten"])
def test_no_byte_is_left_and_nothing_else_changes(tmp_path: Path, view: str) -> None:
    lake, gone, others = filled(tmp_path, view=view)
    before = lake.shown(), view_rows(views.virtual(lake.table)), lake.events_of(others)
    count = lake.table.row_events.load().rows
    certificate = lake.erase(gone)
    assert is_erased(lake, gone, others)
    assert (lake.shown(), view_rows(views.virtual(lake.table)), lake.events_of(others)) == before
    assert lake.table.row_events.load().rows == count
    assert certificate["partitions"] == 3
    lake.follow()
    state.fold(lake.table)
    assert (lake.shown(), lake.events_of(others)) == (before[0], before[2])


def test_iceberg_tables_begin_again(tmp_path: Path) -> None:
    lake, gone, others = filled(tmp_path, iceberg=True)
    lake.erase(gone)
    assert is_erased(lake, gone, others)
    found = published(lake.table.view.storage.address).scan().to_arrow()
    assert set(found["person"].to_pylist()) == {person.name for person in others}
    lake.add([others[0].write(0, 5_000)])
    lake.follow()
    assert published(lake.table.view.storage.address).scan().to_arrow().num_rows == found.num_rows


def test_iceberg_tables_in_a_catalog(tmp_path: Path) -> None:
    """The catalog has the new tables, and no file or row of its database has a value."""
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    lake, gone, others = filled(tmp_path, iceberg=True, iceberg_catalog=properties)
    catalog = load_catalog(NAME, **properties)
    before = catalog.load_table("shop.people").metadata.table_uuid
    certificate = lake.erase(gone)
    assert is_erased(lake, gone, others)
    opened = catalog.load_table("shop.people")
    assert opened.metadata.table_uuid != before
    assert set(opened.scan().to_arrow()["person"].to_pylist()) == {person.name for person in others}
    listed = {each["catalog"]: each["table_uuid"] for each in certificate["iceberg"]}
    assert listed.keys() == {"shop.people", "shop.people_row_events"}
    assert listed["shop.people"] == str(opened.metadata.table_uuid)


def test_generations_plans_and_decoded_files(tmp_path: Path) -> None:
    """A truncation leaves the files of the generation before, and a look-up decodes files."""
    lake = Lake(tmp_path)
    lake.table.cache = Cache(tmp_path / "decoded", 1 << 30, smallest=0)
    everyone = people(6)
    lake.fill(everyone, [])
    assert renew(lake.table, {"a": Start(truncation=Truncation(900, 0, 0))})
    lake.add([person.write(7, 2_000) for person in everyone])
    lake.add([person.deletion(3_000) for person in everyone[:2]])
    lake.follow()
    plan = tmp_path / "lake" / "shop.people" / "undo" / "7"
    plan.mkdir(parents=True)
    pq.write_table(pa.table({"key": [everyone[0].key], "before": [everyone[0].texts[0]]}), plan / "cells-0.parquet")
    assert list((tmp_path / "decoded").iterdir())
    lake.erase(everyone[:2])
    assert is_erased(lake, everyone[:2], everyone[2:])
    assert not plan.exists()
    assert {row["person"] for row in view_rows(views.virtual(lake.table))} == {p.name for p in everyone[2:]}
    earlier = [row for view in views.views_at(lake.table, 800) for row in view_rows([view.rows()])]
    assert {row["person"] for row in earlier} == {p.name for p in everyone[2:]}


def test_live_rows_are_refused(tmp_path: Path) -> None:
    everyone = people(3)
    lake = Lake(tmp_path)
    lake.fill(everyone, everyone[:1])
    before = lake.shown()
    with pytest.raises(WritetimeError, match="what is to be erased has 2 live rows in the lake"):
        lake.erase(everyone[:2])
    assert lake.shown() == before
    assert lake.left_of(everyone).keys() == all_values(everyone)


def test_writes_of_an_unknown_partition_still_land(tmp_path: Path) -> None:
    """A key may be named before its first message has landed."""
    lake, gone, others = filled(tmp_path)
    unknown = people(1, 1)[0]
    certificate = lake.erase([*gone, unknown])
    assert is_erased(lake, gone, others)
    assert (certificate["partitions"], certificate["unknown"]) == (4, 1)
    assert list(landing(lake, [unknown.write(0, 500)])) == [unknown.name]
    assert not list(landing(lake, [gone[0].write(0, 500)]))


def landing(lake: Lake, changes: Sequence[dict[str, object]]) -> list[str]:
    """The persons of the changes that landing adds."""
    writer = ChangeWriter.of(lake.table, lake.schema, lake.table.changes.load())
    return [person for part in writer.left([batch(changes, lake.schema)]) for person in part["person"].to_pylist()]


@pytest.mark.parametrize("partition_deleted_at", [None, 20])
def test_a_partition_without_one_deletion_is_refused(tmp_path: Path, partition_deleted_at: int | None) -> None:
    """Older writes of other rows, which may be on their way, count in the database."""
    lake, [person] = Lake(tmp_path), people(1)
    lake.add([person.write(0, 10)])
    if partition_deleted_at:
        lake.add([person.deletion(partition_deleted_at), person.write(2, 30)])
    row = {name: value for name, value in person.write(0, 40).items() if name not in {"marker", "v"}}
    lake.add([row | {"tombstone": {"write_time": 40, "deletion_time": 0}}])
    lake.follow()
    assert not view_rows(views.virtual(lake.table))
    with pytest.raises(WritetimeError, match="no deletion that covers all that a key names"):
        lake.erase([person])
    lake.add([person.deletion(40)])
    lake.follow()
    lake.erase([person])
    assert not lake.left_of([person])


def test_two_erasures_at_once(tmp_path: Path) -> None:
    """Changes fold after both, in whatever order these commit."""
    lake, gone, others = filled(tmp_path)
    places = [find_places(lake.table, in_places([place_of(person.key)])) for person in gone[:2]]
    first = Erasing(lake.settings, lake.table, places[0])
    first._changes()
    second = Erasing(lake.settings, lake.table, places[1])
    for step in (second._changes, second._state, first._state):
        step()
    lake.add([others[0].write(0, 5_000)])
    assert state.fold(lake.table) == 1


def test_a_new_life_stays(tmp_path: Path) -> None:
    """A person who returns after the deletion has new data, which a second erasure erases after a second deletion."""
    lake, gone, others = filled(tmp_path)
    back = Person(gone[0].name, people(1, 1)[0].texts)
    lake.add([back.write(3, 2_000), back.static(2, 2_000)])
    lake.follow()
    with pytest.raises(WritetimeError, match="1 live row"):
        lake.erase(gone)
    lake.erase(gone[1:])
    assert is_erased(lake, gone[1:], others)
    lake.add([back.deletion(3_000)])
    lake.erase([back])
    assert lake.left_of([*gone, back]) == {}
    lake.add([back.write(4, 4_000)])
    lake.follow()
    assert [row["v"] for row in view_rows(views.virtual(lake.table)) if row["person"] == back.name] == [back.texts[4]]


def test_erased_events_leave_the_base(tmp_path: Path) -> None:
    lake, gone, others = filled(tmp_path)
    lake.erase(gone)
    stream = lake.table.row_events
    kinds = stream.load().table.to_pyarrow_table()["kind"].to_pylist()
    assert 0 < kinds.count("ERASE") < len(kinds)
    last = stream.load().transaction("row_events/sequence") or 0
    stream.append([], "row_events/published/1", last, {PUBLISHED: last})
    merge_events(lake.table, views.time_now())
    found = stream.load().table.to_pyarrow_table()
    assert set(found["kind"].to_pylist()) == {"CREATE"}
    assert len(found) == len(lake.shown()) == 2 * len(others)
