"""The expected changes, from the output of Cassandra's own classes (see `oracle`)."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pyarrow as pa

from tests.support import oracle
from writetime.changes.model import change_schema, field_name, udt_fields
from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, CqlType, Native, is_complex
from writetime.schema.values import decoder
from writetime.storage.kernel.primitives import token


def expected_changes(lines: list[dict[str, Any]], schema: TableSchema) -> pa.Table:
    """Return the changes without `origin`."""
    return _Builder(schema).build(lines)


def segment_lines(schemas: Iterable[TableSchema], paths: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the changes that Cassandra's `CommitLogReader` reads in segments, by table name."""
    schemas = list(schemas)
    udts = {udt.name: udt for schema in schemas for udt in schema.udts()}
    names = {str(s.id): s.name for s in schemas}
    found: dict[str, list[dict[str, Any]]] = {}
    name = ""
    for line in oracle.segments(schemas, udts.values(), paths):
        assert "error" not in line, line
        if "update" in line:
            name = names[line["update"]]
        elif "file" not in line:
            found.setdefault(name, []).append(line)
    return found


def without_origin(batches: Any, schema: TableSchema) -> pa.Table:
    """Return read batches in the same form."""
    full = change_schema(schema)
    table = pa.Table.from_batches(list(batches), schema=full)
    table.validate(full=True)
    return table.drop_columns(["origin"])


def assert_same(found: pa.Table, wanted: pa.Table) -> None:
    """Compare cell by cell; values that differ in Arrow are compared as text, where not-a-number equals itself."""
    assert found.num_rows == wanted.num_rows
    for name in wanted.column_names:
        a, b = found[name].combine_chunks(), wanted[name].combine_chunks()
        if not a.equals(b):
            for i, (ours, theirs) in enumerate(zip(plain_values(a), plain_values(b), strict=True)):
                assert repr(ours) == repr(theirs), f"column {name}, change {i}: {ours!r} is not {theirs!r}"


def as_rows(batches: Iterable[pa.RecordBatch]) -> list[str]:
    """Return changes as texts, sorted, each with its offset in the file: equal lists mean equal changes."""
    rows = []
    for batch in batches:
        *columns, origins = batch.columns
        values = [plain_values(column) for column in [*columns, origins.field("offset")]]
        rows += [repr(list(row)) for row in zip(*values, strict=True)]
    return sorted(rows)


def plain(scalar: Any) -> Any:
    """A scalar as Python values, with integers for dates and times, as Python's own have less range."""
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(scalar.type):
        return {name: plain(scalar[name]) for name in scalar.keys()}  # noqa: SIM118 (a scalar is no dict)
    if pa.types.is_list(scalar.type) or pa.types.is_map(scalar.type):
        return [plain(element) for element in scalar.values]
    return scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()


def plain_values(array: pa.Array) -> list[Any]:
    """All scalars of an array as `plain` gives them: much faster than one by one."""
    kind = array.type
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        columns = [plain_values(array.field(i)) for i in range(kind.num_fields)]
        found: list[Any] = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        values = plain_values(array.values)
        found = [values[start:end] for start, end in pairwise(array.offsets.to_pylist())]
    elif pa.types.is_temporal(kind):
        return array.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    else:
        return array.to_pylist()
    return [value if valid else None for value, valid in zip(found, array.is_valid().to_pylist(), strict=True)]


def _tombstone(times: list[int] | None) -> dict[str, int] | None:
    return None if times is None else {"write_time": times[0], "deletion_time": times[1]}


class _Builder:
    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.rows: list[dict[str, Any]] = []
        self.partition: dict[str, Any] = {}
        self.open: tuple[str, list[int]] | None = None

    def build(self, lines: list[dict[str, Any]]) -> pa.Table:
        for line in lines:
            if "key" in line:
                self._partition(line)
            elif "bound" in line:
                self._bound(line)
            else:
                self._row(line)
        schema = change_schema(self.schema)
        return pa.Table.from_pylist(self.rows, schema.remove(schema.get_field_index("origin")))

    def _partition(self, line: dict[str, Any]) -> None:
        key = bytes.fromhex(line["key"])
        assert int(line["token"]) == token(key)
        columns = self.schema.partition_key
        parts = [key]
        if len(columns) > 1:
            parts, p = [], 0
            for _ in columns:
                length = int.from_bytes(key[p : p + 2], "big")
                parts.append(key[p + 2 : p + 2 + length])
                p += 3 + length
        values = {field_name(c): decoder(c.type)(part) for c, part in zip(columns, parts, strict=True)}
        self.partition = {**values, "key": key, "token": int(line["token"])}
        if line["deletion"]:
            self._add("partition_tombstone", "", tombstone=_tombstone(line["deletion"]))

    def _add(self, kind: str, position: str, **fields: Any) -> None:
        self.rows.append({"kind": kind, **self.partition, "position": bytes.fromhex(position), **fields})

    def _bound(self, line: dict[str, Any]) -> None:
        if line["close"]:
            assert self.open is not None
            assert self.open[1] == line["close"]
            end = bytes.fromhex(line["bound"])
            self._add("range_tombstone", self.open[0], end=end, tombstone=_tombstone(line["close"]))
        self.open = (line["bound"], line["open"]) if line["open"] else None

    def _row(self, line: dict[str, Any]) -> None:
        static = line["position"] == "18"
        fields: dict[str, Any] = {"tombstone": _tombstone(line["deletion"])}
        if line["marker"]:
            fields["marker"] = dict(zip(("write_time", "ttl", "expiry"), line["marker"], strict=True))
        types = {c.name: c.type for c in (self.schema.static if static else self.schema.regular)}
        tombstones = {name: _tombstone(times) for name, times in line["columns"]}
        by_column: dict[str, list[Any]] = {name: [] for name in tombstones}
        for name, *cell in line["cells"]:
            by_column.setdefault(name, []).append(cell)
        for name, cells in by_column.items():
            column = next(c for c in self.schema.static + self.schema.regular if c.name == name)
            fields[field_name(column)] = _column(types[name], tombstones.get(name), cells)
        if not static:
            fields |= self._clustering(line)
        self._add("static" if static else "row", line["position"], **fields)

    def _clustering(self, line: dict[str, Any]) -> dict[str, Any]:
        values = line["clustering"]
        return {
            field_name(c): None if v is None else decoder(c.type)(bytes.fromhex(v))
            for c, v in zip(self.schema.clustering, values, strict=True)
        }


def _cell(cql_type: CqlType, cell: list[Any]) -> dict[str, Any]:
    _, value, (write_time, ttl, deletion_time), tombstone, *shards = cell
    decoded = None if tombstone else decoder(cql_type)(bytes.fromhex(value))
    times = {"write_time": write_time, "ttl": ttl, "deletion_time": deletion_time, "tombstone": tombstone}
    if not shards:
        return {"value": decoded, **times}
    names = ("id", "kind", "clock", "count")
    parts = [dict(zip(names, shard, strict=True), write_time=write_time) for shard in shards[0]]
    return {"value": decoded, **times, "shards": parts}


def _column(cql_type: CqlType, tombstone: dict[str, int] | None, cells: list[Any]) -> dict[str, Any]:
    if not is_complex(cql_type):
        return _cell(cql_type, cells[0])
    if not isinstance(cql_type, Collection):
        fields = udt_fields(cql_type)
        found = {}
        for cell in cells:
            name, field_type = fields[int(cell[0], 16)]
            found[name] = _cell(field_type, cell)
        return {"tombstone": tombstone, "fields": found}
    path, value = {
        "list": (Native("timeuuid"), cql_type.arguments[-1]),
        "set": (cql_type.arguments[0], Native("blob")),
        "map": (cql_type.arguments[0], cql_type.arguments[-1]),
    }[cql_type.kind]
    elements = []
    for cell in cells:
        element = {"path": decoder(path)(bytes.fromhex(cell[0])), **_cell(value, cell)}
        elements.append(element)
    return {"tombstone": tombstone, "elements": elements}
