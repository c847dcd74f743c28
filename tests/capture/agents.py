"""The progress of an agent, and of its changes in the lake."""

import json
import signal
from pathlib import Path
from typing import Any

from tests.support.captured import Captured
from tests.support.lake_answers import cql_rows, view_rows
from tests.support.waiting import wait_for
from writetime.capture.metrics import read_status
from writetime.capture.segments import readable
from writetime.core.config import Settings
from writetime.lake import views
from writetime.lake.table import open_table
from writetime.lake.views import time_now
from writetime.storage.segment import END, list_segments


def progress_of(captured: Captured) -> dict[str, Any]:
    return json.loads((captured.settings.capture.state_dir / "progress.json").read_text())


def node_id(captured: Captured) -> str:
    """The host id of the node, by which its agent reports."""
    return str(captured.node.session().execute("SELECT host_id FROM system.local").one().host_id)


def complete(captured: Captured) -> list[Path]:
    """The segments that the node is done with."""
    listed, _ = list_segments(str(captured.node.cdc_raw))
    found, _ = readable(listed, lambda _: False)
    return [Path(segment.path) for segment, until in found if until == END]


def put_back(captured: Captured, aside: Path) -> None:
    """Put the segments that were set aside back to where the node left them."""
    for path in sorted(aside.glob("CommitLog-*"), key=lambda p: p.suffix != ".log"):
        if path.suffix != ".json":
            path.rename(captured.node.cdc_raw / path.name)


def until(captured: Captured, table: str) -> int:
    """Return up to when a table is published, as the topic of the watermarks has it."""
    name = f"{captured.keyspace}.{table}"
    marks = captured.watermarks.read().values()
    return max((found.tables[name].until for found in marks if name in found.tables), default=0)


def status_of(captured: Captured) -> dict[str, Any]:
    return read_status(captured.settings.capture.state_dir) or {}


def count(settings: Settings, table: str) -> int:
    """How many changes the lake has of a table."""
    return sum(file.rows for file in open_table(settings, table).changes.load().files)


def assert_view(captured: Captured, table: str) -> None:
    """Compare the lake's virtual view with the database's answer."""
    lake_table = open_table(captured.settings, f"{captured.keyspace}.{table}")
    assert view_rows(views.virtual(lake_table)) == cql_rows(captured.node.session(), captured.schema(table))


def with_lake(settings: Settings, path: Path) -> Settings:
    """The settings with a lake in another folder."""
    return settings.model_copy(update={"lake": settings.lake.model_copy(update={"path": str(path), "buckets": 2})})


def held(captured: Captured, table: str = "marks") -> str:
    """Return why the watermark of a table does not advance."""
    return status_of(captured).get("held", {}).get(f"{captured.keyspace}.{table}", "")


def passes(captured: Captured, table: str = "marks") -> None:
    """Wait until the watermark of a table has passed now."""
    now = time_now()
    wait_for(lambda: until(captured, table) > now)


def restart(captured: Captured, sig: signal.Signals = signal.SIGTERM, **configuration: object) -> None:
    """Start the node again, with changes of its configuration."""
    captured.node.stop(sig)
    captured.node.configure(**configuration)
    captured.node.start()
