"""Settings of a running broker without a database, with a lake and a name of their own."""

import uuid
from pathlib import Path

import pytest

from tests.support.settings import write_settings
from writetime.core.config import Settings
from writetime.landing import following
from writetime.servers.process import free_port


@pytest.fixture
def settings(kafka: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Short intervals; the keyspace names tables that no other test has. Programs see these alone: each look would
    otherwise ask for the ends of all topics that other tests left on the broker.
    """
    own = kafka.model_copy(
        update={
            "cassandra": kafka.cassandra.model_copy(
                update={"keyspace": f"f{uuid.uuid4().hex[:12]}", "port": free_port()}
            ),
            "lake": kafka.lake.model_copy(
                update={"path": str(tmp_path / "lake"), "cache": str(tmp_path / "cache"), "buckets": 2}
            ),
            "follow": kafka.follow.model_copy(update={"events_seconds": 0.2, "view_seconds": 0.2}),
        }
    )
    table_of_topic = following.table_of_topic

    def own_table(topic: str) -> str | None:
        found = table_of_topic(topic)
        return found if found and found.startswith(f"{own.cassandra.keyspace}.") else None

    monkeypatch.setattr(following, "table_of_topic", own_table)
    write_settings(own, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    return own
