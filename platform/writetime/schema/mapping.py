"""How every CQL type maps to Arrow, Spark, Avro and Kafka Connect; docs/data-types.md has all of them. `schema.connect`
makes the schemas of Kafka Connect.

There are two forms of a value. Changes and states hold the stored form, which loses nothing. Views and row events hold
the row form, which query engines handle best. The two differ for `timestamp` only: `files.row_form` converts.

Spark's types are those that pyspark itself derives from the Arrow types.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from writetime.schema.names import candidates
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector, with_parts

DURATION = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("nanoseconds", pa.int64())])


class Forms(NamedTuple):
    """The type of a native CQL type in Arrow, in Avro and in Kafka Connect, with Connect's semantic name if there is
    one.
    """

    arrow: pa.DataType
    avro: Any
    connect: str
    semantic: str | None = None


_MICROS, _MILLIS = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("micros", "millis"))
_UUID = {"type": "string", "logicalType": "uuid"}

NATIVES: dict[str, Forms] = {
    "ascii": Forms(pa.string(), "string", "string"),
    "bigint": Forms(pa.int64(), "long", "int64"),
    "blob": Forms(pa.binary(), "bytes", "bytes"),
    "boolean": Forms(pa.bool_(), "boolean", "boolean"),
    "counter": Forms(pa.int64(), "long", "int64"),
    "date": Forms(pa.date32(), {"type": "int", "logicalType": "date"}, "int32", "io.debezium.time.Date"),
    "decimal": Forms(pa.string(), "string", "string"),
    "double": Forms(pa.float64(), "double", "double"),
    "duration": Forms(DURATION, "record", "struct"),
    "empty": Forms(pa.binary(), "bytes", "bytes"),
    "float": Forms(pa.float32(), "float", "float"),
    "inet": Forms(pa.string(), "string", "string"),
    "int": Forms(pa.int32(), "int", "int32"),
    "smallint": Forms(pa.int16(), "int", "int16"),
    "text": Forms(pa.string(), "string", "string"),
    "time": Forms(pa.int64(), "long", "int64", "io.debezium.time.NanoTime"),
    "timestamp": Forms(pa.timestamp("us", "UTC"), _MICROS, "int64", "io.debezium.time.Timestamp"),
    "timeuuid": Forms(pa.string(), _UUID, "string", "io.debezium.data.Uuid"),
    "tinyint": Forms(pa.int8(), "int", "int8"),
    "uuid": Forms(pa.string(), _UUID, "string", "io.debezium.data.Uuid"),
    "varint": Forms(pa.string(), "string", "string"),
}
# Changes have the int64 milliseconds of CQL, whose range microseconds cannot hold.
_STORED = NATIVES | {"timestamp": Forms(pa.int64(), _MILLIS, "int64")}


def arrow_type(cql_type: CqlType) -> pa.DataType:
    """Return the Arrow type of a value in a row (of a non-frozen collection or UDT: of its frozen form). A map is a
    list of its entries if readers may refuse its keys.
    """
    return _arrow(cql_type, NATIVES, _may_seem_equal)


def stored_type(cql_type: CqlType) -> pa.DataType:
    """Return the Arrow type of a value in a change or state, as `arrow_type` does for rows."""
    return _arrow(cql_type, _STORED, _has_map)


def _arrow(cql_type: CqlType, natives: Mapping[str, Forms], refuses_key: Callable[[CqlType], bool]) -> pa.DataType:
    def arrow(inner: CqlType) -> pa.DataType:
        return _arrow(inner, natives, refuses_key)

    match cql_type:
        case Native(name):
            return natives[name].arrow
        case Collection("map", (key, value)) if not refuses_key(key):
            return pa.map_(arrow(key), arrow(value))
        case Collection("map", (key, value)):
            entry = pa.struct([("key", arrow(key)), ("value", arrow(value))])
            return pa.list_(pa.field("element", entry))
        case Collection(_, (element,)) | Vector(element, _):
            return pa.list_(pa.field("element", arrow(element)))
        case Tuple() | Udt():
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
    return _avro(cql_type, name, namespace, NATIVES, set())


def stored_avro_type(cql_type: CqlType, name: str = "value", namespace: str = "") -> Any:
    """Return the Avro type of a value in a change, as `avro_type` does for row events."""
    return _avro(cql_type, name, namespace, _STORED, set())


def _avro(cql_type: CqlType, name: str, namespace: str, natives: Mapping[str, Forms], taken: set[str]) -> Any:
    def nullable(cql: CqlType, suffix: str) -> list[Any]:
        return ["null", _avro(cql, f"{name}_{suffix}", namespace, natives, taken)]

    def named(wanted: str) -> str:
        """Reserve the name of a record."""
        found = next(n for n in candidates(wanted) if n not in taken)
        taken.add(found)
        return found

    def record(wanted: str, fields: Iterator[Any]) -> dict[str, Any]:
        """Reserve the name of a record before those inside its fields, which are made here."""
        own = named(wanted)
        return {"type": "record", "name": f"{namespace}.{own}" if namespace else own, "fields": list(fields)}

    match cql_type:
        case Native("duration"):
            fields = [{"name": f.name, "type": "int" if f.type == pa.int32() else "long"} for f in DURATION]
            own = {"name": named(f"{name}_duration"), "namespace": namespace or "writetime"}
            return {"type": "record", **own, "fields": fields}
        case Native(native):
            return natives[native].avro
        case Collection("map", (key, value)):
            parts = ({"name": n, "type": nullable(t, n)} for n, t in (("key", key), ("value", value)))
            return {"type": "array", "items": record(f"{name}_entry", parts)}
        case Collection(_, (element,)) | Vector(element, _):
            return {"type": "array", "items": nullable(element, "element")}
        case Tuple(arguments):
            return record(name, ({"name": f"_{i}", "type": nullable(t, str(i))} for i, t in enumerate(arguments, 1)))
        case Udt(_, _, fields):
            names = [avro_name(distinct) for distinct, _ in cql_type.distinct_fields]
            placed = zip(names, fields, strict=True)
            return record(
                name,
                ({"name": n, "type": nullable(t, n), "doc": field, "default": None} for n, (field, t) in placed),
            )
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
    return any(isinstance(t, Collection) and t.kind == "map" for t in with_parts(cql_type))


def _may_seem_equal(cql_type: CqlType) -> bool:
    """Return whether keys of a map that differ in the database may be equal to readers, which refuse the map or drop an
    entry: 0.0 and -0.0, or tuples of which one has a null part and the other an empty one. Maps as keys are refused,
    too.
    """
    return _has_map(cql_type) or any(
        isinstance(t, Tuple | Udt) or t in (Native("double"), Native("float")) for t in with_parts(cql_type)
    )
