"""A second, slow implementation of the merge in plain Python: the live cells after changes."""

from collections import defaultdict
from typing import Any

from tests.support.generated import Change
from writetime.changes.model import KINDS, PARTITION_TOMBSTONE, RANGE_TOMBSTONE, ROW, STATIC, field_name
from writetime.changes.position import AT, position_encoder
from writetime.schema.serialise import serialiser
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, CqlType, Native, is_complex

NEVER = -(1 << 63)


def live(changes: list[Change], schema: TableSchema, as_of: int) -> list[dict[str, Any]]:
    """Return the rows that live, in order."""
    partitions: dict[tuple[int, bytes], list[Change]] = defaultdict(list)
    for change in changes:
        partitions[change["token"], change["key"]].append(change)
    found = []
    for _, members in sorted(partitions.items()):
        found += _partition(members, schema, as_of)
    return found


def _partition(changes: list[Change], schema: TableSchema, as_of: int) -> list[dict[str, Any]]:
    of_kind = {kind: [c for c in changes if c["kind"] == kind] for kind in KINDS}
    deleted = max([c["tombstone"]["write_time"] for c in of_kind[KINDS[PARTITION_TOMBSTONE]]], default=NEVER)
    key = {c.name: changes[0][c.name] for c in schema.partition_key}
    static = _cells(of_kind[KINDS[STATIC]], schema.static, deleted, as_of)
    rows = []
    for position in sorted({c["position"] for c in of_kind[KINDS[ROW]]}):
        same = [c for c in of_kind[KINDS[ROW]] if c["position"] == position]
        covering = [r for r in of_kind[KINDS[RANGE_TOMBSTONE]] if r["position"] <= position < r["end"]]
        times = [c["tombstone"]["write_time"] for c in same + covering if c.get("tombstone")]
        dead = max([deleted, *times])
        markers = [c["marker"] for c in same if c.get("marker") and c["marker"]["write_time"] > dead]
        marker = max(markers, key=_marker_order, default=None)
        cells = _cells(same, schema.regular, dead, as_of)
        if _lives(marker, as_of) or any(v is not ABSENT for v in cells.values()):
            rows.append({"position": position, **key, **static, **cells})
    if not rows and any(v is not ABSENT for v in static.values()):
        rows.append({"position": b"\x18", **key, **static, **{c.name: ABSENT for c in schema.regular}})
    return rows


class _Absent:
    """Distinguishes a missing cell from an empty value."""


ABSENT = _Absent()


def _marker_order(marker: dict[str, Any]) -> tuple[Any, ...]:
    ttl, expiry = marker["ttl"] or 0, marker["expiry"] or 0
    return marker["write_time"], ttl == 2**31 - 1, ttl > 0, expiry, -ttl


def _lives(marker: dict[str, Any] | None, as_of: int) -> bool:
    if marker is None or marker["ttl"] is None:
        return marker is not None
    return marker["ttl"] < 2**31 - 1 and as_of < marker["expiry"]


def _cell_order(cell: dict[str, Any], cql_type: CqlType) -> tuple[Any, ...]:
    value = cell.get("value")
    data = b"" if value is None else serialiser(cql_type)(value)
    expires = cell["ttl"] is not None
    return cell["write_time"], cell["tombstone"], expires, cell["deletion_time"] or 0, -(cell["ttl"] or 0), data


def _cells(changes: list[Change], columns: tuple[Column, ...], dead: int, as_of: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for column in columns:
        parts = [c[field_name(column)] for c in changes if c.get(field_name(column))]
        found[column.name] = _column(parts, column.type, dead, as_of)
    return found


def _column(parts: list[dict[str, Any]], cql_type: CqlType, dead: int, as_of: int) -> Any:
    if cql_type == Native("counter"):
        return _counter([p for p in parts if p["write_time"] > dead])
    if not is_complex(cql_type):
        return _cell(parts, cql_type, dead, as_of)
    dead = max([dead, *(p["tombstone"]["write_time"] for p in parts if p["tombstone"])])
    if not isinstance(cql_type, Collection):
        fields = {n: [p["fields"][n] for p in parts if p["fields"][n]] for n in parts[0]["fields"]} if parts else {}
        types = dict(cql_type.fields)  # type: ignore[union-attr]
        values = {n: _cell(cells, types[n], dead, as_of) for n, cells in fields.items()}
        if all(v is ABSENT for v in values.values()):
            return ABSENT
        return {n: None if v is ABSENT else v for n, v in values.items()}
    path_type = Native("timeuuid") if cql_type.kind == "list" else cql_type.arguments[0]
    encode, data = position_encoder([Column("path", path_type)]), serialiser(path_type)
    by_path: dict[bytes, list[dict[str, Any]]] = defaultdict(list)
    for element in [e for p in parts for e in p["elements"]]:
        by_path[encode([data(element["path"])], AT)].append(element)
    content = Native("blob") if cql_type.kind == "set" else cql_type.arguments[-1]
    found = []
    for _, cells in sorted(by_path.items()):
        value = _cell(cells, content, dead, as_of)
        if value is not ABSENT:
            path = max((c for c in cells), key=lambda c: (_cell_order(c, content), data(c["path"])))["path"]
            found.append({"list": value, "set": path, "map": (path, value)}[cql_type.kind])
    return found or ABSENT


def _counter(cells: list[dict[str, Any]]) -> Any:
    """`CounterContext.merge`, shard by shard in the order in which they come."""
    if not cells or any(c["tombstone"] for c in cells):
        return ABSENT
    merged: dict[str, dict[str, Any]] = {}
    for shard in [s for c in cells for s in c["shards"]]:
        held = merged.get(shard["id"])
        if held is None or _supersedes(shard, held):
            merged[shard["id"]] = shard
    return (sum(s["count"] for s in merged.values()) + (1 << 63)) % (1 << 64) - (1 << 63)


def _supersedes(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if one["kind"] != other["kind"]:
        return one["kind"] == "global"
    left, right = one["clock"], other["clock"]
    if left == right:
        return one["count"] > other["count"]
    if one["kind"] == "global":
        return left > right
    return (left >= 0 and right > 0 and left >= right) or (left < 0 and (right > 0 or left < right))


def _cell(cells: list[dict[str, Any]], cql_type: CqlType, dead: int, as_of: int) -> Any:
    left = [c for c in cells if c["write_time"] > dead]
    if not left:
        return ABSENT
    cell = max(left, key=lambda c: _cell_order(c, cql_type))
    if cell["tombstone"] or (cell["deletion_time"] is not None and as_of >= cell["deletion_time"]):
        return ABSENT
    return cell.get("value")
