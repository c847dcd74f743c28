"""Values of user-defined types that have gained fields since the schema was read.

Oracle: the bytes of a value that the test makes by the format's rules.
"""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writetime.changes.position import AT, position_encoder
from writetime.schema.table import Column
from writetime.schema.types import Collection, Native, Tuple, Udt
from writetime.schema.values import UnknownFields, decoder

INT = Native("int")
UDT = Udt("ks", "u", (("a", INT), ("b", INT), ("c", INT)), frozen=True)
LIST = Collection("list", (UDT,), frozen=True)


@given(st.lists(st.none() | st.integers(-5, 5), max_size=6))
def test_fields_that_are_not_known_are_refused(values: list[int | None]) -> None:
    """ALTER TYPE adds fields at the end: older values have fewer; those of newer ones may not be cut off in silence."""
    data = b"".join(b"\xff\xff\xff\xff" if v is None else struct.pack(">ii", 4, v) for v in values)
    for cql_type, whole in (
        (UDT, data),
        (Tuple((INT, INT, INT)), data),
        (LIST, struct.pack(">ii", 1, len(data)) + data),
    ):
        encode = position_encoder([Column("c", cql_type)])
        if len(values) > 3:
            with pytest.raises(UnknownFields, match=rf"has {len(values)} fields, and .* has 3"):
                decoder(cql_type)(whole)
            with pytest.raises(UnknownFields):
                encode([whole], AT)
        else:
            encode([whole], AT)
            known = decoder(cql_type)(whole)
            fields = known[0] if cql_type is LIST else known
            assert (fields is None) if not data else list(fields.values()) == values + [None] * (3 - len(values))
