"""The rule of isolation: a fault of one table, value or topic does not stop the others, and its changes never count as
published.

Unknown faults are injected at each boundary of a real agent. Refusals come from a real broker.
"""

import errno
import fnmatch
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cassandra.concurrent import execute_concurrent

from tests.capture.agents import put_back, status_of, until
from tests.support.captured import Captured
from tests.support.waiting import wait_for
from writetime.capture import change_publisher, decoding, segments, snapshots, state_files
from writetime.capture.change_publisher import check_publishable
from writetime.capture.gap_records import read_gap
from writetime.capture.progress import OPEN
from writetime.capture.segments import SegmentFolder
from writetime.clients.kafka import ensure_topics
from writetime.core.errors import WritetimeError
from writetime.schema import system
from writetime.schema.cql import parse_table
from writetime.storage.batch import BatchMaker
from writetime.storage.segment import Segment, find_segments
from writetime.wire.change_messages import ChangeEncoder
from writetime.wire.topic_names import changes_topic

pytestmark = pytest.mark.long

_TABLE = "(k int PRIMARY KEY, v int) WITH cdc = true"
# The faults of this value, and of this table.
_POISON = 13
_BAD = "bad"


def keys_of(captured: Captured, table: str) -> list[int]:
    return sorted(set(captured.changes(table)["k"].to_pylist()))


def write_rows(captured: Captured, *tables: str, count: int = 20) -> None:
    statements = [
        (f"INSERT INTO {captured.keyspace}.{table} (k, v) VALUES ({k}, {k})", ())
        for k in range(count)
        for table in tables
    ]
    execute_concurrent(captured.node.session(), statements)


def failing(wrapped: Callable[..., Any], is_bad: Callable[..., bool]) -> Callable[..., Any]:
    """Return a function that fails for bad input with an unexpected error."""

    def call(*arguments: Any, **named: Any) -> Any:
        found = wrapped(*arguments, **named)
        if is_bad(found, *arguments):
            raise RuntimeError("nobody expects this")
        return found

    return call


def has_poison(array: Any, maker: BatchMaker, _: Any, name: str, *__: Any) -> bool:
    """Whether an array of keys has the value that is wrong."""
    return maker.plan.schema.name == _BAD and name == "k" and _POISON in array.to_pylist()


def test_a_value_that_cannot_be_read_does_not_stop_the_others(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.write(f"CREATE TABLE {{ks}}.{_BAD} {_TABLE}", f"CREATE TABLE {{ks}}.good {_TABLE}")
    state = captured.settings.capture.state_dir

    with monkeypatch.context() as patch:
        patch.setattr(BatchMaker, "_array", failing(BatchMaker._array, has_poison))
        with captured.agent():
            write_rows(captured, _BAD, "good")
            captured.settle()
            written_at = time.time_ns() // 1000
            captured.fill(1)
            wait_for(lambda: list((state / "aside").glob("*.reason.json")))
            wait_for(lambda: until(captured, "good") > written_at)
            assert keys_of(captured, "good") == list(range(20))
            assert keys_of(captured, _BAD) == [k for k in range(20) if k != _POISON]
            assert until(captured, _BAD) < written_at
            wait_for(lambda: status_of(captured)["lag"]["lag_seconds"] > 0)
            found = status_of(captured)
            assert list(found["held"]) == [f"{captured.keyspace}.{_BAD}"]
            assert "nobody expects this" in found["held_by"]
            assert found["lag"]["lag_bytes"] > 0
            assert found["lag"]["lag_segments"] >= 1
    (file,) = (state / "aside").glob("*.reason.json")
    reason = json.loads(file.read_text())
    assert reason["tables"] == [str(captured.schema(_BAD).id)]
    assert sum(reason["mutations_set_aside_by_table"].values()) == 1
    # Its bytes are kept: put back, it is published.
    put_back(captured, state / "aside")
    with captured.agent():
        captured.settle()
        wait_for(lambda: not file.exists())
        wait_for(lambda: until(captured, _BAD) > written_at)
    captured.assert_same(_BAD, "good")


def test_a_change_that_cannot_be_encoded_does_not_stop_the_others(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.write(f"CREATE TABLE {{ks}}.{_BAD} {_TABLE}", f"CREATE TABLE {{ks}}.good {_TABLE}")

    def has_poison(_: Any, __: ChangeEncoder, changes: Any) -> bool:
        cells = changes["v"].to_pylist() if "v" in changes.schema.names else []
        return any(cell is not None and cell["value"] == _POISON + 100 for cell in cells)

    with monkeypatch.context() as patch:
        patch.setattr(ChangeEncoder, "encode", failing(ChangeEncoder.encode, has_poison))
        with captured.agent():
            write_rows(captured, "good")
            write_rows(captured, _BAD, count=_POISON)
            captured.write(f"INSERT INTO {{ks}}.{_BAD} (k, v) VALUES ({_POISON}, {_POISON + 100})")
            captured.write(f"INSERT INTO {{ks}}.{_BAD} (k, v) VALUES (14, 14)")
            captured.settle()
            captured.fill(1)
            wait_for(lambda: status_of(captured)["held"])
            assert keys_of(captured, "good") == list(range(20))
            assert keys_of(captured, _BAD) == [*range(_POISON), 14]
            assert list(status_of(captured)["held"]) == [f"{captured.keyspace}.{_BAD}"]


def test_a_table_whose_schema_cannot_be_read_does_not_stop_the_others(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    captured.write(f"CREATE TABLE {{ks}}.{_BAD} {_TABLE}", f"CREATE TABLE {{ks}}.good {_TABLE}")
    bad = f"{captured.keyspace}.{_BAD}"
    with monkeypatch.context() as patch:
        is_bad = failing(system.from_rows, lambda schema, *_: schema.full_name == bad)
        patch.setattr("writetime.capture.node_schemas.from_rows", is_bad)
        with captured.agent():
            write_rows(captured, _BAD, "good")
            captured.settle()
            wait_for(lambda: bad in status_of(captured)["not_captured"])
    assert keys_of(captured, "good") == list(range(20))
    assert f"table {bad} cannot be captured: RuntimeError: nobody expects this" in caplog.text
    # A schema that was kept and cannot be read does not stop the next start.
    (kept,) = (captured.settings.capture.state_dir / "schemas").glob(f"{captured.schema('good').id}.json")
    kept.write_text("{}")
    with captured.agent():
        write_rows(captured, "good", count=25)
        captured.settle()
    assert f"{kept} cannot be read" in caplog.text
    captured.assert_same("good")


def test_a_topic_that_kafka_refuses_does_not_stop_the_others(captured: Captured) -> None:
    # Each message is older than the broker takes.
    refused = changes_topic(f"{captured.keyspace}.{_BAD}")
    options = {"message.timestamp.type": "CreateTime", "message.timestamp.before.max.ms": "0"}
    ensure_topics(captured.settings, {refused: options}, 1)
    captured.write(f"CREATE TABLE {{ks}}.{_BAD} {_TABLE}", f"CREATE TABLE {{ks}}.good {_TABLE}")
    with captured.agent():
        write_rows(captured, _BAD, "good")
        captured.settle()
        captured.fill(1)
        wait_for(lambda: status_of(captured).get("held"))
        assert list(status_of(captured)["held"]) == [f"{captured.keyspace}.{_BAD}"]
        assert refused in status_of(captured)["held_by"]
        written_at = time.time_ns() // 1000
        wait_for(lambda: until(captured, "good") > written_at)
    captured.assert_same("good", "marks")


def test_an_unknown_fault_of_a_topic_does_not_stop_the_others(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.write(f"CREATE TABLE {{ks}}.{_BAD} {_TABLE}", f"CREATE TABLE {{ks}}.good {_TABLE}")
    bad = f"{captured.keyspace}.{_BAD}"
    is_bad = failing(
        change_publisher.ChangePublisher._produce, lambda _, __, topic, *___: topic.name == changes_topic(bad)
    )
    with monkeypatch.context() as patch:
        patch.setattr(change_publisher.ChangePublisher, "_produce", is_bad)
        with captured.agent():
            write_rows(captured, _BAD, "good")
            captured.settle()
            captured.fill(1)
            wait_for(lambda: status_of(captured).get("held"))
            assert list(status_of(captured)["held"]) == [bad]
            assert "nobody expects this" in status_of(captured)["held_by"]
            written_at = time.time_ns() // 1000
            wait_for(lambda: until(captured, "good") > written_at)
            assert until(captured, _BAD) < written_at
    captured.assert_same("good", "marks")
    # Its bytes are kept: put back, it is published.
    put_back(captured, captured.settings.capture.state_dir / "aside")
    with captured.agent():
        captured.settle()
        wait_for(lambda: until(captured, _BAD) > written_at)
    captured.assert_same(_BAD, "good")


def test_a_segment_that_cannot_be_released_does_not_stop_the_others(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck: list[str] = []
    released: list[str] = []
    release = SegmentFolder.release

    def fail_for_the_first(folder: SegmentFolder, segment: Segment) -> bool:
        stuck[:] = stuck or [segment.name]
        if segment.name == stuck[0]:
            raise RuntimeError("nobody expects this")
        released.append(segment.name)
        return release(folder, segment)

    with monkeypatch.context() as patch:
        patch.setattr(SegmentFolder, "release", fail_for_the_first)
        with captured.agent():
            captured.fill(3)
            captured.settle()
            wait_for(lambda: released)
            written_at = time.time_ns() // 1000
            wait_for(lambda: until(captured, "marks") > written_at)
    assert f"{stuck[0]} stays in place: RuntimeError: nobody expects this" in caplog.text
    assert stuck[0] not in released


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"reason": "r", "set_aside_at": 7}'])
def test_a_reason_that_cannot_be_read_is_a_gap_of_all_tables(tmp_path: Path, content: str) -> None:
    file = tmp_path / "CommitLog-7-1.reason.json"
    file.write_text(content)
    gap = read_gap(file)
    assert gap is not None
    assert gap.reason.startswith(f"{file} cannot be read")
    assert gap.until == OPEN
    assert gap.tables is None
    file.unlink()
    assert read_gap(file) is None


def test_a_reason_without_the_rights_to_read_it_is_a_gap_of_all_tables(tmp_path: Path) -> None:
    """Root may read each file, so a folder stands for it: reading it fails, and the disk is not at fault."""
    (tmp_path / "CommitLog-7-1.reason.json").mkdir()
    gap = read_gap(tmp_path / "CommitLog-7-1.reason.json")
    assert gap is not None
    assert (gap.until, gap.tables) == (OPEN, None)


def test_an_index_that_cannot_be_read_does_not_stop_other_segments(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"CommitLog-7-{number}.log").write_bytes(b"")
    (tmp_path / "CommitLog-7-1_cdc.idx").mkdir()
    (tmp_path / "CommitLog-7-2_cdc.idx").write_text("10")
    found, faults = segments.readable(find_segments(str(tmp_path)), lambda _: False)
    assert [(segment.id, until) for segment, until in found] == [(2, 10)]
    [(segment, fault)] = faults
    assert segment.id == 1
    assert fault.startswith("the index of CommitLog-7-1.log cannot be read: ")


STRAY = ("CommitLog-99-1700000000000.log", "agent.log")
REFUSED = ("commit log version 99 is not supported", "is not named like a commit log segment")


def test_files_that_are_not_known_segments_do_not_stop_the_others(
    captured: Captured, caplog: pytest.LogCaptureFixture
) -> None:
    """A segment of a later version, and a file that is not a segment."""
    captured.write(f"CREATE TABLE {{ks}}.good {_TABLE}")
    strays = [captured.node.cdc_raw / name for name in STRAY]
    for stray in strays:
        stray.write_bytes(b"\0" * 1000)
    try:
        with captured.agent():
            write_rows(captured, "good")
            wait_for(lambda: keys_of(captured, "good") == list(range(20)))
            wait_for(lambda: status_of(captured).get("held_by"))
            for stray, reason in zip(strays, REFUSED, strict=True):
                assert re.search(rf"{re.escape(str(stray))}.*{reason}", caplog.text)
            assert REFUSED[0] in status_of(captured)["held_by"]
            assert status_of(captured)["lag"]["lag_segments"] >= 2
            assert status_of(captured)["lag"]["lag_bytes"] >= 2000
            assert not until(captured, "good")
            assert all(stray.exists() for stray in strays)
            for stray in strays:
                stray.unlink()
            captured.settle()
            wait_for(lambda: until(captured, "good") > 0)
    finally:
        for stray in strays:
            stray.unlink(missing_ok=True)
    captured.assert_same("good", "marks")


def test_a_segment_that_cannot_be_read_does_not_stop_the_others(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as one that an operator has put back as another user."""
    captured.write(f"CREATE TABLE {{ks}}.good {_TABLE}")
    captured.fill(3)
    refused: list[str] = []
    broken = [True]
    read = decoding.Decoder.read

    def fail_for_the_first(decoder: decoding.Decoder, segment: Segment, *arguments: Any) -> Any:
        refused[:] = refused or [segment.name]
        if broken and segment.name == refused[0]:
            raise PermissionError(13, "Permission denied", segment.path)
        return read(decoder, segment, *arguments)

    monkeypatch.setattr(decoding.Decoder, "read", fail_for_the_first)
    with captured.agent():
        write_rows(captured, "good")
        wait_for(lambda: keys_of(captured, "good") == list(range(20)))
        wait_for(lambda: status_of(captured).get("held_by"))
        assert f"{refused[0]} cannot be read: PermissionError" in status_of(captured)["held_by"]
        assert f"{refused[0]} cannot be read: PermissionError" in caplog.text
        assert not until(captured, "good")
        assert (captured.node.cdc_raw / refused[0]).exists()
        broken.clear()
        captured.settle()
        wait_for(lambda: until(captured, "good") > 0)
    captured.assert_same("good", "marks")


def test_a_fault_of_the_disk_publishes_nothing_twice(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment on a bad block: the part before it is not read again at each attempt."""
    captured.write(f"CREATE TABLE {{ks}}.good {_TABLE}")
    captured.pace = replace(captured.pace, pause=0.05)
    broken = [True]
    failures: list[str] = []
    read = decoding.Decoder.read

    def fail_at_the_end(decoder: decoding.Decoder, segment: Segment, *arguments: Any) -> Any:
        yield from read(decoder, segment, *arguments)
        if broken:
            failures.append(segment.name)
            raise OSError(errno.EIO, os.strerror(errno.EIO), segment.path)

    monkeypatch.setattr(decoding.Decoder, "read", fail_at_the_end)
    with captured.agent():
        for k in range(5):
            before = len(failures)
            captured.write(f"INSERT INTO {{ks}}.good (k, v) VALUES ({k}, {k})")
            wait_for(lambda before=before: len(failures) > before)
        broken.clear()
        captured.settle()
    assert sorted(captured.changes("good")["k"].to_pylist()) == list(range(5))
    captured.assert_same("good", "marks")


def test_a_snapshot_that_cannot_be_read_does_not_stop_the_others(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.write(f"CREATE TABLE {{ks}}.{_BAD} {_TABLE}", f"CREATE TABLE {{ks}}.good {_TABLE}")
    write_rows(captured, _BAD, "good")
    bad = f"{captured.keyspace}.{_BAD}"
    captured.pace = replace(captured.pace, snapshot=0.1)
    monkeypatch.setattr(snapshots, "_open", failing(snapshots._open, lambda _, __, schema: schema.full_name == bad))
    with captured.agent(snapshot="initial"):
        wait_for(lambda: status_of(captured).get("snapshots", {}).get(bad, {}).get("status") == "failed")
        good = f"{captured.keyspace}.good"
        wait_for(lambda: status_of(captured)["snapshots"].get(good, {}).get("status") == "done")
        written_at = time.time_ns() // 1000
        wait_for(lambda: until(captured, "good") > written_at)
        assert not until(captured, _BAD)


def test_a_fault_of_no_known_kind_does_not_end_the_agent(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    captured.write(f"CREATE TABLE {{ks}}.good {_TABLE}")
    left = [3]

    def is_bad(*_: Any) -> bool:
        left[0] -= 1
        return left[0] >= 0

    monkeypatch.setattr(SegmentFolder, "aside", failing(SegmentFolder.aside, is_bad))
    with captured.agent():
        write_rows(captured, "good")
        captured.settle()
    captured.assert_same("good")
    assert status_of(captured)["errors"]["unexpected"] == 3
    assert "nobody expects this" in caplog.text


def test_the_program_waits_while_a_disk_is_full(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.write(f"CREATE TABLE {{ks}}.good {_TABLE}")
    left = [2]

    def full(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(28, "No space left on device", str(arguments[0]))
        state_files.write_json(*arguments)

    with captured.agent():
        captured.settle()
        monkeypatch.setattr("writetime.capture.progress.write_json", full)
        write_rows(captured, "good")
        captured.settle()
        wait_for(lambda: captured.settle() or status_of(captured)["errors"].get("disk"))
    captured.assert_same("good")


class Disk:
    """Has no space for files whose names fit a pattern, after so many of them, until there is space again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pattern: str, after: int = 0) -> None:
        self.is_full = True
        self.refused = 0
        self._pattern = pattern
        self._left = after
        open_file, copy_file = Path.open, shutil.copyfile

        def opened(path: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            if "w" in mode:
                self._check(path)
            return open_file(path, mode, *arguments, **named)

        def copied(source: Path, target: Path, **named: Any) -> Any:
            self._check(target)
            return copy_file(source, target, **named)

        monkeypatch.setattr(Path, "open", opened)
        monkeypatch.setattr(shutil, "copyfile", copied)

    def _check(self, path: Path) -> None:
        if not fnmatch.fnmatch(str(path), self._pattern):
            return
        self._left -= 1
        if self.is_full and self._left < 0:
            self.refused += 1
            raise OSError(28, "No space left on device", str(path))


def test_a_status_that_cannot_be_written_stops_nothing(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    captured.write(f"CREATE TABLE {{ks}}.good {_TABLE}")
    disk = Disk(monkeypatch, "*/status.json.new")
    with captured.agent():
        write_rows(captured, "good")
        captured.settle()
        wait_for(lambda: disk.refused)
        assert "the status cannot be written" in caplog.text
        assert not status_of(captured)
        disk.is_full = False
        wait_for(lambda: status_of(captured))
    captured.assert_same("good")


def test_a_schema_that_cannot_be_stored_is_stored_later(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, writes to a dropped table could not be read after the next start."""
    with captured.agent():
        captured.settle()
        disk = Disk(monkeypatch, "*/schemas/*.json.new")
        captured.write(f"CREATE TABLE {{ks}}.good {_TABLE}")
        write_rows(captured, "good")
        wait_for(lambda: disk.refused >= 2)
        wait_for(lambda: status_of(captured)["errors"].get("disk"))
        stored = captured.settings.capture.state_dir / "schemas" / f"{captured.schema('good').id}.json"
        assert not stored.exists()
        assert not until(captured, "good")
        disk.is_full = False
        captured.settle()
        wait_for(stored.exists)
    captured.assert_same("good")


@pytest.mark.parametrize("pattern", ["*.reason.json.new", "*/aside/*.log.part", "*/aside/*_cdc.idx.part"])
def test_a_segment_that_cannot_be_set_aside_is_kept(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pattern: str
) -> None:
    captured.write(f"CREATE TABLE {{ks}}.{_BAD} {_TABLE}", f"CREATE TABLE {{ks}}.good {_TABLE}")
    aside = captured.settings.capture.state_dir / "aside"

    with monkeypatch.context() as patch:
        patch.setattr(BatchMaker, "_array", failing(BatchMaker._array, has_poison))
        disk = Disk(patch, pattern)
        with captured.agent():
            write_rows(captured, _BAD, "good")
            captured.settle()
            written_at = time.time_ns() // 1000
            captured.fill(1)
            wait_for(lambda: disk.refused >= 2)
            wait_for(lambda: status_of(captured)["errors"].get("disk"))
            # It is logged once, the segment stays, and capture of the other table continues.
            [(name, _)] = [
                record.message.split(" stays in place: OSError: [Errno 28]")
                for record in caplog.records
                if " stays in place" in record.message
            ]
            assert (captured.node.cdc_raw / name).exists()
            assert (captured.node.cdc_raw / name.replace(".log", "_cdc.idx")).exists()
            wait_for(lambda: until(captured, "good") > written_at)
            assert until(captured, _BAD) < written_at
            disk.is_full = False
            wait_for(lambda: not (captured.node.cdc_raw / name.replace(".log", "_cdc.idx")).exists())
            assert not (captured.node.cdc_raw / name).exists()
            assert {path.name for path in aside.iterdir()} == {
                name,
                name.replace(".log", "_cdc.idx"),
                name.replace(".log", ".reason.json"),
            }
    put_back(captured, aside)
    with captured.agent():
        captured.settle()
        wait_for(lambda: until(captured, _BAD) > written_at)
    captured.assert_same(_BAD, "good")


@pytest.mark.parametrize("after", range(4))
def test_a_snapshot_whose_progress_cannot_be_saved_is_published(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The disk is full from the first file on, or when the snapshot was begun, taken, or read in part."""
    captured.write(f"CREATE TABLE {{ks}}.good {_TABLE.replace(' WITH cdc = true', '')}")
    write_rows(captured, "good")
    captured.write("ALTER TABLE {ks}.good WITH cdc = true")
    good = f"{captured.keyspace}.good"
    captured.pace = replace(captured.pace, snapshot=0.1)
    disk = Disk(monkeypatch, "*/snapshots.json.new", after)
    with captured.agent(snapshot="initial"):
        wait_for(lambda: disk.refused >= 1)
        wait_for(lambda: sum(map(status_of(captured).get("errors", {}).get, ("disk", "snapshot"), (0, 0))))
        kept = captured.settings.capture.state_dir / "snapshots.json"
        assert not kept.exists() or '"done"' not in kept.read_text()
        disk.is_full = False
        wait_for(lambda: status_of(captured)["snapshots"].get(good, {}).get("status") == "done")
        written_at = time.time_ns() // 1000
        wait_for(lambda: until(captured, "good") > written_at)
    captured.assert_same("good")


def test_a_name_that_is_too_long_for_a_topic_is_refused_by_itself() -> None:
    schema = parse_table(f"CREATE TABLE ks.t{'x' * 240} (k int PRIMARY KEY)")
    with pytest.raises(WritetimeError, match="characters, and Kafka allows 249"):
        check_publishable(schema)
