"""What a checkpoint of an archive keeps of segments that are gone, without a node."""

from contextlib import closing
from pathlib import Path

import pytest

from writetime.capture import archives
from writetime.capture.archives import Archived, Checkpoint
from writetime.capture.progress import SegmentProgress

FOLDER = "/archive/node-1"


def archived(number: int, *, finished: bool = True) -> Archived:
    return Archived(SegmentProgress(f"CommitLog-7-{number}.log", finished=finished), finished, (1, 1))


def key(number: int) -> str:
    return f"{FOLDER}/CommitLog-7-{number}.log"


def test_a_folder_whose_mount_is_away_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment has to be gone for a day, also across runs. What is not published whole stays."""
    now = 1_000_000.0
    monkeypatch.setattr(archives.time, "time", lambda: now)
    with closing(Checkpoint(tmp_path)) as kept:
        kept.segments = {key(i): archived(i, finished=i != 3) for i in range(1, 5)}
        kept.forget(set(), {FOLDER})
        assert len(kept.segments) == 4
        assert kept.unsaved
        kept.save()
    now += 80_000
    with closing(Checkpoint(tmp_path)) as kept:
        # It comes back, without the second one.
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
