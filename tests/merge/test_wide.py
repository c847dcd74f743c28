"""Merging changes of a wide table does not create the columns that were not written."""

import pyarrow as pa
import pytest

from tests.support.made import batch, write
from writetime.core.arrow import pc
from writetime.merge import folding, merge
from writetime.schema.cql import parse_table

NAMES = [f"c{i}" for i in range(30)]
COLUMNS = ", ".join(f"{name} int" for name in NAMES)
SCHEMA = parse_table(f"CREATE TABLE shop.wide (id int, n int, {COLUMNS}, s int STATIC, PRIMARY KEY (id, n))")


def test_columns_that_no_part_has_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    ordered = folding.order_changes

    def noted(changes: pa.Table) -> folding.Order:
        seen.append(changes.column_names)
        return ordered(changes)

    monkeypatch.setattr(folding, "order_changes", noted)
    first = merge([batch((write(i, 1, 1, c3=i) for i in range(1000)), SCHEMA)], SCHEMA)
    state = merge([first, batch((write(i, 1, 2, c7=i) for i in range(500)), SCHEMA)], SCHEMA)
    assert [[name for name in names if name in NAMES] for names in seen] == [["c3"], ["c3", "c7"]]
    assert not {"s", "origin"} & {*seen[0], *seen[1]}
    # The result has them, as nulls that all share.
    assert state.get_total_buffer_size() < 300 * len(state)
    by_id = {row["id"]: row for row in state.to_pylist()}
    assert all(by_id[i]["c3"]["value"] == i for i in range(1000))
    assert [i for i in range(1000) if by_id[i]["c7"] is not None] == list(range(500))
    assert all(state[name].null_count == 1000 for name in (*NAMES, "s") if name not in ("c3", "c7"))
    assert pc.all(state["origin"].is_null()).as_py()
