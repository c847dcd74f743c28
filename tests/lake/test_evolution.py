"""Schemas arrive in any order, and none requires that a file is rewritten."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from itertools import permutations
from pathlib import Path
from typing import Any
from uuid import UUID, uuid1, uuid4

import pytest

from tests.support.lake_answers import view_rows
from tests.support.made import SCHEMA, add, new_table, rewrite, write
from writetime.core.errors import WritetimeError
from writetime.delta.bucketed_table import Conflict
from writetime.lake import state, views
from writetime.lake.evolution import join_schemas
from writetime.lake.table import LakeTable
from writetime.schema.cql import parse_table
from writetime.schema.describe import to_cql
from writetime.schema.stored import from_json, to_json
from writetime.schema.table import Column, DroppedColumn, SchemaError, TableSchema
from writetime.schema.types import Native, Udt, parse_cql

TEXT, INT = Native("text"), Native("int")


def with_columns(*columns: Column, dropped: tuple[DroppedColumn, ...] = ()) -> TableSchema:
    return replace(SCHEMA, regular=(*SCHEMA.regular, *columns), dropped=dropped)


def without(name: str, at: int) -> TableSchema:
    gone = next(c for c in SCHEMA.regular if c.name == name)
    left = tuple(c for c in SCHEMA.regular if c.name != name)
    return replace(SCHEMA, regular=left, dropped=(DroppedColumn(name, gone.type, False, at),))


def test_schemas_as_cql() -> None:
    inner = Udt("shop", "in ner", (("a b", INT),))
    outer = Udt("shop", "outer", (("x", replace(inner, frozen=True)), ("y", TEXT)))
    schema = TableSchema(
        "shop",
        "Items",
        (Column("id", INT), Column("Key", TEXT)),
        (Column("n", INT, True),),
        (Column("s", outer),),
        (Column("v", replace(outer, frozen=True)), Column("back", INT)),
        (
            DroppedColumn("gone", INT, False, 7),
            DroppedColumn("back", INT, False, -8),
            DroppedColumn("st", TEXT, True, 9),
        ),
    )
    again = parse_table(to_cql(schema))
    assert replace(again, dropped=()) == replace(schema, dropped=())
    assert set(again.dropped) == set(schema.dropped)
    assert to_cql(again) == to_cql(parse_table(to_cql(again)))


def test_schemas_as_json() -> None:
    inner = Udt("shop", "in ner", (("a b", INT),))
    outer = Udt("shop", "outer", (("x", replace(inner, frozen=True)), ("y", TEXT)))
    gone = Udt("shop", "gone", (("z", replace(inner, frozen=True)),), frozen=True)
    schema = TableSchema(
        "shop",
        "Items",
        (Column("id", INT), Column("Key", TEXT)),
        (Column("n", INT, True), Column("a", INT)),
        (Column("s", outer),),
        (Column("v", replace(outer, frozen=True)), Column("back", INT)),
        (
            DroppedColumn("gone", gone, None, 7),
            DroppedColumn("back", INT, False, -8),
            DroppedColumn("st", TEXT, True, 9),
        ),
        UUID(int=5),
        3600,
    )
    again = from_json(json.loads(json.dumps(to_json(schema))))
    assert again == schema
    assert (again.id, again.gc_grace_seconds) == (schema.id, schema.gc_grace_seconds)
    assert [c.name for c in again.columns] == [c.name for c in schema.columns]


@pytest.mark.parametrize(
    "change",
    [
        {"name": 5},
        {"columns": []},
        {"columns": [{"name": "id", "type": "int", "kind": "key"}]},
        {"columns": [{"name": "id", "type": "no such type", "kind": "partition_key"}]},
        {"id": "5"},
        {"more": 1},
    ],
)
def test_an_invalid_stored_schema_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(WritetimeError):
        from_json(to_json(SCHEMA) | change)
    with pytest.raises(SchemaError, match="a stored schema cannot be read"):
        from_json(next(iter(change.values())))


def test_joining_is_a_join() -> None:
    short = Udt("shop", "u", (("a", INT),))
    long = Udt("shop", "u", (("a", INT), ("b", TEXT)))
    schemas = [
        SCHEMA,
        with_columns(Column("new", TEXT)),
        without("w", 10),
        replace(SCHEMA, dropped=(DroppedColumn("w", INT, False, 10),)),
        without("w", 20),
        with_columns(Column("u", short)),
        with_columns(Column("u", long)),
    ]
    for a in schemas:
        assert join_schemas(a, a) == a
        for b in schemas:
            assert join_schemas(a, b) == join_schemas(b, a)
            for c in schemas:
                assert join_schemas(join_schemas(a, b), c) == join_schemas(a, join_schemas(b, c))
    assert join_schemas(SCHEMA, without("w", 10)) == without("w", 10)
    back = replace(SCHEMA, dropped=(DroppedColumn("w", INT, False, 10),))
    assert join_schemas(without("w", 10), back) == back
    assert join_schemas(with_columns(Column("u", long)), with_columns(Column("u", short))).regular[0].type == long


@pytest.mark.parametrize(
    ("types", "wanted"),
    [
        # Of two types that are allowed without a drop, the wider one; otherwise the one added after the later drop.
        ((("ascii", 0), ("text", 0)), "text"),
        ((("timeuuid", 0), ("uuid", 0), ("uuid", 20)), "uuid"),
        ((("ascii", 0), ("text", 20)), "text"),
        ((("uuid", 0), ("timeuuid", 20)), "timeuuid"),
        ((("text", 0), ("ascii", 20), ("text", 30), ("inet", 40)), "inet"),
        ((("set<uuid>", 0), ("set<timeuuid>", 20)), "set<timeuuid>"),
        ((("frozen<tuple<uuid, ascii>>", 5), ("frozen<tuple<timeuuid, text>>", 5)), "frozen<tuple<uuid, text>>"),
    ],
)
def test_the_type_of_a_column_does_not_depend_on_the_order(types: tuple[tuple[str, int], ...], wanted: str) -> None:
    """And it stays, however often each schema is seen again. Each also has a column that the others do not have."""
    schemas = []
    for number, (cql_type, at) in enumerate(types):
        dropped = (DroppedColumn("t", INT, False, at),) if at else ()
        columns = Column("t", parse_cql(cql_type)), Column(f"new_{number}", INT)
        schemas.append(with_columns(*columns, dropped=dropped))
    joined = []
    for order in permutations(schemas):
        joined.append(reduce(join_schemas, order))
        for schema in order:
            assert join_schemas(joined[-1], schema) == joined[-1]
            # As a lake that had it alone.
            assert reduce(join_schemas, order, schema) == joined[-1]
    assert all({c.name: c.type for c in each.regular}["t"] == parse_cql(wanted) for each in joined)
    assert all(each == joined[0] for each in joined)


def test_columns_come_and_go(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    add(table, [write(1, 1, 5, v="a", w=10)], 1)
    state.fold(table)
    files = [f.path for part in table.parts for f in part.load().files]
    udt = Udt("shop", "u", (("a", INT),))
    added = with_columns(Column("u", replace(udt, frozen=True)), Column("new", TEXT))
    table.follow(added)
    add(table, [write(2, 1, 6, v="b", w=11, u={"a": 1}, new="n")], 2, added)
    assert view_rows(views.virtual(table)) == [
        {"id": 1, "n": 1, "new": None, "u": None, "v": "a", "w": 10},
        {"id": 2, "n": 1, "new": "n", "u": [1], "v": "b", "w": 11},
    ]
    wider = replace(udt, fields=(("a", INT), ("b", TEXT)), frozen=True)
    widened = with_columns(Column("u", wider), Column("new", TEXT))
    table.follow(widened)
    add(table, [write(3, 1, 7, u={"a": 2, "b": "x"})], 3, widened)
    state.fold(table)
    rewrite(table)
    assert [row["u"] for row in view_rows(views.virtual(table))] == [None, [1, None], [2, "x"]]
    # An older schema, as of a snapshot that comes late, takes nothing away; a drop does.
    assert table.follow(SCHEMA) == table.schema()
    gone = replace(widened, regular=tuple(c for c in widened.regular if c.name != "w"))
    gone = replace(gone, dropped=(DroppedColumn("w", INT, False, 100),))
    table.follow(gone)
    assert "w" not in view_rows(views.virtual(table))[0]
    assert "w" in table.state.load().table.schema().to_arrow().names
    add(table, [write(1, 2, 50, v="c")], 4, gone)
    # It is added again, without the cells from before the drop.
    back = replace(gone, regular=widened.regular)
    table.follow(back)
    add(table, [write(1, 3, 150, w=7)], 5, back)
    state.fold(table)
    rewrite(table)
    assert [row["w"] for row in view_rows(views.virtual(table))] == [None, None, 7, None, None]
    assert view_rows([table.view.load().table.to_pyarrow_table()])[0].keys() >= {"w", "u", "new"}
    assert set(files) <= {f.path for part in table.parts for f in part.load().files}


def names(table: LakeTable) -> list[str]:
    return [column.name for column in table.schema().regular]


def once_before(monkeypatch: pytest.MonkeyPatch, of: object, step: str, other: Callable[[], object]) -> None:
    """Let another process work before a step of this one."""
    call = getattr(of, step)

    def after_other(*arguments: Any) -> Any:
        monkeypatch.undo()
        other()
        return call(*arguments)

    monkeypatch.setattr(of, step, after_other)


@pytest.mark.parametrize(("part", "step"), [("changes", "add_fields"), ("view", "add_fields"), ("changes", "load")])
def test_two_processes_follow_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, step: str) -> None:
    """No column is lost, and none of its values."""
    table = new_table(tmp_path)
    other = LakeTable(table.storage)

    def meanwhile() -> None:
        joined = other.follow(with_columns(Column("x", INT), Column("y", INT)))
        add(other, [write(1, 1, 5, v="a", y=7)], 1, joined)

    once_before(monkeypatch, getattr(table, part), step, meanwhile)
    joined = table.follow(with_columns(Column("x", INT), Column("z", INT)))
    assert joined == table.schema() == other.schema()
    assert sorted(names(table)) == ["v", "w", "x", "y", "z"]
    state.fold(table)
    rewrite(table)
    assert view_rows(views.virtual(table)) == [{"id": 1, "n": 1, "v": "a", "w": None, "x": None, "y": 7, "z": None}]


def test_a_table_is_created_again_while_others_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema of the earlier table is not taken for that of the later one."""
    table = new_table(tmp_path, replace(SCHEMA, id=uuid1()))
    other = LakeTable(table.storage)
    later = replace(SCHEMA, id=uuid1())
    once_before(monkeypatch, table.view, "add_fields", lambda: other.begin(later))
    with pytest.raises(SchemaError, match="was dropped and created again"):
        table.follow(replace(with_columns(Column("x", INT)), id=table.schema().id))
    assert table.schema().id == later.id
    assert names(table) == ["v", "w"]


def test_two_processes_begin_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path, replace(SCHEMA, id=uuid1()))
    other = LakeTable(table.storage)
    later = replace(with_columns(Column("x", INT)), id=uuid1())

    def meanwhile() -> None:
        other.begin(later)
        other.follow(replace(later, regular=(*later.regular, Column("X", INT))))

    once_before(monkeypatch, table.changes, "update_property", meanwhile)
    with pytest.raises(Conflict):
        table.begin(replace(SCHEMA, id=later.id))
    assert {c.name: c.label for c in table.schema().regular} == {"v": "v", "w": "w", "x": "x", "X": "X_2"}
    # And again, under a name that the process that was behind has not used.
    latest = replace(SCHEMA, id=uuid1())
    table.begin(latest)
    assert (table.schema().id, names(table)) == (latest.id, ["v", "w"])


def test_a_type_with_another_arrow_form_is_refused(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for cql_type in ("varint", "blob", "frozen<list<int>>"):
        other = parse_table(f"CREATE TABLE shop.items (id int, n int, v text, w {cql_type}, PRIMARY KEY (id, n))")
        with pytest.raises(SchemaError, match="column w was int and is"):
            table.follow(other)
    short, renamed = (with_columns(Column("u", Udt("shop", "u", ((name, INT),)))) for name in "ab")
    with pytest.raises(SchemaError, match=r"column u: field a of the type u was renamed to b"):
        join_schemas(short, renamed)
    for key in ("id", "(id, n)", "id, n, w"):
        with pytest.raises(SchemaError, match="differ in their primary keys"):
            table.follow(parse_table(f"CREATE TABLE shop.items (id int, n int, v text, w int, PRIMARY KEY ({key}))"))
    with pytest.raises(SchemaError, match=r"the key column n in the lake is m .* add WITH ID"):
        table.follow(parse_table("CREATE TABLE shop.items (id int, m int, v text, PRIMARY KEY (id, m))"))


def test_key_columns_that_are_renamed_keep_their_names() -> None:
    """Whichever schema came first; the join is the same for any later one."""
    was = replace(SCHEMA, id=uuid4())
    renamed = replace(was, clustering=(replace(was.clustering[0], name="later"),))
    swapped = replace(
        was,
        partition_key=(replace(was.partition_key[0], name="n"),),
        clustering=(replace(was.clustering[0], name="id"),),
    )
    schemas = (was, renamed, swapped)
    for one in schemas:
        for other in schemas:
            assert join_schemas(one, other) == one
    added = replace(renamed, regular=(*renamed.regular, Column("n", INT)))
    with pytest.raises(SchemaError, match="key column n was renamed, and another column has its name"):
        join_schemas(was, added)
    assert join_schemas(renamed, added) == added
    with pytest.raises(SchemaError, match="the key column n in the lake is later"):
        join_schemas(was, replace(renamed, id=uuid4()))
