"""Settings of ingresses that have no servers."""

import pytest

from tests.http.serving import NO_BROKER, NO_DATABASE, changed, cut_off_from
from writetime.core.config import Settings
from writetime.servers.process import free_port


@pytest.fixture(scope="session")
def alone() -> Settings:
    """Settings of an ingress without servers, which refuses calls, or answers 503 to them soon."""
    return cut_off_from(changed(Settings(), NO_BROKER, ack_timeout_seconds=0.3, port=free_port()), NO_DATABASE)
