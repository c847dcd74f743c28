"""A power failure at any moment: no command depends on a commit that the disk may have lost.

Oracle: the rows that the test wrote, up to a batch.
"""

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.generate import SEED
from tests.support.made import add, new_table, write
from tests.support.power_failures import STRACE, Call, left_by, record
from tests.support.repaired import NAME, Rows, assert_right, printed, settings_of
from writetime.core import config
from writetime.lake import state
from writetime.lake.table import open_table
from writetime.row_events import stream
from writetime.view.refreshing import refresh

pytestmark = [pytest.mark.long, pytest.mark.skipif(STRACE is None, reason="strace is not installed")]

BATCHES = 20
TRIALS = 24
_SCRIPT = """
from tests.lake.test_power_failures import work
work(17)
"""


def batch(number: int) -> dict[tuple[int, int], str]:
    return {(key, 1): f"batch {number}" for key in range(number % 5, 30, 3)}


def land(until: int = BATCHES) -> None:
    """Add the batches that the changes do not have."""
    table = open_table(config.load(), NAME)
    for number in range(until):
        add(table, [write(i, n, number + 1, v=v) for (i, n), v in batch(number).items()], number)


def work(first: int) -> None:
    """Add batches from the first one on, and let each part follow."""
    settings = config.load()
    table = open_table(settings, NAME)
    for number in range(first, BATCHES):
        land(number + 1)
        stream.extend(table)
        refresh(settings, table)
        state.fold(table)


@dataclass(frozen=True)
class Recorded:
    """The lake before and after some batches, and the calls between."""

    before: Path
    after: Path
    calls: list[Call]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WRITETIME_CONFIG", str(settings_of(folder)))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), "platform"]))
        table = new_table(folder / "lake", cache_gib=0)
        land(17)
        stream.extend(table)
        refresh(config.load(), table)
        state.fold(table)
        shutil.copytree(folder / "lake", folder / "before")
        calls = record(folder / "lake", _SCRIPT)
    return Recorded(folder / "before", folder / "lake", calls)


def rows_of(batches: int) -> Rows:
    return {key: value for number in range(batches) for key, value in batch(number).items()}


def test_the_calls_are_recorded(recorded: Recorded) -> None:
    """Each batch makes a commit of each part at least, and syncs it and its name."""
    commits = [call.made for call in recorded.calls if call.of and call.made.endswith(".json")]
    assert len(commits) >= 4 * 3
    assert sum(bool(call.synced) for call in recorded.calls) >= 4 * len(commits)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("trial", range(TRIALS))
def test_no_part_depends_on_what_is_lost(
    trial: int, recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keeps: bool
) -> None:
    chooser = random.Random(f"{SEED} {trial}")
    calls = recorded.calls[: chooser.randrange(len(recorded.calls) + 1)]
    monkeypatch.setenv("WRITETIME_CONFIG", str(settings_of(tmp_path)))
    left_by(calls, recorded.before, recorded.after, tmp_path / "lake", chooser if keeps else None)
    # No remedy is needed.
    assert printed(lambda: pytest.fail("a command was refused")) in [rows_of(n) for n in range(17, BATCHES + 1)]
    land()
    assert_right(tmp_path / "lake" / NAME, rows_of(BATCHES), lambda: pytest.fail("a command was refused"))
