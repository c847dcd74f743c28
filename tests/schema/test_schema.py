"""Types and schemas: CQL text, marshal class names, system tables' rows, CREATE TABLE, the history of a table.

Oracle: the type or table before it was written as text: our parser reads what our writer wrote.
"""

import json
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID, uuid1

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.generate import UDTS, Generator
from writetime.schema.cql import parse_schemas, parse_table
from writetime.schema.mapping import arrow_type, avro_type, spark_type, stored_type
from writetime.schema.stored import from_json, to_json
from writetime.schema.system import from_rows, settled_rows
from writetime.schema.table import Column, SchemaError, SchemaHistory, TableSchema
from writetime.schema.types import (
    Collection,
    CqlType,
    CqlTypeError,
    Native,
    Tuple,
    Udt,
    Vector,
    is_complex,
    parse_cql,
    parse_marshal,
    parse_marshal_key,
)
from writetime.schema.values import BadValue, decoder

BAD_VECTORS = [f"vector<float, {dimension}>" for dimension in ("x", "0", "1x", "", "'1'", '"1"', "int", "1_0")]
BAD_VECTORS += ["vector<float,", "vector<float, 3", "vector<float, 3, 3>"]

ID = UUID("3a1bb270-1b1b-11ee-be56-0242ac120002")


@given(st.integers(0, 2**32))
def test_a_type_reads_back_from_its_text(seed: int) -> None:
    cql_type = Generator(seed).cql_type(3)
    assert parse_cql(str(cql_type), UDTS) == cql_type


@given(st.integers(0, 2**32))
def test_every_type_maps_to_arrow_spark_and_avro(seed: int) -> None:
    cql_type = Generator(seed).cql_type(3)
    assert spark_type(cql_type)
    assert arrow_type(cql_type)
    record = {"type": "record", "name": "r", "fields": [{"name": "f", "type": avro_type(cql_type, "f")}]}
    fastavro.parse_schema(json.loads(json.dumps(record)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Int32Type", Native("int")),
        ("org.apache.cassandra.db.marshal.TimestampType", Native("timestamp")),
        ("MapType(UTF8Type,FrozenType(ListType(LongType)))", parse_cql("map<text, frozen<list<bigint>>>")),
        ("FrozenType(SetType(TimeUUIDType))", parse_cql("frozen<set<timeuuid>>")),
        ("TupleType(Int32Type,BytesType)", Tuple((Native("int"), Native("blob")))),
        ("VectorType(FloatType , 3)", Vector(Native("float"), 3)),
        ("UserType(generated,696e6e6572,61:Int32Type,62:UTF8Type)", UDTS["inner"]),
    ],
)
def test_marshal_class_names(text: str, expected: object) -> None:
    assert parse_marshal(text) == expected


def test_keys_of_headers() -> None:
    assert parse_marshal_key("CompositeType(Int32Type,UTF8Type)").components == (Native("int"), Native("text"))
    key = parse_marshal_key("org.apache.cassandra.db.marshal.ReversedType(org.apache.cassandra.db.marshal.DateType)")
    assert (key.components, key.reversed) == ((Native("timestamp"),), True)


@pytest.mark.parametrize("text", ["ReversedType({})", "CompositeType({},Int32Type)"])
def test_all_within_the_type_of_a_key_is_frozen(text: str) -> None:
    for inner in ("ListType(Int32Type)", "FrozenType(ListType(Int32Type))"):
        assert parse_marshal_key(text.format(inner)).components[0] == Collection("list", (Native("int"),), frozen=True)


@pytest.mark.parametrize(
    "text", ["", "list<int", "map<int>", "nothing", "list<int>>", "vector<float>", "int, int", *BAD_VECTORS]
)
def test_invalid_types(text: str) -> None:
    with pytest.raises(CqlTypeError):
        parse_cql(text)


@pytest.mark.parametrize(
    "text",
    ["", "DynamicCompositeType(a=>Int32Type)", "MapType(Int32Type)", "ListType(Int32Type", "X"]
    + [f"VectorType(FloatType , {dimension})" for dimension in ("x", "0", "-1")]
    # A damaged header must not exhaust the stack.
    + ["a:" * 5000 + "a", "ListType(" * 5000 + "Int32Type" + ")" * 5000],
)
def test_invalid_marshal_classes(text: str) -> None:
    with pytest.raises(CqlTypeError):
        parse_marshal(text)


@given(st.integers(0, 2**32))
def test_a_table_reads_back_from_its_statement(seed: int) -> None:
    schema = Generator(seed).schema("t")
    types = "".join(
        f"CREATE TYPE {u.keyspace}.{u.name} ({', '.join(f'{chr(34)}{n}{chr(34)} {t}' for n, t in u.fields)});\n"
        for u in UDTS.values()
    )
    assert parse_table(types + schema.create_statement() + ";") == schema
    assert from_json(json.loads(json.dumps(to_json(schema)))) == schema


def test_the_schema_of_a_snapshot() -> None:
    """As Cassandra writes it: dropped columns are created and dropped again, and added again if they were."""
    text = """
    CREATE TYPE IF NOT EXISTS shop.address (street text, "Zip" int);
    /* a comment; with a semicolon */
    CREATE TABLE IF NOT EXISTS shop.orders (
        id uuid, at timestamp, note text static, address address, gone blob, again int,
        PRIMARY KEY (id, at)
    ) WITH ID = 3a1bb270-1b1b-11ee-be56-0242ac120002 AND CLUSTERING ORDER BY (at DESC) AND comment = 'a; ''';
    ALTER TABLE shop.orders DROP gone USING TIMESTAMP 1700000000000001;
    ALTER TABLE shop.orders DROP again USING TIMESTAMP 5;
    ALTER TABLE shop.orders ADD again int;
    CREATE INDEX IF NOT EXISTS by_note ON shop.orders (note);
    """
    (schema,) = parse_schemas(text)
    assert schema.id == ID
    assert schema.clustering == (Column("at", Native("timestamp"), reversed=True),)
    assert [c.name for c in schema.static + schema.regular] == ["note", "address", "again"]
    assert is_complex(schema.regular[0].type)
    assert [(d.name, d.dropped_at) for d in schema.dropped] == [("gone", 1700000000000001), ("again", 5)]


def test_masked_columns() -> None:
    """Of Cassandra 5.0, also those that were dropped and added again, as a snapshot's `schema.cql` has them."""
    text = """
    CREATE TABLE k.t (a int PRIMARY KEY, b text MASKED WITH DEFAULT, c int);
    ALTER TABLE k.t DROP c USING TIMESTAMP 5;
    ALTER TABLE k.t ADD c int MASKED WITH system.mask_inner(1, null, '(;');
    ALTER TABLE k.t ADD d map<text, int> static MASKED WITH mask_hash();
    """
    schema = parse_table(text)
    assert [str(c.type) for c in schema.regular] == ["text", "int"]
    assert [(c.name, str(c.type)) for c in schema.static] == [("d", "map<text, int>")]
    assert [(d.name, d.dropped_at) for d in schema.dropped] == [("c", 5)]


@pytest.mark.parametrize(
    "text", ["CREATE TABLE k.t (a int)", "CREATE TABLE k.t (a int PRIMARY KEY", "SELECT 1", "CREATE TABLE k.t (a)"]
)
def test_invalid_tables(text: str) -> None:
    with pytest.raises((SchemaError, CqlTypeError)):
        parse_table(text)


def test_rows_of_the_system_tables() -> None:
    def column(name: str, cql_type: str, kind: str, position: int, order: str = "none") -> dict[str, object]:
        return {
            "keyspace_name": "k", "table_name": "t", "column_name": name, "type": cql_type, "kind": kind,
            "position": position, "clustering_order": order,
        }  # fmt: skip

    schema = from_rows(
        {"keyspace_name": "k", "table_name": "t", "id": ID},
        [
            column("b", "int", "partition_key", 1),
            column("a", "text", "partition_key", 0),
            column("c", "frozen<outer>", "clustering", 0, "desc"),
            column("z", "int", "regular", -1),
            column("s", "set<int>", "static", -1),
            {**column("other", "int", "regular", -1), "table_name": "u"},
        ],
        [
            {"keyspace_name": "k", "type_name": "outer", "field_names": ["x"], "field_types": ["frozen<inner>"]},
            {"keyspace_name": "k", "type_name": "inner", "field_names": ["y"], "field_types": ["int"]},
        ],
        [
            {
                "keyspace_name": "k",
                "table_name": "t",
                "column_name": "d",
                "type": "int",
                "kind": "regular",
                "dropped_time": (7).to_bytes(8, "big"),
            }
        ],
    )
    assert [c.name for c in schema.columns] == ["a", "b", "c", "s", "z"]
    assert schema.clustering[0].reversed
    assert [(d.name, d.dropped_at) for d in schema.dropped] == [("d", 7000)]


@pytest.mark.parametrize(
    ("kind", "static", "at"),
    [
        ({"kind": "regular"}, False, 7000),
        ({"kind": "static"}, True, 7000),
        # Dropped before the node had Cassandra 4.0.
        ({"kind": None}, False, 7000),
        # ScyllaDB.
        ({}, None, 7),
    ],
)
def test_the_time_of_a_drop(kind: dict[str, str | None], static: bool | None, at: int) -> None:
    names = {"keyspace_name": "k", "table_name": "t"}
    key = {"column_name": "a", "type": "int", "kind": "partition_key", "position": 0, "clustering_order": "none"}
    dropped = {"column_name": "d", "type": "int", "dropped_time": (7).to_bytes(8, "big")}
    schema = from_rows(names | {"id": ID}, [names | key], (), [names | dropped | kind])
    assert [(d.static, d.dropped_at) for d in schema.dropped] == [(static, at)]


@pytest.mark.parametrize("has_kind", [True, False])
def test_only_rows_of_cassandra_have_the_kind_of_a_drop(has_kind: bool) -> None:
    """Also if it is null in all of them."""

    def ask(query: str) -> list[dict[str, Any]]:
        table = query.split("system_schema.")[1].split(maxsplit=1)[0]
        if table == "columns":
            described = ["dropped_time", *(["kind"] if has_kind else [])]
            of = {"keyspace_name": "system_schema", "table_name": "dropped_columns"}
            return [of | {"column_name": name} for name in described]
        return [{"kind": None} if ", kind" in query else {}] if table == "dropped_columns" else []

    (row,) = settled_rows(ask)["dropped_columns"]
    assert ("kind" in row) is has_kind


def test_compact_storage_is_refused_by_name() -> None:
    for flags in ({"dense"}, set(), {"compound", "dense"}, {"super", "dense"}):
        with pytest.raises(SchemaError, match=r"k\.t has COMPACT STORAGE"):
            from_rows({"keyspace_name": "k", "table_name": "t", "id": ID, "flags": flags}, [])
    with pytest.raises(SchemaError, match=r"k\.t has COMPACT STORAGE"):
        parse_table("CREATE TABLE k.t (a int PRIMARY KEY, b int) WITH comment = 'x' AND COMPACT STORAGE;")


def test_the_history_keeps_dropped_columns() -> None:
    key = (Column("k", Native("int")),)
    old = TableSchema("k", "t", key, regular=(Column("a", Native("int")), Column("b", Native("text"))), id=ID)
    history = SchemaHistory([old, TableSchema("k", "t", key, regular=(Column("b", Native("text")),), id=ID)])
    now = history.get(ID)
    assert now is not None
    assert [c.name for c in now.regular] == ["b"]
    assert [d.name for d in now.dropped] == ["a"]
    with pytest.raises(SchemaError, match="primary key"):
        history.add(TableSchema("k", "t", (Column("k", Native("text")),), id=ID))


def test_the_history_follows_a_type_inside_the_key() -> None:
    """ALTER TYPE adds fields to a type that a clustering column uses, and renames them; it changes no other type."""
    a, b = ("a", Native("int")), ("b", Native("text"))

    def table(*fields: tuple[str, CqlType], kind: Literal["list", "set"] = "list") -> TableSchema:
        udt = Udt("k", "u", fields, frozen=True)
        types = [udt, Tuple((Native("int"), udt)), Collection(kind, (udt,), frozen=True), Vector(udt, 2)]
        clustering = tuple(Column(f"c{i}", t) for i, t in enumerate(types))
        return TableSchema("k", "t", (Column("k", Native("int")),), clustering, id=ID)

    history = SchemaHistory([table(a), table(a, b), table(("renamed", Native("int")), b)])
    assert history.get(ID) == table(("renamed", Native("int")), b)
    for other in (table(a), table(b, a), table(a, ("b", Native("int"))), table(a, b, kind="set")):
        with pytest.raises(SchemaError, match="primary key"):
            history.add(other)


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_decimals_lose_nothing(value: Decimal) -> None:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    data = (-exponent).to_bytes(4, "big", signed=True) + unscaled.to_bytes(
        unscaled.bit_length() // 8 + 1, "big", signed=True
    )
    found = Decimal(decoder(Native("decimal"))(data))
    assert (found, found.as_tuple().exponent) == (value, exponent)


def test_values_that_are_invalid_for_their_type() -> None:
    assert decoder(Native("int"))(b"") is None
    assert decoder(Native("text"))(b"") == ""
    time = uuid1()
    assert decoder(Native("timeuuid"))(time.bytes) == str(time)
    for cql_type, data in [
        (Native("int"), b"123"),
        (Collection("list", (Native("int"),), frozen=True), b"\0\0\0\x01\0\0\0\x09abc"),
        (Vector(Native("float"), 2), b"1234"),
    ]:
        with pytest.raises(BadValue):
            decoder(cql_type)(data)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_map_with_an_empty_key_is_null(frozen: bool) -> None:
    """As `{blobAsInt(0x): 1}` writes it. A map in another value is null alone."""
    entry = b"\0\0\0\x04\0\0\0\x01"
    maps = [b"\0\0\0\x01" + entry + entry, b"\0\0\0\x01" + b"\0\0\0\0" + entry]
    of_ints = Collection("map", (Native("int"), Native("int")), frozen=frozen)
    assert pa.array(map(decoder(of_ints), maps), stored_type(of_ints)).to_pylist() == [[(1, 1)], None]
    several = Collection("list", (of_ints,), frozen=frozen)
    data = b"\0\0\0\x02" + b"".join(len(part).to_bytes(4, "big") + part for part in maps)
    assert pa.array([decoder(several)(data)], stored_type(several)).to_pylist() == [[[(1, 1)], None]]
    of_maps = Collection("map", (of_ints, Native("int")), frozen=frozen)
    assert decoder(of_maps)(b"\0\0\0\x01" + b"\0\0\0\0" + entry) is None


def test_a_schema_that_is_changed_while_it_is_read() -> None:
    """A change reaches the tables of `system_schema` one after the other, here while they are read the first time."""
    asked: list[str] = []

    def ask(query: str) -> list[dict[str, Any]]:
        asked.append(query)
        names = {"keyspace_name": "k", "table_name": "t", "column_name": "c"}
        return [names | {"version": 1 if len(asked) <= 2 else 2}]

    assert {rows[0]["version"] for rows in settled_rows(ask).values()} == {2}
    assert len(asked) == 1 + 3 * 4


def test_only_rows_that_are_needed_are_read() -> None:
    """The database may have many tables, and a step of capture reads the schema of one."""
    asked: set[str] = set()

    def ask(query: str) -> list[dict[str, Any]]:
        asked.add(query.partition(" WHERE ")[2])
        return []

    settled_rows(ask, ["k", "it's"], ["t"])
    itself = "keyspace_name IN ('system_schema') AND table_name IN ('dropped_columns')"
    of_keyspaces = "keyspace_name IN ('it''s', 'k')"
    assert asked == {itself, of_keyspaces, f"{of_keyspaces} AND table_name IN ('t')"}
    asked.clear()
    settled_rows(ask, map(str, range(101)))
    assert asked == {itself, ""}, "ScyllaDB refuses more than 100 names"


@pytest.mark.parametrize(("name", "scale"), [("varint", b""), ("decimal", b"\0\0\0\2")])
def test_numbers_of_many_digits(name: str, scale: bytes) -> None:
    """4,300 digits are read, and more are refused."""
    decode = decoder(Native(name))
    for sign in (1, -1):
        most, too_many = (sign * (10**digits - 1) for digits in (4300, 4301))
        data = most.to_bytes(1800, "big", signed=True)
        assert decode(scale + data).replace(".", "") == str(most)
        with pytest.raises(BadValue, match=r"the limit \(4300 digits\)"):
            decode(scale + too_many.to_bytes(1800, "big", signed=True))
