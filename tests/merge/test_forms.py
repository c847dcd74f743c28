"""Equal values of several forms: every form of not-a-number is one clustering, one element and one key of a map."""

import itertools
import struct
from typing import Any

import pyarrow as pa
import pytest

from tests.support.generated import table
from writetime.changes.position import AT, position_encoder
from writetime.core.arrow import pc
from writetime.merge import merge
from writetime.schema.cql import parse_table
from writetime.storage.kernel.primitives import token

FORMS = {
    "float": ["7fc00000", "7fc00001", "ffc00000"],
    "double": ["7ff8000000000000", "7ff8000000000001", "fff8" + "00" * 6],
}
KEY = struct.pack(">i", 1)


def bits(array: pa.Array) -> list[bytes]:
    """The bytes of floating point numbers, as numbers that are not are not equal."""
    return [value.tobytes() for value in array.to_numpy(zero_copy_only=False)]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("at", [(1, 2, 3), (5, 5, 5)])
def test_forms_of_not_a_number_are_one_row_whatever_their_order(name: str, at: tuple[int, ...]) -> None:
    schema = parse_table(
        f"CREATE TABLE k.t (p int, c {name}, v int, e set<{name}>, m map<{name}, int>, PRIMARY KEY (p, c))"
    )
    code = ">f" if name == "float" else ">d"
    changes: list[dict[str, Any]] = []
    for i, (form, time) in enumerate(zip(FORMS[name], at, strict=True)):
        data = bytes.fromhex(form)
        (value,) = struct.unpack(code, data)
        times = {"write_time": time, "tombstone": False}
        parts = {
            "e": {"elements": [{"path": value, **times}]},
            "m": {"elements": [{"path": value, "value": i, **times}]},
        }
        place = {"position": position_encoder(schema.clustering)([data], AT), "c": value}
        change = {"kind": "row", "p": 1, "key": KEY, "token": token(KEY), "marker": {"write_time": time}}
        changes.append({**change, **place, "v": {"value": i, **times}, **parts})
    found = set()
    for order in itertools.permutations(changes):
        state = merge([merge([table(list(order[:2]), schema)], schema), table(list(order[2:]), schema)], schema)
        elements = [pc.list_flatten(state[part].combine_chunks().field("elements")).field("path") for part in "em"]
        found.add((*bits(state["c"].combine_chunks()), *(data for paths in elements for data in bits(paths))))
        assert state["v"].combine_chunks().field("value").to_pylist() == [2]
    assert len(found) == 1
    assert len(found.pop()) == 3
