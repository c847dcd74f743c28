"""How every CQL type maps to Arrow, Spark and Avro, and the page `docs/data-types.md` that describes it, with the types
of Kafka Connect (`schema.connect`).

There are two forms of a value. Changes and states hold the stored form, which loses nothing. Views and row events hold
the row form, which query engines handle best. The two differ for `timestamp` only: `schema.row_form` converts.

Spark's types are those that pyspark itself derives from the Arrow types.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from writetime.schema.connect import connect_name
from writetime.schema.names import candidates
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector, freeze

_DURATION = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("nanoseconds", pa.int64())])
_AVRO_DURATION: dict[str, Any] = {
    "type": "record",
    "name": "duration",
    "namespace": "writetime",
    "fields": [
        {"name": "months", "type": "int"},
        {"name": "days", "type": "int"},
        {"name": "nanoseconds", "type": "long"},
    ],
}

# CQL type: Arrow type, Avro type, a note for readers.
_NATIVES: dict[str, tuple[pa.DataType, Any, str]] = {
    "ascii": (pa.string(), "string", ""),
    "bigint": (pa.int64(), "long", ""),
    "blob": (pa.binary(), "bytes", ""),
    "boolean": (pa.bool_(), "boolean", ""),
    "counter": (pa.int64(), "long", "The count. A change also has its shards: see below."),
    "date": (
        pa.date32(),
        {"type": "int", "logicalType": "date"},
        "Days since 1970-01-01; all of CQL's range fits, though Python's `date` ends at the year 9999.",
    ),
    "decimal": (
        pa.string(),
        "string",
        "Digits (4,300 at most) and scale as written (`1.10` is not `1.1`); `CAST(x AS DECIMAL(38, s))` where it fits.",
    ),
    "double": (pa.float64(), "double", ""),
    "duration": (_DURATION, _AVRO_DURATION, "Three parts, as no part converts to another."),
    "empty": (pa.binary(), "bytes", "Always empty; only old Thrift tables have it."),
    "float": (pa.float32(), "float", ""),
    "inet": (pa.string(), "string", "The text form of an IPv4 or IPv6 address."),
    "int": (pa.int32(), "int", ""),
    "smallint": (pa.int16(), "int", ""),
    "text": (pa.string(), "string", "`varchar` is the same type. Bytes that are not UTF-8 are escaped: see below."),
    "time": (pa.int64(), "long", "Nanoseconds since midnight."),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        {"type": "long", "logicalType": "timestamp-micros"},
        "In views and row events. Changes and states hold milliseconds: see below.",
    ),
    "timeuuid": (pa.string(), {"type": "string", "logicalType": "uuid"}, "36 characters, lower case."),
    "tinyint": (pa.int8(), "int", ""),
    "uuid": (pa.string(), {"type": "string", "logicalType": "uuid"}, "36 characters, lower case."),
    "varint": (pa.string(), "string", "The digits, 4,300 at most; `CAST(x AS DECIMAL(38, 0))` where it fits."),
}
# The stored form where it differs: the int64 milliseconds of CQL, whose range microseconds cannot hold.
_STORED: dict[str, tuple[pa.DataType, Any]] = {
    "timestamp": (pa.int64(), {"type": "long", "logicalType": "timestamp-millis"}),
}


def arrow_type(cql_type: CqlType) -> pa.DataType:
    """Return the Arrow type of a value in a row (of a non-frozen collection or UDT: of its frozen form). A map is a
    list of its entries if readers may refuse its keys.
    """
    return _arrow(cql_type, lambda name: _NATIVES[name][0], _may_seem_equal)


def stored_type(cql_type: CqlType) -> pa.DataType:
    """Return the Arrow type of a value in a change or state, as `arrow_type` does for rows."""
    return _arrow(cql_type, lambda name: _STORED.get(name, _NATIVES[name])[0], _has_map)


def _arrow(
    cql_type: CqlType, native: Callable[[str], pa.DataType], refuses_key: Callable[[CqlType], bool]
) -> pa.DataType:
    def arrow(inner: CqlType) -> pa.DataType:
        return _arrow(inner, native, refuses_key)

    match cql_type:
        case Native(name):
            return native(name)
        case Collection("map", (key, value)) if not refuses_key(key):
            return pa.map_(arrow(key), arrow(value))
        case Collection("map", (key, value)):
            entry = pa.struct([("key", arrow(key)), ("value", arrow(value))])
            return pa.list_(pa.field("element", entry))
        case Collection(_, (element,)) | Vector(element, _):
            return pa.list_(pa.field("element", arrow(element)))
        case Tuple(arguments):
            return pa.struct([(f"_{i}", arrow(t)) for i, t in enumerate(arguments, 1)])
        case Udt():
            return pa.struct([(name, arrow(t)) for name, t in cql_type.distinct_fields])
    raise AssertionError(cql_type)


def spark_type(cql_type: CqlType) -> str:
    """Return the Spark SQL type, as pyspark names it."""
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(arrow_type(cql_type)).simpleString()


def avro_type(cql_type: CqlType, name: str = "value", namespace: str = "") -> Any:
    """Return the Avro type of a value in a row event, ready for JSON.

    Records get their name from their place (`name`, `name_key`, `name_1`, ...), so that one type may be used twice. If
    two places lead to one name (the field `b_c` in the field `a`, and `c` in `a_b`), the later one gets `_2`.
    """
    return _avro(cql_type, name, namespace, lambda native: _NATIVES[native][1], set())


def stored_avro_type(cql_type: CqlType, name: str = "value", namespace: str = "") -> Any:
    """Return the Avro type of a value in a change, as `avro_type` does for row events."""
    return _avro(cql_type, name, namespace, lambda native: _STORED.get(native, _NATIVES[native])[1], set())


def _avro(cql_type: CqlType, name: str, namespace: str, native_type: Callable[[str], Any], taken: set[str]) -> Any:
    def nullable(cql: CqlType, suffix: str) -> list[Any]:
        return ["null", _avro(cql, f"{name}_{suffix}", namespace, native_type, taken)]

    def named(wanted: str) -> str:
        """Reserve the name of a record."""
        found = next(n for n in candidates(wanted) if n not in taken)
        taken.add(found)
        return found

    def full(wanted: str) -> str:
        return f"{namespace}.{named(wanted)}" if namespace else named(wanted)

    match cql_type:
        case Native("duration"):
            return {**_AVRO_DURATION, "name": named(f"{name}_duration"), "namespace": namespace or "writetime"}
        case Native(native):
            return native_type(native)
        case Collection("map", (key, value)):
            entry = full(f"{name}_entry")
            fields = [{"name": n, "type": nullable(t, n)} for n, t in (("key", key), ("value", value))]
            return {"type": "array", "items": {"type": "record", "name": entry, "fields": fields}}
        case Collection(_, (element,)) | Vector(element, _):
            return {"type": "array", "items": nullable(element, "element")}
        case Tuple(arguments):
            record = full(name)
            fields = [{"name": f"_{i}", "type": nullable(t, str(i))} for i, t in enumerate(arguments, 1)]
            return {"type": "record", "name": record, "fields": fields}
        case Udt(_, _, udt_fields):
            record = full(name)
            names = [avro_name(n) for n, _ in cql_type.distinct_fields]
            fields = [
                {"name": name, "type": nullable(t, name), "doc": n, "default": None}
                for name, (n, t) in zip(names, udt_fields, strict=True)
            ]
            return {"type": "record", "name": record, "fields": fields}
    raise AssertionError(cql_type)


def avro_name(name: str) -> str:
    """Return a name that Avro accepts: ASCII letters, digits and `_`, and no digit first.

    Another character becomes `_x`, its code in hexadecimal digits and `_`. So does a `_` that would look like the start
    of such an escape, so two names never become one.
    """
    return _ESCAPED.sub(lambda m: f"_x{ord(m[0]):x}_", name) or "_x_"


_ESCAPED = re.compile(r"^[0-9]|[^A-Za-z0-9_]|_(?=x[0-9a-f]*[^A-Za-z0-9])")


def _has_map(cql_type: CqlType) -> bool:
    """Spark has no maps with maps as keys, at any depth."""
    return any(isinstance(t, Collection) and t.kind == "map" for t in _with_parts(cql_type))


def _may_seem_equal(cql_type: CqlType) -> bool:
    """Return whether keys of a map that differ in the database may be equal to readers, which refuse the map or drop an
    entry: 0.0 and -0.0, or tuples of which one has a null part and the other an empty one. Maps as keys are refused,
    too.
    """
    return _has_map(cql_type) or any(
        isinstance(t, Tuple | Udt) or t in (Native("double"), Native("float")) for t in _with_parts(cql_type)
    )


def _with_parts(cql_type: CqlType) -> Iterator[CqlType]:
    """Yield a type and the types of its parts, at any depth."""
    yield cql_type
    match cql_type:
        case Collection(_, arguments) | Tuple(arguments):
            parts = list(arguments)
        case Udt(_, _, fields):
            parts = [t for _, t in fields]
        case Vector(element, _):
            parts = [element]
        case _:
            parts = []
    for part in parts:
        yield from _with_parts(part)


def data_types_page() -> str:
    """Return the text of `docs/data-types.md`."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield "# Data types"
    yield ""
    yield "This page shows how each CQL type appears in Arrow and Parquet, Spark, Avro, and Kafka Connect (the JSON"
    yield "forms of row events). Changes and states lose nothing: no value is rounded, truncated or reinterpreted."
    yield "`writetime.schema.mapping.data_types_page()` writes this page; a test keeps it current."
    yield ""
    yield "| CQL | Arrow | Spark | Avro | Connect | |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, (arrow, avro, note) in _NATIVES.items():
        logical = (
            f"{avro['type']} ({avro['logicalType']})" if isinstance(avro, dict) and "logicalType" in avro else None
        )
        shown = logical or (avro if isinstance(avro, str) else "record")
        connect = connect_name(Native(name))
        yield f"| `{name}` | `{arrow}` | `{spark_type(Native(name))}` | `{shown}` | `{connect}` | {note} |"
    text, whole = Native("text"), Native("int")
    nested: list[tuple[CqlType, str, str]] = [
        (freeze(Collection("list", (whole,))), "array", "Also the value of a `set` and of a `vector`."),
        (freeze(Collection("set", (text,))), "array", "Elements in the database's order."),
        (freeze(Collection("map", (text, whole))), "array of records", "Avro maps have text keys only, hence records."),
        (
            freeze(Collection("map", (whole, text))),
            "array of records",
            "In Connect, structs of `key` and `value`, as keys that are not text may be null.",
        ),
        (
            freeze(Collection("map", (freeze(Collection("map", (text, whole))), whole))),
            "array of records",
            "Spark has no maps keyed by maps: a list of entries wherever a key holds a map.",
        ),
        (
            freeze(Collection("map", (Native("double"), whole))),
            "array of records",
            "In views and row events, also a list of entries wherever a key holds a `float`, `double`, tuple or "
            "user-defined type: see below.",
        ),
        (Vector(Native("float"), 3), "array", "The length is the type's dimension."),
        (Tuple((whole, text)), "record", "Fields `_1`, `_2`, ...; those that a value lacks are null."),
        (
            Udt("ks", "address", (("street", text), ("zip", whole)), frozen=True),
            "record",
            "Fields by name; those added to the type after a value was written are null.",
        ),
    ]
    for cql_type, avro, note in nested:
        shown = "frozen<address(street text, zip int)>" if isinstance(cql_type, Udt) else str(cql_type)
        types = f"`{arrow_type(cql_type)}` | `{spark_type(cql_type)}` | `{avro}` | `{connect_name(cql_type)}`"
        yield f"| `{shown}` | {types} | {note} |"
    yield ""
    yield "**Empty values.** CQL has a value of no bytes that is not null, for any type. In a change, such a cell"
    yield "has a write time, no tombstone, and the value null; text, ascii and blob have the empty string. A map with"
    yield "such a key is null in views and row events, as maps have no null keys. A frozen map with one is null in"
    yield "changes and states, too, which have its bytes: see below."
    yield ""
    yield "**Keys of maps.** The database distinguishes the keys 0.0 and -0.0, and tuples and user-defined types"
    yield "with a null part from those with an empty part. DuckDB refuses or Polars drops such keys. So views and"
    yield "row events have a list of entries, structs of `key` and `value`, wherever a key holds a `float`,"
    yield "`double`, tuple or user-defined type. Changes and states have maps."
    yield ""
    yield "**Bytes.** A tuple or user-defined type may have a null part, an empty part, or end before it: all are"
    yield "null in Arrow, but may be different keys and elements in the database. So rows are identified by `key`"
    yield "and `position`. In changes and states, such a cell also has `value_bytes`, and an element with such a"
    yield "path `path_bytes`: the serialised value where the decoded one gives other bytes, else null. `writetime"
    yield "verify` compares these bytes. In views and row events, two rows may show equal keys, and a set equal"
    yield "elements."
    yield ""
    yield "**Timestamps.** CQL counts int64 milliseconds. Changes and states hold exactly these: `int64` in Arrow,"
    yield "`bigint` in Spark, `long (timestamp-millis)` in Avro, also within other values. The Spark data sources"
    yield "`sstable`, `commitlog` and `scylla_cdc` hold them, too: `timestamp_millis(x)` makes a Spark timestamp."
    yield "Views and row events hold microseconds, which reach only the years -290308 to 294247. A timestamp"
    yield "outside this range is null there; if it is a key of a map, the whole map is null. `writetime view`,"
    yield "`writetime maintain` and the Dagster check `timestamps_fit` name the columns and the number of such"
    yield "rows. `writetime verify` compares milliseconds."
    yield ""
    yield "**Text.** For `text`, Cassandra accepts more than UTF-8: surrogates, `C0 80` for U+0000, and code points"
    yield "beyond U+10FFFF. Arrow, Spark and Avro refuse these. So each byte that is not part of UTF-8, and each"
    yield "byte of U+FDD0 itself, becomes U+FDD0, which is not a character, and the byte's two hexadecimal digits:"
    yield "`61 ED A0 80` is `a`, U+FDD0, `ed`, U+FDD0, `a0`, U+FDD0, `80`. No byte is lost:"
    yield "`writetime.schema.text.bytes_of_text` returns the original bytes. This applies everywhere, in keys and"
    yield "nested values, too. Rows keep the order of the original bytes. ScyllaDB accepts UTF-8 only."
    yield ""
    yield "**Cells.** In a change, every regular and static column is a struct of `value`, `write_time`"
    yield "(microseconds), `ttl` (seconds), `deletion_time` (seconds; for a cell with a TTL, its expiry) and"
    yield "`tombstone`. A non-frozen collection is a struct of its column `tombstone` and `elements`. Each element"
    yield "is a cell with its `path`: the element of a set, the key of a map, the timeuuid that orders a list. A"
    yield "non-frozen UDT is a struct of its column `tombstone` and one cell per field."
    yield ""
    yield "**Counters.** A counter's cell in a change also has `shards`, a list of structs: `id` (the node's, as"
    yield "UUID), `kind` (`global`; from Cassandra 2.0 and older also `local` and `remote`), `clock`, `count` and"
    yield "`write_time` (microseconds). A change has only the shards that its source contains: each node that counts"
    yield "has a shard, and `value` is the sum of the shards in this change. Only merged changes give the count;"
    yield "views and row events have it as a plain `int64`."
    yield ""
    yield "**Connect.** The semantic names are Debezium's (`io.debezium.time.Timestamp`: milliseconds; `NanoTime`:"
    yield "nanoseconds since midnight; `Date`: days since 1970-01-01; `io.debezium.data.Uuid`). Bytes are in base64, a"
    yield "`double` or `float` has a point or an exponent. Numbers that are not finite are null where messages have a"
    yield "schema, because Connect's converter would read text as 0; in messages without a schema they are the strings"
    yield "`NaN`, `Infinity` and `-Infinity`. Every value may be null, also in a key column."
    yield ""
    yield "**JSON**, as `view`, `row-events`, `verify`, `sstable`, `commitlog` and `scylla-cdc` print it, has dates and"
    yield "timestamps in ISO 8601, values of `time` as nanoseconds since midnight, bytes as `0x...`, and maps as lists"
    yield "of pairs unless Arrow has their keys as strings. Floating point numbers that are not finite are the strings"
    yield "`NaN`, `Infinity` and `-Infinity`, also within other values. Timestamps of changes, and those that `verify`"
    yield "prints, are milliseconds."
    yield ""
    yield "**JSON for other programs.** Cassandra's `INSERT ... JSON` reads rows of `view --format jsonl`, but not"
    yield "every value: it refuses values of `time`, durations, tuples, and maps that are lists of pairs, also within"
    yield r'other values. The name of a column that CQL quotes needs its quotes in JSON, too: `"\"Name\"": 1`. In other'
    yield "programs, numbers and texts may get other types. `--format parquet` keeps Arrow's."
