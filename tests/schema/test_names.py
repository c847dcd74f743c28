"""Names of columns and fields: outside the lake by the name alone, in the lake by labels.

Oracle: no two names may be alike. Our parser reads the schemas that our writer wrote.
"""

import json
import re

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.odd_names import NAMES, columns, table
from writetime.changes.model import RESERVED, change_schema, field_name
from writetime.delta.parquet import PARTITION
from writetime.lake.labels import extend, labelled, newly_labelled, without_labels
from writetime.lake.table import view_schema
from writetime.schema.cql import parse_table
from writetime.schema.describe import to_cql
from writetime.schema.mapping import avro_name
from writetime.schema.names import distinct, fold
from writetime.schema.stored import from_json, to_json

EXAMPLES = examples(300)


def alike(one: str, other: str) -> bool:
    """Whether a reader may take one name for the other: by the rules of Rust, Python or Java."""
    if one.lower() == other.lower() or one.casefold() == other.casefold() or one.upper() == other.upper():
        return True
    return len(one) == len(other) and all(java_alike(*pair) for pair in zip(one, other, strict=True))


def java_alike(one: str, other: str) -> bool:
    """`String.equalsIgnoreCase` of two characters; Java maps one to one character only."""

    def upper(c: str) -> str:
        return c.upper() if len(c.upper()) == 1 else c

    def lower(c: str) -> str:
        return "i" if c == "\u0130" else c.lower() if len(c.lower()) == 1 else c

    return upper(one) == upper(other) or lower(upper(one)) == lower(upper(other))


def assert_apart(names: list[str]) -> None:
    """Check that no reader confuses two of the names, and that no name is the start of another one up to a dot."""
    for i, one in enumerate(names):
        for other in names[:i]:
            assert not alike(one, other), (one, other)
            assert not f"{one}.".startswith(f"{other}."), (one, other)
            assert not f"{other}.".startswith(f"{one}."), (one, other)


@EXAMPLES
@given(NAMES)
@example(["key", "column_key", "column_column_key", "KEY", "Key"])
@example(["token_bucket", "Token_Bucket", "token_bucket_2"])
@example(["marker.expiry", "a", "a.value", "a_value", "a.b.c"])
def test_labels_keep_names_distinct(names: list[str]) -> None:
    schema = newly_labelled(table(names))
    assert_apart([PARTITION, *view_schema(schema).names])
    assert_apart([PARTITION, *change_schema(schema).names])
    if any("." in name for name in names):
        return
    for column in schema.columns:
        others = [PARTITION, *RESERVED, *(c.name for c in schema.columns if c.name != column.name)]
        if not any(alike(column.name, form) for o in others for form in (o, f"column_{o}")):
            # No name is like it, but one may be that another column got.
            generated = [c.label for c in schema.columns if c.label != c.name]
            assert column.label == column.name or any(fold(column.name) == fold(g) for g in generated)


@EXAMPLES
@given(NAMES, NAMES)
@example(["Name"], ["name"])
@example(["column_key"], ["key"])
@example(["key"], ["column_key"])
def test_labels_never_change(first: list[str], later: list[str]) -> None:
    before = extend({}, columns(first))
    after = extend(before, columns(later))
    assert before.items() <= after.items()
    assert after.keys() == {*first, *later}
    assert extend(after, columns([*later, *first])) == after
    schema = labelled(table([*first, *(name for name in later if name not in first)]), after)
    assert_apart([PARTITION, *view_schema(schema).names])
    assert_apart([PARTITION, *change_schema(schema).names])


def test_a_name_that_is_like_no_other_stays() -> None:
    names = ["Name", "WITH space", "Écran", "column_key", "kind_", "1st", "key", "end", "value"]
    labels = extend({}, columns([name for name in names if name != "key"]))
    assert all(name == label for name, label in labels.items())
    assert extend({}, columns(["key"])) == {"key": "key"}
    assert extend(labels, columns(["name", "Key"])) == {**labels, "name": "name_2", "Key": "Key_2"}


@EXAMPLES
@given(NAMES)
@example(["key", "column_key", "column_column_key"])
def test_fields_outside_the_lake(names: list[str]) -> None:
    fields = [field_name(c) for c in columns(names)]
    assert len({*fields, *RESERVED}) == len(names) + len(RESERVED)
    assert without_labels(newly_labelled(table(names))).columns == table(names).columns
    assert change_schema(without_labels(newly_labelled(table(names)))) == change_schema(table(names))


@EXAMPLES
@given(NAMES)
@example(["a b", "a_x20_b", "_x20 ", " x20_", "1st", "_1st", "_x31_st", "_", "a_x5f_b"])
def test_avro_names(names: list[str]) -> None:
    found = [avro_name(name) for name in names]
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in found)
    assert len(set(found)) == len(names)
    for name in names:
        if re.fullmatch(r"_[0-9]+|[A-Za-z][A-Za-z0-9]*", name):
            assert avro_name(name) == name


@EXAMPLES
@given(NAMES, st.integers(0, 12))
def test_fields_of_types(names: list[str], count: int) -> None:
    found = distinct(names)
    assert_apart(found)
    assert found[0] == names[0]
    # Fields are added at the end, and change none before.
    assert distinct(names[:count]) == found[:count]


@EXAMPLES
@given(NAMES)
def test_schemas_as_text(names: list[str]) -> None:
    schema = table(names)
    assert parse_table(to_cql(schema)) == schema
    assert from_json(json.loads(json.dumps(to_json(schema)))) == schema
