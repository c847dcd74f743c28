"""A view and row events whose values have the form of an earlier release are written again."""

from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.event_replay import replayed
from tests.support.lake_answers import view_rows
from tests.support.made import add, settings_at, write
from writetime.lake import views
from writetime.lake.table import LakeTable, create_table, view_schema
from writetime.row_events import stream
from writetime.row_events.events import event_schema
from writetime.schema.cql import parse_table
from writetime.view.refreshing import refresh

MADE = parse_table("CREATE TABLE ks.t (id int, n int, v text, m map<double, int>, PRIMARY KEY (id, n))")
IN_MAPS = pa.map_(pa.float64(), pa.int32())


def in_maps(fields: pa.Schema) -> pa.Schema:
    """The fields with maps as earlier releases had them."""
    found = []
    for field in fields:
        kind = (
            pa.struct(list(in_maps(pa.schema(list(field.type))))) if field.name in ("before", "after") else field.type
        )
        found.append(pa.field(field.name, IN_MAPS if field.name == "m" else kind))
    return pa.schema(found)


def in_the_earlier_form(folder: Path) -> LakeTable:
    """A table with a row whose view and row events are those of an earlier release."""
    table = create_table(settings_at(folder), MADE)
    element = {"write_time": 5, "tombstone": False}
    keys = [{"path": -0.0, "value": 2, **element}, {"path": 0.0, "value": 3, **element}]
    add(table, [{**write(1, 1, 5, v="a"), "m": {"tombstone": None, "elements": keys}}], 1, MADE)
    assert (refresh(settings_at(folder), table).rows, stream.extend(table)) == (1, 1)
    table.view.replace(table.view.load(), [], in_maps(view_schema(table.schema())), {})
    table.row_events.replace(table.row_events.load(), [], in_maps(event_schema(table.schema())), {})
    table.follow(MADE)
    return table


def test_maps_that_became_lists(tmp_path: Path) -> None:
    settings, table = settings_at(tmp_path), in_the_earlier_form(tmp_path)
    assert (refresh(settings, table).written, stream.extend(table)) == (1, 1)
    assert str(table.view.read(["m"]).to_pylist()) == "[{'m': [{'key': -0.0, 'value': 2}, {'key': 0.0, 'value': 3}]}]"
    assert (refresh(settings, table).written, stream.extend(table)) == (0, 0)


class Killed(BaseException):
    """Ends a batch after it has written its files, and before it commits."""


def test_a_batch_in_the_present_form_that_is_killed_is_repeated(tmp_path: Path) -> None:
    settings, table = settings_at(tmp_path), in_the_earlier_form(tmp_path)
    before = table.view.load().version, table.row_events.load().version

    def killed(*_args: object, **_options: object) -> None:
        raise Killed

    with pytest.raises(Killed):
        refresh(settings, table, staged=killed)
    with pytest.raises(Killed):
        stream.extend(table, staged=killed)
    assert (table.view.load().version, table.row_events.load().version) == before
    # The change of the next batch is not all that it has.
    add(table, [write(2, 1, 6, v="b")], 2, MADE)
    assert (refresh(settings, table).written, stream.extend(table)) == (2, 2)
    assert replayed(table) == view_rows(views.virtual(table))
    assert (refresh(settings, table).written, stream.extend(table)) == (0, 0)
