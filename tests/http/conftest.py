"""Settings of ingresses with servers and without."""

import uuid

import pytest

from tests.http.serving import NO_BROKER, NO_DATABASE, changed, cut_off_from
from writetime.clients.kafka import ensure_topics
from writetime.core.config import Settings
from writetime.servers.process import free_port


@pytest.fixture(scope="session")
def alone() -> Settings:
    """Settings of an ingress without servers, which refuses calls, or answers 503 to them soon."""
    return cut_off_from(changed(Settings(), NO_BROKER, ack_timeout_seconds=0.3, port=free_port()), NO_DATABASE)


@pytest.fixture(scope="module")
def broker(kafka: Settings, cassandra: Settings) -> Settings:
    """Settings with a topic for this module's tests."""
    # Work items go to the database.
    del cassandra
    settings = changed(kafka, topic=f"ingress-{uuid.uuid4().hex[:8]}", port=free_port())
    ensure_topics(settings, {settings.ingest.topic: {}}, partitions=4)
    return settings
