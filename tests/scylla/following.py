"""An agent that follows one table of a running ScyllaDB, and its settings."""

import time
from collections.abc import Callable
from pathlib import Path

from tests.support.programs import agent
from tests.support.waiting import wait_for
from writetime.core.config import Capture, Settings
from writetime.lake.table import LakeTable, open_table
from writetime.landing.landing import Landing
from writetime.scylla_cdc.log import SUFFIX
from writetime.wire.watermarks import WatermarkTopic

# By then, cells with short TTLs have expired, and writes ahead of the clock are in the past.
SETTLE_SECONDS = 5


def settings_for(live: Settings, name: str, folder: Path) -> Settings:
    """Settings of an agent that soon catches up, with a separate lake."""
    capture = Capture(
        source="scylla-cdc", tables=[name], state_dir=folder / "state", partitions=2, snapshot="schema-only"
    )
    reading = live.scylla_cdc.model_copy(update={"window_seconds": 1.0, "confidence_seconds": 3.0})
    lake = live.lake.model_copy(update={"path": str(folder / "lake"), "buckets": 2})
    return live.model_copy(update={"capture": capture, "scylla_cdc": reading, "lake": lake})


def captured(settings: Settings, name: str, write: Callable[[], object]) -> LakeTable:
    """Write to a table while an agent runs; return it in the lake, with all these writes."""
    with agent(settings):
        write()
        last = time.time_ns() // 1000 + SETTLE_SECONDS * 1_000_000

        def published() -> bool:
            mark = WatermarkTopic(settings).read().get(name + SUFFIX)
            return mark is not None and mark.tables[name].until > last

        wait_for(published)
    Landing(settings, name).drain()
    return open_table(settings, name)
