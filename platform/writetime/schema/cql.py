"""Table schemas from CQL text: CREATE TYPE, CREATE TABLE and the ALTER TABLE statements of a snapshot's `schema.cql`.

Cassandra's own parser is Java. The driver makes its metadata from the system tables of a live node and parses no CQL,
and files are read without a node. Only these statements have to be understood, so expressions suffice.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from uuid import UUID

from writetime.schema.table import GC_GRACE_SECONDS, Column, DroppedColumn, SchemaError, TableSchema, compact_storage
from writetime.schema.types import Udt, parse_cql

_NAME = r'(?:"(?:[^"]|"")+"|\w+)'
# A type's text; a user-defined type may have any name in quotes.
_TYPE = r"""(?:"(?:[^"]|"")*"|'[^']*'|[^"'])+?"""
# Of Cassandra 5.0.
_MASK = r"(?:\s+MASKED\s+WITH\s+.*?)?"
_QUALIFIED = rf"(?:(?P<keyspace>{_NAME})\s*\.\s*)?(?P<name>{_NAME})"
_IF_NOT_EXISTS = r"(?:IF\s+NOT\s+EXISTS\s+)?"
_CREATE_TYPE = re.compile(rf"CREATE\s+TYPE\s+{_IF_NOT_EXISTS}{_QUALIFIED}\s*\((?P<body>.*)\)\s*$", re.I | re.S)
_CREATE_TABLE = re.compile(rf"CREATE\s+TABLE\s+{_IF_NOT_EXISTS}{_QUALIFIED}\s*\(", re.I)
_NAMED = re.compile(rf"(?:CREATE|ALTER)\s+(?P<kind>TABLE|TYPE)\s+{_IF_NOT_EXISTS}{_QUALIFIED}", re.I)
_ALTER_DROP = re.compile(
    rf"ALTER\s+TABLE\s+{_QUALIFIED}\s+DROP\s+(?P<column>{_NAME})\s+USING\s+TIMESTAMP\s+(?P<at>-?\d+)\s*$", re.I
)
_ALTER_ADD = re.compile(
    rf"ALTER\s+TABLE\s+{_QUALIFIED}\s+ADD\s+(?P<column>{_NAME})\s+(?P<type>{_TYPE})(?P<static>\s+static)?{_MASK}\s*$",
    re.I | re.S,
)
_COLUMN = re.compile(
    rf"(?P<name>{_NAME})\s+(?P<type>{_TYPE})(?P<static>\s+static)?{_MASK}(?P<primary>\s+PRIMARY\s+KEY)?\s*$",
    re.I | re.S,
)
_PRIMARY_KEY = re.compile(r"PRIMARY\s+KEY\s*\((?P<body>.*)\)\s*$", re.I | re.S)
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
    for statement in _statements(text):
        if only and (named := _NAMED.match(statement)) and not _is_of(named, keyspace, only):
            continue
        if match := _CREATE_TYPE.match(statement):
            ks, name = _unquote(match["keyspace"] or keyspace), _unquote(match["name"])
            types = udts.setdefault(ks, {})
            fields = []
            for part in _split(match["body"]):
                column = _match(_COLUMN, part, statement)
                fields.append((_unquote(column["name"]), parse_cql(column["type"], types)))
            types[name] = Udt(ks, name, tuple(fields))
        elif match := _CREATE_TABLE.match(statement):
            ks, name = _unquote(match["keyspace"] or keyspace), _unquote(match["name"])
            tables[ks, name] = _table(ks, name, statement, match.end(), udts.get(ks, {}))
        elif match := _ALTER_DROP.match(statement):
            key = _unquote(match["keyspace"] or keyspace), _unquote(match["name"])
            tables[key] = _drop(_known(tables, key), _unquote(match["column"]), int(match["at"]))
        elif match := _ALTER_ADD.match(statement):
            key = _unquote(match["keyspace"] or keyspace), _unquote(match["name"])
            column = Column(_unquote(match["column"]), parse_cql(match["type"], udts.get(key[0], {})))
            schema = _known(tables, key)
            kind = "static" if match["static"] else "regular"
            tables[key] = replace(schema, **{kind: (*getattr(schema, kind), column)})
        elif re.match(r"(CREATE|ALTER)\s+(TABLE|TYPE)\b(?!.*\bWITH\b)", statement, re.I | re.S):
            raise SchemaError(f"cannot read the statement: {statement[:200]}")
    return list(tables.values())


def _is_of(named: re.Match[str], keyspace: str, table: str) -> bool:
    """Return whether a statement is of a table, or of a type of its keyspace."""
    found = _unquote(named["keyspace"] or keyspace), _unquote(named["name"])
    return ".".join(found) == table or (named["kind"].upper() == "TYPE" and found[0] == table.partition(".")[0])


def parse_table(text: str, keyspace: str = "") -> TableSchema:
    """Read the one table of a CQL text, as `parse_schemas`.

    Raises:
        SchemaError: it has no table, or more than one.
    """
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


def _table(keyspace: str, name: str, statement: str, start: int, udts: dict[str, Udt]) -> TableSchema:
    end = _closing(statement, start)
    options = statement[end + 1 :]
    # Names and strings may have any content, also text that looks like an option.
    plain = _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), options)
    if _COMPACT.search(plain):
        raise compact_storage(f"{keyspace}.{name}")
    columns: dict[str, Column] = {}
    static: list[str] = []
    key: tuple[list[str], list[str]] | None = None
    for part in _split(statement[start:end]):
        if match := _PRIMARY_KEY.match(part):
            first, *rest = _split(match["body"])
            partition = _split(first[1:-1]) if first.startswith("(") else [first]
            key = [_unquote(p) for p in partition], [_unquote(p) for p in rest]
            continue
        match = _match(_COLUMN, part, statement)
        column = _unquote(match["name"])
        columns[column] = Column(column, parse_cql(match["type"], udts))
        if match["static"]:
            static.append(column)
        if match["primary"]:
            key = [column], []
    if key is None:
        raise SchemaError(f"CREATE TABLE {keyspace}.{name} has no PRIMARY KEY")
    if unknown := [n for n in key[0] + key[1] if n not in columns]:
        raise SchemaError(f"CREATE TABLE {keyspace}.{name}: the primary key names {unknown[0]}, which is not a column")
    for part in _split(options[slice(*order.span("body"))]) if (order := _ORDER.search(plain)) else []:
        ordered = _ORDERED.fullmatch(part)
        column = _unquote(ordered["name"]) if ordered else part
        if ordered is None or column not in columns:
            raise SchemaError(f"CREATE TABLE {keyspace}.{name} is ordered by {column}, which is not a column")
        columns[column] = replace(columns[column], reversed=(ordered["direction"] or "").upper() == "DESC")
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


def _match(pattern: re.Pattern[str], part: str, statement: str) -> re.Match[str]:
    match = pattern.match(part)
    if match is None:
        raise SchemaError(f"cannot read {part!r} in: {statement[:200]}")
    return match


def _unquote(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


_COMMENT_OR_STRING = re.compile(r"""(?P<comment>--[^\n]*|//[^\n]*|/\*.*?\*/)|"(?:[^"]|"")*"|'(?:[^']|'')*'|;""", re.S)


def _statements(text: str) -> Iterator[str]:
    """Split at semicolons outside strings and drop the comments (a snapshot comments out statements that do not belong
    to its table).
    """
    pieces: list[str] = []
    p = 0
    for match in _COMMENT_OR_STRING.finditer(text):
        pieces.append(text[p : match.start()])
        p = match.end()
        if match[0] == ";":
            yield "".join(pieces).strip()
            pieces = []
        elif match["comment"] is None:
            pieces.append(match[0])
    if rest := "".join([*pieces, text[p:]]).strip():
        yield rest


_QUOTED = re.compile(r""""(?:[^"]|"")*"|'(?:[^']|'')*'""")
_BRACKET_OR_QUOTED = re.compile(r"""[(<{]|[)>}]|,|"(?:[^"]|"")*"|'(?:[^']|'')*'""")


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


def _closing(text: str, start: int) -> int:
    depth = 1
    for match in _BRACKET_OR_QUOTED.finditer(text, start):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    raise SchemaError(f"a ')' is missing in: {text[:200]}")
