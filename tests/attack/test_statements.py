"""A short attack with tables and statements."""

from pathlib import Path

import pytest

from tests.attack.statements import KILLS, attack
from writetime.core.config import Settings

pytestmark = pytest.mark.long


def test_no_table_or_statement_harms_capture(
    server_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_long: bool
) -> None:
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    # The first one has counters.
    rounds, kills = (2, KILLS) if is_long else (1, 1)
    report = attack(server_settings, tmp_path, seed=1, rounds=rounds, kills=kills)
    print(report.text())
    assert not report.findings, report.text()
    assert report.counts["tables compared"]["equal"] > 0
