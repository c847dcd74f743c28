"""JSON as RFC 8259 has it, without a name twice in an object: readers of such an object use one value, and lose the
others.
"""

import json
import re
from typing import Any, NoReturn

import orjson

_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
# Each name of an object, and some texts that have a quote and a colon.
_names = re.compile(rb'"[ \t\r\n]*:').findall
_CONTAINERS = (dict, list)


def to_json(value: Any) -> str:
    """Return a value as JSON. Raises TypeError: it has a value of a type that JSON does not have; ValueError: it
    contains itself, a number that is not finite, or an object whose keys have the same text, such as 1 and "1".
    """
    text = _ENCODER.encode(value)
    try:
        # It refuses keys that are not text, and is fast. Keys that are text differ.
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        _require_distinct(text)
    return text


def from_json(text: str) -> Any:
    """Return the value of a JSON text, with integers of any size. Raises ValueError: it is not JSON, or a name is in an
    object twice.
    """
    return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)


def from_json_bytes(data: bytes | bytearray) -> Any:
    """Return the value of JSON in UTF-8, with integers beyond 64 bits as doubles. Raises ValueError: it is not JSON, or
    a name is in an object twice.
    """
    value = orjson.loads(data)
    names = len(_names(data))
    if names > 1 and names > _count_of_fields(value):
        try:
            _require_distinct(data.decode())
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
    return value


def same_json(one: str, other: str) -> bool:
    """Return whether two JSON texts have the same value; the names of an object have no order, and 1 is not 1.0."""
    if one == other:
        return True
    try:
        return json.dumps(from_json(one), sort_keys=True) == json.dumps(from_json(other), sort_keys=True)
    except (ValueError, RecursionError):
        # Another program stored it.
        return False


def _count_of_fields(value: Any) -> int:
    count = 0
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if type(found) is dict:
            count += len(found)
            found = found.values()
        elif type(found) is not list:
            continue
        waiting += [inner for inner in found if type(inner) in _CONTAINERS]
    return count


def _require_distinct(text: str) -> None:
    # Only the names count. A number of thousands of digits would be refused.
    json.loads(text, object_pairs_hook=_object, parse_int=str, parse_float=str)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the name {twice[:80]!r} more than once")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")
