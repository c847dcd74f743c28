"""A table that moves from one program to another: its events continue, and nothing fails."""

import logging
from collections.abc import Iterator
from hashlib import sha256
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import SecretStr

from tests.follow.waiting import wait_for
from tests.support.following import following, has_published, is_done
from tests.support.messages import decoded
from tests.support.published import publish, published, schema_of
from tests.support.webhooks import receiving
from writetime.core.config import Settings
from writetime.follow import shares
from writetime.follow.pipeline import TablePipeline
from writetime.follow.program import Follower
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import open_table
from writetime.landing.following import LandedTables, ends_of
from writetime.row_events.publish import EventPublisher, PartLimits, PublisherFenced
from writetime.row_events.stream import extend
from writetime.wire.topic_names import row_events_topic

pytestmark = pytest.mark.long


@pytest.fixture
def alerted(settings: Settings) -> Iterator[tuple[Settings, list[dict[str, Any]]]]:
    """Settings with a webhook, and the alerts that it takes."""
    with receiving() as (url, posted):
        alerts = settings.alerts.model_copy(update={"webhook": SecretStr(f"{url}token")})
        yield settings.model_copy(update={"alerts": alerts}), posted


class Program:
    """A program that follows one table, a round at a time."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._tables = LandedTables(settings, [name])
        _, ends = self._tables.ask()
        (landing,) = self._tables.wanted(ends)
        self.table = TablePipeline(settings, landing, FollowedTable(name))

    def has_published(self, rows: int) -> bool:
        """Run the steps that are due; return whether the publisher has published so many rows."""
        sources, ends = self._tables.ask()
        self.table.run(ends_of(ends, self.table.name), sources)
        return self.table.publishing.rows == rows and not self.table.publishing.is_behind


def assert_each_event_once(settings: Settings, name: str, count: int) -> None:
    wait_for(lambda: has_published(settings, name, count))
    events = decoded(settings, row_events_topic(name))
    assert len({event["event_id"] for event in events}) == len(events) == count


def test_two_publishers_in_turn(alerted: tuple[Settings, list[dict[str, Any]]]) -> None:
    settings, posted = alerted
    (name,) = published(settings, "a")
    one, other = Program(settings, name), Program(settings, name)
    wait_for(lambda: one.has_published(3))
    publish(settings, schema_of(settings, "a"), *range(10, 20))
    wait_for(lambda: other.has_published(10))
    publish(settings, schema_of(settings, "a"), *range(20, 40))
    wait_for(lambda: one.has_published(23))
    publish(settings, schema_of(settings, "a"), 50)
    wait_for(lambda: other.has_published(11))
    assert_each_event_once(settings, name, 34)
    assert posted == []
    assert {counts.failures for program in (one, other) for counts in program.table.counts().values()} == {0}


@pytest.mark.parametrize("count", [5, 30_000])
def test_a_fenced_publisher_reports_it(settings: Settings, count: int) -> None:
    """Also if its client learns of that between two messages."""
    (name,) = published(settings, "a")
    publish(settings, schema_of(settings, "a"), *range(10, 10 + count))
    assert [landed for _, landed in LandedTables(settings, [name]).land_once()] == [count + 3]
    table = open_table(settings, name)
    assert extend(table) == count + 3
    limits = PartLimits(events=1000)
    publisher = EventPublisher(settings, name, limits=limits)
    with EventPublisher(settings, name, limits=limits) as later:
        for _ in range(2):
            with pytest.raises(PublisherFenced, match="another publisher of the table has started since"):
                publisher.publish(table)
        assert later.publish(table) == count + 3
    assert_each_event_once(settings, name, count + 3)


def test_tables_move_to_another_program_and_back(
    alerted: tuple[Settings, list[dict[str, Any]]],
    zookeeper: Settings,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, posted = alerted
    share = settings.follow.model_copy(update={"share": True})
    settings = settings.model_copy(update={"follow": share, "zookeeper": zookeeper.zookeeper})
    names = published(settings, *(f"t{n}" for n in range(10)))
    monkeypatch.setattr(shares, "uuid", SimpleNamespace(uuid4=iter(both_with_tables(names)).__next__))
    with following(settings, *names) as one:
        wait_for(lambda: len(one.tables) == 10 and all(table.publishing.rows == 3 for table in one.tables.values()))
        with following(settings, *names) as other:
            wait_for(lambda: other.tables and one.tables.keys() ^ other.tables.keys() == set(names) and not one._left)
            moved = list(other.tables)
            change(settings, moved, 10, 4)
            assert_nothing_failed(other)
        wait_for(lambda: one.tables.keys() == set(names))
        change(settings, moved, 11, 5)
        assert_nothing_failed(one)
        for name in names:
            assert_each_event_once(settings, name, 5 if name in moved else 3)
    assert posted == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def both_with_tables(names: list[str]) -> list[UUID]:
    """Return the names of two programs that each get some of these tables. One pair in 512 does not."""
    while True:
        programs = [uuid4(), uuid4()]
        # Rendezvous hashing.
        owners = {max(programs, key=lambda p: sha256(f"{p.hex}/{name}".encode()).digest()) for name in names}
        if len(owners) == 2:
            return programs


def change(settings: Settings, names: list[str], row: int, rows: int) -> None:
    """Write a row to tables, and wait until they have so many."""
    for name in names:
        publish(settings, schema_of(settings, name.split(".")[1]), row)
    for name in names:
        wait_for(lambda name=name: is_done(settings, name, rows))
        wait_for(lambda name=name: has_published(settings, name, rows))


def assert_nothing_failed(follower: Follower) -> None:
    failed = {
        (table.name, step): n.failures for table in follower.tables.values() for step, n in table.counts().items()
    }
    assert set(failed.values()) == {0}, failed
