"""Snapshots of several nodes, bucket by bucket: only failed buckets run again, overlaps count once."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.support.commands import run
from tests.support.lake_answers import cql_rows, view_rows
from tests.support.made import rewrite, settings_at
from writetime.cli.main import main
from writetime.clients.database import connect
from writetime.clients.node_snapshots import clear_snapshot, take_snapshot
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.files.merging import CaughtTask, Runner
from writetime.lake import state, views
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.changes import ChangeWriter
from writetime.lake.spark_tasks import in_spark
from writetime.lake.table import LakeTable, create_table
from writetime.schema.system import read_schema
from writetime.sources.sstable import SSTableSource

pytestmark = pytest.mark.long


def corrupt(folder: Path) -> tuple[Path, bytes]:
    """Damage the last chunk of the largest SSTable; return its file and its earlier bytes."""
    path = max(folder.glob("*-Data.db"), key=lambda p: p.stat().st_size)
    sound = path.read_bytes()
    path.write_bytes(sound[:-12] + bytes(8) + sound[-4:])
    return path, sound


@dataclass(frozen=True)
class Cluster:
    """A table on three nodes: its name, the snapshot of each, and the rows."""

    table: str
    nodes: list[str]
    wanted: list[dict[str, Any]]


@pytest.fixture
def cluster(settings: Settings, tmp_path: Path) -> Cluster:
    """The snapshots of one node stand for those of three: two have the later one."""
    table = f"{settings.cassandra.keyspace}.items"
    with connect(settings) as session:
        session.execute(
            f"CREATE TABLE {table} (id int, n int, s text STATIC, v blob, PRIMARY KEY (id, n)) "
            "WITH compression = {'class': 'LZ4Compressor', 'chunk_length_in_kb': 4}"
        )
        insert = session.prepare(f"INSERT INTO {table} (id, n, v) VALUES (?, ?, ?)")
        for i in range(300):
            session.execute(insert, [i % 100, i // 100, (b"%d" % i) * 50])
        (first,) = take_snapshot(settings, table, "first")
        for i in range(0, 100, 3):
            session.execute(f"UPDATE {table} SET s = 's{i}' WHERE id = {i}")
            session.execute(f"DELETE FROM {table} WHERE id = {i} AND n = 1")
        (second,) = take_snapshot(settings, table, "second")
        wanted = cql_rows(session, read_schema(session, table))
        with pytest.raises(WritetimeError, match=r"nodetool snapshot .* failed: .*second"):
            take_snapshot(settings, table, "second")
    nodes = [shutil.copytree(folder, tmp_path / name) for name, folder in (("a", first), ("b", second), ("c", second))]
    # The second time, there is none. A run may have been killed in between.
    for _ in range(2):
        clear_snapshot(settings, table, "first")
    assert not first.exists()
    assert second.exists()
    return Cluster(table, list(map(str, nodes)), wanted)


def test_backfill(cluster: Cluster, spark: SparkSession, tmp_path: Path) -> None:
    """Bucket by bucket, all of it in Spark, and in the shell: each has the rows of the database."""
    found = find_snapshots(cluster.nodes)
    lake = create_table(settings_at(tmp_path / "direct", buckets=4), found.schema)
    done = backfill_after_a_fault(lake, cluster.nodes)
    state.fold(lake)
    assert view_rows(views.virtual(lake)) == cluster.wanted
    # The first snapshot has one SSTable, and each of the others has that one and another. Each was read once.
    assert len(found.paths) == 5
    assert sum(file.rows for file in lake.changes.load().files) == 300 + 34 * 2
    # A snapshot contains nothing about the time before it.
    with pytest.raises(WritetimeError, match="the lake can show only"):
        list(views.virtual(lake, found.taken_at - 1))
    assert view_rows(views.virtual(lake, views.time_now())) == cluster.wanted
    by_spark = create_table(settings_at(tmp_path / "spark", buckets=4), found.schema)
    assert sum(count for _, count in backfill(by_spark, found, [0, 1], run=in_spark(spark))) == done[0] + done[1]
    backfill_as_frames(spark, by_spark, cluster)
    assert run("backfill", cluster.table, *cluster.nodes).endswith("folded into the state\n")
    output = tmp_path / "rows.parquet"
    output.write_bytes(CliRunner().invoke(main, ["view", cluster.table, "--format", "parquet"]).stdout_bytes)
    assert pq.read_table(output).num_rows == len(cluster.wanted)


def backfill_after_a_fault(lake: LakeTable, nodes: list[str]) -> dict[int, int]:
    """One bucket cannot be read: the others are done, and it is run again alone. Return the changes of the others."""
    found = find_snapshots(nodes)
    path, sound = corrupt(Path(nodes[0]))
    done = dict(until_failure(lake, nodes, rf"1 of 4 buckets could not .*{path.name}, offset .* \(in bucket 3\)"))
    assert list(done) == [0, 1, 2]
    assert min(done.values()) > 0
    assert dict(until_failure(lake, nodes, path.name)) == dict.fromkeys(range(3), 0)
    path.write_bytes(sound)
    again = dict(backfill(lake, found))
    assert again == {0: 0, 1: 0, 2: 0, 3: again[3]}
    assert again[3] > 0
    return done


def until_failure(lake: LakeTable, nodes: list[str], fault: str, run: Runner = map) -> Iterator[tuple[int, int]]:
    """Yield the buckets that are done before the backfill fails, at its end."""
    with pytest.raises(WritetimeError, match=fault):
        yield from backfill(lake, find_snapshots(nodes), run=run)


def backfill_as_frames(spark: SparkSession, lake: LakeTable, cluster: Cluster) -> None:
    """Bring in changes that come from a DataFrame, each batch once, and fold and refresh by the tasks of the lake."""
    spark.dataSource.register(SSTableSource)
    frames = [spark.read.format("sstable").option("split_bytes", "16384").load(node) for node in cluster.nodes]
    writer = ChangeWriter.of(lake, lake.schema())
    for number, frame in enumerate([*frames, frames[2]]):
        files = writer.write(frame.toArrow().to_batches())
        assert lake.changes.append(files, "nodes", min(number, 2)) == (number <= 2)
    assert state.fold(lake, in_spark(spark)) > 0
    assert rewrite(lake, in_spark(spark)) == len(cluster.wanted)
    assert view_rows(views.virtual(lake)) == cluster.wanted


def test_a_bucket_that_fails_in_spark_does_not_stop_the_others(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    """Its task meets a damaged file or a bug, or its process dies. Then the others run, and later only this one."""
    path, sound = corrupt(Path(cluster.nodes[0]))
    schema = find_snapshots(cluster.nodes).schema
    lake = create_table(settings_at(tmp_path / "lake", buckets=4), schema)
    done = dict(until_failure(lake, cluster.nodes, rf"{path.name}, offset .* \(in bucket 3\)", in_spark(spark)))
    assert list(done) == [0, 1, 2]
    path.write_bytes(sound)
    again = dict(backfill(lake, find_snapshots(cluster.nodes), run=in_spark(spark)))
    assert (list(again), min(done.values()) > 0, again[3] > 0) == ([0, 1, 2, 3], True, True)
    state.fold(lake)
    assert view_rows(views.virtual(lake)) == cluster.wanted


@pytest.mark.parametrize("ends", ["bug", "death"])
def test_a_task_that_ends_unexpectedly_is_a_fault_of_its_bucket(spark: SparkSession, ends: str) -> None:
    def task(number: int) -> int:
        if number == 2:
            if ends == "death":
                os._exit(9)
            raise ZeroDivisionError("a bug")
        return number

    found = in_spark(spark)(CaughtTask(task), range(4))
    assert [(number, result) for number, result, fault in found if fault is None] == [(0, 0), (1, 1), (3, 3)]
    [fault] = [fault for _, _, fault in found if fault is not None]
    if ends == "bug":
        assert isinstance(fault, ZeroDivisionError)
        assert 'in task\n    raise ZeroDivisionError("a bug")' in fault.__notes__[0]


def test_paths_that_are_not_snapshots(tmp_path: Path) -> None:
    with pytest.raises(WritetimeError, match="does not exist"):
        find_snapshots([str(tmp_path / "none")])
    with pytest.raises(WritetimeError, match="holds no SSTables"):
        find_snapshots([str(tmp_path)])


def test_a_snapshot_of_an_empty_table(settings: Settings) -> None:
    """Nothing comes in, and the table is there."""
    table = f"{settings.cassandra.keyspace}.empty"
    with connect(settings) as session:
        session.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
    (folder,) = take_snapshot(settings, table, "now")
    found = find_snapshots([str(folder)])
    # As 4.0 writes it, without the time.
    (folder / "manifest.json").write_text('{"files":[]}')
    earlier = find_snapshots([str(folder)])
    assert earlier.schema == found.schema
    assert abs(earlier.complete_at - found.taken_at) < 300e6
    # A copy has another time of the manifest, so it does not count as that of the snapshot.
    assert earlier.taken_at == 0
    lake = create_table(settings, found.schema)
    assert sum(changes for _, changes in backfill(lake, found)) == 0
    assert state.fold(lake) == 0
    assert view_rows(views.virtual(lake)) == []


class Odd(WritetimeError):
    """An error that cannot be made of its text."""

    def __init__(self, path: str, offset: int) -> None:
        super().__init__(f"{path} at {offset}")


def fail(fault: str) -> None:
    if fault == "odd":
        raise Odd("a file", 7)
    raise Transient(fault)


@contextmanager
def job_group(spark: SparkSession, name: str) -> Iterator[None]:
    """Let the jobs of this thread be those of a group. The session is also that of later tests."""
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", name)
    try:
        yield
    finally:
        # Of pyspark's types, none is that of a removal.
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", cast(str, None))


def test_errors_of_spark_tasks_come_back_unchanged(spark: SparkSession) -> None:
    """So that it is their kind that decides, and their text that is shown. In Spark, too, the tasks have failed."""
    run, tracker = in_spark(spark), spark.sparkContext.statusTracker()
    with job_group(spark, "errors"):
        with pytest.raises(Transient, match=r"^no broker answers$"):
            run(fail, ["no broker answers"])
        with pytest.raises(WritetimeError, match=r"^a file at 7$"):
            run(fail, ["odd"])
        with pytest.raises(FileNotFoundError):
            run(os.stat, ["/none"])
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("errors")]
    assert [job.status for job in jobs if job] == ["FAILED"] * 3
