"""An agent that finds a table dropped and created again after the log has lost the first rows of the new one."""

import json
import time
from pathlib import Path
from uuid import uuid4

from tests.scylla_cdc.agents import follow, insert, reached, settings_for
from tests.scylla_cdc.conftest import Logged
from tests.scylla_cdc.databases import CdcDatabase, now
from tests.support.programs import agent
from tests.support.waiting import wait_for
from writetime.capture.agent_metrics import read_status
from writetime.scylla_cdc.offsets import Offset
from writetime.scylla_cdc.source import open_source


def test_rows_of_a_new_table_that_its_log_has_lost_are_a_gap(cdc: CdcDatabase, late: Logged, tmp_path: Path) -> None:
    follow(cdc, late, 1000)
    name = late.schema.full_name
    settings = settings_for(cdc, tmp_path, late, window_seconds=0.5, log_ttl_seconds=2)
    start = late.sets[0].time
    settings.capture.state_dir.mkdir()
    earlier = Offset(now(), start, start, str(uuid4()))
    (settings.capture.state_dir / "logs.json").write_text(json.dumps({name: earlier.json()}))
    insert(cdc, late, 1)
    time.sleep(3)

    def fault() -> str:
        return (read_status(settings.capture.state_dir) or {"logs": {}})["logs"].get(name, {}).get("fault") or ""

    with agent(settings):
        wait_for(lambda: "the log keeps rows for 2 seconds" in fault())
    with open_source(settings, name) as source:
        assert reached(settings) == {name: source.created}
