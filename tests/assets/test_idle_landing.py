"""What a tick of the sensor `captured_changes` reads of the lake, if nothing has landed since the tick before."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, build_sensor_context

from tests.support.made import add, new_table, write
from writetime.clients.kafka import TopicEnds
from writetime.delta import commits
from writetime.delta.bucketed_table import BucketedTable
from writetime.delta.storage import Storage
from writetime.lake.followed_tables import FollowedTable
from writetime.landing.landed_offsets import place_name
from writetime.wire.topic_names import changes_topic
from writetime.wire.watermarks import Sources
from writetime_dagster.assets import table_jobs
from writetime_dagster.assets.table_jobs import captured_changes
from writetime_dagster.resources import KafkaResource


class Topic:
    """The topic of the watermarks, without a report."""

    def __init__(self) -> None:
        self.reports: dict[str, Any] = {}

    def read(self) -> Sources:
        return Sources({})


def counting(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the tables that are opened, and the commits that are read."""
    counts = Counter[str]()
    open_at, read_commit = BucketedTable._open_at, commits.read_commit

    def opened(table: BucketedTable, version: int | None) -> Any:
        counts["opened"] += 1
        return open_at(table, version)

    def read(storage: Storage, version: int) -> bytes | None:
        counts["commits"] += 1
        return read_commit(storage, version)

    monkeypatch.setattr(BucketedTable, "_open_at", opened)
    monkeypatch.setattr(commits, "read_commit", read)
    return counts


@pytest.mark.parametrize("history", [3, 60])
def test_a_tick_reads_only_new_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: int) -> None:
    """Whatever the length of the log and the number of files."""
    monkeypatch.setenv("WRITETIME_LAKE__PATH", str(tmp_path))
    table = new_table(tmp_path)
    topic = changes_topic(table.name)
    for number in range(history):
        add(table, [write(number, 1, 5, v="a")], number)
    ends = {0: 7}
    monkeypatch.setattr(table_jobs, "shared_watermarks", lambda _settings: Topic())
    monkeypatch.setattr(table_jobs, "ends_of_topics", lambda *_args: TopicEnds({topic: ends}, {}, None))
    monkeypatch.setattr(table_jobs, "topic_ids", lambda *_args: {})
    followed = [FollowedTable(table.name)]
    sensor = captured_changes(followed)
    counts = counting(monkeypatch)

    def tick() -> int:
        counts.clear()
        with (
            DagsterInstance.ephemeral() as instance,
            build_sensor_context(instance=instance, resources={"kafka": KafkaResource()}) as context,
        ):
            return len(sensor.evaluate_tick(context).run_requests or [])

    assert tick() == 1
    assert counts["opened"] == 1
    table.changes.append([], place_name(topic, 0), 7)
    assert tick() == 0
    # The known commit, the new one, and the one after it, which does not exist.
    assert counts == {"commits": 3}
    assert tick() == 0
    assert counts == {"commits": 2}
    ends[0] = 8
    assert tick() == 1
    assert counts == {"commits": 2}
