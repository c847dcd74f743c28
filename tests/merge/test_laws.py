"""The laws of the merge: any split, order and repetition of changes gives the same state, byte for byte."""

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.merge import model
from tests.merge.generated import SCHEMA, Change, change, table
from writetime.merge import live_rows, merge

CHANGES = st.lists(change(), max_size=8)
EXAMPLES = settings(max_examples=60, deadline=None)


def as_bytes(state: pa.Table) -> bytes:
    """A state as a file: what is null has no values hidden below it there."""
    state.validate(full=True)
    file = io.BytesIO()
    pq.write_table(state, file)
    return file.getvalue()


@given(CHANGES, CHANGES, CHANGES)
@EXAMPLES
def test_merge_is_associative(a: list[Change], b: list[Change], c: list[Change]) -> None:
    x, y, z = (merge([table(part)], SCHEMA) for part in (a, b, c))
    left = merge([merge([x, y], SCHEMA), z], SCHEMA)
    right = merge([x, merge([y, z], SCHEMA)], SCHEMA)
    assert as_bytes(left) == as_bytes(right) == as_bytes(merge([table(a + b + c)], SCHEMA))


@given(CHANGES, st.randoms(use_true_random=False))
@EXAMPLES
def test_merge_is_commutative_and_idempotent(changes: list[Change], chooser: random.Random) -> None:
    state = merge([table(changes)], SCHEMA)
    repeated = changes + chooser.choices(changes, k=5) if changes else []
    chooser.shuffle(repeated)
    assert as_bytes(merge([table(repeated)], SCHEMA)) == as_bytes(state)
    assert as_bytes(merge([state], SCHEMA)) == as_bytes(state)
    assert as_bytes(merge([state, table(changes), state], SCHEMA)) == as_bytes(state)


@given(CHANGES, st.integers(99, 104))
@EXAMPLES
def test_what_lives_does_not_depend_on_what_came_first(changes: list[Change], as_of: int) -> None:
    forth, back = (merge([table(c)], SCHEMA) for c in (changes, changes[::-1]))
    assert as_bytes(live_rows(forth, SCHEMA, as_of)) == as_bytes(live_rows(back, SCHEMA, as_of))


@given(st.lists(change(), max_size=30), st.integers(99, 104))
@EXAMPLES
def test_what_lives_is_what_the_rules_say(changes: list[Change], as_of: int) -> None:
    wanted = [
        {name: None if value is model.ABSENT else value for name, value in row.items()}
        for row in model.live(changes, SCHEMA, as_of)
    ]
    rows = live_rows(merge([table(changes)], SCHEMA), SCHEMA, as_of).to_pylist()
    clustering = [c.name for c in SCHEMA.clustering]
    assert [{n: v for n, v in row.items() if n not in clustering} for row in rows] == [
        {n: v for n, v in row.items() if n != "position"} for row in wanted
    ]
