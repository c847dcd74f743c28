"""The laws of the merge: any split, order and repetition of changes gives the same state, byte for byte.

Oracle: a second implementation of the merge in plain Python (`tests.merge.model`) for the rules; for the laws, our own
merge in another order. `test_cql` compares with the database.
"""

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.merge import model
from tests.support.examples import is_long_run
from tests.support.generated import COUNTERS, SCHEMA, Change, change, table
from writetime.merge import live_rows, merge
from writetime.schema.table import TableSchema

pytestmark = pytest.mark.slow

SCHEMAS = pytest.mark.parametrize("schema", [SCHEMA, COUNTERS], ids=lambda s: s.name)
# A state as a file, several times in each, takes most of the time.
EXAMPLES = settings(max_examples=60 if is_long_run() else 8)


def changes_of(schema: TableSchema, count: int = 8) -> st.SearchStrategy[list[Change]]:
    return st.lists(change(schema), max_size=count)


def as_bytes(state: pa.Table) -> bytes:
    """A state as a file, in which a null has no hidden values below it."""
    state.validate(full=True)
    file = io.BytesIO()
    pq.write_table(state, file)
    return file.getvalue()


@SCHEMAS
@given(st.data())
@EXAMPLES
def test_merge_is_associative(schema: TableSchema, data: st.DataObject) -> None:
    a, b, c = (data.draw(changes_of(schema)) for _ in range(3))
    x, y, z = (merge([table(part, schema)], schema) for part in (a, b, c))
    left = merge([merge([x, y], schema), z], schema)
    right = merge([x, merge([y, z], schema)], schema)
    assert as_bytes(left) == as_bytes(right) == as_bytes(merge([table(a + b + c, schema)], schema))


@SCHEMAS
@given(st.data(), st.randoms(use_true_random=False))
@EXAMPLES
def test_merge_is_commutative_and_idempotent(schema: TableSchema, data: st.DataObject, chooser: random.Random) -> None:
    changes = data.draw(changes_of(schema))
    state = merge([table(changes, schema)], schema)
    repeated = changes + chooser.choices(changes, k=5) if changes else []
    chooser.shuffle(repeated)
    assert as_bytes(merge([table(repeated, schema)], schema)) == as_bytes(state)
    assert as_bytes(merge([state], schema)) == as_bytes(state)
    assert as_bytes(merge([state, table(changes, schema), state], schema)) == as_bytes(state)


@SCHEMAS
@given(st.data(), st.integers(99, 104))
@EXAMPLES
def test_live_rows_do_not_depend_on_the_order_of_changes(schema: TableSchema, data: st.DataObject, as_of: int) -> None:
    changes = data.draw(changes_of(schema))
    forth, back = (merge([table(c, schema)], schema) for c in (changes, changes[::-1]))
    assert as_bytes(live_rows(forth, schema, as_of)) == as_bytes(live_rows(back, schema, as_of))


@SCHEMAS
@given(st.data(), st.integers(99, 104))
@EXAMPLES
def test_live_rows_follow_the_rules(schema: TableSchema, data: st.DataObject, as_of: int) -> None:
    changes = data.draw(changes_of(schema, 30))
    wanted = [
        {name: None if value is model.ABSENT else value for name, value in row.items()}
        for row in model.live(changes, schema, as_of)
    ]
    rows = live_rows(merge([table(changes, schema)], schema), schema, as_of).to_pylist()
    clustering = [c.name for c in schema.clustering]
    assert [{n: v for n, v in row.items() if n not in clustering} for row in rows] == [
        {n: v for n, v in row.items() if n != "position"} for row in wanted
    ]
