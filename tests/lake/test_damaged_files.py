"""Files of the lake that are damaged or missing: each command works without them, or names one with the remedy."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.made import add, new_table, write
from tests.support.published import command
from tests.support.repaired import NAME, settings_of
from writetime.core import config
from writetime.lake import state
from writetime.row_events import stream
from writetime.view.refreshing import refresh

pytestmark = pytest.mark.long

REBUILD = ("rebuild", NAME)
COMMANDS = (("view", NAME), ("row-events", NAME), ("maintain", NAME), ("view", NAME, "--where", "id = 7 AND n = 1"))


def gone(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def footer(path: Path) -> None:
    _overwrite(path, -400, -200)


def pages(path: Path) -> None:
    _overwrite(path, 4, 400)


def _overwrite(path: Path, begin: int, end: int) -> None:
    found = bytearray(path.read_bytes())
    found[begin:end] = bytes(byte ^ 0xFF for byte in found[begin:end])
    path.write_bytes(found)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of a table with changes that are not in its state yet."""
    folder = tmp_path_factory.mktemp("sound")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WRITETIME_CONFIG", str(settings_of(folder)))
        settings = config.load()
    table = new_table(folder / "lake", cache_gib=0)
    for number in range(3):
        add(table, [write(n, 1, number + 1, v=f"text {n}") for n in range(number, 60)], number)
        if number < 2:
            state.fold(table)
            refresh(settings, table)
    stream.extend(table)
    return folder / "lake"


@pytest.fixture
def lake(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the table in a copy of the lake, which commands use."""
    monkeypatch.setenv("WRITETIME_CONFIG", str(settings_of(tmp_path)))
    shutil.copytree(sound, tmp_path / "lake")
    return tmp_path / "lake" / NAME


@pytest.mark.parametrize("damage", [gone, empty, cut, footer, pages])
@pytest.mark.parametrize("part", ["changes", "state", "view", "row_events"])
def test_an_error_names_the_file_and_the_remedy(damage: Callable[[Path], None], part: str, lake: Path) -> None:
    before = command("view", NAME).stdout
    files = sorted((lake / part).rglob("[!_]*.parquet"))
    for path in files:
        if "_delta_log" not in path.parts:
            damage(path)
    remedy = "docs/backup.md" if part == "changes" else f"`writetime rebuild {NAME} {part}`"
    failed = 0
    for given in [*COMMANDS, *((*REBUILD, other) for other in ("state", "row_events") if part == "changes")]:
        answer = command(*given)
        if answer.exit_code:
            failed += 1
            assert isinstance(answer.exception, SystemExit)
            [line] = answer.stderr.splitlines()
            assert any(str(path) in line for path in files)
            assert remedy in line
    assert failed or part == "view"
    if part != "changes":
        assert command(*REBUILD, part).exit_code == 0
        assert [command(*given).stderr for given in COMMANDS] == [""] * len(COMMANDS)
        assert command("view", NAME).stdout == before
