"""While tables are followed: a full disk, an object store that stops, and a clock that is set forwards and back."""

import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.follow.waiting import wait_for
from tests.support.clocks import set_clock
from tests.support.disks import fill, small_disk
from tests.support.following import following, has_published, is_done, rows_shown, shown
from tests.support.made import write
from tests.support.messages import decoded
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.published import publish, published, schema_of, send
from writetime.core import config
from writetime.core.config import Settings
from writetime.follow.program import Follower
from writetime.wire.topic_names import row_events_topic

pytestmark = pytest.mark.long


def with_lake(settings: Settings, **lake: Any) -> Settings:
    changed = settings.lake.model_dump() | lake
    return settings.model_copy(update={"lake": config.Lake.model_validate(changed)})


def faults_of(follower: Follower, name: str) -> list[str]:
    """The current faults of landing and the steps."""
    table = follower.tables[name]
    found = [table.landing.report.fault, *(step.fault for step in table.steps)]
    return [fault for fault in found if fault is not None]


def assert_each_event_once(settings: Settings, name: str, count: int) -> None:
    wait_for(lambda: has_published(settings, name, count))
    events = decoded(settings, row_events_topic(name))
    assert len({event["event_id"] for event in events}) == len(events) == count


@pytest.mark.parametrize("free", [0, 9_000])
def test_the_program_waits_while_a_disk_is_full(settings: Settings, tmp_path: Path, free: int) -> None:
    """Also if it has room for the files of some of the steps."""
    with small_disk(tmp_path, 1024) as disk:
        settings = with_lake(settings, path=str(disk / "lake"))
        (name,) = published(settings, "a")
        with following(settings, name) as follower:
            wait_for(lambda: is_done(settings, name, 3))
            filling = fill(disk, free=free)
            publish(settings, schema_of(settings, "a"), *range(10, 300))
            wait_for(lambda: any("No space left on device" in fault for fault in faults_of(follower, name)))
            filling.unlink()
            wait_for(lambda: is_done(settings, name, 293))
            assert_each_event_once(settings, name, 293)
            wait_for(lambda: not faults_of(follower, name))


def test_programs_wait_for_an_object_store_that_stops(settings: Settings, tmp_path: Path) -> None:
    store = ObjectStore(tmp_path / "store")
    store.start()
    try:
        settings = with_lake(settings, path=f"s3://{BUCKET}/{uuid.uuid4().hex}", storage_options=store.options)
        (name,) = published(settings, "a")
        with following(settings, name) as follower:
            wait_for(lambda: name in follower.tables and follower.tables[name].publishing.rows == 3)
            store.stop()
            publish(settings, schema_of(settings, "a"), *range(10, 50))
            wait_for(lambda: faults_of(follower, name))
            assert "\x1b" not in str(faults_of(follower, name))
            assert follower.tables[name].landing.report.status != "set aside"
            store.start()
            assert_each_event_once(settings, name, 43)
            wait_for(lambda: not faults_of(follower, name))
    finally:
        store.stop()


def test_a_clock_that_is_set_forwards_and_back(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that expired only because the clock was ahead return, without a change; and new changes are followed."""
    schema = schema_of(settings, "a")
    now = int(time.time())
    row = write(1, 0, now * 1_000_000, v="a")
    row["marker"] |= {"ttl": 1800, "expiry": now + 1800}
    row["v"] |= {"ttl": 1800, "deletion_time": now + 1800}
    send(settings, schema, row, write(2, 0, 5, v="b"))
    with following(settings, schema.full_name):
        wait_for(lambda: rows_shown(settings, schema.full_name) == 2)
        for step, rows, events in ((-3600, 12, 12), (3600, 21, 23), (0, 22, 24), (0, 32, 34)):
            set_clock(monkeypatch, step)
            if rows != 22:
                publish(settings, schema, *range(rows * 10, rows * 10 + 10))
            wait_for(lambda rows=rows: rows_shown(settings, schema.full_name) == rows)
            # The search for events may come later, and would miss a clock that is right again.
            wait_for(lambda events=events: has_published(settings, schema.full_name, events))
            assert len(shown(settings, schema.full_name)) == rows
        assert_each_event_once(settings, schema.full_name, 34)
    kinds = [event["kind"] for event in decoded(settings, row_events_topic(schema.full_name))]
    assert (kinds.count("CREATE"), kinds.count("DELETE")) == (33, 1)
