"""Single rows are erased, and the partition keeps its other rows, its static cells and its deletions.

Oracle: a search of all files by other programs (`tests.support.bytes_left`), and the rows and events from before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.erasure.people import Change, Lake, all_values
from tests.support.bytes_left import found_in, texts_below
from tests.support.lake_answers import view_rows
from tests.support.made import batch, cell
from writetime.changes.position import AFTER, AT, BEFORE, PARTITION_POSITION, STATIC_POSITION, position_encoder
from writetime.core.errors import WritetimeError
from writetime.erasure.places import place_of
from writetime.lake import state, views
from writetime.lake.changes import ChangeWriter
from writetime.schema.cql import parse_table
from writetime.storage.kernel.primitives import token

pytestmark = pytest.mark.slow
SCHEMA = parse_table(
    "CREATE TABLE shop.visits (person text, day text, hour text, s text static, v text, "
    "PRIMARY KEY (person, day, hour))"
)
PERSON, STATIC = "a person 5e1f00c7", "a static text 77aa01"
DELETED_AT = 1_000


class VisitLake(Lake):
    schema = SCHEMA


@dataclass(frozen=True)
class Visit:
    """A row whose last clustering value and text no other row has."""

    day: str
    hour: str
    text: str

    @property
    def values(self) -> list[str]:
        return [self.hour, self.text]

    def position(self, end: bytes = AT, parts: int = 2) -> bytes:
        values = [self.day.encode(), self.hour.encode()]
        return position_encoder(SCHEMA.clustering)(values[:parts], end)

    def write(self, at: int) -> Change:
        made = {"kind": "row", "day": self.day, "hour": self.hour, "position": self.position()}
        return OF_PERSON | made | {"marker": {"write_time": at}, "v": cell(self.text, at)}

    def deletion(self, at: int = DELETED_AT) -> Change:
        made = {"kind": "row", "day": self.day, "hour": self.hour, "position": self.position()}
        return OF_PERSON | made | tombstone(at)


OF_PERSON: Change = {"person": PERSON, "key": PERSON.encode(), "token": token(PERSON.encode())}
VISITS = [
    Visit(f"day {day} 00d1", f"hour {day}{n} 90ab{day}{n}", f"text {day}{n} cd77{day}{n}")
    for day in range(3)
    for n in range(3)
]


def tombstone(at: int) -> Change:
    return {"tombstone": {"write_time": at, "deletion_time": 0}}


def range_deletion(first: bytes, end: bytes, at: int = DELETED_AT) -> Change:
    return OF_PERSON | tombstone(at) | {"kind": "range_tombstone", "position": first, "end": end}


def static(text: str, at: int) -> Change:
    return OF_PERSON | {"kind": "static", "position": STATIC_POSITION, "s": cell(text, at)}


def filled(folder: Path, *deletions: Change) -> VisitLake:
    """A lake with all visits, in batches that are folded and shown, and deletions."""
    lake = VisitLake(folder)
    lake.add([visit.write(10) for visit in VISITS])
    lake.follow()
    lake.add([static(STATIC, 20), *(visit.write(30) for visit in VISITS[::2])])
    lake.follow()
    state.fold(lake.table)
    lake.add(deletions)
    lake.follow()
    return lake


def place(visit: Visit, parts: int = 2) -> tuple[bytes, bytes, bytes]:
    return place_of(PERSON.encode(), visit.position(parts=parts))


def others_of(lake: Lake, gone: Sequence[Visit]) -> list[dict[str, Any]]:
    """The events of other rows."""
    read = lake.table.row_events.load().table.to_pyarrow_table().to_pylist()
    positions = {visit.position() for visit in gone}
    return sorted(
        (e for e in read if e["key"] and e["position"] not in positions), key=lambda e: (e["sequence"], e["event_id"])
    )


def is_erased(lake: Lake, gone: Sequence[Visit]) -> bool:
    """Whether the values of these rows are gone, and those of all others are there."""
    others = [visit for visit in VISITS if visit not in gone]
    return not lake.left_of(gone) and lake.left_of(others).keys() == all_values(others)


def test_a_row_leaves_no_byte(tmp_path: Path) -> None:
    gone = VISITS[:1]
    lake = filled(tmp_path, gone[0].deletion())
    assert lake.left_of(gone).keys() == all_values(gone)
    before = lake.shown(), view_rows(views.virtual(lake.table)), others_of(lake, gone)
    count = lake.table.row_events.load().rows
    certificate = lake.erase_places(place(gone[0]))
    assert (certificate["partitions"], certificate["rows"]) == (0, 1)
    assert is_erased(lake, gone)
    assert (lake.shown(), view_rows(views.virtual(lake.table)), others_of(lake, gone)) == before
    assert {row["s"] for row in view_rows(views.virtual(lake.table))} == {STATIC}
    assert lake.table.row_events.load().rows == count
    lake.follow()
    state.fold(lake.table)
    assert (lake.shown(), others_of(lake, gone)) == (before[0], before[2])


def test_a_day_that_a_range_deletes(tmp_path: Path) -> None:
    """The first clustering value leaves, too, with the deletion that has it in its bounds."""
    gone = VISITS[3:6]
    lake = filled(tmp_path, range_deletion(gone[0].position(BEFORE, 1), gone[0].position(AFTER, 1)))
    before = lake.shown(), others_of(lake, gone)
    lake.erase_places(place(gone[0], 1))
    assert is_erased(lake, gone)
    assert found_in(texts_below(tmp_path), [gone[0].day]) == {gone[0].day: []}
    assert (lake.shown(), others_of(lake, gone)) == before


def test_a_range_that_covers_others_is_refused(tmp_path: Path) -> None:
    """Its bound has the hour of the row, and no other bound means the same. The whole day can be erased."""
    first, gone = VISITS[0], VISITS[:3]
    lake = filled(tmp_path, range_deletion(first.position(BEFORE), first.position(AFTER, 1)))
    before = lake.shown()
    with pytest.raises(WritetimeError, match="a deletion of a range begins or ends at rows that are to be erased"):
        lake.erase_places(place(first))
    assert not (tmp_path / "lake" / "erasures" / "shop.visits").exists()
    assert lake.left_of(gone).keys() == all_values(gone)
    lake.add([range_deletion(first.position(BEFORE, 1), first.position(AFTER, 1), DELETED_AT + 1)])
    lake.erase_places(place(first, 1))
    assert is_erased(lake, gone)
    assert lake.shown() == before


def test_the_deletion_of_the_partition_stays(tmp_path: Path) -> None:
    """It covers the row, and cells of static columns may be newer: an event of the row has their time."""
    gone = VISITS[:1]
    deletion = OF_PERSON | tombstone(DELETED_AT) | {"kind": "partition_tombstone", "position": PARTITION_POSITION}
    lake = filled(tmp_path)
    lake.add([static(STATIC, 2_000)])
    lake.follow()
    lake.add([deletion])
    lake.follow()
    lake.erase_places(place(gone[0]))
    assert is_erased(lake, gone)
    kept = {change["position"] for change in lake.table.changes.load().table.to_pyarrow_table().to_pylist()}
    assert PARTITION_POSITION in kept
    assert [row["s"] for row in view_rows(views.virtual(lake.table))] == [STATIC]


def test_live_rows_are_refused(tmp_path: Path) -> None:
    lake = filled(tmp_path, VISITS[0].deletion())
    with pytest.raises(WritetimeError, match="what is to be erased has 2 live rows"):
        lake.erase_places(place(VISITS[0], 1))
    with pytest.raises(WritetimeError, match="what is to be erased has 1 live row "):
        lake.erase_places(place(VISITS[0]), place(VISITS[1]))


def test_rows_without_one_deletion_are_refused(tmp_path: Path) -> None:
    """A write of the day that is on its way may be newer than its row's deletion, and older than another one."""
    gone = VISITS[:3]
    lake = filled(tmp_path, *(visit.deletion(DELETED_AT + n) for n, visit in enumerate(gone)))
    unknown = Visit("day 9", "hour 9", "")
    for refused in (place(gone[0], 1), place(unknown)):
        with pytest.raises(WritetimeError, match="no deletion that covers all that a key names"):
            lake.erase_places(refused)
    lake.erase_places(*(place(visit) for visit in gone))
    assert is_erased(lake, gone)


def test_what_comes_again(tmp_path: Path) -> None:
    """Old parts of the row and deletions within it are left out; newer ones, other rows and wider deletions land."""
    gone, other = VISITS[:2]
    lake = filled(tmp_path, gone.deletion())
    lake.erase_places(place(gone))
    within = range_deletion(gone.position(BEFORE), gone.position(AFTER), 900)
    wider = range_deletion(gone.position(BEFORE), other.position(AFTER), 900)
    again = [static("other", 5), within, wider, gone.write(30), gone.deletion(), other.write(31), gone.write(1_001)]
    writer = ChangeWriter.of(lake.table, SCHEMA, lake.table.changes.load())
    left = [change for some in writer.left([batch(again, SCHEMA)]) for change in some.to_pylist()]
    assert [(change["kind"], change["position"], change["end"]) for change in left] == [
        ("static", STATIC_POSITION, None),
        ("range_tombstone", wider["position"], wider["end"]),
        ("row", other.position(), None),
        ("row", gone.position(), None),
    ]
    assert left[-1]["marker"]["write_time"] == 1_001


def test_a_row_again_and_then_its_day(tmp_path: Path) -> None:
    """A run that is repeated has the same record. A row within another place that is given counts once."""
    gone = VISITS[:3]
    lake = filled(tmp_path, range_deletion(gone[0].position(BEFORE, 1), gone[0].position(AFTER, 1)))
    lake.erase_places(place(gone[0]))
    assert lake.erase_places(place(gone[0]))["erasure"] == 1
    certificate = lake.erase_places(place(gone[0]), place(gone[1], 1))
    assert (certificate["rows"], certificate["erasure"]) == (1, 2)
    assert is_erased(lake, gone)
