"""`maintain` and `rebuild` publish no rows that are not as the table's entry expects them."""

import shutil
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner, Result

from tests.support.lake_answers import view_rows
from tests.support.made import add, new_table, settings_at, write
from tests.support.settings import write_settings
from writetime.cli.main import main
from writetime.core import extras
from writetime.lake import state
from writetime.lake.table import LakeTable
from writetime.view import upkeep

pytestmark = pytest.mark.slow

GONE = {"type": "expect_column_values_to_not_be_null", "column": "gone"}
NOT_NULL = {"type": "expect_column_values_to_not_be_null", "column": "v"}


def published(table: LakeTable) -> list[int]:
    return sorted(row["id"] for row in view_rows([table.view.read(["id"])]))


@pytest.mark.parametrize("command", ["maintain", "rebuild"])
def test_rows_that_are_not_as_expected_are_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    settings = settings_at(tmp_path / "lake")
    entry = {"shop": {"items": {"expect": [NOT_NULL]}}}
    write_settings(settings.model_copy(update={"tables": entry}), tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    table = new_table(tmp_path / "lake")

    def ran() -> str:
        answer = CliRunner().invoke(main, [command, "shop.items"])
        return "" if answer.exit_code == 0 else answer.output + str(answer.exception)

    add(table, [write(1, 1, 1, v="a")], 1)
    assert not ran()
    add(table, [write(2, 1, 2)], 2)
    assert "rows are not as expected: `v` not null" in ran()
    assert published(table) == [1]
    # All other work is done.
    assert state.folded_version(table.state.load()) == table.changes.load().version
    add(table, [write(2, 1, 3, v="b")], 3)
    assert not ran()
    assert published(table) == [1, 2]


def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, str]) -> LakeTable:
    """A table whose entry expects something, with a row that has no `v`."""
    settings = settings_at(tmp_path / "lake").model_copy(update={"tables": {"shop": {"items": {"expect": [expected]}}}})
    write_settings(settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    table = new_table(tmp_path / "lake")
    add(table, [write(1, 1, 1)], 1)
    return table


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments])


def test_rebuild_continues_if_rows_are_not_as_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(tmp_path, monkeypatch, NOT_NULL)
    done = run("rebuild", "shop.items", "state", "view", "row_events")
    assert done.exit_code == 1
    assert "row_events 1 event" in done.output
    assert "view is not rebuilt: the view stays empty, because rows are not as expected: `v` not null" in done.output
    assert sum(file.rows for file in table.row_events.load().files) == 1


def test_a_lost_view_stays_empty_until_its_rows_are_as_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(tmp_path, monkeypatch, NOT_NULL)
    add(table, [write(1, 1, 2, v="a")], 2)
    assert run("maintain", "shop.items").exit_code == 0
    add(table, [write(2, 1, 3)], 3)
    shutil.rmtree(table.view.storage.address)
    assert "the view stays empty" in run("rebuild", "shop.items").output
    assert not published(table)
    add(table, [write(2, 1, 4, v="b")], 4)
    assert run("rebuild", "shop.items").exit_code == 0
    assert published(table) == [1, 2]


@pytest.mark.parametrize("is_installed", [True, False])
def test_expectations_that_cannot_be_checked_hold_up_the_view_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_installed: bool
) -> None:
    table = made(tmp_path, monkeypatch, GONE if is_installed else NOT_NULL)
    if not is_installed:
        monkeypatch.setattr(extras, "is_installed", lambda module: module != "great_expectations")
    kept_up = MagicMock(wraps=upkeep.upkeep)
    monkeypatch.setattr(upkeep, "upkeep", kept_up)
    for command in ("maintain", "rebuild"):
        done = run(command, "shop.items")
        assert done.exit_code == 1
        assert ("shop.items has no column gone" if is_installed else "this needs writetime[dagster]") in done.output
        assert kept_up.call_count == 1
    assert state.folded_version(table.state.load()) == table.changes.load().version
    assert not published(table)
