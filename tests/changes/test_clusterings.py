"""Clustering values that are decoded from positions have the same position again.

Oracle: the encoder of positions, which test_position.py compares with the database's own comparator.
"""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.generate import Generator
from tests.support.value_forms import forms
from writetime.changes.clusterings import clustering_decoder
from writetime.changes.position import AFTER, AT, BEFORE, position_encoder
from writetime.schema.serialise import serialiser
from writetime.schema.table import Column
from writetime.schema.types import CqlType, Native
from writetime.schema.values import BadValue

_NUMBERS = {"bigint": st.integers(-(1 << 63), (1 << 63) - 1), "varint": st.integers(-(1 << 600), 1 << 600).map(str)}
_NUMBERS |= {
    "blob": st.lists(st.sampled_from([0, 1, 0xFE, 0xFF])).map(bytes),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False).map(str),
    "double": st.floats(allow_nan=False),
}


def _values(cql_type: CqlType, seed: int) -> st.SearchStrategy[bytes]:
    if isinstance(cql_type, Native) and cql_type.name in _NUMBERS:
        return _NUMBERS[cql_type.name].map(serialiser(cql_type))
    return st.sampled_from(forms(cql_type, Random(seed)))


@given(st.data(), st.integers(0, 10_000))
def test_decoded_values_have_the_same_position(data: st.DataObject, seed: int) -> None:
    generator = Generator(seed)
    columns = [Column(f"c{i}", generator.cql_type(2, key=True), bool(seed >> i & 1)) for i in range(seed % 3 + 1)]
    size = data.draw(st.integers(0, len(columns)))
    values = [data.draw(_values(column.type, seed)) for column in columns[:size]]
    encode, end = position_encoder(columns), data.draw(st.sampled_from([BEFORE, AT, AFTER]))
    position = encode(values, end)
    assert encode(clustering_decoder(columns)(position), end) == position


@pytest.mark.parametrize("digits", ["", "80", "8080"])
def test_a_decimal_without_digits_is_refused(digits: str) -> None:
    decode = clustering_decoder([Column("c", Native("decimal"))])
    with pytest.raises(BadValue, match="has no digits"):
        decode(bytes.fromhex(f"40c101{digits}0038"))
