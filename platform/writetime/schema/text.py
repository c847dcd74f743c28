"""Text of the database as text of Arrow, Spark and Avro: bytes that are not UTF-8 are escaped, and can be restored.

Cassandra accepts more for `text` than UTF-8 (`UTF8Serializer.UTF8Validator`): surrogates (ED A0 80 to ED BF BF), C0 80
for U+0000, and code points beyond U+10FFFF (F4 90 80 80 to F7 BF BF BF). No other system reads these.

Each byte that is not part of strict UTF-8 becomes U+FDD0, which is not a character, and the byte's two hexadecimal
digits in lower case. If a text itself has U+FDD0, each of its three bytes (EF B7 90) is escaped in the same way, so two
texts never share a form. All other text is unchanged.
"""

import re
from contextlib import suppress

import pyarrow as pa

_ESCAPE = "\ufdd0"
_ESCAPE_BYTES = re.compile(re.escape(_ESCAPE.encode()))
_ESCAPED = re.compile(f"{_ESCAPE}([0-9a-f]{{2}})".encode())
# Python's form of a byte that is not UTF-8 (PEP 383).
_SURROGATES = re.compile("[\udc80-\udcff]")


def text_of(data: bytes) -> str:
    """Return the text of serialised text."""
    text = data.decode(errors="surrogateescape")
    if _ESCAPE in text:
        text = text.replace(_ESCAPE, "".join(f"{_ESCAPE}{byte:02x}" for byte in _ESCAPE.encode()))
    return text if text.isascii() else _SURROGATES.sub(lambda m: f"{_ESCAPE}{ord(m[0]) - 0xDC00:02x}", text)


def bytes_of_text(text: str) -> bytes:
    """Return serialised text: the inverse of `text_of`."""
    return _unescaped(text.encode())


def texts_of(values: pa.Array) -> pa.Array:
    """Return `text_of` of an array of bytes; null where they are null."""
    with suppress(pa.ArrowInvalid):
        texts = values.cast(pa.string())
        if not _has_escape(values):
            return texts
    return pa.array([None if v is None else text_of(v) for v in values.to_pylist()], pa.string())


def bytes_of_texts(texts: pa.Array) -> pa.Array:
    """Return `bytes_of_text` of an array of text; null where it is null."""
    data = texts.cast(pa.binary())
    if not _has_escape(data):
        return data
    return pa.array([None if v is None else _unescaped(v) for v in data.to_pylist()], pa.binary())


def _unescaped(data: bytes) -> bytes:
    return _ESCAPED.sub(lambda m: bytes.fromhex(m[1].decode()), data)


def _has_escape(values: pa.Array) -> bool:
    """Return whether the bytes of an array have U+FDD0. (The bytes of a null may have it: that costs only time.)"""
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        return False
    ends = memoryview(offsets).cast("b").cast("i")
    first, last = ends[values.offset], ends[values.offset + len(values)]
    return _ESCAPE_BYTES.search(memoryview(data)[first:last]) is not None
