"""The metrics of followed tables, while landing works and while it does not."""

import pytest

from tests.follow.waiting import wait_for
from tests.support.following import following, has_published, is_done
from tests.support.published import hurry, produce, publish, published, schema_of
from writetime.core.config import Settings
from writetime.follow.metrics import FollowMetrics
from writetime.follow.program import Follower
from writetime.lake.table import open_table
from writetime.wire.topic_names import changes_topic

STEPS = ("landing", "row events", "publishing", "view")


def metrics(follower: Follower) -> dict[tuple[str, str | None], float]:
    """The values by metric and step."""
    found = FollowMetrics(lambda: list(follower.tables.values()), dict, lambda: 7).collect()
    return {(sample.name, sample.labels.get("step")): sample.value for metric in found for sample in metric.samples}


def test_landing_is_a_step(settings: Settings) -> None:
    (name,) = published(settings, "a")
    with following(settings, name) as follower:
        wait_for(lambda: is_done(settings, name, 3))
        # The commit of a step is there before the step is counted.
        wait_for(lambda: {metrics(follower)["writetime_follow_behind_seconds", step] for step in STEPS} == {0})
        found = metrics(follower)
    for step in STEPS:
        assert found["writetime_follow_rows_total", step] == 3
        assert found["writetime_follow_batch_rows", step] == 3
        for metric in ("seconds_total", "cpu_seconds_total", "delay_seconds"):
            assert 0 < found[f"writetime_follow_{metric}", step] < 60
    assert found["writetime_follow_errors_total", "landing"] == 0
    assert found["writetime_follow_waiting_changes", None] == 0


def files(follower: Follower) -> dict[str, float]:
    """The live files by part."""
    found = FollowMetrics(lambda: list(follower.tables.values()), dict, lambda: 7).collect()
    samples = [sample for metric in found for sample in metric.samples if sample.name == "writetime_follow_files"]
    return {sample.labels["part"]: sample.value for sample in samples}


def test_files_and_cache_are_shown(settings: Settings) -> None:
    (name,) = published(settings, "a")
    with following(settings, name) as follower:
        wait_for(lambda: is_done(settings, name, 3) and has_published(settings, name, 3))
        table = open_table(settings, name)
        parts = {"changes": table.changes, "state": table.state, "view": table.view, "row_events": table.row_events}
        # The fold, which comes last, gives the state its file.
        wait_for(lambda: table.state.load().files)
        wait_for(lambda: files(follower) == {name: len(part.load().files) for name, part in parts.items()})
        assert all(files(follower).values())
        assert metrics(follower)["writetime_follow_cache_bytes", None] == 7


def test_a_table_that_does_not_land_is_behind(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a start of the program, which has never landed it."""
    hurry(monkeypatch)
    (name,) = published(settings, "a")
    with following(settings, name) as follower:
        wait_for(lambda: is_done(settings, name, 3))
        produce(settings, changes_topic(name), (b"no key", b"no change"))
        wait_for(lambda: name in follower.tables and follower.tables[name].landing.failures > 0)
        publish(settings, schema_of(settings, "a"), 10, 11)
        assert_behind(follower)
    with following(settings, name) as follower:
        wait_for(lambda: name in follower.tables and follower.tables[name].landing.failures > 0)
        assert_behind(follower)


def assert_behind(follower: Follower) -> None:
    wait_for(lambda: metrics(follower)["writetime_follow_waiting_changes", None] == 3)
    first = metrics(follower)["writetime_follow_behind_seconds", "landing"]
    wait_for(lambda: metrics(follower)["writetime_follow_behind_seconds", "landing"] > max(first, 1))
