"""Snapshots that an operator took and named: those that the agent publishes, and their rows that count."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from tests.scylla_cdc.agents import (
    assert_view,
    follow,
    insert,
    land,
    settings_for,
    source_of,
    sources,
    truncate,
    wait_until,
)
from tests.scylla_cdc.conftest import Logged
from tests.scylla_cdc.databases import CdcDatabase, now
from tests.support.programs import agent
from tests.support.recordings import SCYLLA
from tests.support.waiting import wait_for
from writetime.capture.snapshots import NamedTaker
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.lake.backfill import find_snapshots
from writetime.landing.landing import Landing
from writetime.scylla_cdc.source import open_source
from writetime.wire.watermarks import TableMark

pytestmark = pytest.mark.long

RECORDED = str(SCYLLA / "rec101" / "Tab2.sstables")


def naming(settings: Settings, table: Logged, folders: Sequence[Path]) -> Settings:
    """Settings whose agent publishes a snapshot at each start."""
    named = {"snapshot": "always", "snapshot_folders": {table.schema.full_name: [str(path) for path in folders]}}
    return settings.model_copy(update={"capture": settings.capture.model_copy(update=named)})


def mark(settings: Settings, table: Logged) -> TableMark:
    return sources(settings)[source_of(table)].tables[table.schema.full_name]


def create_again(cdc: CdcDatabase, table: Logged) -> None:
    """Drop a table and its log, and create both with the same columns."""
    name = table.schema.full_name
    for dropped in (name, f"{name}_scylla_cdc_log"):
        cdc.session.execute(f"DROP TABLE {dropped}")
    table.schema, table.origins = cdc.create(replace(table.schema, id=None)), []


def test_a_snapshot_of_an_earlier_table_of_the_name_is_refused() -> None:
    # No snapshot, but SSTables that are named one by one.
    places = sorted(map(str, Path(RECORDED).glob("*-Data.db")))
    found = find_snapshots(places).schema
    assert found.id is not None
    taker = NamedTaker({found.full_name: places}, lambda _: 0, None)
    assert taker.take({found.full_name: found.id}, "")[found.full_name].folders == places
    with pytest.raises(WritetimeError, match=f"of an earlier table {found.full_name}, with the id {found.id}"):
        taker.take({found.full_name: uuid4()}, "")


def test_a_table_created_again_does_not_get_rows_of_the_earlier_snapshot(
    cdc: CdcDatabase, late: Logged, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    follow(cdc, late, 1)
    settings = settings_for(cdc, tmp_path, late, window_seconds=0.5)
    insert(cdc, late, 1)
    named = naming(settings, late, take_snapshot(cdc.settings, late.schema.full_name, "first"))
    with agent(named):
        wait_until(settings, late, now())
        wait_for(lambda: mark(settings, late).until)
    land(settings, late)
    assert_view(settings, late)
    create_again(cdc, late)
    follow(cdc, late, 1000)
    with agent(named):
        insert(cdc, late, 2)
        wait_until(settings, late, now())
        wait_for(lambda: "is a snapshot of an earlier table" in caplog.text)
    assert land(settings, late).keys() == set(late.origins)
    assert_view(settings, late)
    assert mark(settings, late).until == 0


def test_a_snapshot_from_before_the_log_was_created_is_refused(
    cdc: CdcDatabase, late: Logged, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Streams of a keyspace with vnodes are older than the logs of its tables."""
    follow(cdc, late, 1000)
    settings = settings_for(cdc, tmp_path, late, window_seconds=0.5)
    folders = take_snapshot(cdc.settings, late.schema.full_name, "before")
    time.sleep(0.01)
    before = now()
    cdc.session.execute(f"DROP TABLE {late.schema.full_name}_scylla_cdc_log")
    cdc.create_log(late.schema)
    with open_source(settings, late.schema.full_name) as source:
        assert before <= source.created <= now()
    with agent(naming(settings, late, folders)):
        wait_for(lambda: "neither has the writes in between" in caplog.text)
        wait_until(settings, late, now())
    assert mark(settings, late).until == 0


def test_a_snapshot_from_before_a_truncation_does_not_count(cdc: CdcDatabase, late: Logged, tmp_path: Path) -> None:
    """Even if it is published afterwards. A later one closes the gap, and the watermark advances again."""
    follow(cdc, late, 1)
    name = late.schema.full_name
    settings = settings_for(cdc, tmp_path, late, window_seconds=0.5)
    landing = Landing(settings, name)
    for key in range(3):
        insert(cdc, late, key)
    old = take_snapshot(cdc.settings, name, "old")
    with agent(settings):
        wait_until(settings, late, now())
    land(settings, late)
    time.sleep(0.01)
    truncate(cdc, late)
    time.sleep(0.01)
    insert(cdc, late, 3)
    for folders in (old, take_snapshot(cdc.settings, name, "later")):
        with agent(naming(settings, late, folders)):
            wait_until(settings, late, now())
            wait_for(lambda: mark(settings, late).truncation and mark(settings, late).until)
        landing.drain()
        assert_view(settings, late)
        assert ("was truncated at" in (landing.held_by or "")) == (folders == old)
