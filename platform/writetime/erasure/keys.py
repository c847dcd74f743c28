"""The keys of what is to be erased, as the command, Python and Dagster take them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from writetime.changes.clusterings import clustering_decoder
from writetime.core.errors import WritetimeError
from writetime.erasure.places import in_places, place_of
from writetime.files.key_ranges import KeyRanges, joined
from writetime.lookup.keys import label, places_of_keys
from writetime.lookup.matching import keys_table
from writetime.schema.table import TableSchema
from writetime.schema.types import Native
from writetime.schema.values import BadValue

# Values of other types have several forms in JSON.
_IN_JSON = [Native(n) for n in ("tinyint", "smallint", "int", "bigint", "ascii", "text", "uuid", "timeuuid")]

Key = str | Mapping[str, Any]
"""A JSON object or values by column: all of the partition key, and for single rows the first clustering columns, or all
of them. Or the serialised partition key as 0x and hexadecimal digits; for single rows, with a slash and the position of
one, in the same form.
"""


def ranges_of(keys: Sequence[Key], schema: TableSchema) -> KeyRanges:
    """Return the partitions and the rows of keys, in order.

    Raises:
        WritetimeError: there is no key, or one of them stands for no partition or row of the table.
    """
    if not keys:
        raise WritetimeError("name the partitions or rows, by at least one key")
    return joined([_of_text(key, schema) if isinstance(key, str) else _of_values(key, schema) for key in keys])


def _of_text(text: str, schema: TableSchema) -> KeyRanges:
    if text.startswith("0x"):
        return _of_bytes(text, schema)
    try:
        key = json.loads(text)
    except ValueError:
        raise _wrong(schema) from None
    columns = schema.partition_key + schema.clustering
    if not isinstance(key, dict) or any(c.type not in _IN_JSON for c in columns if label(c) in key):
        raise _wrong(schema)
    return _of_values(key, schema)


def _of_bytes(text: str, schema: TableSchema) -> KeyRanges:
    try:
        key, *position = (bytes.fromhex(part.removeprefix("0x")) for part in text.split("/", 1))
    except ValueError:
        raise WritetimeError("a key that begins with 0x has other characters than hexadecimal digits") from None
    try:
        is_row = all(clustering_decoder(schema.clustering)(each) for each in position)
    except BadValue:
        is_row = False
    if not is_row:
        raise WritetimeError(f"{schema.full_name}: the second part of a key is not the position of a row")
    return in_places([place_of(key, *position)])


def _of_values(key: Mapping[str, Any], schema: TableSchema) -> KeyRanges:
    columns = (schema.partition_key + schema.clustering)[: len(key)]
    count = len(key) - len(schema.partition_key)
    if count < 0 or key.keys() != {label(column) for column in columns}:
        raise _wrong(schema)
    found = places_of_keys(keys_table([key], schema), schema)
    # A value that leads to no place would leave a shorter key, which stands for more.
    if found is None or [len(clustering_decoder(schema.clustering)(p)) for p in found.first.to_pylist()] != [count]:
        raise _wrong(schema)
    return found


def _wrong(schema: TableSchema) -> WritetimeError:
    return WritetimeError(
        f"{schema.full_name}: a key gives no serialised key. It has all columns of the partition key, and for single "
        "rows the first clustering columns. If one of them is not an integer, a text or a UUID, give the key in "
        "serialised form, as the column `key` of the changes has it (0x...), and for single rows the position, as the "
        "column `position` has it (0x.../0x...)"
    )
