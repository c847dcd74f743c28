"""Files in `cdc_raw` and in folders of segments that are not regular files: nothing waits for them."""

import json
import signal
from pathlib import Path

import pytest

from tests.capture.agents import complete, status_of
from tests.support.captured import Captured
from tests.support.odd_files import ODD_FILES
from tests.support.waiting import wait_for
from writetime.capture.archives import publish_segments

pytestmark = pytest.mark.long


def make_odd_files(folder: Path) -> dict[Path, str]:
    """Make files of each kind: as a segment, as the index of an empty segment, and under another name. Return those
    that must be reported, each with the name of its kind."""
    made: dict[Path, str] = {}
    for i, (name, make) in enumerate(ODD_FILES.values()):
        segment, indexed = folder / f"CommitLog-8-{10 + i}.log", folder / f"CommitLog-8-{30 + i}.log"
        indexed.write_bytes(b"")
        index = indexed.with_name(f"{indexed.stem}_cdc.idx")
        for path in (segment, index, folder / f"other-{i}"):
            make(path)
        made |= {segment: name, index: name}
    return made


def clear(folder: Path, before: set[Path]) -> None:
    for path in set(folder.iterdir()) - before:
        if path.name.startswith(("CommitLog-8-1", "CommitLog-8-3", "other-", "copy of")) and len(path.name) < 40:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def test_odd_files_in_cdc_raw_stop_nothing(captured: Captured) -> None:
    """The agent reports each by name, holds the watermarks, publishes the segments, and ends at SIGTERM."""
    folder = captured.node.cdc_raw
    before = set(folder.iterdir())
    made = make_odd_files(folder)
    agent = captured.program()
    try:
        captured.fill(2)
        finished = complete(captured)
        captured.settle()
        wait_for(lambda: not any(path.exists() for path in finished))
        wait_for(lambda: "not a regular file" in str(status_of(captured).get("held_by")))
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 0
    finally:
        agent.kill()
        clear(folder, before)
    errors = [json.loads(line)["message"] for line in captured.log.read_text().splitlines()]
    for path, name in made.items():
        assert any(f"{path} is {name}, not a regular file" in error for error in errors), path
    captured.assert_same("marks")


def test_odd_files_in_a_folder_of_segments_are_reported(captured: Captured, tmp_path: Path) -> None:
    captured.fill(2)
    folder = tmp_path / "segments"
    folder.mkdir()
    for path in complete(captured):
        for file in (path, path.with_name(f"{path.stem}_cdc.idx")):
            (folder / file.name).write_bytes(file.read_bytes())
    made = make_odd_files(folder)
    report = publish_segments(captured.settings, [str(folder)], tmp_path / "checkpoint")
    assert report.segments == len(complete(captured))
    for path, name in made.items():
        assert any(f"{path} is {name}" in reason for reason in report.faults.values()), path
