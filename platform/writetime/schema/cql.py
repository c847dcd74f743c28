"""Table schemas from CQL text: CREATE TYPE, CREATE TABLE and the ALTER TABLE statements of a snapshot's `schema.cql`.

Cassandra's own parser is Java. The driver makes its metadata from the system tables of a live node and parses no CQL,
and files are read without a node. Only these statements have to be understood, so expressions suffice.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from uuid import UUID

from writetime.schema.table import GC_GRACE_SECONDS, Column, DroppedColumn, SchemaError, TableSchema, compact_storage
from writetime.schema.types import Udt, parse_cql

_STRING = r"""(?:"(?:[^"]|"")*"|'(?:[^']|'')*')"""
_NAME = r'(?:"(?:[^"]|"")+"|\w+)'
# A type's text; a user-defined type may have any name in quotes.
_TYPE = r"""(?:"(?:[^"]|"")*"|'[^']*'|[^"'])+?"""
_COMMENT_OR_STRING = re.compile(rf"(?P<comment>--[^\n]*|//[^\n]*|/\*.*?\*/)|{_STRING}", re.S)
_STATEMENT = re.compile(rf"""(?:{_STRING}|[^;"']+|["'])+""")
_OPENING = re.compile(
    r"(?P<verb>CREATE|ALTER)\s+(?P<kind>TABLE|TYPE)\b(?:\s+IF\s+NOT\s+EXISTS\b)?"
    rf"\s*(?:(?:(?P<keyspace>{_NAME})\s*\.\s*)?(?P<name>{_NAME}))?\s*(?P<rest>.*)",
    re.I | re.S,
)
_BODY = re.compile(r"\((?P<body>.*)\)\s*", re.S)
_DROP = re.compile(rf"DROP\s+(?P<column>{_NAME})\s+USING\s+TIMESTAMP\s+(?P<at>-?\d+)\s*", re.I)
_ADD = re.compile(r"ADD\s+(?P<column>.*)", re.I | re.S)
# Columns may be masked in Cassandra 5.0.
_COLUMN = re.compile(
    rf"(?P<name>{_NAME})\s+(?P<type>{_TYPE})(?P<static>\s+static)?(?:\s+MASKED\s+WITH\s+.*?)?"
    r"(?P<primary>\s+PRIMARY\s+KEY)?\s*",
    re.I | re.S,
)
_PRIMARY_KEY = re.compile(r"PRIMARY\s+KEY\s*\((?P<body>.*)\)\s*", re.I | re.S)
_ORDER = re.compile(r"CLUSTERING\s+ORDER\s+BY\s*\((?P<body>[^)]*)\)", re.I)
_ORDERED = re.compile(rf"(?P<name>{_NAME})(?:\s+(?P<direction>ASC|DESC))?", re.I)
_COMPACT = re.compile(r"\bCOMPACT\s+STORAGE\b", re.I)
_GC_GRACE = re.compile(r"\bgc_grace_seconds\s*=\s*(?P<seconds>\d+)", re.I)
_ID = re.compile(r"\bID\s*=\s*'?(?P<id>[0-9a-f-]{36})'?", re.I)


def parse_schemas(
    text: str, keyspace: str = "", known: Iterable[Udt] = (), only: str | None = None
) -> list[TableSchema]:
    """Read every table of a CQL text. `keyspace` is the default for names without one; `known` are further types. With
    `only`, as `keyspace.table`, no other table or keyspace is read, so a fault in them raises nothing.

    Other statements (CREATE KEYSPACE, CREATE INDEX, ...) are skipped, because they do not change the form of rows.

    Raises:
        SchemaError, CqlTypeError: a statement on a type or table cannot be read, or a table has compact storage.
    """
    udts: dict[str, dict[str, Udt]] = {}
    for udt in known:
        udts.setdefault(udt.keyspace, {})[udt.name] = udt
    tables: dict[tuple[str, str], TableSchema] = {}
    # A snapshot comments out statements that do not belong to its table.
    text = _COMMENT_OR_STRING.sub(lambda found: "" if found["comment"] else found[0], text)
    for statement in map(str.strip, _STATEMENT.findall(text)):
        if (opening := _OPENING.match(statement)) is None:
            continue
        what, rest = f"{opening['verb']} {opening['kind']}".upper(), opening["rest"]
        key = ks, name = _unquote(opening["keyspace"] or keyspace), _unquote(opening["name"] or "")
        if only and f"{ks}.{name}" != only and (what.endswith("TABLE") or ks != only.partition(".")[0]):
            continue
        types = udts.setdefault(ks, {})
        if what == "CREATE TYPE" and (found := _BODY.fullmatch(rest)):
            fields = [_column(part, types, statement)[0] for part in _split(found["body"])]
            types[name] = Udt(ks, name, tuple((field.name, field.type) for field in fields))
        elif what == "CREATE TABLE" and rest.startswith("("):
            tables[key] = _table(ks, name, statement, rest, types)
        elif what == "ALTER TABLE" and (found := _DROP.fullmatch(rest)):
            tables[key] = _drop(_known(tables, key), _unquote(found["column"]), int(found["at"]))
        elif what == "ALTER TABLE" and (found := _ADD.fullmatch(rest)):
            column, kind = _column(found["column"], types, statement)
            schema = _known(tables, key)
            tables[key] = replace(schema, **{kind: (*getattr(schema, kind), column)})
        elif not re.search(r"\bWITH\b", rest, re.I):
            raise SchemaError(f"cannot read the statement: {statement[:200]}")
    return list(tables.values())


def parse_table(text: str, keyspace: str = "") -> TableSchema:
    """Read the one table of a CQL text, as `parse_schemas`. Another number of tables is a SchemaError."""
    schemas = parse_schemas(text, keyspace)
    if len(schemas) != 1:
        raise SchemaError(f"one CREATE TABLE expected, found {len(schemas)}")
    return schemas[0]


def _known(tables: dict[tuple[str, str], TableSchema], key: tuple[str, str]) -> TableSchema:
    if key not in tables:
        raise SchemaError(f"ALTER TABLE {key[0]}.{key[1]} comes before its CREATE TABLE")
    return tables[key]


def _drop(schema: TableSchema, name: str, at: int) -> TableSchema:
    for kind in ("static", "regular"):
        for column in getattr(schema, kind):
            if column.name == name:
                left = tuple(c for c in getattr(schema, kind) if c.name != name)
                dropped = DroppedColumn(name, column.type, kind == "static", at)
                return replace(schema, **{kind: left}, dropped=(*schema.dropped, dropped))
    raise SchemaError(f"ALTER TABLE {schema.full_name} DROP {name}: there is no such column")


def _column(text: str, udts: Mapping[str, Udt], statement: str) -> tuple[Column, str]:
    """Return a column, and its kind: `static`, `partition_key` (marked PRIMARY KEY), or `regular`."""
    found = _COLUMN.fullmatch(text)
    if found is None:
        raise SchemaError(f"cannot read {text!r} in: {statement[:200]}")
    kind = "static" if found["static"] else "partition_key" if found["primary"] else "regular"
    return Column(_unquote(found["name"]), parse_cql(found["type"], udts)), kind


def _table(keyspace: str, name: str, statement: str, rest: str, udts: dict[str, Udt]) -> TableSchema:
    end = _closing(rest, statement)
    options = rest[end + 1 :]
    # Names and strings may have any content, also text that looks like an option.
    plain = re.sub(_STRING, lambda quoted: "_" * len(quoted[0]), options)
    if _COMPACT.search(plain):
        raise compact_storage(f"{keyspace}.{name}")
    columns: dict[str, Column] = {}
    static: list[str] = []
    key: tuple[list[str], list[str]] | None = None
    for part in _split(rest[1:end]):
        if found := _PRIMARY_KEY.fullmatch(part):
            first, *clustering = _split(found["body"])
            partition = _split(first[1:-1]) if first.startswith("(") else [first]
            key = [_unquote(p) for p in partition], [_unquote(p) for p in clustering]
            continue
        column, kind = _column(part, udts, statement)
        columns[column.name] = column
        if kind == "static":
            static.append(column.name)
        elif kind == "partition_key":
            key = [column.name], []
    if key is None:
        raise SchemaError(f"CREATE TABLE {keyspace}.{name} has no PRIMARY KEY")
    if unknown := [n for n in key[0] + key[1] if n not in columns]:
        raise SchemaError(f"CREATE TABLE {keyspace}.{name}: the primary key names {unknown[0]}, which is not a column")
    for part in _split(options[slice(*order.span("body"))]) if (order := _ORDER.search(plain)) else []:
        ordered = _ORDERED.fullmatch(part)
        by = _unquote(ordered["name"]) if ordered else part
        if ordered is None or by not in columns:
            raise SchemaError(f"CREATE TABLE {keyspace}.{name} is ordered by {by}, which is not a column")
        columns[by] = replace(columns[by], reversed=(ordered["direction"] or "").upper() == "DESC")
    table_id = _ID.search(options)
    gc_grace = _GC_GRACE.search(plain)
    return TableSchema(
        keyspace,
        name,
        tuple(columns[n] for n in key[0]),
        tuple(columns[n] for n in key[1]),
        tuple(columns[n] for n in static),
        tuple(c for n, c in columns.items() if n not in key[0] + key[1] + static),
        id=UUID(table_id["id"]) if table_id else None,
        gc_grace_seconds=int(gc_grace["seconds"]) if gc_grace else GC_GRACE_SECONDS,
    )


def _unquote(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


_BRACKET_OR_QUOTED = re.compile(rf"[(<{{]|[)>}}]|,|{_STRING}")


def _split(body: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, p = [], 0, 0
    for match in _BRACKET_OR_QUOTED.finditer(body):
        if match[0] in "(<{":
            depth += 1
        elif match[0] in ")>}":
            depth -= 1
        elif match[0] == "," and depth == 0:
            parts.append(body[p : match.start()].strip())
            p = match.end()
    return [part for part in [*parts, body[p:].strip()] if part]


def _closing(text: str, statement: str) -> int:
    """Return the place of the bracket that closes the first one."""
    depth = 0
    for match in _BRACKET_OR_QUOTED.finditer(text):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    raise SchemaError(f"a ')' is missing in: {statement[:200]}")
