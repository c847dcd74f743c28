"""Settings of an agent that follows one table of a running ScyllaDB."""

from pathlib import Path

from writetime.core.config import Capture, Settings


def settings_for(live: Settings, name: str, folder: Path) -> Settings:
    """Settings of an agent that soon catches up, with a separate lake."""
    capture = Capture(
        source="scylla-cdc", tables=[name], state_dir=folder / "state", partitions=2, snapshot="schema-only"
    )
    reading = live.scylla_cdc.model_copy(update={"window_seconds": 1.0, "confidence_seconds": 3.0})
    lake = live.lake.model_copy(update={"path": str(folder / "lake"), "buckets": 2})
    return live.model_copy(update={"capture": capture, "scylla_cdc": reading, "lake": lake})
