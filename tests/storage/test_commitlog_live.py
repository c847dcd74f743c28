"""Commit logs of a node that writes, changes its schema, crashes and starts again with another compression."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.examples import is_long_run
from tests.support.expected import assert_same, expected_changes, segment_lines, without_origin
from tests.support.format_server import FormatServer, cql_with_ids
from tests.support.spark_streams import run_stream
from writetime.schema.table import SchemaError, SchemaHistory, TableSchema
from writetime.storage.commitlog import CommitLogReader, SegmentReport
from writetime.storage.segment import Segment, find_segments, trusted

pytestmark = pytest.mark.long

# More than one segment of them.
ROWS = 1000 if is_long_run() else 600
TABLES = [
    "TYPE live.point (x int, y int)",
    "TABLE live.events (id int, n int, body text, PRIMARY KEY (id, n)) WITH cdc = true",
    "TABLE live.marks (id int PRIMARY KEY) WITH cdc = true",
    "TABLE live.counts (k int, c int, n counter, PRIMARY KEY (k, c)) WITH cdc = true",
    "TABLE live.one (k int, c int, s text static, a int, PRIMARY KEY (k, c)) WITH cdc = true",
    "TABLE live.two (k int, c int, s text static, a int, PRIMARY KEY (k, c)) WITH cdc = true",
    "TABLE live.gone (k int, c int, a int, PRIMARY KEY (k, c)) WITH cdc = true",
    "TABLE live.changed (k int, c int, s text static, a int, l list<int>, m map<text, int>, f frozen<point>, p point, "
    "PRIMARY KEY (k, c)) WITH cdc = true",
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FormatServer]:
    """A node with small segments, which Snappy compresses."""
    server = FormatServer(
        tmp_path_factory.mktemp("live"),
        "oa",
        commitlog_compression=[{"class_name": "SnappyCompressor"}],
        commitlog_segment_size="1MiB",
        commitlog_sync="periodic",
        commitlog_sync_period="100ms",
    )
    try:
        server.start()
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        server.write([f"CREATE KEYSPACE live WITH replication = {replication}", *(f"CREATE {t}" for t in TABLES)])
        yield server
    finally:
        server.stop()


def write_events(node: FormatServer, numbers: range) -> None:
    session = node.session()
    insert = session.prepare("INSERT INTO live.events (id, n, body) VALUES (?, ?, ?)")
    for n in numbers:
        session.execute(insert, (n % 5, n, f"{n} " * 500))


def live(schemas: Iterable[TableSchema], *names: str) -> list[TableSchema]:
    return [s for s in schemas if s.keyspace == "live" and (not names or s.name in names)]


def read(reader: CommitLogReader, segments: list[tuple[Segment, int]]) -> dict[str, list[pa.RecordBatch]]:
    found: dict[str, list[pa.RecordBatch]] = {}
    for segment, until in segments:
        for schema, batch in reader.read(segment, until=until):
            found.setdefault(schema.name, []).append(batch)
    return found


def captured(node: FormatServer) -> list[tuple[Segment, int]]:
    """The segments with changes, and how far they may be read."""
    return [(s, until) for s, until in trusted(find_segments(str(node.cdc_raw))) if until is not None]


def settle(node: FormatServer, mark: int) -> list[tuple[Segment, int]]:
    """Wait until all that was written before is synced; return the segments."""
    node.write_one(f"INSERT INTO live.marks (id) VALUES ({mark})")
    reader = CommitLogReader(live(node.schemas(), "marks"), on_unknown_table="skip")
    while True:
        segments = captured(node)
        marks = [i for batch in read(reader, segments).get("marks", []) for i in batch.column("id").to_pylist()]
        if mark in marks:
            return segments
        time.sleep(0.05)


def compare(schemas: list[TableSchema], segments: list[tuple[Segment, int]], reader: CommitLogReader) -> Counter[str]:
    """Compare every change of tables with the database's own reading; return the number of changes."""
    wanted = segment_lines(schemas, [segment.path for segment, _ in segments])
    found = read(reader, segments)
    counts: Counter[str] = Counter()
    for schema in schemas:
        changes = without_origin(found.get(schema.name, []), schema)
        assert_same(changes, expected_changes(wanted.get(schema.name, []), schema))
        counts[schema.name] = changes.num_rows
    return counts


def test_a_segment_is_read_while_it_is_written(node: FormatServer) -> None:
    (schema,) = live(node.schemas(), "events")
    reader = CommitLogReader(node.schemas(), [schema.full_name])
    writer = threading.Thread(target=write_events, args=(node, range(ROWS)))
    writer.start()
    positions: Counter[int] = Counter()
    offsets: dict[int, set[Any]] = {}
    batches: dict[int, list[pa.RecordBatch]] = {}
    found: list[int] = []
    while len(found) < ROWS:
        for segment, until in captured(node):
            offsets.setdefault(segment.id, set()).add(until)
            report = SegmentReport()
            for _, batch in reader.read(segment, start=positions[segment.id], until=until, report=report):
                batches.setdefault(segment.id, []).append(batch)
                found += batch.column("n").to_pylist()
            positions[segment.id] = report.position
        # Less than the node takes from one sync to the next.
        time.sleep(0.02)
    writer.join()
    assert found == list(range(ROWS))
    completed = [s for s, _ in captured(node) if (index := s.cdc_index()) is not None and index.completed]
    assert completed
    assert max(len(found) for found in offsets.values()) > 2
    wanted = segment_lines([schema], [s.path for s in completed])["events"]
    pieces = [batch for s in completed for batch in batches[s.id]]
    assert_same(without_origin(pieces, schema), expected_changes(wanted, schema))


def test_a_stream_gets_every_change_once(node: FormatServer, spark: SparkSession, tmp_path: Path) -> None:
    table = live(node.schemas(), "events")[0].full_name
    options = {"schema": cql_with_ids(live(node.schemas())), "table": table, "on_unknown_table": "skip", "fields": "n"}

    def start(name: str = "parquet", **trigger: Any) -> Any:
        stream = spark.readStream.format("commitlog").options(**options).load(str(node.cdc_raw))
        writer = stream.writeStream.format(name).option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
        return writer.option("path", str(tmp_path / "out")).trigger(**trigger).start()

    # Spark's own error for an operation that no Python data source supports.
    with pytest.raises(PySparkException, match=r"[Cc]ontinuous") as e:
        start("noop", continuous="1 second").awaitTermination()
    print(e.value)
    writer = threading.Thread(target=write_events, args=(node, range(ROWS, 2 * ROWS)))
    query = start(processingTime="0 seconds")
    writer.start()
    while query.isActive and (not query.lastProgress or query.lastProgress["numInputRows"] == 0):
        time.sleep(0.05)
    query.stop()
    writer.join()
    settle(node, 1)
    run_stream(lambda: start(processingTime="100 milliseconds"), StreamingQuery.processAllAvailable).stop()
    found = [row["n"] for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(found) == list(range(2 * ROWS))


def test_counters_batches_and_static_rows(node: FormatServer) -> None:
    for i in range(3):
        node.write_one(f"UPDATE live.counts SET n = n + {i + 1} WHERE k = 1 AND c = 1")
        node.write_one(f"UPDATE live.counts SET n = n - 10 WHERE k = {i} AND c = 2")
    node.write_one("DELETE n FROM live.counts WHERE k = 0 AND c = 2")
    for kind in ("", "UNLOGGED"):
        node.write_one(
            f"BEGIN {kind} BATCH INSERT INTO live.one (k, c, s, a) VALUES (1, 2, 'both', 3);"
            "DELETE FROM live.two WHERE k = 1 AND c > 2 AND c <= 9; UPDATE live.two SET s = 'two' WHERE k = 1;"
            "DELETE FROM live.one WHERE k = 2; INSERT INTO live.two (k, c, a) VALUES (3, 3, null); APPLY BATCH"
        )
    segments = settle(node, 2)
    schemas = live(node.schemas(), "counts", "one", "two")
    counts = compare(schemas, segments, CommitLogReader(node.schemas(), [s.full_name for s in schemas]))
    assert counts["counts"] == 7
    assert (counts["one"], counts["two"]) == (6, 6)


def test_writes_from_before_the_schema_changed(node: FormatServer) -> None:
    node.write_one(
        "BEGIN UNLOGGED BATCH INSERT INTO live.one (k, c) VALUES (9, 9); INSERT INTO live.gone (k, c, a) "
        "VALUES (9, 9, 9); APPLY BATCH"
    )
    columns = "k, c, s, a, l, m, f, p"
    values = "'static', 1, [1, 2], {'x': 1}, {x: 1, y: 2}, {x: 3, y: 4}"
    node.write_one(f"INSERT INTO live.changed ({columns}) VALUES (1, 1, {values}) USING TIMESTAMP 1000")
    node.write_one("UPDATE live.changed USING TIMESTAMP 1100 SET a = 5, l = l + [3], m['y'] = 2 WHERE k = 1 AND c = 2")
    node.write_one("UPDATE live.changed USING TIMESTAMP 1200 SET p.x = 5 WHERE k = 1 AND c = 2")
    node.write_one("DELETE m, s FROM live.changed USING TIMESTAMP 1300 WHERE k = 1 AND c = 1")
    before = node.schemas()
    for column in ("s", "a", "l", "m", "f"):
        node.write_one(f"ALTER TABLE live.changed DROP {column} USING TIMESTAMP 2000")
    node.write_one("INSERT INTO live.changed (k, c, p) VALUES (1, 3, {x: 6, y: 7}) USING TIMESTAMP 3000")
    for column in ("a int", "l list<int>", "s text static", "late decimal"):
        node.write_one(f"ALTER TABLE live.changed ADD {column}")
    node.write_one("ALTER TYPE live.point ADD z text")
    columns = "k, c, s, a, l, late"
    node.write_one(f"INSERT INTO live.changed ({columns}) VALUES (1, 4, 'void', 8, [4], 1.5) USING TIMESTAMP 1500")
    node.write_one(f"INSERT INTO live.changed ({columns}) VALUES (1, 5, 'kept', 9, [5], 2.5) USING TIMESTAMP 4000")
    node.write_one("UPDATE live.changed USING TIMESTAMP 4000 SET p.z = 'added' WHERE k = 1 AND c = 6")
    node.write_one("DROP TABLE live.gone")
    segments = settle(node, 3)
    after = node.schemas()
    changed = live(after, "changed")
    assert compare(changed, segments, CommitLogReader(after, ["live.changed"], on_unknown_table="skip"))["changed"] == 7

    history = SchemaHistory([*before, *after])
    known = live(history, "changed", "gone", "one", "two")
    assert compare(known, segments, CommitLogReader(list(history)))["gone"] == 1

    with pytest.raises(SchemaError, match=f"the schema of table {live(before, 'gone')[0].id} is not known"):
        read(CommitLogReader(after), segments)
    report = SegmentReport()
    reader = CommitLogReader(after, on_unknown_table="skip")
    for segment, until in segments:
        for _ in reader.read(segment, until=until, report=SegmentReport(unknown_tables=report.unknown_tables)):
            pass
    assert report.unknown_tables == {live(before, "gone")[0].id: 1}


def test_a_node_that_crashed_and_started_again(node: FormatServer) -> None:
    write_events(node, range(2 * ROWS, 2 * ROWS + 50))
    settle(node, 4)
    node.stop(signal.SIGKILL)
    node.configure(commitlog_compression=[{"class_name": "DeflateCompressor"}])
    node.start()
    write_events(node, range(2 * ROWS + 50, 2 * ROWS + 100))
    segments = settle(node, 5)
    schemas = live(node.schemas(), "events")
    counts = compare(schemas, segments, CommitLogReader(schemas, on_unknown_table="skip"))
    assert counts["events"] == 2 * ROWS + 100
    replayed = 0
    for segment, _ in segments:
        index = segment.cdc_index()
        if index is not None and index.completed and index.offset == segment.size():
            # The size of the file does not show the number of bytes before compression.
            replayed += max(s.offset + len(s.data) for s in segment.sections()) > index.offset
    assert replayed > 0
