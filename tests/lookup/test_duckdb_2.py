"""Conditions as DuckDB 2 parses them, of which the tests with the lock's DuckDB 1 know nothing.

`duckdb_2.json` has a condition, and the syntax tree that DuckDB 2.0.1 made of it.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest

from writetime.lookup.conditions import ColumnBounds, Literal, conditions_of, with_token_column

RECORDED = json.loads(Path(__file__).with_name("duckdb_2.json").read_text())


@pytest.fixture(autouse=True)
def parsed_by_duckdb_2(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(query: str, parameters: list[str]) -> SimpleNamespace:
        (text,) = parameters
        answer = json.dumps(RECORDED["tree"]) if query == "SELECT json_serialize_sql(?)" else f"1 WHERE {text}"
        return SimpleNamespace(fetchall=lambda: [(answer,)])

    monkeypatch.setattr(duckdb, "execute", execute)


def test_literals_and_their_types() -> None:
    found = conditions_of(RECORDED["where"], ["k"])
    assert found.allowed == {"k": (Literal("VARCHAR", "x"),), "n": (Literal("BIGINT", 1), Literal("BIGINT", -2000))}
    assert found.bounds["t"] == ColumnBounds(Literal("TIMESTAMP WITH TIME ZONE", "2020-01-01"), None)
    assert found.tokens == ColumnBounds(Literal("BIGINT", 5), None)


def test_a_token_becomes_a_column() -> None:
    changed = with_token_column(RECORDED["where"], ["k"], "its_token")
    assert changed is not None
    assert '"its_token"' in changed
    assert '"token"' not in changed
    assert with_token_column(RECORDED["where"], ["other"], "its_token") is None
