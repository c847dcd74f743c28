"""Folders of segments, published by Spark's tasks: the same changes as an agent publishes, and faults."""

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cassandra import OperationTimedOut
from click.testing import CliRunner
from dagster import DagsterInstance, RunRequest, SkipReason, build_sensor_context, materialize
from pyspark.sql import SparkSession

from tests.capture.agents import complete
from tests.capture.archived import copy, index_of, write_table
from tests.support.captured import Captured, captured_keyspace
from tests.support.format_server import FormatServer
from tests.support.settings import write_settings
from tests.support.vault import vault
from tests.support.waiting import wait_for
from writetime.capture import archives, state_files
from writetime.capture.archives import ArchiveReport, follow_segments, publish_segments, unpublished
from writetime.capture.change_publisher import ChangePublisher
from writetime.capture.checkpoint import Checkpoint, read_checkpoint
from writetime.cli.main import main
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.schema.table import TableSchema
from writetime.storage.segment import Segment, find_segments
from writetime.wire.publishing import SCHEMAS_TOPIC, RefusedMessage
from writetime.wire.topic_names import changes_topic
from writetime_dagster.assets.segments import new_segments, published_segments
from writetime_dagster.resources import KafkaResource, SparkResource

pytestmark = pytest.mark.long


def published(captured: Captured) -> Counter[str]:
    """Each change of table `t` that was published, without where it came from, and how often."""
    return Counter(map(repr, captured.changes("t").drop_columns(["origin"]).to_pylist()))


def new_ones(paths: list[str], checkpoint: Path) -> list[str]:
    """The unpublished segments of folders that can all be listed."""
    found, unlisted = unpublished(paths, checkpoint)
    assert unlisted == {}
    return found


@dataclass
class Written:
    """A keyspace with the table `t`, and copies of the segments that have all writes to it."""

    captured: Captured
    segments: list[Path]


@pytest.fixture(scope="module")
def written(node: FormatServer, kafka: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """Written once: each test publishes copies, with a separate checkpoint."""
    home = tmp_path_factory.mktemp("written")
    with captured_keyspace(node, kafka, home) as captured:
        captured.settings = captured.with_options(segments_seconds=0.1)
        yield Written(captured, [copy(path, home / "segments") for path in write_table(captured)])


@pytest.fixture
def captured(written: Written) -> Captured:
    """The keyspace, none of whose changes is published yet."""
    written.captured.forget("t")
    return written.captured


@pytest.fixture
def segments(written: Written) -> list[Path]:
    """The segments that have all writes to the table `t`, to be copied."""
    return written.segments


def test_changes_of_an_agent_are_published(
    captured: Captured, segments: list[Path], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = tmp_path / "copies"
    for path in segments:
        copy(path, copies)
    with captured.agent():
        captured.settle()
    of_agent = published(captured)
    assert of_agent.total() >= 44
    write_settings(captured.settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    publish_by_the_command(captured, copies, of_agent.total())
    assert published(captured) == Counter({change: 2 * count for change, count in of_agent.items()})
    # The asset does not use that checkpoint, as if a run had ended before it recorded its progress.
    publish_by_the_asset(captured, copies, of_agent.total())
    assert published(captured) == Counter({change: 3 * count for change, count in of_agent.items()})
    captured.assert_same("t")


def publish_by_the_command(captured: Captured, copies: Path, changes: int) -> None:
    """From a URL, and nothing a second time."""
    checkpoint = copies.with_name("checkpoint")
    command = ["publish-segments", f"file://{copies}", "--checkpoint", str(checkpoint)]
    answer = CliRunner().invoke(main, command, catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    assert answer.output.startswith(f"{len(find_segments(str(copies)))} segments, ")
    assert f"{changes} changes of {captured.keyspace}.t" in answer.output
    answer = CliRunner().invoke(main, command, catch_exceptions=False)
    assert answer.output == "0 segments, 0 mutations: no changes\n"


def publish_by_the_asset(captured: Captured, copies: Path, changes: int) -> None:
    """As the sensor asks for it, once the settings name the folder."""
    resources = {"spark": SparkResource(), "kafka": KafkaResource()}
    segments = len(find_segments(str(copies)))
    with DagsterInstance.ephemeral() as instance:

        def tick() -> RunRequest | SkipReason:
            with build_sensor_context(instance, resources={"kafka": KafkaResource()}) as context:
                answer = new_segments(context)
            assert isinstance(answer, RunRequest | SkipReason)
            return answer

        assert tick() == SkipReason("capture.segments names no folder")
        refused = materialize([published_segments], instance=instance, resources=resources, raise_on_error=False)
        [failure] = refused.get_step_failure_events()
        assert "no folder of segments is named" in str(failure.step_failure_data.error)
        write_settings(captured.with_options(segments=[str(copies)]), copies.with_name("writetime.toml"))
        asked = tick()
        assert isinstance(asked, RunRequest)
        assert asked.tags["writetime/segments"] == str(segments)
        result = materialize([published_segments], instance=instance, resources=resources)
        assert tick() == SkipReason("all segments are published")
    [event] = result.asset_materializations_for_node("capture__published_segments")
    metadata: Any = event.metadata
    assert metadata["segments"].value == segments
    assert metadata["by_table"].value[f"{captured.keyspace}.t"] == changes
    assert all(check.passed for check in result.get_asset_check_evaluations())
    assert_a_damaged_segment_fails_the_check(copies)


def assert_a_damaged_segment_fails_the_check(copies: Path) -> None:
    """It came after the others, and has changes that cannot be read."""
    [first, *_] = sorted(copies.glob("*.log"))
    damaged = copies / f"CommitLog-7-{time.time_ns() // 1_000_000}.log"
    damaged.write_bytes(first.read_bytes()[:-200] + bytes(200))
    shutil.copy(index_of(first), index_of(damaged))
    resources = {"spark": SparkResource(), "kafka": KafkaResource()}
    result = materialize([published_segments], resources=resources, raise_on_error=False)
    [check] = result.get_asset_check_evaluations()
    assert not check.passed
    assert damaged.name in str(check.description)


def test_segments_that_come_and_grow_are_followed(captured: Captured, segments: list[Path], tmp_path: Path) -> None:
    # Others are in the first one, too.
    first, growing, *others = segments
    copies, stop, total = tmp_path / "copies", threading.Event(), ArchiveReport()

    def follow() -> None:
        nonlocal total
        total = follow_segments(captured.settings, [str(copies)], tmp_path / "checkpoint", stop)

    end = int(index_of(growing).read_text().split()[0])
    # In its middle; a mutation that is cut there is not read.
    index_of(copy(growing, copies)).write_text(str(end // 2))
    thread = threading.Thread(target=follow)
    thread.start()
    try:
        wait_for(lambda: published(captured))
        assert published(captured).total() < 44
        for path in (first, *others):
            copy(path, copies)
        shutil.copy(index_of(growing), copies)
        wait_for(lambda: published(captured).total() >= 44)
    finally:
        stop.set()
        thread.join()
    assert (total.faults, total.growing, total.segments) == ({}, [], len(others) + 2)
    assert set(published(captured).values()) == {1}
    captured.assert_same("t")


def test_files_that_are_not_known_segments_do_not_stop_the_others(
    captured: Captured, segments: list[Path], tmp_path: Path
) -> None:
    copies = [copy(path, tmp_path / "copies") for path in segments]
    later, other = strays = [tmp_path / "copies" / name for name in ("CommitLog-99-1700000000000.log", "agent.log")]
    for stray in strays:
        stray.write_bytes(b"\0" * 1000)
    report = publish_segments(captured.settings, [vault(tmp_path / "copies")], tmp_path / "checkpoint")
    assert report.segments == len(copies)
    # The password is not shown.
    assert report.faults == {
        f"vault://user@host{later}": f"{later}: commit log version 99 is not supported; 7, 8, 9 are",
        f"vault://user@host{other}": f"{other} is not named like a commit log segment (CommitLog-7-1700000000000.log)",
    }
    captured.assert_same("t")
    # One that a user names is refused.
    with pytest.raises(WritetimeError, match=r"agent\.log is not named like a commit log segment"):
        publish_segments(captured.settings, [str(other)], tmp_path / "another")


def test_missing_changes_are_reported_until_they_are_read(
    captured: Captured, segments: list[Path], tmp_path: Path
) -> None:
    copies, checkpoint = str(tmp_path / "copies"), tmp_path / "checkpoint"
    broken, torn, mislabelled, *sound = [copy(path, tmp_path / "copies") for path in segments]
    contents = {path: path.read_bytes() for path in (broken, torn, index_of(mislabelled))}
    changed = bytearray(contents[broken])
    changed[len(changed) // 2] ^= 1
    broken.write_bytes(changed)
    # As if it were being copied, without an index.
    torn.write_bytes(contents[torn][: len(contents[torn]) // 2])
    shutil.move(index_of(torn), tmp_path)
    index_of(mislabelled).write_text("no offset")
    # Only a run will show the state of the one whose index has nothing.
    assert set(new_ones([copies], checkpoint)) == {str(path) for path in (broken, torn, *sound)}
    report = publish_segments(captured.settings, [copies], checkpoint)
    assert new_ones([copies], checkpoint) == []
    assert set(report.faults) == {str(path) for path in (broken, torn, mislabelled)}
    assert all(Path(path).stem in reason for path, reason in report.faults.items())
    assert report.segments == len(sound) + 2
    # It is tried again, and reported again.
    assert set(publish_segments(captured.settings, [copies], checkpoint).faults) == set(report.faults)
    for path, content in contents.items():
        path.write_bytes(content)
    assert set(new_ones([copies], checkpoint)) == {str(path) for path in (broken, torn, mislabelled)}
    assert publish_segments(captured.settings, [copies], checkpoint).faults == {}
    assert new_ones([copies], checkpoint) == []
    captured.assert_same("t")
    assert_reported_if_it_vanishes(captured, mislabelled)


def assert_reported_if_it_vanishes(captured: Captured, growing: Path) -> None:
    """A segment that still grows is deleted before its end was read."""
    index_of(growing).write_text("1000")
    folder = growing.parent.with_name("other")
    folder.mkdir()
    for path in (growing, index_of(growing)):
        shutil.move(path, folder)
    checkpoint = folder.with_name("another")
    report = publish_segments(captured.settings, [str(folder)], checkpoint)
    assert (len(report.growing), report.faults) == (1, {})
    (folder / growing.name).unlink()
    [reason] = publish_segments(captured.settings, [str(folder)], checkpoint).faults.values()
    assert "vanished before it was read to its end (up to offset " in reason


def test_a_missing_folder_and_a_checkpoint_in_use_are_refused(captured: Captured, tmp_path: Path) -> None:
    with pytest.raises(WritetimeError, match="copies/none does not exist"):
        publish_segments(captured.settings, [str(tmp_path / "copies/none")], tmp_path / "checkpoint")
    kept = Checkpoint(tmp_path / "checkpoint")
    (tmp_path / "copies").mkdir()
    with pytest.raises(WritetimeError, match="uses the state folder"):
        publish_segments(captured.settings, [str(tmp_path / "copies")], tmp_path / "checkpoint")
    kept.close()


@dataclass
class Broken:
    """Lets the work on some segments raise an error, while there is one; `tried` counts that by their names."""

    names: set[str]
    error: Exception | None
    tried: Counter[str] = field(default_factory=Counter)

    def wrap(self, publish: Callable[..., Any]) -> Callable[..., Any]:
        def call(decoder: Any, publisher: Any, look: archives.SegmentListing, *others: Any) -> Any:
            found = publish(decoder, publisher, look, *others)
            if look.segment.name in self.names and self.error is not None:
                self.tried[look.segment.name] += 1
                raise self.error
            return found

        return call


BreakOne = Callable[[Exception], tuple[Broken, Path, list[Path]]]


@pytest.fixture
def break_one(captured: Captured, segments: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BreakOne:
    """Copies the segments of a table to `copies`, and lets the first one raise an error."""

    def act(error: Exception) -> tuple[Broken, Path, list[Path]]:
        bad, *sound = [copy(path, tmp_path / "copies") for path in segments]
        broken = Broken({bad.name}, error)
        monkeypatch.setattr(archives, "_publish_segment", broken.wrap(archives._publish_segment))
        return broken, bad, sound

    return act


@contextmanager
def following(captured: Captured, paths: list[Path], checkpoint: Path) -> Iterator[list[ArchiveReport]]:
    """Follow folders in a thread; the report is in the list at the end."""
    stop, reports = threading.Event(), list[ArchiveReport]()

    def follow() -> None:
        reports.append(follow_segments(captured.settings, list(map(str, paths)), checkpoint, stop))

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield reports
    finally:
        stop.set()
        thread.join()
    assert reports


@pytest.mark.parametrize("kind", [Transient, WritetimeError])
def test_an_outage_of_kafka_in_a_task_remains_one(
    captured: Captured, tmp_path: Path, break_one: BreakOne, kind: type[WritetimeError]
) -> None:
    """Dagster runs an asset again only after an outage."""
    break_one(kind("no broker answers"))
    with pytest.raises(WritetimeError, match="no broker answers") as raised:
        publish_segments(captured.settings, [str(tmp_path / "copies")], tmp_path / "checkpoint")
    assert type(raised.value) is kind


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyError("x"), RecursionError("too deep")])
def test_an_unknown_error_of_a_segment_does_not_stop_the_others(
    captured: Captured, tmp_path: Path, caplog: pytest.LogCaptureFixture, break_one: BreakOne, error: Exception
) -> None:
    broken, bad, sound = break_one(error)

    def publish() -> ArchiveReport:
        return publish_segments(captured.settings, [str(tmp_path / "copies")], tmp_path / "checkpoint")

    report = publish()
    assert report.segments == len(sound)
    assert report.faults == {str(bad): f"{type(error).__name__}: {error}"}
    assert broken.tried == {bad.name: 4}
    assert sum("trying again" in record.message for record in caplog.records) == 3
    assert f"{type(error).__name__}: {error}" in caplog.text
    kept = Checkpoint(tmp_path / "checkpoint")
    assert not kept.segments[str(bad)].is_done
    assert all(kept.segments[str(path)].is_done for path in sound)
    kept.close()
    # Each run tries it again, and it counts as done only when all of it is published.
    assert publish().faults.keys() == {str(bad)}
    assert broken.tried == {bad.name: 8}
    broken.error = None
    report = publish()
    assert (report.segments, report.faults) == (1, {})
    captured.assert_same("t")


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), MemoryError("a segment is large")])
def test_a_segment_that_the_disk_does_not_return_does_not_stop_the_others(
    captured: Captured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    break_one: BreakOne,
    error: Exception,
) -> None:
    broken, bad, sound = break_one(error)
    # The segment is the first one of its round.
    monkeypatch.setattr(archives, "SEGMENTS_PER_TASK", 1)
    with following(captured, [tmp_path / "none", tmp_path / "copies"], tmp_path / "checkpoint") as reports:
        wait_for(lambda: broken.tried[bad.name] >= 3)
        kept = read_checkpoint(tmp_path / "checkpoint")
        assert {key for key, found in kept.items() if found.is_done} == set(map(str, sound))
        assert str(bad) not in kept
        assert new_ones([str(tmp_path / "copies")], tmp_path / "checkpoint") == [str(bad)]
        broken.error = None
        wait_for(lambda: read_checkpoint(tmp_path / "checkpoint").get(str(bad)))
    assert caplog.text.count(f"{bad} cannot be read: {type(error).__name__}") == 1
    [report] = reports
    assert (report.segments, report.faults) == (len(sound) + 1, {})
    # A folder that is not there stops no other folder, and is logged once.
    assert caplog.text.count("none does not exist; trying again") == 1
    assert report.errors["storage"] >= 3
    captured.assert_same("t")


@pytest.mark.parametrize("boundary", ["hand_over", "unbalanced"])
def test_the_readable_part_of_a_segment_is_published_once(
    captured: Captured, segments: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boundary: str
) -> None:
    """However often the disk does not return the rest, or all of it when it is counted."""
    bad, *sound = [copy(path, tmp_path / "copies") for path in segments]
    tried: list[None] = []
    broken = threading.Event()
    broken.set()

    def fail(segment: Segment) -> None:
        if segment.name == bad.name and broken.is_set():
            tried.append(None)
            raise OSError(5, "Input/output error")

    original: Callable[..., Any] = getattr(archives, boundary)

    def hand_over(decoder: Any, publisher: Any, segment: Segment, *others: Any) -> Iterator[Any]:
        for progress, handed in original(decoder, publisher, segment, *others):
            if progress.finished:
                fail(segment)
            yield progress, handed

    def unbalanced(segment: Segment, *others: Any) -> Any:
        fail(segment)
        return original(segment, *others)

    monkeypatch.setattr(archives, boundary, {"hand_over": hand_over, "unbalanced": unbalanced}[boundary])
    with following(captured, [tmp_path / "copies"], tmp_path / "checkpoint") as reports:
        wait_for(lambda: len(tried) >= 4)
        kept = read_checkpoint(tmp_path / "checkpoint")
        assert {key for key, found in kept.items() if found.is_done} == set(map(str, sound))
        assert kept[str(bad)].progress.position > 0
        broken.clear()
        wait_for(lambda: read_checkpoint(tmp_path / "checkpoint")[str(bad)].is_done)
    assert (reports[0].segments, reports[0].faults) == (len(sound) + 1, {})
    assert set(published(captured).values()) == {1}
    captured.assert_same("t")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("a bug"), "unexpected"),
        (OperationTimedOut(), "database"),
        (WritetimeError("a server refuses"), "publishing"),
        (OSError(28, "No space left on device"), "disk"),
    ],
)
def test_an_error_of_all_segments_is_retried(
    captured: Captured,
    segments: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    kind: str,
) -> None:
    folder = tmp_path / "copies"
    for path in segments:
        copy(path, folder)
    left = [3]
    refresh = archives.SchemaWatch.refresh

    def fail(watch: archives.SchemaWatch, **options: Any) -> bool:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return refresh(watch, **options)

    monkeypatch.setattr(archives.SchemaWatch, "refresh", fail)
    with following(captured, [folder], tmp_path / "checkpoint") as reports:
        wait_for((tmp_path / "checkpoint/segments.jsonl").exists)
    [report] = reports
    assert report.errors == {kind: 3}
    [logged] = [record for record in caplog.records if record.message.endswith("; trying again")]
    assert (logged.exc_info is not None) == (kind == "unexpected")
    assert report.faults == {}
    captured.assert_same("t")


def test_a_checkpoint_that_cannot_be_saved_is_saved_later(
    captured: Captured, segments: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in segments:
        copy(path, tmp_path / "copies")
    left = [3]

    def full(path: Path, lines: Any) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise OSError(28, "No space left on device", str(path))
        state_files.write_lines(path, lines)

    monkeypatch.setattr("writetime.capture.checkpoint.write_lines", full)
    with following(captured, [tmp_path / "copies"], tmp_path / "checkpoint") as reports:
        wait_for((tmp_path / "checkpoint/segments.jsonl").exists)
    assert reports[0].errors == {"disk": 3}
    assert new_ones([str(tmp_path / "copies")], tmp_path / "checkpoint") == []
    # The changes were acknowledged, so they are not published again.
    assert set(published(captured).values()) == {1}
    captured.assert_same("t")


def test_a_refused_topic_ends_the_attempts(
    captured: Captured,
    segments: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """That of the schemas ends the run, as every table needs it; that of a table sets its segments aside, even if the
    publisher is asked again each time."""
    copies = [copy(path, tmp_path / "copies") for path in segments]
    refused: list[str] = []
    topic = SCHEMAS_TOPIC

    def refuse(publisher: ChangePublisher, schema: TableSchema, changes: Any, choose: Any) -> Any:
        refused.append(topic)
        raise RefusedMessage(f"Kafka refuses {topic}", topic)

    monkeypatch.setattr(ChangePublisher, "send", refuse)

    def publish() -> ArchiveReport:
        return publish_segments(captured.settings, [str(tmp_path / "copies")], tmp_path / "checkpoint")

    with pytest.raises(WritetimeError, match=f"Kafka refuses {SCHEMAS_TOPIC}"):
        publish()
    assert len(refused) == 1
    assert set(new_ones([str(tmp_path / "copies")], tmp_path / "checkpoint")) == set(map(str, copies))
    refused.clear()
    topic = changes_topic(f"{captured.keyspace}.t")
    assert set(publish().faults.values()) == {f"Kafka refuses {topic}"}
    assert len(refused) == 4 * len(copies)
    assert caplog.text.count(f"Kafka refuses {topic}; trying again") == 3 * len(copies)
    monkeypatch.undo()
    assert publish().faults == {}
    captured.assert_same("t")


def test_records_of_published_segments_are_dropped_after_their_files(
    captured: Captured, segments: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("writetime.capture.checkpoint.FORGOTTEN_SECONDS", 0)
    copies = [copy(path, tmp_path / "copies") for path in segments]
    other = copy(copies[-1], tmp_path / "other")
    paths, checkpoint = [str(tmp_path / "copies"), str(tmp_path / "other")], tmp_path / "checkpoint"
    publish_segments(captured.settings, paths, checkpoint)
    assert read_checkpoint(checkpoint).keys() == {*map(str, copies), str(other)}
    # A segment that the archive's owner deletes, and one that is new.
    for path in (copies[0], index_of(copies[0])):
        path.unlink()
    # Of a folder that is not listed, nothing is known.
    other.parent.rename(tmp_path / "moved")
    captured.fill(2)
    new = copy(complete(captured)[-1], tmp_path / "copies")
    with pytest.raises(WritetimeError, match="other does not exist"):
        publish_segments(captured.settings, paths, checkpoint)
    assert read_checkpoint(checkpoint).keys() == {*map(str, copies[1:]), str(new), str(other)}


def test_an_unknown_error_of_a_task_loses_nothing(
    captured: Captured, segments: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments of the other task are published, and those of the task that fails are not done."""
    copies = [copy(path, tmp_path / "copies") for path in segments]
    made: list[archives.Decoder] = []

    class Failing(archives.Decoder):
        def refresh(self, *, always: bool = False) -> bool:
            if self not in made:
                made.append(self)
            # The second task fails at its start.
            if made.index(self) == 1:
                raise RuntimeError("a bug")
            return super().refresh(always=always)

    monkeypatch.setattr(archives, "Decoder", Failing)
    paths = [str(tmp_path / "copies")]
    with pytest.raises(WritetimeError, match="RuntimeError: a bug"):
        publish_segments(captured.settings, paths, tmp_path / "checkpoint", tasks=2)
    assert set(new_ones(paths, tmp_path / "checkpoint")) == set(map(str, copies[1::2]))
    report = publish_segments(captured.settings, paths, tmp_path / "checkpoint", tasks=2)
    assert (report.segments, report.faults) == (len(copies[1::2]), {})
    captured.assert_same("t")
