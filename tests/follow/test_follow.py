"""One program turns changes in Kafka into row events and views, even if it fails, is killed, or is not alone."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession

from tests.follow.waiting import wait_for
from tests.support.clocks import set_clock
from tests.support.following import following, has_published, is_done, rows_shown, shown
from tests.support.made import add, write
from tests.support.messages import decoded
from tests.support.programs import Program
from tests.support.published import command, publish, published, reports, schema_of, send
from tests.support.webhooks import receiving
from writetime.core.config import Settings
from writetime.follow import pipeline, steps
from writetime.follow.program import Follower
from writetime.lake import state
from writetime.lake.table import LakeTable, is_in_lake, open_table
from writetime.landing import landing
from writetime.schema.table import DroppedColumn
from writetime.wire.topic_names import row_events_topic

pytestmark = pytest.mark.long


def test_from_kafka_to_events_and_view(settings: Settings) -> None:
    first, second = published(settings, "a", "b")
    with following(settings, first, second):
        wait_for(lambda: all(is_done(settings, name, 3) for name in (first, second)))
        publish(settings, schema_of(settings, "a"), *range(2, 40))
        wait_for(lambda: is_done(settings, first, 39))
        wait_for(lambda: has_published(settings, first, 39) and has_published(settings, second, 3))
    events = decoded(settings, row_events_topic(first))
    assert sorted(event["after"]["id"] for event in events if event["kind"] == "CREATE") == list(range(1, 40))
    assert set(reports(settings)[first].steps) == {"row events", "publishing", "view", "upkeep"}
    # Another program continues from the position that it left.
    with following(settings, first):
        publish(settings, schema_of(settings, "a"), 50)
        wait_for(lambda: is_done(settings, first, 40) and has_published(settings, first, 40))


def expiring(key: int, ttl: int) -> dict[str, Any]:
    """A row that is written now and expires after some seconds."""
    now = int(time.time())
    row = write(key, 0, now * 1_000_000, v="a")
    row["marker"] |= {"ttl": ttl, "expiry": now + ttl}
    row["v"] |= {"ttl": ttl, "deletion_time": now + ttl}
    return row


def test_data_expires_without_a_change(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = schema_of(settings, "a")
    send(settings, schema, write(2, 0, 5, v="b"))
    with following(settings, schema.full_name):
        wait_for(lambda: is_done(settings, schema.full_name, 1))
        send(settings, schema, expiring(1, 1800))
        wait_for(lambda: rows_shown(settings, schema.full_name) == 2 and has_published(settings, schema.full_name, 2))
        set_clock(monkeypatch, 3600)
        wait_for(lambda: is_done(settings, schema.full_name, 1))
        wait_for(lambda: has_published(settings, schema.full_name, 3))
    kinds = [event["kind"] for event in decoded(settings, row_events_topic(schema.full_name))]
    assert sorted(kinds) == ["CREATE", "CREATE", "DELETE"]


def test_data_expires_while_nothing_follows(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = schema_of(settings, "a")
    name = schema.full_name
    send(settings, schema, write(2, 0, 5, v="b"))
    with following(settings, name):
        wait_for(lambda: is_done(settings, name, 1))
        send(settings, schema, expiring(1, 1800))
        wait_for(lambda: len(shown(settings, name)) == 2 and has_published(settings, name, 2))
    set_clock(monkeypatch, 3600)
    assert len(shown(settings, name)) == 2
    with following(settings, name):
        wait_for(lambda: len(shown(settings, name)) == 1)
        wait_for(lambda: has_published(settings, name, 3))
    events = [(event["kind"], event["before"]) for event in decoded(settings, row_events_topic(name))]
    assert [before["id"] for kind, before in events if kind == "DELETE"] == [1]
    assert sorted(kind for kind, _ in events) == ["CREATE", "CREATE", "DELETE"]


def test_data_expires_at_one_time_after_the_other(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    """Some cells expire between a batch and the search for the next expiry."""
    count = 10 if is_long else 5
    schema = schema_of(settings, "a")
    send(settings, schema, write(20, 0, 5, v="stays"))
    with following(settings, schema.full_name):
        wait_for(lambda: is_done(settings, schema.full_name, 1))
        sent = time.time()
        send(settings, schema, *(expiring(i, 1800 + i) for i in range(1, count + 1)))
        wait_for(lambda: rows_shown(settings, schema.full_name) == count + 1)
        wait_for(lambda: has_published(settings, schema.full_name, count + 1))
        # From now on one per second, however long the first batch took.
        set_clock(monkeypatch, 1800 - round(time.time() - sent))
        wait_for(lambda: is_done(settings, schema.full_name, 1))
        wait_for(lambda: has_published(settings, schema.full_name, 2 * count + 1))
    kinds = [event["kind"] for event in decoded(settings, row_events_topic(schema.full_name))]
    assert (kinds.count("CREATE"), kinds.count("DELETE")) == (count + 1, count)


def test_a_schema_alone_reaches_events_and_view(settings: Settings) -> None:
    """A column is dropped and added again: its earlier values are void, without any new change."""
    (name,) = published(settings, "a")
    schema = schema_of(settings, "a")
    with following(settings, name):
        wait_for(lambda: is_done(settings, name, 3))
        assert "'1'" in str(shown(settings, name))
        v = next(column for column in schema.regular if column.name == "v")
        send(settings, replace(schema, dropped=(DroppedColumn("v", v.type, False, 6),)))
        wait_for(lambda: "'1'" not in str(shown(settings, name)))
        wait_for(lambda: has_published(settings, name, 6))
    values = [(event["kind"], event["after"]["v"]) for event in decoded(settings, row_events_topic(name))]
    assert sorted(values, key=str) == [*[("CREATE", str(i)) for i in (1, 2, 3)], *[("UPDATE", None)] * 3]


@pytest.mark.parametrize("view", ["vectors", "rewritten"])
def test_a_step_that_is_no_longer_wanted_holds_no_state(
    settings: Settings, view: Literal["vectors", "rewritten"]
) -> None:
    (name,) = published(settings, "a")
    with following(settings, name):
        wait_for(lambda: is_done(settings, name, 3) and has_published(settings, name, 3))
    tables = {settings.cassandra.keyspace: {"a": {"row_events": False}}}
    lake = settings.lake.model_copy(update={"view": view})
    settings = settings.model_copy(update={"tables": tables, "lake": lake})
    with following(settings, name):
        publish(settings, schema_of(settings, "a"), *range(10, 20))
        wait_for(lambda: is_done(settings, name, 13))
        table = open_table(settings, name)
        wait_for(lambda: state.unfolded(table, table.changes.load(), table.state.load()) == [])
    assert has_published(settings, name, 3)


@pytest.mark.parametrize("step", ["extend", "refresh", "EventPublisher"])
def test_a_step_that_fails_does_not_stop_other_tables(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = published(settings, "bad", "good")
    works, real = threading.Event(), getattr(pipeline, step)

    def fails(*arguments: Any, **named: Any) -> Any:
        if not works.is_set() and any(bad in (found, getattr(found, "name", None)) for found in arguments):
            raise RuntimeError("a bug")
        return real(*arguments, **named)

    monkeypatch.setattr(pipeline, step, fails)
    name = {"extend": "row events", "refresh": "view", "EventPublisher": "publishing"}[step]
    with following(settings, bad, good) as follower:
        wait_for(lambda: is_done(settings, good, 3))
        wait_for(lambda: follower.tables[bad].counts()[name].failures > 1)
        assert "a bug" in str(reports_soon(settings, bad, name))
        # The earlier steps continue.
        assert is_in_lake(settings, bad)
        works.set()
        wait_for(lambda: is_done(settings, bad, 3) and not follower.tables[bad].publishing.is_behind)
        assert has_published(settings, bad, 3)
    assert sum("a bug" in r.getMessage() for r in caplog.records if r.name == steps.__name__) == 1


def test_tables_that_stand_still_do_not_delay_the_others(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as many as there are places for tables at work."""
    *still, last = published(settings, *"abcdefgh", "i")
    released, real, seen = threading.Event(), pipeline.extend, set[str]()

    def waits(table: LakeTable, **named: Any) -> int:
        if table.name != last:
            seen.add(table.name)
            assert released.wait(120)
        return real(table, **named)

    monkeypatch.setattr(pipeline, "extend", waits)
    with following(settings, *still, last) as follower:
        try:
            wait_for(lambda: seen == set(still))
            wait_for(lambda: is_in_lake(settings, last) and is_done(settings, last, 3))
            assert not any(follower.tables[name].view.rows for name in still)
        finally:
            released.set()
        wait_for(lambda: all(is_done(settings, name, 3) for name in still))


def test_a_backlog_lands_in_several_turns(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """So that other tables get theirs between. Row events and view follow each."""
    caplog.set_level("INFO")
    monkeypatch.setattr(landing, "BATCH_MESSAGES", 2)
    (name,) = published(settings, "a")
    publish(settings, schema_of(settings, "a"), *range(10, 60))
    with following(settings, name) as follower:
        wait_for(lambda: is_done(settings, name, 53))
        wait_for(lambda: not follower.tables[name].landing.is_behind)
        assert follower.tables[name].landing.rows == 53
        wait_for(lambda: has_published(settings, name, 53))
    assert len([record for record in caplog.records if f" changes of {name} landed" in record.getMessage()]) > 2


def test_rows_that_are_not_as_expected_hold_their_view(settings: Settings) -> None:
    """Its events continue, and an alert is sent; when the rows are as expected again, the view is refreshed again."""
    bad, good = published(settings, "bad", "good")
    expected = [{"type": "expect_column_values_to_not_be_in_set", "column": "v", "value_set": ["20"]}]
    tables = {settings.cassandra.keyspace: {"bad": {"expect": expected}, "good": {}}}
    with receiving() as (url, posted):
        alerts = settings.alerts.model_copy(update={"webhook": SecretStr(f"{url}token")})
        settings = settings.model_copy(update={"tables": tables, "alerts": alerts})
        with following(settings, bad, good) as follower:
            wait_for(lambda: is_done(settings, bad, 3))
            for name in ("bad", "good"):
                # The one that is not as expected comes first: the other one alone could land in a batch of its own.
                for key in (20, 10):
                    publish(settings, schema_of(settings, name), key)
            wait_for(lambda: follower.tables[bad].view.report.unexpected)
            wait_for(lambda: is_done(settings, good, 5))
            wait_for(lambda: has_published(settings, bad, 5))
            assert len(shown(settings, bad)) == 3
            wait_for(lambda: reports(settings)[bad].steps["view"].unexpected)
            wait_for(lambda: posted)
            assert [alert["title"] for alert in posted] == [f"{bad}: view fails, and is retried"]
            assert "`v` not in set ['20']: 1 of " in posted[0]["text"]
            send(settings, schema_of(settings, "bad"), write(20, 0, 9, v="twenty"))
            wait_for(lambda: is_done(settings, bad, 5))
            wait_for(lambda: not reports(settings)[bad].steps["view"].unexpected)
    assert len(posted) == 1


def test_the_changes_of_a_backfill(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "LOOK_SECONDS", 0.2)
    (name,) = published(settings, "a")
    with following(settings, name):
        wait_for(lambda: is_done(settings, name, 3))
        old = [write(i, 0, 9, v="old") for i in (3, 70, 71)]
        assert add(open_table(settings, name), old, 1, schema_of(settings, "a"))
        wait_for(lambda: is_done(settings, name, 5))


def test_a_large_batch_runs_in_spark(settings: Settings, spark: SparkSession) -> None:
    """On this thread, which the session belongs to."""
    settings = settings.model_copy(update={"follow": settings.follow.model_copy(update={"spark_changes": 10})})
    (name,) = published(settings, "a")
    publish(settings, schema_of(settings, "a"), *range(10, 40))
    stop, tracker, follower = threading.Event(), spark.sparkContext.statusTracker(), Follower(settings, [name])

    def newest_job() -> int:
        """The number of the last job. Spark forgets the first ones, of earlier tests."""
        return max(tracker.getJobIdsForGroup(None), default=-1)

    def feed() -> None:
        try:
            wait_for(lambda: is_done(settings, name, 33))
            # The upkeep after it runs in Spark, too.
            wait_for(lambda: not any(step.is_behind for step in follower.tables[name].steps))
            jobs.append(newest_job())
            # Few changes.
            publish(settings, schema_of(settings, "a"), 50)
            wait_for(lambda: is_done(settings, name, 34) and has_published(settings, name, 34))
            jobs.append(newest_job())
        finally:
            stop.set()

    jobs = [newest_job()]
    feeding = threading.Thread(target=feed)
    feeding.start()
    follower.run(stop)
    feeding.join()
    first, large, few = jobs
    assert first < large == few


def reports_soon(settings: Settings, table: str, step: str) -> str | None:
    wait_for(lambda: table in reports(settings) and reports(settings)[table].steps.get(step) is not None)
    wait_for(lambda: reports(settings)[table].steps[step].fault is not None)
    return reports(settings)[table].steps[step].fault


def test_two_at_once_are_harmless(settings: Settings) -> None:
    """Without shares: both follow both tables."""
    names = published(settings, "a", "b")
    with following(settings, *names), following(settings, *names):
        for first in range(10, 60, 10):
            for name in ("a", "b"):
                publish(settings, schema_of(settings, name), *range(first, first + 10))
        wait_for(lambda: all(is_done(settings, name, 53) for name in names))
        wait_for(lambda: all(has_published(settings, name, 53) for name in names))
    for name in names:
        events = decoded(settings, row_events_topic(name))
        assert len({event["event_id"] for event in events}) == len(events) == 53


def test_killed_again_and_again(settings: Settings, tmp_path: Path, is_long: bool) -> None:
    (name,) = published(settings, "a")
    program = Program(tmp_path, "follow", "follow", name)
    program.start()
    count = 3
    try:
        for kills in range(1, 5 if is_long else 3):
            publish(settings, schema_of(settings, "a"), *range(count + 1, count + 21))
            count += 20
            wait_for(lambda count=count: rows_shown(settings, name) > count - 20)
            program.kill()
            wait_for(lambda kills=kills: sum(program.ends.values()) >= kills)
        wait_for(lambda: is_done(settings, name, count) and has_published(settings, name, count))
        # The fold comes after both.
        wait_for(lambda: state.folded_version(open_table(settings, name).state.load()) is not None)
    finally:
        program.end()


def test_view_waits_for_rows(settings: Settings) -> None:
    schema = schema_of(settings, "late")
    assert "late" in command("view", schema.full_name, "--wait", "0.1").output
    with following(settings):
        for number in (1, 2):
            threading.Timer(1, partial(publish, settings, schema, number)).start()
            answer = command(
                "view", schema.full_name, "--where", f"id = {number}", "--wait", "180", "--format", "jsonl"
            )
            assert answer.exit_code == 0, answer.output
            assert json.loads(answer.stdout)["id"] == number


def test_the_changes_of_a_table_that_comes_later(settings: Settings) -> None:
    follower_names: Callable[[Follower], set[str]] = lambda follower: set(follower.tables)  # noqa: E731
    with following(settings) as follower:
        (name,) = published(settings, "late")
        wait_for(lambda: name in follower_names(follower))
        wait_for(lambda: is_done(settings, name, 3))
    own = replace(schema_of(settings, "late"), name="never")
    assert not is_in_lake(settings, own.full_name)
