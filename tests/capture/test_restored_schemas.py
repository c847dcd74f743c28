"""A captured table, written as SSTables as it was before DROP of columns, TRUNCATE, and DROP and CREATE of the table.

Oracle: the answers of CQL then.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.capture.agents import passes
from tests.support.captured import Captured
from tests.support.lake_answers import cql_rows
from writetime.core.errors import WritetimeError
from writetime.lake.table import open_table
from writetime.lake.views import time_now, views_at
from writetime.landing.landing import Landing
from writetime.restore.to_folder import restore
from writetime.schema.table import TableSchema

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Moment:
    """The table at an instant, by the database."""

    instant: int
    schema: TableSchema
    rows: list[dict[str, Any]]

    @classmethod
    def after(cls, captured: Captured, *statements: str) -> "Moment":
        """Execute statements, and let the lake have all that was written."""
        captured.write(*statements)
        schema = captured.schema("t")
        found = cls(time_now(), schema, cql_rows(captured.node.session(), schema))
        passes(captured, "t")
        Landing(captured.settings, schema.full_name).drain()
        return found

    def assert_restored(self, captured: Captured, folder: Path, name: str) -> None:
        """Restore the table as another one, and compare the answer of the database."""
        table = open_table(captured.settings, self.schema.full_name)
        restore(table, str(folder), self.instant)
        copy = replace(views_at(table, self.instant)[0].schema, name=name)
        captured.write(copy.create_statement())
        captured.node.nodetool("import", captured.keyspace, name, str(folder))
        assert [c.name for c in copy.columns] == [c.name for c in self.schema.columns]
        assert cql_rows(captured.node.session(), copy) == self.rows


COLUMNS = "(k int, c int, s text static, v text, w int, l list<int>, u point, f frozen<point>, PRIMARY KEY (k, c))"


def test_what_came_after_a_drop_a_truncation_and_another_table(landed: Captured, tmp_path: Path) -> None:
    landed.write("CREATE TYPE {ks}.point (x int, y text)", f"CREATE TABLE {{ks}}.t {COLUMNS} WITH cdc = true")
    point = "{x: 1, y: 'one'}"
    with landed.agent():
        # The history begins when the table comes to the lake.
        Moment.after(landed, "INSERT INTO {ks}.t (k, c) VALUES (0, 0)")
        moments = [
            Moment.after(
                landed,
                "INSERT INTO {ks}.t (k, c, s, v, w, l, u, f) "
                f"VALUES (1, 1, 's', 'a', 1, [1, 2], {point}, {point}) USING TTL 500000",
                *(f"INSERT INTO {{ks}}.t (k, c, v, w) VALUES ({k}, 2, 'b', {k})" for k in range(20)),
                "DELETE FROM {ks}.t WHERE k = 5",
                "UPDATE {ks}.t SET u.x = 7, l = l + [3] WHERE k = 2 AND c = 2",
            ),
            Moment.after(
                landed,
                *(f"ALTER TABLE {{ks}}.t DROP {name}" for name in "swlf"),
                "INSERT INTO {ks}.t (k, c, v) VALUES (3, 3, 'without')",
            ),
            Moment.after(landed, "TRUNCATE {ks}.t", "INSERT INTO {ks}.t (k, c, v) VALUES (4, 4, 'truncated')"),
            Moment.after(
                landed,
                "DROP TABLE {ks}.t",
                "CREATE TABLE {ks}.t (k text PRIMARY KEY, v int) WITH cdc = true",
                "INSERT INTO {ks}.t (k, v) VALUES ('another', 1)",
            ),
        ]
    # Of the last table, the lake shows the times from when it learned of it.
    table = open_table(landed.settings, moments[0].schema.full_name)
    with pytest.raises(WritetimeError, match=r"and from before that .* to before .*; "):
        views_at(table, moments[3].instant)
    moments[3] = replace(moments[3], instant=time_now())
    for number, moment in enumerate(moments):
        moment.assert_restored(landed, tmp_path / f"out{number}", f"restored_{number}")
