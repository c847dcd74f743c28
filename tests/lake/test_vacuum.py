"""The time for which a vacuum keeps replaced files."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.made import add, new_table, rewrite, settings_at, write
from writetime.delta import commits
from writetime.lake import retention, state
from writetime.lake.table import LakeTable, open_table

_HOUR = 3600
_REPLACE: dict[str, Callable[[LakeTable], Any]] = {"state": state.rebuild, "view": rewrite}


@pytest.mark.parametrize("part", _REPLACE)
def test_files_are_kept_for_more_than_a_week(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Checkpoints name them for as long, because a vacuum goes by the age of a file that it does not find there."""
    table = new_table(tmp_path)
    add(table, [write(i, 1, 5, v="a") for i in range(20)], 1)
    state.fold(table)
    rewrite(table)
    assert retention.vacuum(table, 400) == []
    delta = getattr(table, part)
    replaced = [Path(delta.storage.address, file.path) for file in delta.load().files]
    with monkeypatch.context() as patched:
        patched.setattr(commits, "millis", lambda _: (time.time_ns() // 1_000_000) - 200 * _HOUR * 1000)
        _REPLACE[part](table)
    DeltaTable(delta.storage.address).create_checkpoint()
    at = time.time() - 500 * _HOUR
    for path in replaced:
        os.utime(path, (at, at))
    opened = open_table(settings_at(tmp_path), table.name)
    assert retention.vacuum(opened, 400) == []
    assert sorted(retention.vacuum(opened, 199)) == sorted(map(str, replaced))
