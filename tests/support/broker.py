"""Settings of a broker that runs, without a database: its keyspace and tables take most of the CPU of a short test."""

import uuid
from pathlib import Path

import pytest

from tests.support.settings import write_settings
from writetime.core.config import Settings
from writetime.servers.process import free_port


def without_database(kafka: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The current settings, with a separate lake. No other test has tables of this keyspace."""
    nowhere = {"keyspace": f"b{uuid.uuid4().hex[:12]}", "port": free_port()}
    lake = {"path": str(folder / "lake"), "cache": str(folder / "cache"), "buckets": 2}
    own = kafka.model_copy(
        update={
            "cassandra": kafka.cassandra.model_copy(update=nowhere),
            "lake": kafka.lake.model_copy(update=lake),
        }
    )
    write_settings(own, folder / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(folder / "writetime.toml"))
    return own
