"""Schemas of a node whose faults come and go; no server is needed."""

import itertools
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from writetime.capture.node_schemas import Node, SchemaWatch

_ID = UUID("11111111-1111-11f0-8000-000000000000")
# The types of the columns of `ks.t`, by the name of a schema.
_SCHEMAS = {"a": {"k": "int"}, "b": {"k": "int", "v": "no<type"}, "c": {"k": "int", "v": "text"}}
_FAULTY = "b"


class _Node(Node):
    """Has one of these schemas, and answers the queries for it."""

    def __init__(self, accord: str | None = None) -> None:
        """`accord` is the option of the table, if the node has Accord enabled."""
        self.has, self.accord = "a", accord
        # The schema version, when the table was altered, and how often it was described.
        self.version = self.altered = self.described = 0

    def rows(self, query: str) -> list[dict[str, Any]]:
        if query == "DESCRIBE TABLE ks.t":
            self.described += 1
            # Cassandra's `DescribeStatement.table` returns the indexes of a table after it.
            table = f"CREATE TABLE ks.t (k int PRIMARY KEY) WITH cdc = true\n    AND {self.accord};"
            texts = {"table": table, "index": "CREATE INDEX i ON ks.t (v);"}
            return [{"type": kind, "create_statement": text} for kind, text in texts.items()]
        table = query.partition(" FROM ")[2].split()[0]
        names = {"keyspace_name": "ks", "table_name": "t"}
        match table.rpartition(".")[2]:
            case "local":
                return [{"schema_version": UUID(int=self.version)}]
            case "tables" if "WRITETIME(fast_path)" in query:
                return [{**names, "at": self.altered}]
            case "tables":
                row = {**names, "id": _ID, "flags": {"compound"}, "cdc": True, "gc_grace_seconds": 864000}
                return [row | ({"fast_path": {}} if self.accord else {})]
            case "columns" if "WHERE" not in query:
                order = {"clustering_order": "none"}
                return [
                    {**names, **order, "column_name": name, "type": cql_type, "kind": kind, "position": position}
                    for (name, cql_type), (kind, position) in zip(
                        _SCHEMAS[self.has].items(), [("partition_key", 0), ("regular", -1)], strict=False
                    )
                ]
        return []


@pytest.mark.parametrize("path", ["".join(path) for path in itertools.product("abc", repeat=4)])
def test_a_table_has_the_schema_that_the_node_has(tmp_path: Path, path: str) -> None:
    """Whatever it had before: a fault that is undone leaves the schema from before it."""
    node = _Node()
    watch = SchemaWatch(tmp_path, node)
    for has in path:
        node.has = has
        watch.refresh(always=True)
        table = watch.tables.by_id[_ID]
        assert (table.schema is None, bool(table.fault)) == (node.has == _FAULTY,) * 2
        if table.schema is not None:
            assert [column.name for column in table.schema.columns] == list(_SCHEMAS[node.has])
            assert watch.tables.captured == [table.schema]
            assert not watch.tables.faults


@pytest.mark.parametrize(
    ("accord", "is_transactional"),
    [
        ("transactional_mode = 'off' AND transactional_migration_from = 'none'", False),
        ("transactional_mode = 'full' AND transactional_migration_from = 'none'", True),
        ("transactional_mode = 'off' AND transactional_migration_from = 'full'", True),
    ],
)
def test_a_table_with_an_index_is_described(tmp_path: Path, accord: str, is_transactional: bool) -> None:
    """Its fault would stop the capture of all tables of the node."""
    watch = SchemaWatch(tmp_path, _Node(accord))
    watch.refresh(always=True)
    assert watch.tables.transactional == (frozenset([_ID]) if is_transactional else frozenset())


_MODES = {mode: f"transactional_mode = '{mode}' AND transactional_migration_from = 'none'" for mode in ("off", "full")}


def test_only_tables_that_were_altered_are_described(tmp_path: Path) -> None:
    node = _Node(_MODES["off"])
    watch = SchemaWatch(tmp_path, node)

    def described(*, altered: bool = False) -> int:
        before = node.described
        node.version += 1
        node.altered += altered
        watch.refresh()
        watch.refresh(always=True)
        return node.described - before

    # In the next version again.
    assert [described() for _ in range(4)] == [1, 1, 0, 0]
    # The node has written the change, and still describes the table as it was.
    assert described(altered=True) == 1
    assert not watch.tables.transactional
    node.accord = _MODES["full"]
    assert [described() for _ in range(3)] == [1, 0, 0]
    assert watch.tables.transactional == {_ID}
