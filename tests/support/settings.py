"""Settings as a file that programs read."""

from pathlib import Path
from typing import Any

import tomlkit
from pydantic import SecretStr

from writetime.core.config import Settings


def write_settings(settings: Settings, path: Path) -> None:
    """Write a settings file that gives these settings back, secrets as they are."""
    path.write_text(tomlkit.dumps(_plain(settings.model_dump(exclude_defaults=True, exclude_none=True))))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(value) if isinstance(value, Path) else value
