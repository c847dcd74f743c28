"""Writetime: what the lake says is what the database would answer.

    import writetime

    writetime.open_table("shop.orders").view()                    # rows, as the database would answer
    writetime.read_sstable("/backups/orders-.../snapshots/daily")  # changes, without the database
    writetime.register(spark)                                     # data sources sstable, commitlog, scylla_cdc

Everything comes back as Arrow. What is not named here is not part of the public interface.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from writetime.api.files import read_commitlog, read_sstable
    from writetime.api.tables import Table, open_table
    from writetime.sources import register

# Imported when they are asked for: a program of the platform needs a part of the engine only.
_PLACES = {
    "Table": "writetime.api.tables",
    "open_table": "writetime.api.tables",
    "read_commitlog": "writetime.api.files",
    "read_sstable": "writetime.api.files",
    "register": "writetime.sources",
}

__all__ = ["Table", "open_table", "read_commitlog", "read_sstable", "register"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'writetime' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
