"""Commit logs to Arrow changes, compared with Cassandra's own reader and the decode stage of Debezium's connector.

The segments are from a server that took single-row inserts of five columns into one table. `Debezium.java` runs the
published Debezium, in three measures with one more step each: the segment reader makes `ChangeRecord`s and queues them,
these become `Struct`s, which hold a change by field, and these become the JSON that goes to Kafka. Debezium reads the
schema from the running server.
"""

import functools
import json
import os
import subprocess
import time
from pathlib import Path

from cassandra.concurrent import execute_concurrent_with_args

from bench.storage.measure import Comparison, Cost, best, here, printed
from tests.support import oracle
from tests.support.format_server import FormatServer
from writetime.runtime import jars
from writetime.runtime.cassandra_java import module_options
from writetime.runtime.java import java
from writetime.schema.table import TableSchema
from writetime.storage.commitlog import CommitLogReader
from writetime.storage.segment import Segment, find_segments

CREATE = "CREATE TABLE bench.writes (k int PRIMARY KEY, a text, n bigint, p double, w text, x int) WITH cdc = true"
_STEPS = {"records": "ChangeRecord", "structs": "Struct", "json": "JSON"}
_JSON = "org.apache.kafka.connect.json.JsonConverter"
_LOGBACK = """<configuration><appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%level %logger{0} %msg%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="OUT"/></root></configuration>"""


def write(server: FormatServer, writes: int) -> list[Segment]:
    """Write rows by CQL and return the segments that hold them."""
    session = server.session()
    session.execute(CREATE)
    insert = session.prepare("INSERT INTO bench.writes (k, a, n, p, w, x) VALUES (?, ?, ?, ?, ?, ?)")
    rows = ((i, f"a{i % 7}", i * 3, i / 2, f"note {i}", i % 100) for i in range(writes))
    execute_concurrent_with_args(session, insert, rows, concurrency=64)
    time.sleep(2)  # The log is synced every second.
    return [segment for segment in find_segments(str(server.cdc_raw)) if segment.cdc_index() is not None]


def compare(scratch: Path, server: FormatServer, segments: list[Segment], passes: int) -> list[Comparison]:
    """Compare the readers."""
    schemas = server.schemas()
    wanted = [schema for schema in schemas if schema.full_name == "bench.writes"]
    paths = [segment.path for segment in segments]
    # One reader serves all passes, as in Debezium.
    ours = here(_read, tuple(schemas), paths, passes=passes)
    theirs = printed(oracle.segments(wanted, [], paths, mode="commitlog-scan"))
    comparisons = [Comparison("commit log to Arrow, best pass", best(ours), "CommitLogReader, best pass", best(theirs))]
    for step, name in _STEPS.items():
        debezium = _debezium(scratch, server, step, paths, passes)
        target = 10 if step == "structs" else None
        what = "commit log to Arrow"
        comparisons += [
            Comparison(f"{what}, best pass", best(ours), f"Debezium to {name}, best pass", best(debezium), target),
            Comparison(f"{what}, first pass", ours[0], f"Debezium to {name}, first pass", debezium[0]),
        ]
    return comparisons


@functools.cache
def _reader(schemas: tuple[TableSchema, ...]) -> CommitLogReader:
    return CommitLogReader(schemas, ["bench.writes"])


def _read(schemas: tuple[TableSchema, ...], paths: list[str]) -> int:
    reader = _reader(schemas)
    segments = [segment for path in paths for segment in find_segments(path)]
    return sum(batch.num_rows for segment in segments for _, batch in reader.read(segment))


def _debezium(scratch: Path, server: FormatServer, step: str, paths: list[str], passes: int) -> list[Cost]:
    home = scratch / f"debezium-{step}"
    home.mkdir()
    contact = f'contact-points = ["127.0.0.1:{server.port}"], load-balancing-policy.local-datacenter = datacenter1'
    (home / "driver.conf").write_text(f"datastax-java-driver {{ basic {{ {contact} }} }}")
    (home / "logback.xml").write_text(_LOGBACK)
    properties = {
        "topic.prefix": "bench",
        "key.converter": _JSON,
        "value.converter": _JSON,
        "cassandra.config": server.folder / "cassandra.yaml",
        "cassandra.driver.config.file": home / "driver.conf",
        "offset.backing.store.dir": home / "offsets",
        "commit.log.relocation.dir": home / "relocated",
    }
    (home / "connector.properties").write_text("".join(f"{k}={v}\n" for k, v in properties.items()))
    (connector,) = jars.fetch("bench")
    compiler = next(p for p in jars.fetch("cassandra") if "ecj" in p.name)
    source = Path(__file__).with_name("Debezium.java")
    # This is a class path, as in Java 8, because the connector's jar also has some packages of Java itself.
    compilation = [java(), "-jar", compiler, "-8", "-nowarn", "-cp", connector, "-d", home, source]
    _run(list(map(str, compilation)))
    command = [
        str(java()),
        *module_options(),
        f"-Dcassandra.storagedir={home}",
        f"-Dlogback.configurationFile={home / 'logback.xml'}",
        "-Xmx1g",
        "-cp",
        os.pathsep.join([str(home), str(connector)]),
        "io.debezium.connector.cassandra.Debezium",
        str(home / "passes.jsonl"),
        str(home / "connector.properties"),
        str(passes),
        step,
        *paths,
    ]
    _run(command)
    return printed(json.loads(line) for line in (home / "passes.jsonl").read_text().splitlines())


def _run(command: list[str]) -> None:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"{' '.join(command[-8:])} failed: {(answer.stdout + answer.stderr)[-3000:]}")
