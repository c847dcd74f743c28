"""The checkpoint of an archive: its records of missing segments, its cost, and its faults. No node is needed."""

import os
import threading
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from writetime.capture import archives, checkpoint, state_files
from writetime.capture.archives import Archive, ArchiveListing, follow_segments
from writetime.capture.checkpoint import Archived, Checkpoint, read_checkpoint
from writetime.capture.node_schemas import Node, NodeTables
from writetime.capture.progress import SegmentProgress
from writetime.core import config
from writetime.core.errors import Transient, WritetimeError

FOLDER = "/archive/node-1"


def archived(number: int, *, finished: bool = True) -> Archived:
    return Archived(SegmentProgress(f"CommitLog-7-{number}.log", finished=finished), finished, (1, 1))


def key(number: int) -> str:
    return f"{FOLDER}/CommitLog-7-{number}.log"


def test_a_folder_whose_mount_is_away_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment counts as deleted after a day, also across runs. A segment that is not published completely stays."""
    now = 1_000_000.0
    monkeypatch.setattr(checkpoint.time, "time", lambda: now)
    with closing(Checkpoint(tmp_path)) as kept:
        for i in range(1, 5):
            kept.keep(key(i), archived(i, finished=i != 3))
        kept.forget(set(), {FOLDER})
        assert len(kept.segments) == 4
        assert kept.unsaved
        kept.save()
    now += 80_000
    with closing(Checkpoint(tmp_path)) as kept:
        # It is added again, without the second one.
        kept.forget({key(1), key(3), key(4)}, {FOLDER})
        kept.save()
        now += 80_000
        kept.forget(set(), {FOLDER})
        assert kept.segments.keys() == {key(1), key(3), key(4)}
        now += 90_000
        kept.forget(set(), {"/archive/node-2"})
        assert len(kept.segments) == 3
        kept.forget(set(), {FOLDER})
        assert kept.segments.keys() == {key(3)}


def test_a_file_that_has_not_changed_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster's sensor reads it every minute."""
    reads: list[Path] = []
    read_lines = state_files.read_lines
    monkeypatch.setattr(checkpoint, "read_lines", lambda path: (reads.append(path), read_lines(path))[1])
    assert read_checkpoint(tmp_path) == {}
    with closing(Checkpoint(tmp_path)) as kept:
        kept.keep(key(1), archived(1))
        kept.save()
        reads.clear()
        for _ in range(3):
            assert read_checkpoint(tmp_path) == kept.segments
        assert len(reads) == 1
        kept.keep(key(2), archived(2))
        kept.save()
        assert read_checkpoint(tmp_path).keys() == {key(1), key(2)}
        assert len(reads) == 2
    assert read_checkpoint(tmp_path / "other") == {}


@pytest.mark.parametrize(("segments", "pause"), [(10, 1.0), (1_000, 1.0), (50_000, 50.0)])
def test_rounds_over_many_segments_are_rare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segments: int, pause: float
) -> None:
    """Each round lists all of them, so at most 1,000 are listed per second."""
    pauses: list[float | None] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            if len(pauses) == 3:
                self.set()
            return self.is_set()

    monkeypatch.setattr(archives, "_a_node", lambda _settings: nullcontext())
    monkeypatch.setattr(archives, "_look", lambda *_args: ArchiveListing([], set(map(key, range(segments))), {}))
    monkeypatch.setattr(archives.Archive, "drain", lambda archive, _stop: archive._look())
    follow_segments(config.load(), [FOLDER], tmp_path, Stop())
    assert pauses == [pause] * 3


def test_a_save_costs_what_has_changed(tmp_path: Path) -> None:
    """However many segments there are. Records of the same segments do not make the file grow for ever."""
    path = tmp_path / "segments.jsonl"
    with closing(Checkpoint(tmp_path)) as kept:
        for i in range(5000):
            kept.keep(key(i), archived(i))
        kept.save()
        size = path.stat().st_size
        for i in range(8):
            kept.keep(key(i), archived(i, finished=False))
        kept.save()
        assert size < path.stat().st_size < 1.01 * size
        assert len(read_checkpoint(tmp_path)) == 5000
        assert not read_checkpoint(tmp_path)[key(7)].is_done
        for _ in range(20):
            for i in range(1000):
                kept.keep(key(i), archived(i))
            kept.save()
        assert path.stat().st_size < 2.5 * size
        assert read_checkpoint(tmp_path) == kept.segments == {key(i): archived(i) for i in range(5000)}


@pytest.mark.parametrize("cut", [1, 30, 400])
def test_a_save_that_was_cut_off_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    """By a kill, or by a full disk. Each whole line counts, and the next save leaves no part of one."""
    with closing(Checkpoint(tmp_path)) as kept:
        kept.keep(key(1), archived(1))
        kept.save()

        def full(path: Path, lines: Any) -> None:
            state_files.append_lines(path, lines)
            os.truncate(path, path.stat().st_size - cut)
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(checkpoint, "append_lines", full)
            kept.keep(key(2), archived(2))
            kept.keep(key(3), archived(3))
            with pytest.raises(OSError, match="No space left"):
                kept.save()
        assert kept.unsaved
        assert read_checkpoint(tmp_path).keys() == ({key(1), key(2)} if cut < 100 else {key(1)})
    # After a kill, too.
    for number in (4, 5):
        with closing(Checkpoint(tmp_path)) as kept:
            kept.keep(key(number), archived(number))
            kept.save()
            assert read_checkpoint(tmp_path) == kept.segments
            assert key(number) in kept.segments


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "segments.jsonl").write_text('["a", nul]\n["b", null]\n')
    with pytest.raises(WritetimeError, match=r"segments\.jsonl is damaged .* start with another state folder"):
        Checkpoint(tmp_path)


def test_tables_that_could_not_be_announced_are_announced_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although there is no new segment."""
    calls: list[str] = []

    def announce_all(*_args: Any) -> list[str]:
        calls.append("announced")
        if len(calls) == 1:
            raise Transient("no broker answers")
        return []

    watch = SimpleNamespace(tables=NodeTables({}), refresh=lambda: None)
    monkeypatch.setattr(archives, "SchemaWatch", lambda *_: watch)
    publisher = SimpleNamespace(announce_all=announce_all)
    monkeypatch.setattr(archives, "ChangePublisher", lambda *_, **_options: publisher)
    with closing(Checkpoint(tmp_path)) as kept:
        archive = Archive(config.load(), [str(tmp_path)], cast(Node, None), kept, run=map, tasks=1)
        with pytest.raises(Transient):
            archive.drain()
        for _ in range(2):
            archive.drain()
    assert len(calls) == 2
