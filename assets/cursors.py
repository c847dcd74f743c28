"""The cursors of sensors. An operator can set a cursor to any text, and a cursor may be that of another sensor."""

from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

_T = TypeVar("_T")


def of_cursor(text: str | None, kind: type[_T]) -> _T | None:
    """Return the value of a cursor that is JSON; None without a cursor, and for one with a value of another type."""
    try:
        return TypeAdapter(kind).validate_json(text or "", strict=True)
    except ValidationError:
        return None
