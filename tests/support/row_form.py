"""The row form of plain values, as the documents define it."""

from typing import Any

from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector

FIRST, LAST = -(1 << 63), (1 << 63) - 1


def row_form(value: Any, cql_type: CqlType) -> tuple[Any, bool]:
    """The row form of a plain value, and whether something of it does not fit."""
    if value is None:
        return None, False
    match cql_type:
        case Native("timestamp"):
            micros = value * 1000
            return (micros, False) if FIRST <= micros <= LAST else (None, True)
        case Native():
            return value, False
        case Collection("map", (key, item)):
            entries = [list(e.values()) if isinstance(e, dict) else e for e in value]
            keys = [row_form(k, key) for k, _ in entries]
            items = [row_form(v, item) for _, v in entries]
            lost = any(flag for _, flag in keys + items)
            if any(flag for _, flag in keys):
                return None, True
            return [[k, v] for (k, _), (v, _) in zip(keys, items, strict=True)], lost
        case Collection(_, (element,)) | Vector(element, _):
            parts = [row_form(v, element) for v in value]
            return [v for v, _ in parts], any(flag for _, flag in parts)
        case Tuple(arguments):
            types = list(arguments)
        case Udt(_, _, fields):
            types = [t for _, t in fields]
        case _:
            raise AssertionError(cql_type)
    parts = [row_form(v, t) for v, t in zip(value.values(), types, strict=True)]
    return [v for v, _ in parts], any(flag for _, flag in parts)
