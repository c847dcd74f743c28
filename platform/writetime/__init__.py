"""Writetime: a lake that returns the rows that the database would return.

    import writetime

    writetime.open_table("shop.orders").view()                    # rows, as the database would return them
    writetime.read_sstable("/backups/orders-.../snapshots/daily")  # changes, without the database
    writetime.write_sstable(changes, "/restore/orders", schema)    # an SSTable of changes, for `nodetool import`
    writetime.register(spark)                                     # data sources sstable, commitlog, scylla_cdc

All results are Arrow data. Names that are not listed here are not part of the public interface.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from writetime.api.files import read_commitlog, read_sstable, write_sstable
    from writetime.api.tables import Table, open_table
    from writetime.sources import register

# Imported on first use: a program of the platform needs only a part of the engine.
_PLACES = {
    "Table": "writetime.api.tables",
    "open_table": "writetime.api.tables",
    "read_commitlog": "writetime.api.files",
    "read_sstable": "writetime.api.files",
    "register": "writetime.sources",
    "write_sstable": "writetime.api.files",
}

__all__ = ["Table", "open_table", "read_commitlog", "read_sstable", "register", "write_sstable"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'writetime' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
