"""Settings of a lake whose tables have few buckets. Each bucket costs a task and a commit of a backfill, and a query of
`verify`; by default there are 16.
"""

from pathlib import Path

from tests.support.settings import write_settings
from writetime.core.config import Settings


def with_few_buckets(settings: Settings, file: Path) -> Settings:
    """Return the settings with two buckets, and let the settings file say the same."""
    own = settings.model_copy(update={"lake": settings.lake.model_copy(update={"buckets": 2})})
    write_settings(own, file)
    return own
