"""From Kafka to the lake: each change lands once, for each end of a batch; and the faults that stop landing."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from tests.capture.agents import assert_view, count
from tests.support.captured import Captured
from tests.support.settings import write_settings
from tests.support.waiting import wait_for
from writetime.cli.main import main
from writetime.clients.kafka import client_config, end_offsets
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.errors import WritetimeError
from writetime.delta.bucketed_table import BucketedTable
from writetime.lake import state, views
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.spark_tasks import in_spark
from writetime.lake.table import open_table
from writetime.landing import landing
from writetime.landing.landed_offsets import not_landed
from writetime.landing.landing import Landing
from writetime.landing.topics import captured_tables
from writetime.wire.topic_names import changes_topic

pytestmark = pytest.mark.long


def view_columns(captured: Captured, table: str) -> list[str]:
    """The columns that the lake's view has now."""
    return [c.name for c in open_table(captured.settings, f"{captured.keyspace}.{table}").schema().columns]


def wait_until(done: Callable[[], Any]) -> None:
    """Wait for something that an agent does."""
    wait_for(done, 0.2)


def test_changes_land_once_and_new_columns_with_them(
    landed: Captured, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{landed.keyspace}.t"
    landed.write("CREATE TABLE {ks}.t (k int, c int, v text, s int static, PRIMARY KEY (k, c)) WITH cdc = true")
    with landed.agent():
        landed.write(*(f"INSERT INTO {{ks}}.t (k, c, v) VALUES ({i % 7}, {i}, 'a')" for i in range(50)))
        landed.settle()
        assert Landing(landed.settings, name).drain(in_spark(spark)) == 50
        assert_view(landed, "t")
        landed.write(
            "ALTER TABLE {ks}.t ADD w map<text, int>",
            "INSERT INTO {ks}.t (k, c, w) VALUES (0, 100, {'a': 1})",
            "DELETE FROM {ks}.t WHERE k = 1 AND c < 20",
            "UPDATE {ks}.t SET s = 1 WHERE k = 2",
            "ALTER TABLE {ks}.t DROP v",
            "DELETE FROM {ks}.t WHERE k = 3",
        )
        landed.settle()
    assert name in captured_tables(landed.settings)
    assert not_landed(landed.settings, name) == 4
    # Two at once, in batches of a message for each partition.
    monkeypatch.setattr(landing, "BATCH_MESSAGES", 1)
    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(lambda _: Landing(landed.settings, name).drain(), range(2)))
    assert sum(counts) == 4
    assert count(landed.settings, name) == 54
    assert not_landed(landed.settings, name) == 0
    assert_view(landed, "t")
    state.fold(open_table(landed.settings, name))
    assert_view(landed, "t")
    with landed.agent():  # A column that is dropped, and nothing is written after it.
        landed.write("ALTER TABLE {ks}.t DROP w")
        wait_until(lambda: Landing(landed.settings, name).drain() or "w" not in view_columns(landed, "t"))
    assert_view(landed, "t")
    write_settings(landed.settings, tmp_path / "land.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "land.toml"))
    answer = CliRunner().invoke(main, ["land", name], catch_exceptions=False)
    assert answer.output == f"0 changes of {name}\n"


def test_a_batch_that_was_not_committed_lands_later(landed: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{landed.keyspace}.marks"
    with landed.agent():
        landed.settle()
    commit = BucketedTable._commit

    def fail(*_: Any) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(BucketedTable, "_commit", fail)
    with pytest.raises(RuntimeError, match="killed"):
        Landing(landed.settings, name).drain()
    monkeypatch.setattr(BucketedTable, "_commit", commit)
    drains = Landing(landed.settings, name)
    # `settle` writes two marks.
    assert drains.drain() == 2
    assert drains.drain() == 0
    assert count(landed.settings, name) == 2


def test_faults_that_stop_landing(landed: Captured) -> None:
    name = f"{landed.keyspace}.marks"
    with pytest.raises(WritetimeError, match=f"{changes_topic(name)} does not exist: no agent has published"):
        Landing(landed.settings, name).drain()
    with landed.agent():
        landed.settle()
        landed.settle()
    topic = changes_topic(name)
    ends = end_offsets(landed.settings, topic)
    partition = max(ends, key=lambda p: ends[p])
    producer = Producer(client_config(landed.settings))
    producer.produce(topic, b"no change", b"key", partition)
    producer.flush(15)
    with pytest.raises(WritetimeError, match=f"partition {partition}, offset {ends[partition]}: .*not in Avro's"):
        Landing(landed.settings, name).drain()
    admin = AdminClient(client_config(landed.settings))
    request = [TopicPartition(topic, partition, ends[partition] + 1)]
    for future in admin.delete_records(request).values():
        future.result(15)
    with pytest.raises(WritetimeError, match=f"begins at offset {ends[partition] + 1}.*from 0 on were not landed"):
        Landing(landed.settings, name).drain()
    assert Landing(landed.settings, name, accept_gap=True).drain() == sum(ends.values()) - ends[partition]
    assert Landing(landed.settings, name).drain() == 0


def test_a_snapshot_does_not_beat_later_writes(landed: Captured) -> None:
    """Rows of a snapshot have their own write times: others give them the time at which they are read, which is later
    than all that is captured."""
    name = f"{landed.keyspace}.t"
    landed.write("CREATE TABLE {ks}.t (k int PRIMARY KEY, v text) WITH cdc = true")
    landed.write(*(f"INSERT INTO {{ks}}.t (k, v) VALUES ({k}, 'old') USING TIMESTAMP 1000" for k in range(3)))
    folders = take_snapshot(landed.settings, name, "before")
    with landed.agent():
        landed.write(
            "UPDATE {ks}.t USING TIMESTAMP 2000 SET v = 'new' WHERE k = 0",
            "DELETE FROM {ks}.t USING TIMESTAMP 2000 WHERE k = 1",
            "INSERT INTO {ks}.t (k, v) VALUES (2, 'too late') USING TIMESTAMP 500",
        )
        landed.settle()
    Landing(landed.settings, name).drain()
    found = find_snapshots([str(folder) for folder in folders])
    assert sum(count for _, count in backfill(open_table(landed.settings, name), found)) == 3
    assert_view(landed, "t")
    rows = [row for part in views.virtual(open_table(landed.settings, name)) for row in part.to_pylist()]
    assert {row["k"]: row["v"] for row in rows} == {0: "new", 2: "old"}
