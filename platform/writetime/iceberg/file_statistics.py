"""The counts and bounds of a data file's columns, from its footer, so that readers skip files.

They are of all rows of a file, so they hold for those that its vector leaves. The format of bounds is that of Iceberg's
spec.md ("Bounds for data files"; "Binary single-value serialization").
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from writetime.core.extras import WhenUsed
from writetime.delta.parquet import Unreadable, open_file
from writetime.delta.storage import Storage

if TYPE_CHECKING:
    from pyiceberg import conversions, types
    from pyiceberg import schema as schemas
    from pyiceberg.utils import truncate
else:
    # Agents import the lake, and are installed without it.
    conversions, types = WhenUsed("pyiceberg.conversions"), WhenUsed("pyiceberg.types")
    truncate = WhenUsed("pyiceberg.utils.truncate")

# Each column makes all manifests that name the file larger.
_MOST_COLUMNS = 32
# Characters or bytes of a bound, as by default in Iceberg (`write.metadata.metrics.default`).
_MOST_LENGTH = 16


def statistics_of(storage: Storage, path: str, schema: "schemas.Schema") -> dict[str, Any]:
    """Return the counts and bounds of the first columns that are not nested, by the names of the fields of an entry of
    a manifest. Return none for a file that is damaged.
    """
    try:
        with open_file(storage, path) as file:
            return _of_footer(file.metadata, schema)
    except Unreadable:
        return {}


def _of_footer(footer: pq.FileMetaData, schema: "schemas.Schema") -> dict[str, Any]:
    counts: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    fields = {field.name: field for field in schema.fields[:_MOST_COLUMNS] if field.field_type.is_primitive}
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    for number in range(footer.num_columns):
        field = fields.get(footer.schema.column(number).path)
        if field is None:
            continue
        columns = [group.column(number) for group in groups]
        found = [column.statistics for column in columns]
        counts[field.field_id] = sum(column.num_values for column in columns)
        if any(each is None or not each.has_null_count for each in found):
            continue
        nulls[field.field_id] = sum(each.null_count for each in found)
        bounded = [each for column, each in zip(columns, found, strict=True) if each.null_count < column.num_values]
        # Engines order NaN above all numbers, and bounds leave it out.
        is_number = isinstance(field.field_type, types.FloatType | types.DoubleType)
        if bounded and not is_number and all(each.has_min_max for each in bounded):
            least, most = min(each.min_raw for each in bounded), max(each.max_raw for each in bounded)
            ends = _ends(field.field_type, least, most)
            lower |= {field.field_id: ends[0]} if ends[0] is not None else {}
            upper |= {field.field_id: ends[1]} if ends[1] is not None else {}
    return {
        "value_counts": _pairs(counts),
        "null_value_counts": _pairs(nulls),
        "lower_bounds": _pairs(lower),
        "upper_bounds": _pairs(upper),
    }


def _ends(kind: Any, least: Any, most: Any) -> tuple[bytes | None, bytes | None]:
    """Return the bounds by the least and the most value as Parquet has them. A longer one is cut; None if it cannot
    be.
    """
    if isinstance(kind, types.StringType):
        least = least.decode()[:_MOST_LENGTH]
        most = truncate.truncate_upper_bound_text_string(most.decode(), _MOST_LENGTH)
        # pyiceberg (0.12) takes the next code point, which is a surrogate after U+D7FF: UTF-8 has none.
        most = most and most.replace("\ud800", "\ue000")
    elif isinstance(kind, types.BinaryType):
        least, most = least[:_MOST_LENGTH], truncate.truncate_upper_bound_binary_string(most, _MOST_LENGTH)
    return conversions.to_bytes(kind, least), None if most is None else conversions.to_bytes(kind, most)


def _pairs(values: Mapping[int, Any]) -> list[dict[str, Any]]:
    """Return a map as Avro has it in manifests."""
    return [{"key": key, "value": value} for key, value in values.items()]
