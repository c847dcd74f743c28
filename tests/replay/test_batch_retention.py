"""Retention: it deletes the oldest batches, but none that a known processor has not done. Numbers never start again."""

import json
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from tests.replay.processing import done
from tests.support.settings import write_settings
from writetime.cli.main import main
from writetime.clients import database
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.replay import (
    Batch,
    Effects,
    Publisher,
    Subscriber,
    advance,
    check,
    extent,
    forget,
    lag,
    publisher,
    replay,
    retention,
    seek,
    trim,
)
from writetime.replay.batches import Batches, Gone


@pytest.fixture
def trimming(replay_settings: Settings, queue: str) -> Settings:
    """Settings with which published batches are too old at once."""
    own = replay_settings.replay.model_copy(update={"keep_days": {queue: 1e-9}})
    return replay_settings.model_copy(update={"replay": own})


class Enough(Exception):
    """A handler accepts no more."""


def publish(settings: Settings, queue: str, *sequences: int) -> list[int]:
    with Publisher(settings, queue) as publisher:
        return [publisher.publish([b"%d" % n], producer="p", sequence=n) for n in sequences]


def work(settings: Settings, queue: str, name: str, until: int) -> None:
    """Process batches up to one."""

    def handle(batch: Batch) -> None:
        if batch.n > until:
            raise Enough

    with Subscriber(settings, queue, name) as subscriber, pytest.raises(Enough):
        subscriber.run(handle)


def blocks(settings: Settings, queue: str) -> int:
    with database.connect(settings) as session:
        rows = session.execute(f"SELECT queue FROM {settings.cassandra.keyspace}.replay_blocks")
        return sum(row.queue == queue for row in rows)


def test_old_batches_are_deleted_when_all_processors_have_done_them(
    trimming: Settings, queue: str, replay_settings: Settings
) -> None:
    with pytest.raises(WritetimeError, match=r"all batches of queue \w+ are kept.*\[replay.keep_days\]"):
        trim(replay_settings, queue)
    publish(trimming, queue, *range(1, 8))
    for name, until in (("a", 3), ("b", 5)):
        work(trimming, queue, name, until)
    for deleted in (3, 0):
        found = trim(trimming, queue)
        assert (found.gone, found.deleted, found.due, found.waits_for) == (3, deleted, 7, "a")
    assert blocks(trimming, queue) == 4
    # Readers report it.
    assert extent(trimming, queue) == (4, 7)
    assert [b.n for b in replay(trimming, queue)] == [4, 5, 6, 7]
    for ends in ((1, None), (3, 5), (None, 2)):
        with pytest.raises(Gone, match=f"the batches of queue {queue} up to 3 were deleted.*is 4"):
            list(replay(trimming, queue, *ends))
    found = check(trimming, queue)
    assert (found.batches, found.items, found.faults, found.gone) == (4, 4, [], 3)
    for to in (3, datetime.now(UTC) - timedelta(days=1)):
        with pytest.raises(Gone):
            seek(trimming, queue, "a", to)
    assert {x.processor: x.done for x in lag(trimming, queue)} == {"a": 3, "b": 5}
    # Numbers continue, and the published batches are known.
    assert publish(trimming, queue, 7, 8) == [7, 8]
    # Who is new begins with the first one that is there, and is then waited for.
    assert [b.n for b in done(trimming, queue, "new")] == [4, 5, 6, 7, 8]
    with pytest.raises(WritetimeError, match="has no processor c; it has a, b, new"):
        forget(trimming, queue, "c")
    forget(trimming, queue, "a")
    assert trim(trimming, queue).gone == 5
    advance(trimming, queue, "b", 8)
    assert (trim(trimming, queue).gone, blocks(trimming, queue)) == (8, 0)
    assert list(replay(trimming, queue)) == []
    assert check(trimming, queue).gone == 8
    assert publish(trimming, queue, 9) == [9]
    assert [b.n for b in done(trimming, queue, "b")] == [9]


def test_young_batches_stay(trimming: Settings, queue: str) -> None:
    own = trimming.replay.model_copy(update={"keep_days": {queue: 1.0}})
    publish(trimming, queue, 1, 2)
    found = trim(trimming.model_copy(update={"replay": own}), queue)
    assert (found.gone, found.due) == (0, 0)


@pytest.mark.parametrize(("module", "ahead"), [(publisher, -30), (publisher, 30), (retention, 30)])
def test_a_wrong_clock_makes_no_batch_old_or_young(
    trimming: Settings, queue: str, monkeypatch: pytest.MonkeyPatch, module: ModuleType, ahead: int
) -> None:
    """That of the machine that publishes, or deletes, is days ahead or behind."""

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(days=ahead)

    own = trimming.replay.model_copy(update={"keep_days": {queue: 1.0}})
    with monkeypatch.context() as patch:
        patch.setattr(module, "datetime", Wrong, raising=False)
        publish(trimming, queue, 1, 2)
        found = trim(trimming.model_copy(update={"replay": own}), queue)
        assert (found.gone, found.due) == (0, 0)
    assert trim(trimming, queue).due == 2


def test_a_new_processor_with_effects_begins_after_the_deleted_batches(trimming: Settings, queue: str) -> None:
    publish(trimming, queue, 1, 2, 3)
    trim(trimming, queue)
    publish(trimming, queue, 4, 5)
    table = f"{trimming.cassandra.keyspace}.effects_{queue}"
    with database.connect(trimming) as session:
        session.execute(f"CREATE TABLE {table} (part text, cursor bigint static, n bigint, PRIMARY KEY (part, n))")
        with Subscriber(trimming, queue, "p") as subscriber:
            insert = f"INSERT INTO {table} (part, n) VALUES ('all', ?)"
            effects = Effects(table, {"part": "all"})
            assert subscriber.run(lambda b: [(insert, [b.n])], effects=effects, until_idle=True) == 2
        assert sorted(tuple(row) for row in session.execute(f"SELECT n, cursor FROM {table}")) == [(4, 5), (5, 5)]


def test_a_cursor_that_goes_back_meanwhile(trimming: Settings, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches to which a `seek` was accepted are not deleted, although their deletion was announced."""
    publish(trimming, queue, *range(1, 6))
    done(trimming, queue, "a")
    announce = Batches.announce

    def moved_before(batches: Batches, queue: str, n: int) -> None:
        assert seek(trimming, queue, "a", 3) == 3
        announce(batches, queue, n)

    with monkeypatch.context() as patched:
        patched.setattr(Batches, "announce", moved_before)
        found = trim(trimming, queue)
    assert (found.gone, found.deleted, found.waits_for) == (5, 2, "a")
    with pytest.raises(Gone):
        seek(trimming, queue, "a", 4)
    assert [b.n for b in done(trimming, queue, "a")] == [3, 4, 5]
    assert (trim(trimming, queue).deleted, blocks(trimming, queue)) == (3, 0)


def test_commands(
    replay_settings: Settings, trimming: Settings, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(replay_settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    monkeypatch.setenv("WRITETIME_REPLAY__KEEP_DAYS", json.dumps({queue: 1e-9}))
    publish(trimming, queue, 1, 2, 3)
    work(trimming, queue, "a", 1)

    def run(*arguments: str) -> str:
        return CliRunner(catch_exceptions=False).invoke(main, ["replay", *arguments]).output

    assert run("trim", queue) == (
        "deleted 1 batch; those up to 1 are gone; those up to 3 are old enough, but processor a has not processed "
        "all of them\n"
    )
    assert run("check", queue) == "2 batches, 2 items, 0 faults; those up to 1 are gone\n"
    assert [json.loads(line)["n"] for line in run("read", queue).splitlines()] == [2, 3]
    assert "up to 1 were deleted" in run("read", queue, "--from", "1")
    assert run("forget", queue, "a") == "forgotten: a\n"
    assert run("trim", queue) == "deleted 2 batches; those up to 3 are gone\n"
