"""Settings of a broker that runs, without a database, with a lake and a name of their own."""

import uuid
from pathlib import Path

import pytest

from tests.support.settings import write_settings
from writetime.core.config import Settings
from writetime.servers.process import free_port


@pytest.fixture
def settings(kafka: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Short intervals; the keyspace names tables that no other test has."""
    own = kafka.model_copy(
        update={
            "cassandra": kafka.cassandra.model_copy(
                update={"keyspace": f"f{uuid.uuid4().hex[:12]}", "port": free_port()}
            ),
            "lake": kafka.lake.model_copy(
                update={"path": str(tmp_path / "lake"), "cache": str(tmp_path / "cache"), "buckets": 2}
            ),
            "follow": kafka.follow.model_copy(update={"events_seconds": 0.05, "view_seconds": 0.05}),
        }
    )
    write_settings(own, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    return own
