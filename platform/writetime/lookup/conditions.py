"""The bounds that a condition in DuckDB's SQL sets on columns: the values that it allows, or their bounds.

DuckDB parses the condition. Only parts that are joined by AND, and that compare one column with literals, are used. So
the rows for which a condition is true are among those that the parts allow. The condition is then evaluated for each.
"""

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from writetime.schema.names import fold

if TYPE_CHECKING:
    import duckdb

TOKEN = "token"
_LOW = {"COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO"}
_HIGH = {"COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO"}
# Types whose literals are a type and a text, such as DATE '2026-11-01'.
_CAST = {"BLOB", "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"}


@dataclass(frozen=True)
class Literal:
    """A literal: its type in DuckDB, and its value."""

    kind: str
    value: Any


@dataclass(frozen=True)
class ColumnBounds:
    """The least and the greatest value; None without a bound."""

    low: Literal | None = None
    high: Literal | None = None


@dataclass(frozen=True)
class Conditions:
    """The values that a column may have, and the bounds of other columns, by the folded names of the columns. `tokens`
    are the bounds of `token(<partition key>)`, None if the condition does not use it.
    """

    allowed: dict[str, tuple[Literal, ...]] = field(default_factory=dict)
    bounds: dict[str, ColumnBounds] = field(default_factory=dict)
    tokens: ColumnBounds | None = None


def conditions_of(where: str, partition_key: list[str]) -> Conditions:
    """Return the bounds that a condition sets on columns; nothing if it cannot be parsed. `partition_key` has the
    folded names of the columns that `token` is called with.
    """
    allowed: dict[str, tuple[Literal, ...]] = {}
    bounds: dict[str, ColumnBounds] = {}
    tree = _statement(where)
    for part in _conjunction(tree["statements"][0]["node"]["where_clause"]) if tree else ():
        allowed.update(_allowed(part))
        for name, each in _bounds(part, partition_key):
            # One bound of each side is enough: a literal's type is known only later, so bounds cannot be compared here.
            first = bounds.get(name, ColumnBounds())
            bounds[name] = ColumnBounds(first.low or each.low, first.high or each.high)
    tokens = bounds.pop(f"{TOKEN}()", None)
    return Conditions(allowed, bounds, tokens)


@functools.cache
def database() -> "duckdb.DuckDBPyConnection":
    """Return a DuckDB in memory that reads times without a zone as UTC: a condition must have the same meaning on
    machines of all zones. It has no access to files, networks, extensions and variables of Python, and no condition can
    change that.
    """
    import duckdb

    made = duckdb.connect(
        config=dict.fromkeys(
            ("enable_external_access", "autoinstall_known_extensions", "autoload_known_extensions"), "false"
        )
    )
    made.execute("SET TimeZone = 'UTC'")
    # With it DuckDB gives lists to Arrow as Python's values, which have no infinite times and end at the year 9999.
    made.execute("SET disabled_optimizers = 'filter_pushdown'")
    made.execute("SET python_enable_replacements = false")
    made.execute("SET lock_configuration = true")
    return made


def evaluated(literals: Sequence[Literal], expression: str) -> list[Any] | None:
    """Return the values of literals in DuckDB, by an expression of `{}`, in any order; None if it fails for one, or
    finds null.
    """
    import duckdb

    texts: dict[str, list[Any]] = {}
    for literal in literals:
        texts.setdefault(literal.kind, []).append(literal.value)
    found: list[Any] = []
    for kind, values in texts.items():
        result = expression.format(f"CAST(text AS {kind})")
        try:
            rows = database().execute(f"SELECT {result} FROM (SELECT unnest(?) AS text)", [values]).fetchall()
        except duckdb.Error:
            # The condition itself raises the same error.
            return None
        found += [value for (value,) in rows]
    return None if None in found else found


def with_token_column(where: str, partition_key: list[str], name: str) -> str | None:
    """Return a condition with a column of this name in place of each `token(<partition key>)`; None if there is none.
    DuckDB has no such function.
    """
    import duckdb

    tree = _statement(where)
    if tree is None or not _replace_tokens(tree, partition_key, name):
        return None
    [(text,)] = duckdb.execute("SELECT json_deserialize_sql(?)", [json.dumps(tree)]).fetchall()
    return text.partition(" WHERE ")[2]


def _replace_tokens(node: Any, partition_key: list[str], name: str) -> int:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    count = sum(_replace_tokens(child, partition_key, name) for child in children)
    if isinstance(node, dict) and node.get("class") == "FUNCTION" and _compared(node, partition_key):
        place = {key: node[key] for key in ("alias", "query_location")}
        node.clear()
        node |= {"class": "COLUMN_REF", "type": "COLUMN_REF", "column_names": [name], **place}
        count += 1
    return count


def _statement(where: str) -> Any:
    """Return DuckDB's syntax tree of a query with a condition; None if it is not a condition, or more than one."""
    import duckdb

    # DuckDB 2 refuses other work on the connection until all rows are fetched.
    [(text,)] = duckdb.execute("SELECT json_serialize_sql(?)", [f"SELECT 1 WHERE {where}"]).fetchall()
    tree = json.loads(text)
    if tree["error"] or len(tree["statements"]) != 1:
        return None
    node = tree["statements"][0]["node"]
    return tree if node["type"] == "SELECT_NODE" and not node["modifiers"] and node.get("where_clause") else None


def _conjunction(condition: Any) -> list[Any]:
    if condition["type"] != "CONJUNCTION_AND":
        return [condition]
    return [part for child in condition["children"] for part in _conjunction(child)]


def _allowed(condition: Any) -> dict[str, tuple[Literal, ...]]:
    """Return a column, and the literals that it may equal, if the condition names these."""
    if condition["type"] == "COMPARE_EQUAL":
        column, literal = condition["left"], condition["right"]
        if column["class"] != "COLUMN_REF":
            column, literal = literal, column
        literals = [literal]
    elif condition["type"] == "COMPARE_IN":
        column, *literals = condition["children"]
    else:
        return {}
    values = [value for each in literals if (value := _literal(each)) is not None]
    name = _column(column)
    return {} if name is None or len(values) < len(literals) else {name: tuple(values)}


def _bounds(condition: Any, partition_key: list[str]) -> Iterator[tuple[str, ColumnBounds]]:
    """Yield a column, or a call of `token`, and one of its bounds or both."""
    kind = condition["type"]
    if kind == "COMPARE_BETWEEN":
        name = _compared(condition["input"], partition_key)
        low, high = _literal(condition["lower"]), _literal(condition["upper"])
    elif kind in _LOW | _HIGH | {"COMPARE_EQUAL"}:
        left, right = condition["left"], condition["right"]
        name, other, is_turned = _compared(left, partition_key), right, False
        if name is None:
            name, other, is_turned = _compared(right, partition_key), left, True
        literal = _literal(other)
        low = literal if kind not in (_LOW if is_turned else _HIGH) else None
        high = literal if kind not in (_HIGH if is_turned else _LOW) else None
    else:
        return
    if name is not None:
        yield name, ColumnBounds(low, high)


def _compared(node: Any, partition_key: list[str]) -> str | None:
    if node["class"] == "FUNCTION" and fold(node["function_name"]) == TOKEN:
        # DuckDB 1 lists the children, and 2 the arguments, which may have names.
        named = "arguments" in node
        called_with = [each["expression"] for each in node["arguments"]] if named else node["children"]
        return f"{TOKEN}()" if [_column(each) for each in called_with] == partition_key else None
    return _column(node)


def _column(node: Any) -> str | None:
    if node["class"] != "COLUMN_REF" or len(node["column_names"]) != 1:
        return None
    return fold(node["column_names"][0])


def _literal(node: Any) -> Literal | None:
    if node["class"] == "CAST":
        kind, text = _cast_type(node), _literal(node["child"])
        return Literal(kind, text.value) if kind in _CAST and text and text.kind == "VARCHAR" else None
    if node["class"] != "CONSTANT":
        return None
    if written := node.get("literal"):
        return _as_written(written["kind"], written["text"])
    return None if node["value"]["is_null"] else Literal(node["value"]["type"]["id"], node["value"]["value"])


def _cast_type(node: Any) -> str:
    """Return the type of a cast, under its first name. DuckDB 1 gives this name, and 2 the name that the query has."""
    if "cast_type" in node:
        return node["cast_type"]["id"]
    name = node["type_expr"]["type_name"].upper()
    return "TIMESTAMP WITH TIME ZONE" if name == "TIMESTAMPTZ" else name


def _as_written(kind: str, text: str) -> Literal | None:
    """Return a text or an integer from its text in a query, as DuckDB 2 gives it; None for others."""
    if kind == "STRING":
        return Literal("VARCHAR", text)
    is_long = kind == "INTEGER" and -(1 << 63) <= int(text) < 1 << 63
    return Literal("BIGINT", int(text)) if is_long else None
