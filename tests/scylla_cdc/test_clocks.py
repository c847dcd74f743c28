"""A clock of this machine that differs from the database's."""

import random
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.scylla_cdc.agents import insert, reached, settings_for, wait_until
from tests.scylla_cdc.conftest import Logged
from tests.scylla_cdc.databases import SECOND, CdcDatabase, now, stream_set
from tests.support.programs import agent
from tests.support.waiting import wait_for
from writetime.capture.metrics import read_status
from writetime.capture.state_files import write_json
from writetime.core.config import Settings
from writetime.scylla_cdc import source
from writetime.scylla_cdc.log import LogError
from writetime.scylla_cdc.offsets import Offset
from writetime.scylla_cdc.source import open_source


@pytest.mark.parametrize(("seconds", "reason"), [(600, "ahead of the database's"), (-600, "behind the database's")])
def test_a_clock_that_differs_is_refused(
    cdc: CdcDatabase, late: Logged, monkeypatch: pytest.MonkeyPatch, seconds: int, reason: str
) -> None:
    cdc.announce_tablets(late.schema, late.sets)
    monkeypatch.setattr(source, "now", lambda: now() + seconds * SECOND)
    with (
        pytest.raises(LogError, match=f"clock is 6.* seconds {reason}"),
        open_source(cdc.settings, late.schema.full_name),
    ):
        pass
    monkeypatch.setattr(source, "now", lambda: now() + 2 * SECOND)
    with open_source(cdc.settings, late.schema.full_name):
        pass


def test_the_agent_reports_windows_that_were_read_too_early(cdc: CdcDatabase, late: Logged, tmp_path: Path) -> None:
    """By an agent whose clock was ahead: until they are over, nothing is read, and the reason is shown."""
    name = late.schema.full_name
    late.sets = [stream_set(random.Random(1), now() - SECOND, [0, (1 << 63) - 1])]
    cdc.announce_tablets(late.schema, late.sets)
    settings = settings_for(cdc, tmp_path, late, window_seconds=0.5)
    until = now() + 6 * SECOND
    settings.capture.state_dir.mkdir()
    early = Offset(until, late.sets[0].time // 1000 * 1000, late.sets[0].time, str(late.schema.id))
    write_json(settings.capture.state_dir / "logs.json", {name: asdict(early)})
    with agent(settings):
        wait_for(lambda: "which is in the future" in fault(settings, name))
        assert reached(settings)[name] == until
        while now() < until:
            insert(cdc, late, 1)
            time.sleep(0.1)
        wait_until(settings, late, until + SECOND)
        wait_for(lambda: not fault(settings, name))


def fault(settings: Settings, name: str) -> str:
    return (read_status(settings.capture.state_dir) or {"logs": {}})["logs"].get(name, {}).get("fault") or ""
