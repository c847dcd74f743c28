"""Text that is not UTF-8: escaped where bytes become text, and restored to the same bytes.

Oracle: the bytes before they were escaped.
"""

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.odd_texts import PIECES
from writetime.changes.model import change_schema
from writetime.changes.position import AT, position_encoder
from writetime.merge.conform import conform
from writetime.merge.value_order import comparable, serialised
from writetime.schema.columnar import decode
from writetime.schema.cql import parse_table
from writetime.schema.fingerprints import fingerprint
from writetime.schema.serialise import serialiser
from writetime.schema.table import Column
from writetime.schema.text import bytes_of_text, bytes_of_texts, text_of, texts_of
from writetime.schema.types import Native, parse_cql
from writetime.schema.values import decoder
from writetime.wire.change_messages import ChangeDecoder, ChangeEncoder, change_avro

EXAMPLES = examples(300)
TEXT = Native("text")
DATA = st.one_of(st.binary(max_size=12), st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join))


@given(DATA)
@example(b"\xef\xb7\x90ed")
@example(b"\xed")
@EXAMPLES
def test_every_byte_comes_back(data: bytes) -> None:
    text = text_of(data)
    assert bytes_of_text(text) == data
    text.encode()
    try:
        strict = data.decode()
    except UnicodeDecodeError:
        strict = "\ufdd0"
    assert (text == strict) == ("\ufdd0" not in strict)
    for cql_type, value in ((TEXT, text), (Native("ascii"), text)):
        assert decoder(cql_type)(data) == value
        assert serialiser(cql_type)(value) == data


@given(DATA, DATA)
@EXAMPLES
def test_two_texts_never_share_a_form(one: bytes, other: bytes) -> None:
    assert (one == other) == (text_of(one) == text_of(other))


@given(st.lists(st.none() | DATA, max_size=6), st.integers(0, 3))
@EXAMPLES
def test_arrays(values: list[bytes | None], start: int) -> None:
    array = pa.array(values, pa.binary()).slice(start)
    texts = texts_of(array)
    texts.validate(full=True)
    assert texts.to_pylist() == [None if v is None else text_of(v) for v in array.to_pylist()]
    assert decode(array, TEXT).equals(texts)
    assert bytes_of_texts(texts).equals(array)


@given(st.lists(DATA, min_size=2, max_size=6))
@EXAMPLES
def test_ties_and_elements_have_the_order_of_the_original_bytes(values: list[bytes]) -> None:
    texts = texts_of(pa.array(values, pa.binary()))
    encode = position_encoder([Column("value", TEXT)])
    for found in (serialised(texts, TEXT).to_pylist(), comparable(texts, TEXT).to_pylist()):
        assert sorted(range(len(values)), key=found.__getitem__) == sorted(range(len(values)), key=values.__getitem__)
    nested = parse_cql("frozen<list<text>>", {})
    raw = [(1).to_bytes(4, "big") + len(v).to_bytes(4, "big") + v for v in values]
    lists = pa.array([decoder(nested)(data) for data in raw], pa.list_(pa.string()))
    assert serialised(lists, nested).to_pylist() == raw
    wanted = [position_encoder([Column("value", nested)])([data], AT) for data in raw]
    assert comparable(lists, nested).to_pylist() == wanted
    assert [encode([bytes_of_text(t)], AT) for t in texts.to_pylist()] == [encode([v], AT) for v in values]


def test_a_text_that_became_a_blob_has_its_bytes() -> None:
    """Old databases allowed it, and messages and files from before hold the text."""
    written, reads = (parse_table(f"CREATE TABLE ks.t (p int PRIMARY KEY, v {name})") for name in ("text", "blob"))
    row: dict[str, object] = {"kind": "row", "p": 1, "key": b"k", "token": 1, "position": b""}
    row["v"] = {"value": text_of(b"a\xed\xa0\x80\xef\xb7\x90b"), "write_time": 1, "tombstone": False}
    changes = pa.RecordBatch.from_pylist([row], change_schema(written))
    avro = change_avro(written)
    message = ChangeEncoder(written).encode(changes)
    for found in (
        conform(pa.table(changes), reads),
        ChangeDecoder(reads, {fingerprint(avro): avro}).decode(message),
    ):
        assert found["v"][0]["value"].as_py() == b"a\xed\xa0\x80\xef\xb7\x90b"
