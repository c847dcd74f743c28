"""Live values in forms that no driver writes."""

import pyarrow as pa

from writetime.changes.model import change_schema
from writetime.merge import live_rows, merge
from writetime.schema.cql import parse_table
from writetime.schema.serialise import serialiser
from writetime.schema.types import Native
from writetime.storage.kernel.primitives import token


def test_an_empty_key_of_a_map_makes_only_this_map_null() -> None:
    """As `{blobAsInt(0x): 1}` writes it."""
    schema = parse_table("CREATE TABLE shop.maps (id int PRIMARY KEY, m map<int, int>, v int)")
    rows = []
    for id_, keys in ((1, [5, 6]), (2, [None, 7]), (3, []), (4, [8])):
        key = serialiser(Native("int"))(id_)
        cells = [{"path": path, "value": 1, "write_time": 5, "tombstone": False} for path in keys]
        value = {"value": id_, "write_time": 5, "tombstone": False}
        row = {"kind": "row", "id": id_, "key": key, "token": token(key), "position": b"", "m": {"elements": cells}}
        rows.append({**row, "v": value, "marker": {"write_time": 5}})
    changes = pa.Table.from_pylist(rows, change_schema(schema))
    found = live_rows(merge([changes], schema), schema, 10).to_pylist()
    assert {row["id"]: row["m"] for row in found} == {1: [(5, 1), (6, 1)], 2: None, 3: None, 4: [(8, 1)]}
    assert {row["id"]: row["v"] for row in found} == {i: i for i in (1, 2, 3, 4)}
