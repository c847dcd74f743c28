"""Dead letters are redriven once, also by a redrive that is interrupted and continued much later."""

from typing import Any

import pytest

from tests.workqueue.conftest import with_queue
from tests.workqueue.working import until, working
from writetime.core.config import Settings
from writetime.workqueue import Enqueuer, GiveUp, Item, NewItem, Worker, audit, redrive
from writetime.workqueue.dead_items import dead_letters
from writetime.workqueue.queue_tables import Tables


class Killed(Exception):
    """The process is killed."""


def with_dead_items(settings: Settings, jobs: str, count: int, **workqueue: Any) -> Settings:
    """Make dead letters."""
    quick = with_queue(settings, jobs, {"shards": 1}, **workqueue)

    def give_up(item: Item) -> None:
        raise GiveUp("no")

    with Enqueuer(quick) as enqueuer:
        enqueuer.enqueue_many(jobs, [NewItem(n) for n in range(count)])
    assert Worker(quick, {jobs: give_up}).run(until_idle=True) == {"dead": count}
    return quick


def kill_redrive_before(step: str, settings: Settings, jobs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Tables, step, die)
        with pytest.raises(Killed):
            redrive(settings, jobs)


@pytest.mark.parametrize("step", ["redriven_as", "insert_items"])
def test_a_redrive_that_goes_on_after_the_bucket_was_closed(
    queue_settings: Settings, jobs: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    short = {"bucket_seconds": 1, "close_after_seconds": 3.0, "enqueue_timeout_seconds": 1.5}
    settings = with_dead_items(queue_settings, jobs, 2, **short)
    kill_redrive_before(step, settings, jobs, monkeypatch)
    [named, other] = dead_letters(settings, jobs)
    assert named.redriven_as is not None
    assert other.redriven_as is None
    done: list[Any] = []
    with working(settings, {jobs: lambda item: done.append(item.payload)}):
        until(lambda: all(row.closed is not None for row in audit.buckets(settings, jobs)))
        assert redrive(settings, jobs) == 2
        until(lambda: len(done) == 2)
        assert redrive(settings, jobs) == 0
    assert sorted(done) == [0, 1]
    assert named.redriven_as not in {letter.redriven_as for letter in dead_letters(settings, jobs)}


def test_a_redrive_that_goes_on_soon_keeps_the_names(
    queue_settings: Settings, jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = with_dead_items(queue_settings, jobs, 1)
    kill_redrive_before("insert_items", settings, jobs, monkeypatch)
    [named] = dead_letters(settings, jobs)
    assert redrive(settings, jobs) == 0
    assert dead_letters(settings, jobs) == [named]
    assert Worker(settings, {jobs: lambda item: None}).run(until_idle=True) == {"completed": 1}
