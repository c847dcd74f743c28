"""Commands on landing and its tables: one of them fails, messages are skipped, tables are forgotten, and the status."""

import dataclasses
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from tests.support.published import (
    Broken,
    command,
    hurry,
    mark,
    produce,
    publish,
    published,
    reports,
    reports_of,
    schema_of,
)
from tests.support.rest_catalog import running_rest_catalog
from tests.support.status import status_lines
from writetime.capture.state_files import read_json, write_json
from writetime.cli.screen import Entries, fit
from writetime.cli.status import status_parts
from writetime.clients import kafka
from writetime.clients.kafka import end_offsets, messages_between
from writetime.core import config
from writetime.core.config import Settings
from writetime.iceberg.catalogs import NAME
from writetime.lake.horizon import captured_until, raise_complete_snapshot, raise_snapshot
from writetime.lake.table import is_in_lake, open_table, table_storage
from writetime.lake.views import time_now
from writetime.landing import landing
from writetime.landing.landing import Landing
from writetime.landing.reports import stopped
from writetime.landing.topics import captured_tables
from writetime.schema.cql import parse_table
from writetime.schema.stored import to_json
from writetime.scylla_cdc.findings import (
    CLOSED_SET,
    DOUBTFUL_INSERT,
    IMAGE_DISAGREES,
    IMAGE_NOT_COMPARED,
    IN_SNAPSHOT,
    LATE,
    STATIC_DROPPED,
)
from writetime.servers.process import free_port
from writetime.view.upkeep import maintain
from writetime.wire import watermarks
from writetime.wire.publishing import Sender
from writetime.wire.topic_names import changes_topic, dead_changes_topic
from writetime.wire.watermarks import LandingReport, SourceMarks, TableMark, ensure_watermarks_topic


def test_land_continues_with_the_other_tables(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    names = published(settings, "a", "b", "c")
    produce(settings, changes_topic(names[1]), (b"k", b"garbage"))
    broken = Broken(monkeypatch, names[0], RuntimeError("a bug"))
    answer = command("land", *names, f"{settings.cassandra.keyspace}.none")
    assert answer.exit_code == 1
    assert answer.stdout == f"3 changes of {names[2]}\n"
    assert f"Error: {names[0]}: a bug" in answer.stderr
    assert broken.tried == 4
    assert f"Error: {names[1]}: topic {changes_topic(names[1])}, partition 0, offset" in answer.stderr
    assert f"3 tables not landed: {names[0]}, {names[1]}, {settings.cassandra.keyspace}.none" in answer.stderr
    assert reports_of(settings, names[1])[0] == "set aside"


@pytest.mark.parametrize("released_by", ["agent", "backfill"])
def test_a_message_is_skipped(settings: Settings, released_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "WATERMARK_MICROS", 1)
    (name,) = published(settings, "a")
    source, before = settings.cassandra.keyspace, time_now() - 10_000_000
    ensure_watermarks_topic(settings)
    mark(settings, source, SourceMarks({name: TableMark(before)}))
    assert Landing(settings, name).drain() == 3
    end = end_offsets(settings, changes_topic(name), [0])[0]
    produce(settings, changes_topic(name), (b"k", b"garbage"), (b"k", None))
    publish(settings, schema_of(settings, "a"), *range(10, 30))
    mark(settings, source, SourceMarks({name: TableMark(time_now())}))
    skip_two(name, end)
    assert_in_the_dead_letter_topic(settings, name, end)
    # The watermark waits, as the messages may have had reports.
    now = time_now()
    mark(settings, source, SourceMarks({name: TableMark(now)}))
    drains = Landing(settings, name)
    assert drains.drain() == 0
    table = open_table(settings, name)
    assert captured_until(table.changes.load()) == before
    publish(settings, schema_of(settings, "a"), 40)
    assert drains.drain() == drains.offsets_landed == 1
    assert captured_until(table.changes.load()) == before
    if released_by == "agent":
        mark(settings, source, SourceMarks({name: TableMark(now + 1, time_now())}))
    else:
        # It has begun, and is not complete.
        raise_snapshot(table, time_now())
        assert Landing(settings, name).drain() == 0
        assert captured_until(table.changes.load()) == before
        raise_complete_snapshot(table, time_now())
    assert Landing(settings, name).drain() == 0
    assert captured_until(table.changes.load()) >= now


def skip_two(name: str, end: int) -> None:
    """Skip the messages from an offset on, and land the others; other places than these are refused."""
    places = [f"{changes_topic(name)}/0@{offset}" for offset in (end, end + 1)]
    answer = command("land", name)
    assert f"writetime land --skip {places[0]}" in answer.stderr
    assert "is not a message: use" in command("land", "--skip", "x/1@2").output
    assert "has landed" in command("land", "--skip", f"{changes_topic(name)}/0@{end - 1}").output or not end
    assert "there is no message" in command("land", "--skip", f"{changes_topic(name)}/0@{end + 1000}").output
    answer = command("land", name, "--skip", places[0], "--skip", places[1])
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert f"20 changes of {name}" in answer.stdout
    assert "was skipped before" in command("land", "--skip", places[0]).output


def assert_in_the_dead_letter_topic(settings: Settings, name: str, end: int) -> None:
    """The two messages, as they were, with their place."""
    dead = dead_changes_topic(name)
    found = list(messages_between(settings, dead, {0: 0}, end_offsets(settings, dead)))
    assert [(m.key(), m.value()) for m in found] == [(b"k", b"garbage"), (b"k", None)]
    headers = dict(kafka.headers_of(found[0]))
    assert headers["dead-letter.topic"] == changes_topic(name).encode()
    assert headers["dead-letter.offset"] == str(end).encode()


def test_a_table_is_forgotten(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    state = Path(settings.lake.path).parent / "agent"
    monkeypatch.setenv("WRITETIME_CAPTURE__STATE_DIR", str(state))
    name, other = published(settings, "a", "b")
    assert command("land", name, other).exit_code == 0
    (state / "schemas").mkdir(parents=True)
    for table in (name, other):
        stored = {
            "captured": True,
            "versions": [{"seen_at": "", "table": to_json(parse_table(f"CREATE TABLE {table} (id int PRIMARY KEY)"))}],
        }
        write_json(state / "schemas" / f"{table}.json", stored)
    write_json(state / "snapshots.json", {name: {}, other: {}})
    answer = command("forget", name)
    assert answer.exit_code == 1  # Nobody confirms.
    assert is_in_lake(settings, name)
    for part in (f"topics {changes_topic(name)}", "1 schema in writetime.schemas", f"{name} of the lake", str(state)):
        assert part in answer.output
    assert command("forget", name, "--yes").exit_code == 0
    assert not Path(table_storage(settings, name).address).exists()
    assert name not in captured_tables(settings)
    assert name not in reports(settings)
    assert [path.stem for path in (state / "schemas").glob("*.json")] == [other]
    assert read_json(state / "snapshots.json") == {other: {}}
    assert f"there is no data of {name}" in command("forget", name, "--yes").output
    # The other one is as it was, and the name may be used again.
    publish(settings, schema_of(settings, "b"), 4)
    publish(settings, dataclasses.replace(schema_of(settings, "a"), id=None), 1)
    answer = command("land", name, other)
    assert answer.stdout == f"1 change of {name}\n1 change of {other}\n"


@pytest.mark.parametrize("kind", ["rest", "sql"])
def test_a_forgotten_table_leaves_the_catalog(
    settings: Settings, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the catalog does not answer, everything else is deleted, and the command reports what is left."""
    name, other = published(settings, "a", "b")
    with ExitStack() as stack:
        uri = f"sqlite:///{tmp_path / 'catalog.db'}"
        if kind == "rest":
            uri = stack.enter_context(running_rest_catalog(tmp_path / "rest")).uri
        registers(monkeypatch, {"type": kind, "uri": uri})
        catalog = load_catalog(NAME, type=kind, uri=uri)
        assert command("land", name, other).exit_code == 0
        for each in (name, other):
            maintain(config.load(), open_table(config.load(), each))
        assert f"{name} in the Iceberg catalog" in command("forget", name).output
        answer = command("forget", name, "--yes")
        assert answer.exit_code == 0
        assert f"deleted: {name} in the Iceberg catalog" in answer.stdout
        assert catalog.list_tables(settings.cassandra.keyspace) == [tuple(other.split("."))]
        assert len(catalog.load_table(other).scan().to_arrow()) == 3
        registers(monkeypatch, {"type": "rest", "uri": f"http://127.0.0.1:{free_port()}"})
        answer = command("forget", other, "--yes")
        assert answer.exit_code == 1
        assert "all tables of it, as far as there are any, in the Iceberg catalog: the Iceberg" in answer.stderr
        folder = Path(table_storage(settings, other).address)
        assert all(path.name.endswith(".metadata.json") for path in folder.rglob("*") if path.is_file())
        assert other not in captured_tables(settings)
        registers(monkeypatch, {"type": kind, "uri": uri})
        assert command("forget", other, "--yes").exit_code == 0
        assert catalog.list_tables(settings.cassandra.keyspace) == []
        assert not folder.exists()


def registers(monkeypatch: pytest.MonkeyPatch, catalog: dict[str, str]) -> None:
    """Let commands use an Iceberg catalog."""
    monkeypatch.setenv("WRITETIME_LAKE__ICEBERG", "true")
    monkeypatch.setenv("WRITETIME_LAKE__ICEBERG_CATALOG", json.dumps(catalog))


def test_why_a_table_has_stopped(settings: Settings) -> None:
    (name,) = published(settings, "a")
    source = settings.cassandra.keyspace
    ensure_watermarks_topic(settings)
    mark(settings, source, SourceMarks({name: TableMark(time_now())}, status={"at": time.time()}))
    assert Landing(settings, name).drain() == 3
    table = open_table(settings, name)
    assert stopped(settings, table) == []
    # Landing fails.
    produce(settings, changes_topic(name), (b"k", b"garbage"))
    assert command("land", name).exit_code == 1
    (reason,) = stopped(settings, table)
    assert "the table is set aside" in reason
    # No program lands: messages wait for too long.
    impatient = settings.model_copy(update={"capture": settings.capture.model_copy(update={"stale_seconds": 0.001})})
    assert any("not landed for more than" in reason for reason in stopped(impatient, table))
    # An agent reports the cause of its delay, or reports nothing.
    old = time_now() - 3_600_000_000
    mark(settings, source, SourceMarks({name: TableMark(old)}, status={"at": time.time(), "held_by": "a segment"}))
    assert any("a segment" in reason for reason in stopped(settings, table))
    # This table's fault stays until an operator acts, so it counts at once; so does a failed snapshot.
    now, at = TableMark(time_now()), time.time()
    mark(settings, source, SourceMarks({name: now}, status={"at": at, "held": {name: "a gap"}, "held_by": "another"}))
    assert any("a gap" in reason for reason in stopped(settings, table))
    mark(settings, source, SourceMarks({name: now}, status={"at": at, "held": {"ks.other": "a gap"}}))
    assert not any("a gap" in reason for reason in stopped(settings, table))
    mark(
        settings,
        source,
        SourceMarks({name: TableMark(0)}, status={"at": at, "snapshots": {name: {"status": "failed"}}}),
    )
    assert any("its snapshot failed" in reason for reason in stopped(settings, table))
    mark(settings, source, SourceMarks({name: TableMark(old)}, status={"at": 1.0}))
    assert any("has not reported since 1970" in reason for reason in stopped(settings, table))
    mark(settings, source, SourceMarks({}, status={"at": time.time(), "held_by": None}))
    assert any("published no longer" in reason for reason in stopped(settings, table))
    mark(settings, source, SourceMarks({}, retired=True))
    assert len(stopped(settings, table)) == 1


def status_with_faults(names: list[str], source: str) -> dict[str, Any]:
    """The status of an agent whose tables have each fault that there is."""
    lag = dict.fromkeys(("lag_bytes", "lag_segments", "lag_seconds", "oldest_segment_seconds", "backlog_bytes"), 0)
    totals = ("segments", "segments_set_aside", "segments_vanished", "mutations_set_aside", "changes_set_aside")
    kinds = (STATIC_DROPPED, IN_SNAPSHOT, DOUBTFUL_INSERT, IMAGE_DISAGREES, IMAGE_NOT_COMPARED, LATE, CLOSED_SET)
    of_log = {"until": time_now(), "fault": "a reason", "found": dict.fromkeys(kinds, 1)}
    snapshot = {"status": "wanted", "sstables": 1, "sstables_read": 0, "changes": 0}
    status = {
        "at": time.time(),
        "lag": lag | {"backlog_limit_bytes": 1, "aside_segments": 0},
        "totals": dict.fromkeys(totals, 1),
        "changes": {name: {"row": i} for i, name in enumerate(names)},
        "snapshots": dict.fromkeys(names, snapshot),
        "errors": dict.fromkeys(("database", "publishing", "schema", "storage", "unexpected"), 1),
        "published_until": time_now(),
        "held_by": "a reason",
        "held": dict.fromkeys(names, "a reason"),
        "not_captured": dict.fromkeys(names, "a reason"),
    }
    return status | {"logs": dict.fromkeys(names, of_log)} if source == "log" else status


@pytest.mark.parametrize("source", ["node", "log"])
def test_status_of_many_tables_fits_one_screen(settings: Settings, tmp_path: Path, source: str) -> None:
    """Also when each table has each fault that there is."""
    settings = settings.model_copy(
        update={"capture": settings.capture.model_copy(update={"state_dir": tmp_path / "state"})}
    )
    (tmp_path / "state").mkdir()
    names = [f"{settings.cassandra.keyspace}.t{i:03}" for i in range(300)]
    write_json(tmp_path / "state" / "status.json", status_with_faults(names, source))
    sender = Sender(settings, "test")
    ensure_watermarks_topic(settings)
    for i, name in enumerate(names):
        fault = "a reason" if i % 2 else None
        report = LandingReport(time.time(), "set aside" if fault else "landing", 1, fault, 1.0, 1)
        watermarks.send_report(sender, name, report)
    assert sender.flush()
    lines = list(status_lines(settings))
    # The screen has 24 lines. The servers have three of them, faults of queues two, dead letters one.
    assert len(fit([*status_parts(settings), "", Entries([[""]] * 300)], 24 - 3)) <= 24 - 3
    assert len(lines) <= 24 - 3
    assert any(f"{names[299]}: 299 rows" in line for line in lines)
    everything = "\n".join(status_lines(settings, everything=True))
    # Its snapshot, changes and landing; and why it is held and not captured, or how far its log is.
    count = 5 if source == "node" else 4
    assert all(everything.count(f"{name}: ") == count and f"snapshot {name}: wanted" in everything for name in names)
    for name in names:
        watermarks.send_report(sender, name, None)
    assert sender.flush()
