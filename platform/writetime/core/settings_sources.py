"""The sources of settings: variables, a folder of secrets, and a TOML file; and their faults. No value is ignored
silently.
"""

import difflib
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_settings import EnvSettingsSource, NestedSecretsSettingsSource, SettingsError, TomlConfigSettingsSource

PREFIX = "WRITETIME_"
_PARTS = "__"
_SECRET = re.compile(r"(?i)secret|password|token|webhook|access[._]?key|account[._]?key|credential|jaas")
# Kubernetes sets WRITETIME_INGEST_PORT=tcp://... for a service of that name.
_OF_KUBERNETES = re.compile(r"\w+://.*")


class TomlFile(TomlConfigSettingsSource):
    """A TOML file, with or without the byte order mark that some editors write."""

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        return tomllib.loads(file_path.read_text("utf-8-sig"))


class Variables(EnvSettingsSource):
    """The environment. An error names the variable whose value is not JSON."""

    def decode_complex_value(self, field_name: str, field: Any, value: Any) -> Any:
        """Return the value that a JSON text has."""
        del field
        names = [name for name, text in os.environ.items() if name.upper().startswith(PREFIX) and text == value]
        return _json(value, next(iter(names), field_name))


class SecretFiles(NestedSecretsSettingsSource):
    """A folder with a file per secret. An error names the file that is not UTF-8, or whose content is not JSON."""

    def decode_complex_value(self, field_name: str, field: Any, value: Any) -> Any:
        """Return the value that a JSON text has."""
        del field
        files = (path for folder in self.secrets_paths for path in _files(folder))
        named = (str(path) for path in files if path.name.lower().split(_PARTS)[-1] == field_name.lower())
        return _json(value, next(named, field_name))

    @classmethod
    def load_secrets(cls, path: Path) -> dict[str, str]:
        """Return the contents of the files by their names."""
        try:
            return super().load_secrets(path)
        except UnicodeDecodeError:
            raise SettingsError(f"{_not_utf8(path)} is not UTF-8") from None


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as e:
        # The text may be a secret.
        raise SettingsError(f"{place} is not JSON: {e.msg} at character {e.pos + 1}") from None


def _not_utf8(folder: Path) -> Path:
    for path in _files(folder):
        try:
            path.read_text("utf-8")
        except UnicodeDecodeError:
            return path
    return folder


def unused(model: type[BaseModel], secrets: str | None) -> list[str]:
    """Describe the variables, and the files in the folder of secrets, whose section does not exist.

    A variable without two underscores is described only if a setting would have its name with them: `WRITETIME_CONFIG`
    and other programs' variables are no settings.
    """
    found = []
    for name, value in os.environ.items():
        if name.upper().startswith(PREFIX) and not _OF_KUBERNETES.fullmatch(value):
            found.append((name, name[len(PREFIX) :].lower()))
    if secrets is not None:
        found += [(str(path), path.name.lower()) for path in _files(Path(secrets))]
    return [fault for place, name in found if (fault := _fault(place, name, model)) is not None]


def _fault(place: str, name: str, model: type[BaseModel]) -> str | None:
    section, separator, setting = name.partition(_PARTS)
    if separator and section not in model.model_fields:
        close = difflib.get_close_matches(section, model.model_fields, n=1)
        meant = f"; is it {close[0]}{_PARTS}{setting}?" if close else ""
        return f"{place}: there is no section {section}{meant}"
    if not separator:
        for known, field in model.model_fields.items():
            rest = name.removeprefix(f"{known}_")
            if rest != name and rest in getattr(field.annotation, "model_fields", {}):
                return f"{place}: two underscores separate a section from its setting; is it {known}{_PARTS}{rest}?"
    return None


def faults(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Describe the faults, setting by setting; for an unknown setting, suggest the intended one."""
    return [f"{'.'.join(map(str, fault['loc']))}: {_reason(fault, model)}" for fault in error.errors()]


def _reason(fault: Any, model: type[BaseModel]) -> str:
    if fault["type"] != "extra_forbidden":
        return fault["msg"]
    *sections, name = fault["loc"]
    known: Any = model
    for section in sections:
        field = known.model_fields.get(section)
        known = field.annotation if field else None
        if not isinstance(known, type) or not issubclass(known, BaseModel):
            return "there is no such setting"
    close = difflib.get_close_matches(str(name), known.model_fields, n=1)
    return f"there is no such setting; is it {close[0]}?" if close else "there is no such setting"


def exposed(file: Path, secrets: str | None) -> list[Path]:
    """Return the files with secrets that every user of the machine can read: the settings file, if it has any, and
    those in the folder of secrets.
    """
    files = [] if secrets is None else list(_files(Path(secrets)))
    if file.is_file() and _has_secret(tomllib.loads(file.read_text("utf-8-sig"))):
        files.append(file)
    return [path for path in files if path.stat().st_mode & stat.S_IROTH]


def _has_secret(section: dict[str, Any]) -> bool:
    return any(
        _has_secret(value) if isinstance(value, dict) else _SECRET.search(name) for name, value in section.items()
    )


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder. Kubernetes keeps its own links in entries that begin with a dot."""
    if folder.is_dir():
        yield from (path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith("."))
