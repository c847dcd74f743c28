"""Statements that a class declares."""

from types import SimpleNamespace
from typing import Any, cast

from cassandra.cluster import Session

from writetime.clients.prepared_statements import Statement, Statements
from writetime.core.config import Settings


class Queries(Statements):
    needed_by = "tests"

    one = Statement("SELECT a FROM {}.t WHERE b = ?", serial=True, page_rows=7)


def prepare(text: str) -> Any:
    return SimpleNamespace(text=text, consistency_level=None, fetch_size=5000)


def test_objects_have_the_declared_statements_prepared() -> None:
    settings = Settings()
    one: Any = Queries(cast("Session", SimpleNamespace(prepare=prepare)), settings).one
    assert (one.text, one.fetch_size) == (f"SELECT a FROM {settings.cassandra.keyspace}.t WHERE b = ?", 7)
    assert one.consistency_level is not None
