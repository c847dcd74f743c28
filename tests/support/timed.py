"""Changes made by hand at chosen seconds, and views as of such a second."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

from tests.support.lake_answers import view_rows
from tests.support.made import write
from writetime.lake import views
from writetime.lake.table import LakeTable

SECOND = 1_000_000


def around(value: Any) -> Any:
    """Changes whose write times are around their deletion times, as those of a database are: 98 to 105 seconds."""
    if isinstance(value, list):
        return [around(v) for v in value]
    if isinstance(value, dict):
        moved = {k: around(v) for k, v in value.items()}
        return moved | ({"write_time": (99 + value["write_time"]) * SECOND} if "write_time" in value else {})
    return value


def rows_at(table: LakeTable, second: int) -> list[dict[str, Any]]:
    """The virtual view, with expiry judged at this second."""
    return view_rows(replace(task, as_of=second * SECOND).rows() for task in views.bucket_views(table))


def deletion(id_: int, n: int, at: int) -> dict[str, Any]:
    """A row deletion of this time, in microseconds."""
    times = {"write_time": at, "deletion_time": at // SECOND}
    return {**write(id_, n, at), "marker": None, "tombstone": times}


def by_value(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the clustering decimal as a number. Of equal ones (1 and 1.0) either may be shown: Cassandra 5.0 shows
    the 1.0 of an older tombstone for a row with 1, until a compaction drops the tombstone, and 1 afterwards.
    """
    return [row | {"c": row["c"] and Decimal(row["c"])} for row in rows]
