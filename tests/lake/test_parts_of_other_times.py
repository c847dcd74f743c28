"""Parts of a table that are copies of different times: each command has the right rows, or names the part and the
command that repairs it, and that command does.

Oracle: the rows that the test wrote.
"""

import itertools
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.generate import SEED
from tests.support.made import add, new_table, write
from tests.support.published import command
from tests.support.repaired import NAME, Rows, assert_right, settings_of
from writetime.core import config
from writetime.lake.table import LakeTable, open_table

pytestmark = pytest.mark.long

PARTS = ("changes", "state", "view", "row_events")
MOMENTS = 5
EVERY = list(itertools.product(range(MOMENTS), repeat=len(PARTS)))


@dataclass(frozen=True)
class Moments:
    """Copies of a table after each batch, and the rows that its changes had then."""

    folder: Path
    rows: list[Rows]


def batch_of(number: int) -> dict[tuple[int, int], str]:
    return {(key, 1): f"batch {number}" for key in range(number, 40, 3)}


def add_batch(table: LakeTable, number: int, text: str = "") -> dict[tuple[int, int], str]:
    rows = {key: value + text for key, value in batch_of(number).items()}
    add(table, [write(i, n, 10 * number + len(text), v=v, w=number) for (i, n), v in rows.items()], number)
    return rows


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> Moments:
    folder = tmp_path_factory.mktemp("moments")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WRITETIME_CONFIG", str(settings_of(folder)))
        table = new_table(folder / "lake", cache_gib=0)
        rows: dict[tuple[int, int], str] = {}
        every: list[Rows] = []
        for number in range(MOMENTS):
            # A moment has no new changes, or several commits of them.
            for commit in range(number % 3):
                rows |= add_batch(table, 10 * number + commit + 1)
            for given in (("publish", NAME, "--lake-only"), ("maintain", NAME)):
                assert command(*given).exit_code == 0
            shutil.copytree(folder / "lake" / NAME, folder / str(number))
            every.append(dict(rows))
    return Moments(folder, every)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WRITETIME_CONFIG", str(settings_of(tmp_path)))
    return tmp_path / "lake" / NAME


@pytest.mark.parametrize("diverged", [False, True])
@pytest.mark.parametrize("chosen", random.Random(SEED).sample(EVERY, 25), ids=str)
def test_the_rows_are_right_or_the_remedy_makes_them_so(
    chosen: tuple[int, ...], moments: Moments, lake: Path, *, diverged: bool
) -> None:
    for part, moment in zip(PARTS, chosen, strict=True):
        shutil.copytree(moments.folder / str(moment) / part, lake / part)
    wanted = dict(moments.rows[chosen[0]])
    if diverged:
        # Other commits take the numbers of those that are lost.
        for number in range(100, 105):
            wanted |= add_batch(open_table(config.load(), NAME), number, " again")
    assert_right(lake, wanted)
