"""The format version of the lake: each Delta table records it, and another version is refused, with the remedy."""

from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from tests.support.made import SCHEMA, add, rewrite, settings_at, write
from tests.support.settings import write_settings
from writetime.cli.main import main
from writetime.core.errors import WritetimeError
from writetime.lake import state
from writetime.lake.table import LakeTable, create_table, open_table
from writetime.row_events import stream

PARTS = ("changes", "state", "view", "row_events")


def filled(folder: Path) -> LakeTable:
    table = create_table(settings_at(folder), SCHEMA)
    add(table, [write(1, 1, 5, v="x")], 1)
    state.fold(table)
    rewrite(table)
    stream.extend(table)
    return table


def rewritten(address: str, old: str, new: str) -> None:
    """Change the property as another Writetime would have written it."""
    first = Path(address, "_delta_log", f"{0:020d}.json")
    text = first.read_text()
    assert old in text
    first.write_text(text.replace(old, new))


def test_every_table_records_the_version(tmp_path: Path) -> None:
    address = Path(filled(tmp_path).changes.storage.address).parent
    found = {part: DeltaTable(address / part).metadata().configuration.get("writetime.format") for part in PARTS}
    assert found == dict.fromkeys(PARTS, "1")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("version", [None, "2"])
def test_another_version_is_refused(tmp_path: Path, part: str, version: str | None) -> None:
    table, settings = filled(tmp_path), settings_at(tmp_path)
    address = str(Path(table.changes.storage.address).parent / part)
    old = '"writetime.format":"1"'
    rewritten(address, old, f'"writetime.format":"{version}"' if version else '"other":"1"')
    named = f"format version {version}" if version else "no format version, as before 0.1.0"
    opened = (
        partial(stream.extend, deepcopy(table)) if part == "row_events" else partial(open_table, settings, table.name)
    )
    with pytest.raises(WritetimeError, match=rf"{part} has {named}.* has format version 1: .*lake\.path"):
        opened()


def test_a_command_reports_it_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(tmp_path)
    write_settings(settings_at(tmp_path), tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    rewritten(table.changes.storage.address, '"writetime.format":"1"', '"writetime.format":"7"')
    for command in ("view", "maintain", "row-events"):
        answer = CliRunner().invoke(main, [command, table.name])
        assert answer.exit_code == 1
        assert "has format version 7, and this Writetime has format version 1" in answer.output
