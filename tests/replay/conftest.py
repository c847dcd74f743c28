"""Separate queues on the servers that all tests share."""

import uuid

import pytest

from writetime.core.config import Settings


@pytest.fixture
def queue() -> str:
    return f"q{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def replay_settings(server_settings: Settings) -> Settings:
    """Settings with the tables that are there already: tests have queues of their own."""
    replay = server_settings.replay.model_copy(update={"poll_seconds": 0.2, "publish_timeout_seconds": 100.0})
    return server_settings.model_copy(update={"replay": replay})
