"""Applies row events to a dictionary, as a consumer would."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from tests.lake.answers import view_rows

Place = tuple[int, bytes, bytes]
Image = dict[str, Any]


def images(column: pa.ChunkedArray) -> list[Image | None]:
    """Rows as plain values."""
    structs = column.combine_chunks()
    rows = view_rows([pa.Table.from_struct_array(structs)])
    return [row if valid else None for row, valid in zip(rows, structs.is_valid().to_pylist(), strict=True)]


def apply(events: Iterable[pa.Table], rows: dict[Place, Image] | None = None) -> dict[Place, Image]:
    """Apply events to rows by their places; each before image has to be the row that is there."""
    rows = {} if rows is None else rows
    for table in events:
        columns = [table[name].to_pylist() for name in ("kind", "token", "key", "position")]
        for kind, *at, before, after in zip(*columns, images(table["before"]), images(table["after"]), strict=True):
            place = (at[0], at[1], at[2])
            assert rows.get(place) == before
            assert before != after
            assert kind == {(True, False): "CREATE", (False, False): "UPDATE"}.get(
                (before is None, after is None), "DELETE"
            )
            if after is None:
                del rows[place]
            else:
                rows[place] = after
    return rows


def in_order(rows: dict[Place, Image]) -> list[Image]:
    """The rows in the order of the database."""
    return [rows[place] for place in sorted(rows)]
