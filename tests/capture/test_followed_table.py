"""`writetime follow` continues while its table changes: a new column, a TRUNCATE, a DROP and a CREATE."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.captured import Captured
from tests.support.event_replay import Consumer, in_order
from tests.support.following import following
from tests.support.lake_answers import cql_rows, view_rows
from tests.support.view_readers import by_query
from tests.support.waiting import wait_for
from writetime.lake.projection import ROW_EVENTS
from writetime.lake.table import is_in_lake, open_table


class FollowedTable:
    """A table of the node that is captured and followed."""

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self._settings = captured.settings
        self.name = f"{captured.keyspace}.t"
        self._consumer = Consumer()
        self._generation = 0

    def wait(self) -> None:
        """Wait until the view, and the replayed row events, equal the database's answer."""
        schema = self._captured.schema("t")
        wanted = cql_rows(self._captured.node.session(), schema)
        wait_for(lambda: self._shown([c.name for c in schema.columns]) == _sorted(wanted))
        wait_for(lambda: self._replayed() == _sorted(wanted))

    def _replayed(self) -> list[str]:
        table = open_table(self._settings, self.name)
        position = ROW_EVENTS.position(table.row_events.load())
        if position is not None and position.batch.generation != self._generation:
            # As documented: a consumer starts with no rows.
            self._consumer, self._generation = Consumer(), position.batch.generation
        self._consumer.follow(table)
        return _sorted(in_order(self._consumer.rows))

    def _shown(self, names: list[str]) -> list[str] | None:
        if not is_in_lake(self._settings, self.name):
            return None
        table = open_table(self._settings, self.name)
        now = table.view.load()
        if not {*names} <= {*now.fields.names} or not now.files:
            return None
        return _sorted(view_rows([by_query(table.view.storage.address).select(names)]))


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


@pytest.fixture
def followed(landed: Captured) -> Iterator[FollowedTable]:
    follow = landed.settings.follow.model_copy(update={"events_seconds": 0.1, "view_seconds": 0.1})
    landed.settings = landed.settings.model_copy(update={"follow": follow})
    landed.write("CREATE TABLE {ks}.t (id int, n int, v text, PRIMARY KEY (id, n)) WITH cdc = true")
    table = FollowedTable(landed)
    with landed.agent(), following(landed.settings, table.name):
        yield table


def test_a_table_that_changes(landed: Captured, followed: FollowedTable) -> None:
    insert = "INSERT INTO {ks}.t (id, n, v) VALUES (%d, %d, 'a')"
    landed.write(*(insert % (i, n) for i in range(5) for n in range(2)))
    followed.wait()
    landed.write("ALTER TABLE {ks}.t ADD w int", "UPDATE {ks}.t SET w = 1 WHERE id = 1 AND n = 1")
    followed.wait()
    landed.write("TRUNCATE {ks}.t", "INSERT INTO {ks}.t (id, n, v, w) VALUES (7, 7, 'b', 2)")
    followed.wait()
    landed.write("DROP TABLE {ks}.t")
    landed.write("CREATE TABLE {ks}.t (id int, n int, v text, PRIMARY KEY (id, n)) WITH cdc = true", insert % (9, 9))
    followed.wait()
    landed.write("DELETE FROM {ks}.t WHERE id = 9", insert % (8, 8))
    followed.wait()
