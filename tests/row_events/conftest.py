"""Settings of a lake with few buckets, as no test here has many rows."""

from pathlib import Path

import pytest

from tests.support.few_buckets import with_few_buckets
from writetime.core.config import Settings


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    return with_few_buckets(settings, tmp_path / "writetime.toml")
