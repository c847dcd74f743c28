"""Files of the log of a table that are damaged: each command has the right rows, or names a file and the command that
repairs the table, and that command does. Afterwards, landing repeats the batches that the changes have lost.

Oracle: the rows that the test wrote before the damage.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lake.sound_lake import BATCHES, PARTS, land, make, rows
from tests.support.generate import SEED
from tests.support.published import command
from tests.support.repaired import NAME, assert_right, settings_of
from writetime.core import config
from writetime.lake.table import open_table

pytestmark = pytest.mark.long

Damage = Callable[[Path], None]


def gone(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: random.Random(SEED + len(content)).randrange(len(content))])


def garbage(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(random.Random(SEED).randbytes(len(content)))


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    place = random.Random(SEED + len(content)).randrange(8 * len(content))
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)


def other_text(path: Path) -> None:
    path.write_text('{"version": "x"}')


FILES: dict[str, Callable[[Path], Path]] = {
    "the newest commit": lambda log: max(log.glob("*.json")),
    "the last but one": lambda log: sorted(log.glob("*.json"))[-2],
    "a commit before the checkpoint": lambda log: sorted(log.glob("*.json"))[7],
    "the checkpoint": lambda log: max(log.glob("*.checkpoint.parquet")),
    "the name of the checkpoint": lambda log: log / "_last_checkpoint",
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def lake(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WRITETIME_CONFIG", str(settings_of(tmp_path)))
    shutil.copytree(sound, tmp_path / "lake")
    return tmp_path / "lake" / NAME


@pytest.mark.parametrize("damage", [gone, empty, zeros, cut, garbage, flipped, other_text])
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_log_is_repaired_by_the_command_of_its_error(
    damage: Damage, file: str, part: str, lake: Path
) -> None:
    path = FILES[file](lake / part / "_delta_log")
    damage(path)
    answer = command("maintain", NAME)
    if answer.exit_code:
        assert str(lake / part) in answer.stderr
    # Another commit than the newest can be missing only if the log shows it.
    lost = part == "changes" and "commit" in file and damage is gone
    assert_right(lake, rows(), land)
    assert not lost or len(open_table(config.load(), NAME).changes.load().files) == BATCHES
