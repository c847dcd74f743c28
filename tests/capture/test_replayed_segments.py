"""Segments that a node replays from an archive, in part, or in spite of damage: watermarks stay true."""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.capture.agents import held, passes, restart, until, with_lake
from tests.support.captured import Captured, captured_keyspace
from tests.support.format_server import KilledServer
from tests.support.lake_answers import view_rows
from tests.support.waiting import wait_for
from writetime.core.config import Settings
from writetime.lake import views
from writetime.lake.table import open_table
from writetime.lake.views import time_now
from writetime.landing.forgetting import find_traces
from writetime.landing.landing import Landing
from writetime.storage.segment import Segment, find_segments
from writetime.verify.comparison import verify

pytestmark = pytest.mark.long


@pytest.fixture
def captured(own_node: KilledServer, kafka: Settings, tmp_path: Path) -> Iterator[Captured]:
    """A captured keyspace of that node, and a separate lake."""
    with captured_keyspace(own_node, with_lake(kafka, tmp_path / "lake"), tmp_path) as made:
        made.write("CREATE TABLE {ks}.t (k int PRIMARY KEY, v text) WITH cdc = true")
        yield made


def configure_archive(captured: Captured, archive: Path, **more: str) -> None:
    """Let the node copy its segments to a folder from its next start on. `more` are other properties."""
    lines = [f"archive_command=/bin/cp %path {archive}/%name", *(f"{name}={value}" for name, value in more.items())]
    (captured.node.folder / "commitlog_archiving.properties").write_text("\n".join(lines))


@pytest.fixture
def archive(captured: Captured, tmp_path: Path) -> Iterator[Path]:
    """A folder to which the node copies the segments that it has completed."""
    folder = tmp_path / "archive"
    folder.mkdir()
    configure_archive(captured, folder)
    restart(captured)
    yield folder
    (captured.node.folder / "commitlog_archiving.properties").unlink()
    restart(captured)


def complete(captured: Captured, archive: Path) -> None:
    """Let the node archive the segment of the last write."""
    newest = max(captured.node.cdc_raw.glob("*.log")).name
    captured.fill(2)
    wait_for((archive / newest).exists)


def restore(captured: Captured, archive: Path, **more: str) -> None:
    """Lose the disk of the commit log and the tables' files, and start the node with the segments of the archive."""
    captured.node.stop(signal.SIGKILL)
    for name in ("commitlog", "cdc_raw", f"data/{captured.keyspace}"):
        for path in (captured.node.folder / name).rglob("*"):
            if path.is_file():
                path.unlink()
    restored = archive.with_name("restored")
    shutil.copytree(archive, restored)
    options = {"restore_command": "/bin/cp %from %to", "restore_directories": str(restored)}
    configure_archive(captured, archive, **options, **more)
    captured.node.start()
    configure_archive(captured, archive)


def test_segments_of_an_archive_reach_the_lake(captured: Captured, archive: Path) -> None:
    """Those that the agent has never seen, that it has read in part, and that it has released."""
    with captured.agent():
        captured.write("INSERT INTO {ks}.t (k) VALUES (1)")
        first = max(captured.node.cdc_raw.glob("*.log"))
        captured.fill(2)
        captured.node.nodetool("flush")
        wait_for(lambda: not first.exists())
        captured.write("INSERT INTO {ks}.t (k) VALUES (2)")
        passes(captured, "t")
    captured.write("INSERT INTO {ks}.t (k) VALUES (3)")
    complete(captured, archive)
    restore(captured, archive)
    assert keys(captured) == [1, 2, 3]
    assert (captured.node.cdc_raw / first.name).exists()
    with captured.agent():
        passes(captured, "t")
        assert not held(captured, "t")
    captured.assert_same("t")


def keys(captured: Captured) -> list[int]:
    """The keys in the database."""
    return sorted(row.k for row in captured.node.session().execute(f"SELECT k FROM {captured.keyspace}.t"))


def rows_of_lake(captured: Captured) -> list[int]:
    """The keys in the lake's view, when all changes have landed."""
    captured.settle()
    name = f"{captured.keyspace}.t"
    landing = Landing(captured.settings, name)
    assert landing.drain() == landing.offsets_landed
    return sorted(row["k"] for row in view_rows(views.virtual(open_table(captured.settings, name))))


def differing(captured: Captured) -> int:
    return verify(captured.settings, open_table(captured.settings, f"{captured.keyspace}.t"), 0).differing


@pytest.mark.parametrize("is_truncated", [False, True])
def test_a_database_that_is_restored_to_an_earlier_time(
    captured: Captured, archive: Path, *, is_truncated: bool
) -> None:
    """The lake also has the later writes, until it is loaded again."""
    with captured.agent():
        captured.write("INSERT INTO {ks}.t (k) VALUES (1) USING TIMESTAMP 1700000000000000")
        if is_truncated:
            captured.write("TRUNCATE {ks}.t")
        captured.write("INSERT INTO {ks}.t (k) VALUES (2)")
        assert rows_of_lake(captured) == ([2] if is_truncated else [1, 2])
    complete(captured, archive)
    restore(captured, archive, restore_point_in_time="2024:01:01 00:00:00")
    assert keys(captured) == [1]
    with captured.agent():
        if is_truncated:
            wait_for(lambda: "was restored to a time before the TRUNCATE" in held(captured, "t"))
        else:
            passes(captured, "t")
        assert 2 in rows_of_lake(captured)
        assert differing(captured)
    # The remedy in docs/backup.md.
    for trace in find_traces(captured.settings, f"{captured.keyspace}.t"):
        trace.delete()
    with captured.agent(snapshot="always"):
        passes(captured, "t")
        assert not held(captured, "t")
        assert rows_of_lake(captured) == [1]
        assert not differing(captured)


def damage_frame(segment: Segment, text: bytes) -> None:
    """Change a byte of a mutation."""
    path = Path(segment.path)
    path.write_bytes(path.read_bytes().replace(text, text.upper()))


def damage_marker(segment: Segment, text: bytes) -> None:
    """Let the sync marker before a mutation have no checksum. A node writes it after the marker's position."""
    section = next(section for section in segment.sections() if text in section.data.tobytes())
    with Path(segment.path).open("r+b") as file:
        file.seek(section.offset - 4)
        file.write(bytes(4))


@pytest.mark.parametrize(
    ("damage", "option", "rows"),
    [
        (damage_frame, "ignorereplayerrors", [1, 3]),
        pytest.param(
            *(damage_marker, "allow_ignore_sync_crc", [1, 2, 3]),
            marks=pytest.mark.from_cassandra_5("4.0 has no such option"),
        ),
    ],
)
def test_damage_that_a_node_ignores_holds_the_watermark(
    captured: Captured, damage: Callable[[Segment, bytes], None], option: str, rows: list[int]
) -> None:
    with captured.agent():
        captured.settle()
        passes(captured, "t")
    before = time_now()
    for k, text in enumerate(("first", "second", "third"), 1):
        captured.write(f"INSERT INTO {{ks}}.t (k, v) VALUES ({k}, 'the {text}')")
    captured.node.stop(signal.SIGKILL)
    (segment,) = (s for s in find_segments(str(captured.node.cdc_raw)) if b"the second" in Path(s.path).read_bytes())
    damage(segment, b"the second")
    captured.node.options = [f"-Dcassandra.commitlog.{option}=true"]
    captured.node.start()
    captured.node.options = []
    assert keys(captured) == rows
    with captured.agent():
        wait_for(lambda: "CRC32" in held(captured, "t"))
        captured.settle()
        assert until(captured, "t") <= before
    with captured.agent(snapshot="always"):
        passes(captured, "t")
        assert not held(captured, "t")
    captured.assert_same("t")


def test_writes_that_are_not_replayed_are_in_the_lake(captured: Captured, cassandra_version: str) -> None:
    with captured.agent():
        passes(captured, "t")
    captured.write("INSERT INTO {ks}.t (k) VALUES (1)")
    captured.node.options = [f"-Dcassandra.replayList={captured.keyspace}.marks"]
    restart(captured, signal.SIGKILL)
    assert keys(captured) == []
    with captured.agent():
        passes(captured, "t")
        assert rows_of_lake(captured) == [1]
        assert differing(captured) == 1
    if cassandra_version != "4.0":
        # Properties may also override settings. The agent sees the values in force.
        names = ("config.allow_system_properties=true", "settings.cdc_enabled=false")
        captured.node.options = [f"-Dcassandra.{name}" for name in names]
        restart(captured)
        captured.node.options = []
        with captured.agent():
            wait_for(lambda: "cdc_enabled: false" in held(captured, "t"))
