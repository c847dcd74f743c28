"""JSON is refused if readers would not read what it was written from.

Oracle: the text that a test builds.
"""

import json
import math
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writetime.core.json_texts import from_json, from_json_bytes, same_json, to_json

# Texts that look like names in JSON, too.
TEXTS = st.text('ab"\\:{} \n\u00e9', max_size=4)
# Each way to write a text.
WRITTEN = TEXTS.flatmap(
    lambda text: st.sampled_from(
        [json.dumps(text), json.dumps(text, ensure_ascii=False), '"' + "".join(f"\\u{ord(c):04x}" for c in text) + '"']
    )
)
SPACE = st.sampled_from(["", " ", "\n\t", "\r "])


class Number(IntEnum):
    ONE = 1


def an_object(names: list[tuple[str, str]], values: list[str], space: str) -> str:
    return "{" + ",".join(f"{space}{n}{space}:{space}{v}{space}" for (n, _), v in zip(names, values, strict=True)) + "}"


@st.composite
def documents(draw: st.DrawFn, depth: int = 3) -> tuple[str, bool]:
    """A text, and whether a name is twice in one of its objects."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(WRITTEN | st.sampled_from(["1", "-0.5", "null", "true"])), False
    parts = draw(st.lists(documents(depth - 1), max_size=3))
    values, faulty = [text for text, _ in parts], any(twice for _, twice in parts)
    if draw(st.booleans()):
        return "[" + ",".join(values) + "]", faulty
    written = [draw(WRITTEN) for _ in parts]
    names = [json.loads(text) for text in written]
    text = an_object(list(zip(written, names, strict=True)), values, draw(SPACE))
    return text, faulty or len(set(names)) < len(names)


@given(documents())
def test_a_name_twice_is_refused_and_nothing_else(document: tuple[str, bool]) -> None:
    text, twice = document
    for read in (from_json, lambda text: from_json_bytes(text.encode())):
        if twice:
            with pytest.raises(ValueError, match="more than once"):
                read(text)
        else:
            assert read(text) == json.loads(text)


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "[Infinity]", '{"a": NaN}', "", "{", '{"a" 1}', "[1,]", "\ud800"])
def test_what_is_not_json_is_refused(text: str) -> None:
    for read in (from_json, lambda text: from_json_bytes(text.encode(errors="surrogatepass"))):
        with pytest.raises(ValueError, match=r"."):
            read(text)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("shape", [lambda n: n, lambda n: [1, [n]], lambda n: {"a": {"b": n}}, lambda n: {n: 1}])
def test_numbers_that_are_not_finite_are_refused(number: float, shape: Any) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        to_json(shape(number))


@pytest.mark.parametrize(
    "value",
    [
        {"1": 1, 1: 2},
        {"true": 1, True: 2},
        {"null": 1, None: 2},
        {"1.5": 1, 1.5: 2},
        {"1": 1, Number.ONE: 2},
        [{"a": {"b": [{1: 1, "1": 2}]}}],
        {"n": 10**30, "x": {2: 1, "2": 2}},
    ],
)
def test_keys_with_the_same_text_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="more than once"):
        to_json(value)


@pytest.mark.parametrize("value", [{1: 2, 3: 4}, {"a": 10**30}, {None: [True, 1.5]}, ["\u00e9", {"1": 1}], 10**4000])
def test_other_values_are_written(value: Any) -> None:
    assert to_json(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def test_the_same_value() -> None:
    assert same_json('{"a":1,"b":[{"c":2,"d":3}]}', '{"b": [{"d": 3, "c": 2}], "a": 1}')
    for other in ('{"a":2}', '{"a":1.0}', '{"a":true}', '{"a":"1"}', '{"a":[1]}', '{"a":1,"b":null}', "{"):
        assert not same_json('{"a":1}', other)
    assert not same_json("[1,2]", "[2,1]")
