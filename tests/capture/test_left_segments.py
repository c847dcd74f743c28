"""Segments that the node left in `cdc_raw` without marking them as complete."""

import itertools
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cassandra import WriteFailure
from cassandra.protocol import CDCWriteException

from tests.capture.agents import complete, progress_of
from tests.capture.endtoend import NODE
from tests.support.captured import Captured, captured_keyspace
from tests.support.format_server import FormatServer
from tests.support.servers import running
from tests.support.waiting import wait_for
from writetime.core.config import Settings
from writetime.storage.segment import find_segments

pytestmark = pytest.mark.long

# Of rows; those of the tests' marks are smaller.
_NUMBERS = itertools.count(1_000_000)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FormatServer]:
    """A node that refuses writes as soon as a few segments are left in `cdc_raw`."""
    with running(FormatServer(tmp_path_factory.mktemp("small"), "oa", **NODE, cdc_total_space="6MiB")) as server:
        yield server


@pytest.fixture
def crowded(small: FormatServer, kafka: Settings, tmp_path: Path) -> Iterator[Captured]:
    """A captured keyspace of that node."""
    with captured_keyspace(small, kafka, tmp_path) as made:
        yield made


def restart(captured: Captured, sig: signal.Signals) -> None:
    captured.node.stop(sig)
    captured.node.start()


def accepts(captured: Captured) -> bool:
    """Insert rows that fill more than a segment, because a node that has just started accepts writes to the first one.
    Return whether the node accepted all."""
    insert = f"INSERT INTO {captured.keyspace}.marks (id, filling) VALUES (%s, %s)"
    try:
        for _ in range(7):
            captured.node.session().execute(insert, (next(_NUMBERS), bytes(200_000)))
    except (CDCWriteException, WriteFailure):
        return False
    return True


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("CommitLog-*.log")}


def test_a_node_that_restarts_again_and_again_accepts_writes(crowded: Captured, is_long: bool) -> None:
    """Stopped and killed, with an agent that goes on. The agent leaves the node's present segments in place."""
    signals = itertools.cycle([signal.SIGTERM, signal.SIGTERM, signal.SIGKILL])
    with crowded.agent():
        crowded.settle()
        for sig in itertools.islice(signals, 100 if is_long else 5):
            wait_for(lambda: accepts(crowded))
            restart(crowded, sig)
        crowded.settle()
        kept = files(crowded.node.folder / "commitlog")
        wait_for(lambda: files(crowded.node.cdc_raw) <= kept | files(crowded.node.folder / "commitlog"))
        # There may be no room for the next one.
        assert files(crowded.node.cdc_raw)
    totals = progress_of(crowded)["totals"]
    assert totals["segments_set_aside"] == totals["segments_vanished"] == totals["changes_set_aside"] == 0
    crowded.assert_same("marks")


def test_an_agent_that_starts_late_makes_room(crowded: Captured) -> None:
    while accepts(crowded):
        restart(crowded, signal.SIGTERM)
    with crowded.agent():
        wait_for(lambda: accepts(crowded))
        crowded.settle()
    crowded.assert_same("marks")


def leave(path: Path, index: bytes | None) -> None:
    """Turn a complete segment into one that the node has left with another index, or none."""
    content = path.read_bytes()
    path.unlink()
    index_file = path.with_name(f"{path.stem}_cdc.idx")
    index_file.unlink()
    if index is not None:
        index_file.write_bytes(index)
    path.write_bytes(content)


@pytest.mark.parametrize("finished", ["delete", "archive", "keep"])
def test_left_segments_are_published_and_released_like_others(
    captured: Captured, tmp_path: Path, finished: str
) -> None:
    indexes = [None, b"", b"100", b"COMPLETED", b"\0" * 15]
    captured.fill(len(indexes) + 1)
    paths = complete(captured)[: len(indexes)]
    for path, index in zip(paths, indexes, strict=True):
        leave(path, index)
    empty = [captured.node.cdc_raw / f"CommitLog-8-{n}.log" for n in (1, 2)]
    empty[0].write_bytes(b"")
    empty[1].write_bytes(bytes(1 << 20))
    archive = tmp_path / "archive"
    with captured.agent(finished=finished, archive=str(archive) if finished == "archive" else None):
        captured.settle()
        wait_for(lambda: is_released(captured, [*paths, *empty], finished))
    assert progress_of(captured)["totals"]["segments_set_aside"] == 0
    captured.assert_same("marks")
    if finished == "archive":
        assert {path.name for path in [*paths, *empty]} <= files(archive)
    for path in [*paths, *empty]:
        path.unlink(missing_ok=True)
        path.with_name(f"{path.stem}_cdc.idx").unlink(missing_ok=True)


def is_released(captured: Captured, paths: list[Path], finished: str) -> bool:
    if finished != "keep":
        return not any(path.exists() for path in paths)
    segments = progress_of(captured)["segments"].values()
    return {path.name for path in paths} <= {segment["name"] for segment in segments if segment["kept"]}


def test_a_segment_that_has_another_link_stays(captured: Captured, tmp_path: Path) -> None:
    """Nothing shows that the node has left it."""
    captured.fill(2)
    path = complete(captured)[0]
    leave(path, None)
    (tmp_path / path.name).hardlink_to(path)
    captured.pace = replace(captured.pace, left=0.0)
    with captured.agent():
        captured.settle()
        assert path.exists()
        (tmp_path / path.name).unlink()
        wait_for(lambda: not path.exists())
    captured.assert_same("marks")


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("index", [None, b"900000"], ids=["no index", "an index behind the end"])
def test_a_left_segment_that_lacks_its_end_is_set_aside(captured: Captured, index: bytes | None) -> None:
    captured.fill(2)
    path = complete(captured)[0]
    (segment,) = find_segments(str(path))
    ends = [section.next.position for section in segment.sections()]
    leave(path, index)
    damage(path, lambda content: content[: ends[0] if index else ends[0] - 1])
    with captured.agent():
        captured.settle()
        wait_for(lambda: not path.exists())
    assert (captured.settings.capture.state_dir / "aside" / path.name).exists()


def test_a_segment_that_is_still_copied_into_the_folder_is_not_read(captured: Captured) -> None:
    captured.fill(2)
    path = complete(captured)[0]
    content = path.read_bytes()
    leave(path, None)
    # Much longer than a pause between two parts, also on a busy machine.
    captured.pace = replace(captured.pace, left=15.0)
    with captured.agent(), path.open("wb") as copy:
        for start in range(0, len(content), len(content) // 8):
            copy.write(content[start : start + len(content) // 8])
            copy.flush()
            time.sleep(0.5)
            assert path.exists()
        wait_for(lambda: not path.exists())
    assert progress_of(captured)["totals"]["segments_set_aside"] == 0
    captured.assert_same("marks")
