"""Agents that find a table dropped and created again."""

import time
from dataclasses import asdict, replace
from pathlib import Path
from uuid import uuid4

import pytest

from tests.scylla_cdc.agents import follow, insert, reached, settings_for, wait_until
from tests.scylla_cdc.conftest import Logged
from tests.scylla_cdc.databases import CdcDatabase, now
from tests.support.programs import agent
from tests.support.waiting import wait_for
from writetime.capture import scylla_agent
from writetime.capture.metrics import read_status
from writetime.capture.state_files import write_json
from writetime.scylla_cdc.offsets import Offset
from writetime.scylla_cdc.source import open_source

LOG_SECONDS = 300


def test_rows_of_a_new_table_that_its_log_has_lost_are_a_gap(cdc: CdcDatabase, late: Logged, tmp_path: Path) -> None:
    follow(cdc, late, 1000)
    name = late.schema.full_name
    settings = settings_for(cdc, tmp_path, late, window_seconds=0.5, log_ttl_seconds=2)
    start = late.sets[0].time
    settings.capture.state_dir.mkdir()
    earlier = Offset(now(), start, start, str(uuid4()))
    write_json(settings.capture.state_dir / "logs.json", {name: asdict(earlier)})
    insert(cdc, late, 1)
    time.sleep(3)

    def fault() -> str:
        return (read_status(settings.capture.state_dir) or {"logs": {}})["logs"].get(name, {}).get("fault") or ""

    with agent(settings):
        wait_for(lambda: "the log keeps rows for 2 seconds" in fault())
    with open_source(settings, name) as source:
        assert reached(settings) == {name: source.created}


def test_the_log_of_a_new_table_is_read_in_large_steps(
    cdc: CdcDatabase, late: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent fails between DROP and CREATE. After a failed step it reads the same table window by window, but the
    log of another table may begin long before, with the streams of its keyspace.
    """
    follow(cdc, late, LOG_SECONDS)
    settings = settings_for(cdc, tmp_path, late, window_seconds=0.5)
    name, saved = late.schema.full_name, list[Offset]()
    save = scylla_agent.LogProgress.save

    def count(progress: scylla_agent.LogProgress, table: str, offset: Offset) -> None:
        saved.append(offset)
        save(progress, table, offset)

    monkeypatch.setattr(scylla_agent.LogProgress, "save", count)
    with agent(settings):
        wait_until(settings, late, now())
        for table in (name, f"{name}_scylla_cdc_log"):
            cdc.session.execute(f"DROP TABLE {table}")
        wait_for(lambda: (read_status(settings.capture.state_dir) or {})["logs"][name]["fault"])
        created = now()
        late.schema = cdc.create(replace(late.schema, id=None))
        follow(cdc, late, LOG_SECONDS)
        wait_until(settings, late, now())
    steps = [offset for offset in saved if offset.table_id == str(late.schema.id) and offset.until < created]
    assert len(steps) < 40
