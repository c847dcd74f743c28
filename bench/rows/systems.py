"""The interface that the benchmark uses for Writetime and for each peer."""

from pathlib import Path
from typing import Protocol

import pyarrow as pa

from bench.generated import COLUMNS
from bench.rows.batches import Batch
from writetime.core.errors import WritetimeError
from writetime.schema.table import TableSchema

Steps = dict[str, float]
"""CPU seconds of all processes of a system, by step."""


class Unavailable(WritetimeError):
    """A peer cannot run here; the text names the missing part."""


class System(Protocol):
    """Keeps one table, and returns both images of each row that changes."""

    def load(self, first: Path) -> None:
        """Load the first rows from their file, and read their events."""
        ...

    def apply(self, batch: Batch) -> tuple[Steps, pa.Table]:
        """Apply a batch until readers see it, and read its images: rows with `side`, which is `before` or `after`."""
        ...

    def rows(self) -> pa.Table:
        """Return all rows, with `side`, which is `rows`."""
        ...

    def close(self) -> None:
        """Stop all processes of the system."""
        ...


def columns_of(schema: TableSchema) -> list[str]:
    """Return the columns of a table: keys, then values."""
    return keys_of(schema) + list(COLUMNS)


def keys_of(schema: TableSchema) -> list[str]:
    """Return the columns of the primary key of a table."""
    return [c.name for c in (*schema.partition_key, *schema.clustering)]
