"""Headers: the orders in which Cassandra and ScyllaDB list columns, and columns that have another type now.

Oracle: the rows that the test wrote with its own writer of the format.
"""

import itertools
import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.storage.scylla_writer import (
    BLOB,
    FLOAT,
    INT,
    INTS,
    TEXT,
    TEXTS,
    Cell,
    Cells,
    Columns,
    Minimums,
    Row,
    is_multi_cell,
    write,
)
from tests.storage.written import Written, changes, one_of_each
from tests.support.expected import assert_same
from tests.support.rewriting import as_older
from writetime.schema.cql import parse_schemas
from writetime.schema.table import Column, DroppedColumn, SchemaError, TableSchema
from writetime.schema.types import CqlType, parse_marshal
from writetime.schema.values import read_vint
from writetime.storage.file_errors import CorruptFile, Unsupported
from writetime.storage.locations import Location
from writetime.storage.sstable import SSTable

CQL = {INT: "int", TEXT: "text", FLOAT: "float", BLOB: "blob", TEXTS: "set<text>", INTS: "list<int>"}
FOREVER = (1 << 63) - 1


def schema_of(regular: Columns, static: Columns = (), dropped: tuple[DroppedColumn, ...] = ()) -> TableSchema:
    def columns(listed: Columns) -> tuple[Column, ...]:
        return tuple(Column(name, cql_type(class_name)) for name, class_name in listed)

    key, clustering = Column("k", cql_type(INT)), Column("c", cql_type(INT))
    return TableSchema("ks", "t", (key,), (clustering,), columns(static), columns(regular), dropped)


def cql_type(class_name: str) -> CqlType:
    return parse_marshal(class_name)


def dropped(name: str, class_name: str, at: int, *, static: bool = False) -> DroppedColumn:
    return DroppedColumn(name, cql_type(class_name), static, at)


def read(
    location: Location, schema: TableSchema | None = None, fields: list[str] | None = None
) -> list[dict[str, Any]]:
    return [change for batch in SSTable(location, schema).scan(fields) for change in batch.to_pylist()]


def test_the_columns_of_a_row_are_not_those_beside_it_in_the_header(tmp_path: Path) -> None:
    """The table of the report: `UPDATE .. SET c = 'x'` was read as `b = 'x'`."""
    columns = [("a", TEXTS), ("b", TEXT), ("c", TEXT)]
    location = write(tmp_path / "t", columns, [(0, {"c": Cell(5, b"x")})])
    (change,) = read(location)
    assert change["c"] == {"value": "x", "write_time": 5, "ttl": None, "deletion_time": None, "tombstone": False}
    assert (change["a"], change["b"]) == (None, None)


# --- tables of Cassandra, with headers as ScyllaDB writes them --------------------------------------------------------


def with_header(location: Location, reorder: Any) -> None:
    """Write the columns of a header in another order."""
    path = Path(location.path("Statistics.db"))
    data = path.read_bytes()
    count = struct.unpack_from(">i", data)[0]
    contents = sorted((o, k) for k, o in (struct.unpack_from(">ii", data, 4 + 8 * i) for i in range(count)))
    ends = [o for o, _ in contents[1:]] + [len(data)]
    ((start, end),) = [(o, e) for (o, k), e in zip(contents, ends, strict=True) if k == 3]
    at = start

    def text() -> bytes:
        nonlocal at
        length, begin = read_vint(data, at)
        whole, at = data[at : begin + length], begin + length
        return whole

    for _ in range(3):
        _, at = read_vint(data, at)
    text()
    clusterings, at = read_vint(data, at)
    for _ in range(clusterings):
        text()
    out = data[:at]
    for _ in range(2):
        begin = at
        columns, at = read_vint(data, at)
        out += data[begin:at] + b"".join(a + b for a, b in reorder([(text(), text()) for _ in range(columns)]))
    assert at == end
    path.write_bytes(out + data[end:])


def by_name(columns: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    # All names are shorter than 128 bytes, so that one byte precedes them.
    return sorted(columns, key=lambda column: column[0][1:])


def test_headers_of_both_databases(written: Written, tmp_path: Path) -> None:
    """Of every generated table, whose rows are Cassandra's: ScyllaDB's are the same, and only the header differs."""
    tried = mixed = 0
    for schema, location in one_of_each(written):
        if location.version != "nb":
            continue
        if location.exists("CompressionInfo.db") and b"min_compress_ratio" in location.read("CompressionInfo.db"):
            continue
        older = as_older(location, tmp_path / schema.name, "me")
        before = Path(older.path("Statistics.db")).read_bytes()
        with_header(older, by_name)
        mixed += Path(older.path("Statistics.db")).read_bytes() != before
        tried += 1
        assert_same(changes(older, schema), changes(location, schema))
    assert written.version != "nb" or (tried > 10 and mixed > 2)


# --- rows as ScyllaDB writes them -------------------------------------------------------------------------------------

NAMES = [
    "a",
    "b",
    "B",
    "_x",
    "d.ot",
    "x y",
    "ü",
    "日本",
    "zz",
    "Ü",
    "10",
    'q"t',
    "kind",
    "select",
    "\U0001f600",
    "ab",
    "aa",
]


def random_cell(r: random.Random, class_name: str, path: bytes = b"") -> Cell:
    write_time = r.choice([1, 2, 1_795_404_892_000_000, -5, r.randrange(1 << 60)])
    if r.random() < 0.2:
        return Cell(write_time, None, 0, r.choice([0, 1_795_404_892, 2**31 - 1]), path)
    value = {
        INT: lambda: struct.pack(">i", r.randrange(-9, 9)),
        FLOAT: lambda: struct.pack(">f", r.randrange(9)),
        TEXT: lambda: r.choice([b"", b"x", b"ab" * 200]),
        BLOB: lambda: r.randbytes(r.randrange(4)),
    }[class_name]()
    if r.random() < 0.3:
        # 20 years, the longest TTL: it ends after 2038.
        return Cell(write_time, value, 630_720_000, 1_795_404_892 + 630_720_000, path)
    return Cell(write_time, value, 0, 0, path)


def random_column(r: random.Random, class_name: str) -> Cell | Cells:
    if not is_multi_cell(class_name):
        return random_cell(r, class_name)
    if class_name == TEXTS:
        cells = [
            Cell(c.write_time, c.value and b"", c.ttl, c.deletion_time, path)
            for path in sorted(r.sample([b"p", b"q", b"r"], r.randrange(3)))
            for c in [random_cell(r, BLOB)]
        ]
    else:
        paths = sorted(bytes([i]) * 6 + b"\x11\xee" + bytes(8) for i in r.sample(range(9), r.randrange(3)))
        cells = [random_cell(r, INT, path) for path in paths]
    tombstone = (r.randrange(1 << 50), 1_795_404_892) if r.random() < 0.5 or not cells else None
    return Cells(tuple(cells), tombstone)


def expected_cell(cell: Cell, class_name: str) -> dict[str, Any]:
    value: Any = None
    if cell.value is not None:
        value = {
            INT: lambda v: struct.unpack(">i", v)[0],
            FLOAT: lambda v: struct.unpack(">f", v)[0],
            TEXT: bytes.decode,
            BLOB: bytes,
        }[class_name](cell.value)
    tombstone = cell.value is None
    expires = cell.deletion_time if tombstone or cell.ttl else None
    times = {"write_time": cell.write_time, "ttl": cell.ttl or None, "deletion_time": expires, "tombstone": tombstone}
    return {"value": value, **times}


def expected_column(column: Cell | Cells | None, class_name: str) -> dict[str, Any] | None:
    if column is None:
        return None
    if isinstance(column, Cell):
        return expected_cell(column, class_name)
    elements = []
    for cell in column.cells:
        element = expected_cell(cell, INT if class_name == INTS else BLOB)
        if class_name == TEXTS:
            del element["value"]
            elements.append({"path": cell.path.decode(), **element})
        else:
            p = cell.path.hex()
            elements.append({"path": f"{p[:8]}-{p[8:12]}-{p[12:16]}-{p[16:20]}-{p[20:]}", **element})
    tombstone = column.tombstone and dict(zip(("write_time", "deletion_time"), column.tombstone, strict=True))
    return {"tombstone": tombstone, "elements": elements}


def random_table(r: random.Random) -> tuple[Columns, Columns, list[Row]]:
    many = [f"c{i}" for i in range(r.choice([63, 64, 65, 90]))] if r.random() < 0.2 else []
    names = r.sample(NAMES, r.randrange(1, len(NAMES))) + many
    r.shuffle(names)
    columns = [(name, r.choice(list(CQL))) for name in names]
    statics = r.choice([0, 0, len(columns) // 3])
    static, regular = columns[:statics], columns[statics:]
    rows: list[Row] = []
    for clustering in ([None] if static else []) + list(range(r.randrange(1, 6))):
        known = static if clustering is None else regular
        share = r.choice([0.1, 0.5, 0.9, 1])
        rows.append((clustering, {n: random_column(r, t) for n, t in known if r.random() < share}))
    return static, regular, rows


@pytest.mark.parametrize("seed", range(60))
def test_random_tables(tmp_path: Path, seed: int) -> None:
    r = random.Random(seed)
    static, regular, rows = random_table(r)
    cells = [c for _, columns in rows for v in columns.values() for c in (v.cells if isinstance(v, Cells) else [v])]
    minimums = Minimums()
    if seed % 2:
        # As for a table whose cells are known; else as a file without any of them has it.
        times = [c.deletion_time for c in cells if c.deletion_time]
        ttls = [c.ttl for c in cells if c.ttl]
        least = min((c.write_time for c in cells), default=0)
        minimums = Minimums(least, min(times, default=FOREVER), min(ttls, default=FOREVER))
    location = write(tmp_path / "t", regular, rows, static, minimums)
    wanted = [(clustering, columns) for clustering, columns in rows if columns]
    for schema in (schema_of(regular, static), None):
        found = read(location, schema)
        assert len(found) == len(wanted)
        for change, (clustering, columns) in zip(found, wanted, strict=True):
            assert change["kind"] == ("static" if clustering is None else "row")
            for name, class_name in [*static, *regular]:
                field = f"column_{name}" if name == "kind" else name
                assert change[field] == expected_column(columns.get(name), class_name), name


# --- orders -----------------------------------------------------------------------------------------------------------

MIXED = [("B", TEXTS), ("a", INT), ("z", TEXTS), ("Ü", TEXT), ("ü", INTS), ("日本", INT)]
CASSANDRA = ["Ü", "日本", "a", "ü", "B", "z"]
SCYLLADB = ["B", "a", "z", "Ü", "ü", "日本"]


def test_only_orders_of_the_two_databases_are_read(tmp_path: Path) -> None:
    """Cassandra's names that do not begin in ASCII come first, simple columns before the others."""
    tried = 0
    types = dict(MIXED)
    orders = [list(names) for names in itertools.permutations(SCYLLADB)]
    for names in [*orders[::7], CASSANDRA, SCYLLADB]:
        tried += 1
        headers = [], [(name, types[name]) for name in names]
        location = write(tmp_path / str(tried), MIXED, [], headers=headers)
        if names == SCYLLADB:
            assert [n for n, _ in SSTable(location).header.regular] == ["a", "Ü", "日本", "B", "z", "ü"]
        elif names == CASSANDRA:
            assert [n for n, _ in SSTable(location).header.regular] == CASSANDRA
        else:
            with pytest.raises(Unsupported, match=rf"Statistics\.db.*{re.escape(', '.join(names))}"):
                SSTable(location)
    assert tried > 100


def test_static_columns_have_an_order_of_their_own(tmp_path: Path) -> None:
    columns = [("a", TEXTS), ("b", TEXT), ("c", TEXT)]
    location = write(tmp_path / "t", [("d", INT)], [(None, {"c": Cell(5, b"x")})], columns)
    (change,) = read(location)
    assert (change["c"]["value"], change["b"]) == ("x", None)
    headers = [("c", TEXT), ("b", TEXT), ("a", TEXTS)], [("d", INT)]
    with pytest.raises(Unsupported, match="c, b, a"):
        SSTable(write(tmp_path / "u", [("d", INT)], [], columns, headers=headers))


def test_a_column_listed_twice(tmp_path: Path) -> None:
    headers = [], [("a", INT), ("a", INT)]
    with pytest.raises(CorruptFile, match="a, a"):
        SSTable(write(tmp_path / "t", [("a", INT)], [], headers=headers))


# --- columns that were dropped, and added again as another type -------------------------------------------------------

OTHER_TYPES = [
    (INT, TEXTS),
    (TEXTS, INT),
    (INT, FLOAT),
    (TEXT, BLOB),
    (BLOB, TEXT),
    (TEXT, INT),
    (INTS, TEXTS),
    (TEXTS, INTS),
]


def sample(class_name: str, write_time: int) -> Cell | Cells:
    if is_multi_cell(class_name):
        path = b"p" if class_name == TEXTS else bytes(6) + b"\x11\xee" + bytes(8)
        value = b"" if class_name == TEXTS else b"\0\0\0\1"
        return Cells((Cell(write_time, value, path=path),), (write_time - 1, 1_795_404_892))
    return Cell(write_time, {INT: b"\0\0\0\1", FLOAT: struct.pack(">f", 1), TEXT: b"x", BLOB: b"\xff"}[class_name])


@pytest.mark.parametrize(("then", "now"), OTHER_TYPES)
@pytest.mark.parametrize("static", [False, True])
def test_added_again_with_another_type(tmp_path: Path, then: str, now: str, static: bool) -> None:
    """ScyllaDB allows it. Old cells are void, and read by the type that the header gives."""
    others: Columns = [("a", TEXTS), ("b", TEXT), ("y", TEXTS), ("z", TEXT)]
    columns = [*others, ("m", then)]
    row = {name: sample(class_name, 90) for name, class_name in columns}
    clustering = None if static else 0
    old = write(tmp_path / "old", [] if static else columns, [(clustering, row)], columns if static else [])
    live = [*others, ("m", now)]
    schema = schema_of([] if static else live, live if static else [], (dropped("m", then, 100, static=static),))
    (change,) = read(old, schema)
    for name, class_name in others:
        assert change[name] == expected_column(row[name], class_name)
    assert change["m"] is None
    assert [c["z"]["value"] for c in read(old, schema, ["z"])] == ["x"]
    alone = write(
        tmp_path / "alone", [] if static else columns, [(clustering, {"m": row["m"]})], columns if static else []
    )
    assert read(alone, schema) == []
    new = write(
        tmp_path / "new", [] if static else live, [(clustering, {"m": sample(now, 102)})], live if static else []
    )
    (change,) = read(new, schema)
    assert change["m"] == expected_column(sample(now, 102), now)


@pytest.mark.parametrize(("then", "now"), [types for types in OTHER_TYPES if types != (TEXT, BLOB)])
def test_newer_cells_of_the_old_type_are_an_error(tmp_path: Path, then: str, now: str) -> None:
    """As in ScyllaDB: "definition in serialization header does not match schema"."""
    schema = schema_of([("m", now)], (), (dropped("m", then, 100),))
    newer = sample(then, 101)
    columns = [newer]
    if isinstance(newer, Cells):
        columns = [Cells(newer.cells), Cells((), (101, 5))]
    for i, column in enumerate(columns):
        location = write(tmp_path / str(i), [("m", then)], [(0, {"m": sample(then, 100)}), (1, {"m": column})])
        for fields in (None, ["token"]):
            with pytest.raises(CorruptFile, match=r"Data\.db.*former type"):
                read(location, schema, fields)


def test_a_type_that_differs_from_the_schema_is_refused(tmp_path: Path) -> None:
    """Also if values have the same length, so that they could be read as another type."""
    for i, (then, now) in enumerate(OTHER_TYPES):
        location = write(tmp_path / str(i), [("m", then)], [(0, {"m": sample(then, 1)})])
        if (then, now) == (TEXT, BLOB):
            assert read(location, schema_of([("m", now)]))[0]["m"]["value"] == b"x"
            continue
        with pytest.raises(SchemaError, match=r"Statistics\.db: column m is stored as"):
            SSTable(location, schema_of([("m", now)]))


@pytest.mark.parametrize("class_name", [INT, TEXTS])
def test_a_static_column_that_is_a_regular_one_now(tmp_path: Path, class_name: str) -> None:
    """`dropped_columns` of ScyllaDB does not record whether a column was static."""
    static = [("a", TEXTS), ("m", class_name), ("z", TEXT)]
    for then_static in (False, True):
        folder = tmp_path / str(then_static)
        row = {"m": sample(class_name, 90), "z": sample(TEXT, 90)}
        if then_static:
            location = write(folder, [], [(None, row)], static)
            schema = schema_of([("m", TEXT)], [("a", TEXTS), ("z", TEXT)], (dropped("m", class_name, 100),))
        else:
            location = write(folder, static, [(0, row)])
            schema = schema_of([("a", TEXTS), ("z", TEXT)], [("m", TEXT)], (dropped("m", class_name, 100),))
        (change,) = read(location, schema)
        assert (change["m"], change["z"]["value"]) == (None, "x")
        with pytest.raises(SchemaError, match=r"no .* column m"):
            SSTable(location, schema_of(schema_columns(schema.regular), schema_columns(schema.static)))


def schema_columns(columns: tuple[Column, ...]) -> Columns:
    names = {cql: class_name for class_name, cql in CQL.items()}
    return [(c.name, names[str(c.type)]) for c in columns]


def test_dropped_and_not_added_again(tmp_path: Path) -> None:
    """All cells are void, whatever the type that `dropped_columns` has: the header's is that of the file."""
    columns = [("a", TEXTS), ("m", INTS), ("n", TEXT), ("z", TEXT)]
    row = {name: sample(class_name, 90) for name, class_name in columns}
    location = write(tmp_path / "t", columns, [(0, row)])
    gone = (dropped("m", TEXT, 10), dropped("n", INTS, 10, static=True))
    (change,) = read(location, schema_of([("a", TEXTS), ("z", TEXT)], (), gone))
    assert change["a"] == expected_column(row["a"], TEXTS)
    assert change["z"]["value"] == "x"


TYPES = """
CREATE TYPE ks.inner (a int, b list<text>);
CREATE TYPE ks.t (p frozen<inner>, q map<text, frozen<set<int>>>, "New" text);
CREATE TABLE ks.t (k int, c int, f frozen<t>, u t, l list<frozen<t>>, PRIMARY KEY (k, c));
"""


def test_types_that_differ_in_names_and_frozen_parts_only(tmp_path: Path) -> None:
    """Nested types are frozen, whether or not the text shows it; fields are added at the end, and renamed."""
    (schema,) = parse_schemas(TYPES)

    def udt(name: str, fields: list[tuple[str, str]]) -> str:
        listed = "".join(f",{field.encode().hex()}:{class_name}" for field, class_name in fields)
        return f"UserType(ks,{name.encode().hex()}{listed})"

    inner = udt("inner", [("old", INT), ("b", "FrozenType(ListType(UTF8Type))")])
    for i, q in enumerate(
        (f"MapType({TEXT},FrozenType(SetType({INT})))", f"FrozenType(MapType({TEXT},SetType({INT})))")
    ):
        outer = udt("t", [("p", f"FrozenType({inner})" if i else inner), ("q", q)])
        columns = [("f", f"FrozenType({outer})"), ("l", f"ListType(FrozenType({outer}))"), ("u", outer)]
        assert SSTable(write(tmp_path / str(i), columns, []), schema).schema == schema
    q = f"MapType({TEXT},SetType({INT}))"
    more = udt("t", [("p", inner), ("q", q), ("New", TEXT), ("newer", INT)])
    other = udt("t", [("p", inner), ("q", f"MapType({TEXT},SetType({TEXT}))")])
    for i, outer in enumerate((more, other)):
        for column in (("f", f"FrozenType({outer})"), ("u", outer), ("l", f"ListType(FrozenType({outer}))")):
            location = write(tmp_path / f"{column[0]}{i}", [column], [])
            with pytest.raises(SchemaError, match=rf"column {column[0]} is stored as"):
                SSTable(location, schema)


def test_tokens_of_others(tmp_path: Path) -> None:
    """ScyllaDB's own is that of its CDC logs."""
    for name in ("org.apache.cassandra.dht.RandomPartitioner", "com.scylladb.dht.CDCPartitioner"):
        with pytest.raises(Unsupported, match=rf"{re.escape(name)} is not supported"):
            SSTable(write(tmp_path / name, [("a", INT)], [], partitioner=name))
