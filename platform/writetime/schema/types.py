"""CQL types, read from CQL text (`map<text, frozen<list<int>>>`) and from marshal class names
(`MapType(UTF8Type,...)`).

SSTable headers have marshal class names: Cassandra's `org.apache.cassandra.db.marshal` and its `TypeParser`.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.schema.names import distinct

MARSHAL = "org.apache.cassandra.db.marshal."

# The native types: the class of org.apache.cassandra.db.marshal that stores it; the length from `valueLengthIfFixed` of
# that class, None if a value on disk is preceded by its length; and the code in `struct` if a value is one big-endian
# number. (In files, a counter consists of shards instead: `storage.counter_contexts`.)
_NATIVES: dict[str, tuple[str, int | None, str | None]] = {
    "ascii": ("AsciiType", None, None),
    "bigint": ("LongType", 8, "q"),
    "blob": ("BytesType", None, None),
    "boolean": ("BooleanType", 1, None),
    "counter": ("CounterColumnType", None, "q"),
    "date": ("SimpleDateType", None, None),
    "decimal": ("DecimalType", None, None),
    "double": ("DoubleType", 8, "d"),
    "duration": ("DurationType", None, None),
    "empty": ("EmptyType", 0, None),
    "float": ("FloatType", 4, "f"),
    "inet": ("InetAddressType", None, None),
    "int": ("Int32Type", 4, "i"),
    "smallint": ("ShortType", None, "h"),
    "text": ("UTF8Type", None, None),
    "time": ("TimeType", None, "q"),
    "timestamp": ("TimestampType", 8, "q"),
    "timeuuid": ("TimeUUIDType", 16, None),
    "tinyint": ("ByteType", None, "b"),
    "uuid": ("UUIDType", 16, None),
    "varint": ("IntegerType", None, None),
}
NUMBERS = {name: code for name, (_, _, code) in _NATIVES.items() if code}
"""The codes in `struct` of the types whose values are one big-endian number."""
_NATIVE_OF_CLASS = {cls: name for name, (cls, _, _) in _NATIVES.items()} | {
    "DateType": "timestamp",  # the stored form of `timestamp` before Cassandra 2.0
    "LegacyTimeUUIDType": "timeuuid",
}


class CqlTypeError(WritetimeError):
    """A CQL type or marshal class name that cannot be read, or that is not supported."""


@dataclass(frozen=True)
class Native:
    """A type without parameters, by its CQL name (`varchar` is `text`)."""

    name: str

    parts = ()

    @property
    def fixed_length(self) -> int | None:
        """Bytes of a value on disk, or None if its length precedes it."""
        return _NATIVES[self.name][1]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Collection:
    """A list, set or map; `arguments` are the element type, or the key and the value type."""

    kind: Literal["list", "set", "map"]
    arguments: tuple["CqlType", ...]
    frozen: bool = False

    fixed_length = None

    @property
    def parts(self) -> tuple["CqlType", ...]:
        """The types inside this one."""
        return self.arguments

    def __str__(self) -> str:
        text = f"{self.kind}<{', '.join(map(str, self.arguments))}>"
        return f"frozen<{text}>" if self.frozen else text


@dataclass(frozen=True)
class Tuple:
    """A tuple. Always frozen, except in Cassandra's record of a dropped column that was a non-frozen UDT."""

    arguments: tuple["CqlType", ...]
    frozen: bool = True

    fixed_length = None

    @property
    def parts(self) -> tuple["CqlType", ...]:
        """The types of the fields."""
        return self.arguments

    @property
    def distinct_fields(self) -> list[tuple[str, "CqlType"]]:
        """The fields by their names in Arrow, Spark, Avro and JSON: `_1`, `_2`, ..."""
        return [(f"_{i}", t) for i, t in enumerate(self.arguments, 1)]

    def __str__(self) -> str:
        text = f"tuple<{', '.join(map(str, self.arguments))}>"
        return f"frozen<{text}>" if self.frozen else text


@dataclass(frozen=True)
class Udt:
    """A user-defined type with its fields in order; older values may lack the last ones."""

    keyspace: str
    name: str
    fields: tuple[tuple[str, "CqlType"], ...]
    frozen: bool = False

    fixed_length = None

    @property
    def parts(self) -> tuple["CqlType", ...]:
        """The types of the fields."""
        return tuple(t for _, t in self.fields)

    @property
    def distinct_fields(self) -> list[tuple[str, "CqlType"]]:
        """The fields by their names in Arrow, Spark and Avro, which differ by more than case; see `schema.names`."""
        return list(zip(distinct([name for name, _ in self.fields]), self.parts, strict=True))

    def __str__(self) -> str:
        text = quote_name(self.name)
        return f"frozen<{text}>" if self.frozen else text


@dataclass(frozen=True)
class Vector:
    """A vector of `dimension` elements."""

    element: "CqlType"
    dimension: int

    frozen = True

    @property
    def parts(self) -> tuple["CqlType", ...]:
        """The type of the elements."""
        return (self.element,)

    @property
    def fixed_length(self) -> int | None:
        """Bytes of a value on disk, or None if its length precedes it."""
        length = self.element.fixed_length
        return None if length is None else length * self.dimension

    def __str__(self) -> str:
        return f"vector<{self.element}, {self.dimension}>"


CqlType = Native | Collection | Tuple | Udt | Vector


def with_parts(cql_type: CqlType) -> Iterator[CqlType]:
    """Yield the types inside a type, at any depth, each after those inside it, and then the type itself."""
    for part in cql_type.parts:
        yield from with_parts(part)
    yield cql_type


def is_complex(cql_type: CqlType) -> bool:
    """Return whether a column of this type is stored as many cells: a non-frozen collection or UDT."""
    return isinstance(cql_type, Collection | Udt | Tuple) and not cql_type.frozen


def freeze(cql_type: CqlType) -> CqlType:
    """Return the type as it is inside another one: stored as one value."""
    return replace(cql_type, frozen=True) if isinstance(cql_type, Collection | Udt | Tuple) else cql_type


def quote_name(name: str) -> str:
    """Return a CQL identifier, quoted if necessary."""
    # Commands that make no CQL start sooner without the driver.
    from cassandra.metadata import cql_keywords_reserved

    plain = re.fullmatch(r"[a-z][a-z0-9_]*", name) and name not in cql_keywords_reserved
    return name if plain else '"' + name.replace('"', '""') + '"'


def quote_table(name: str) -> str:
    """Return `keyspace.table` as CQL identifiers."""
    return ".".join(map(quote_name, name.split(".", 1)))


# --- parsing ----------------------------------------------------------------------------------------------------------

# The deepest nesting of types; the functions that read values recurse to this depth.
_DEEPEST = 100
# A keyspace before the name of a user-defined type is skipped.
_CQL_TOKEN = re.compile(
    r"""\s*(?:(?:(?:[A-Za-z]\w*|"(?:[^"]|"")*")\s*\.\s*)?(?:(?P<name>[A-Za-z0-9_]+)|"(?P<quoted>(?:[^"]|"")*)")"""
    r"""|'(?P<custom>[^']*)'|(?P<sign>[<>,]))"""
)
_MARSHAL_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z0-9_.$=>+-]+)|(?P<sign>[(),:]))")
_Token = tuple[str, str]
_COMMA, _COLON = ("sign", ","), ("sign", ":")
_CLOSING = {("sign", "<"): ("sign", ">"), ("sign", "("): ("sign", ")")}


@dataclass(frozen=True)
class MarshalKey:
    """Properties of keys only: the components of a composite partition key, and whether a clustering column is
    reversed.
    """

    components: tuple[CqlType, ...]
    reversed: bool = False


def parse_cql(text: str, udts: Mapping[str, Udt] | None = None) -> CqlType:
    """Read a CQL type; `udts` are the keyspace's user-defined types by name. A text that is no CQL type, or that names
    an unknown user-defined type, is a CqlTypeError.
    """
    with _naming(f"CQL type {text[:200]!r}"):
        return _of_cql(_tree(text, _CQL_TOKEN), udts or {})


def parse_marshal(text: str) -> CqlType:
    """Read a marshal class name as in an SSTable's header. One that cannot be read, or that names a class without a CQL
    type (a custom type, `DynamicCompositeType`, ...), is a CqlTypeError.
    """
    with _naming(f"marshal type {text[:200]!r}"):
        return _of_class(_tree(text, _MARSHAL_TOKEN))


def parse_marshal_key(text: str) -> MarshalKey:
    """Read the marshal class name of a partition key (possibly composite) or of a (possibly reversed) clustering
    column.
    """
    with _naming(f"marshal type {text[:200]!r}"):
        node = _tree(text, _MARSHAL_TOKEN)
        match node.word.removeprefix(MARSHAL), node.parameters:
            case "ReversedType", [one]:
                return MarshalKey((freeze(_of_class(one)),), reversed=True)
            case "CompositeType", [_, *_] as several:
                return MarshalKey(tuple(freeze(_of_class(part)) for part in several))
        return MarshalKey((_of_class(node),))


@contextmanager
def _naming(what: str) -> Iterator[None]:
    try:
        yield
    except (CqlTypeError, ValueError) as e:
        raise CqlTypeError(f"{what}: {e}") from None


@dataclass(frozen=True)
class _Node:
    """A name with its parameters in brackets. `kind` is that of the name's token, or `field` of `name:type`."""

    kind: str
    word: str
    parameters: list["_Node"]


def _tree(text: str, pattern: re.Pattern[str]) -> _Node:
    tokens = deque(_tokens(text, pattern))
    node = _node(tokens, 0)
    if len(tokens) > 1:
        raise CqlTypeError(f"unexpected {tokens[0][1]!r}")
    return node


def _tokens(text: str, pattern: re.Pattern[str]) -> Iterator[_Token]:
    p, end = 0, len(text.rstrip())
    while p < end:
        match = pattern.match(text, p)
        if match is None or match.lastgroup is None:
            raise CqlTypeError(f"cannot read {text[p:]!r}")
        yield match.lastgroup, match[match.lastgroup]
        p = match.end()
    yield "end", "the end"


def _node(tokens: deque[_Token], depth: int) -> _Node:
    if depth > _DEEPEST:
        raise CqlTypeError(f"types are nested more than {_DEEPEST} deep")
    kind, word = tokens.popleft()
    if kind in ("sign", "end"):
        raise CqlTypeError(f"a type expected, found {word!r}")
    if tokens[0] == _COLON:
        tokens.popleft()
        return _Node("field", word, [_node(tokens, depth + 1)])
    parameters: list[_Node] = []
    if (closing := _CLOSING.get(tokens[0])) is not None:
        following = _COMMA
        while following == _COMMA:
            tokens.popleft()
            parameters.append(_node(tokens, depth + 1))
            following = tokens[0]
        if tokens.popleft() != closing:
            raise CqlTypeError(f"',' or {closing[1]!r} expected, found {following[1]!r}")
    return _Node(kind, word, parameters)


def _of_cql(node: _Node, udts: Mapping[str, Udt]) -> CqlType:
    if node.kind == "custom":
        return parse_marshal(node.word)
    name = node.word.replace('""', '"') if node.kind == "quoted" else node.word.lower()
    if node.parameters:
        return _parameterised(name, node.parameters, lambda inner: _of_cql(inner, udts))
    if node.kind == "name" and (native := "text" if name == "varchar" else name) in _NATIVES:
        return Native(native)
    if name not in udts:
        raise CqlTypeError(f"unknown type {name!r}")
    return udts[name]


def _of_class(node: _Node) -> CqlType:
    name = node.word.removeprefix(MARSHAL)
    match name, node.parameters:
        case _, [] if name in _NATIVE_OF_CLASS:
            return Native(_NATIVE_OF_CLASS[name])
        case "UserType", [keyspace, udt, *fields] if all(field.kind == "field" for field in fields):
            typed = tuple((_from_hex(field.word), freeze(_of_class(field.parameters[0]))) for field in fields)
            return Udt(keyspace.word, _from_hex(udt.word), typed)
        case "FrozenType" | "ListType" | "SetType" | "MapType" | "TupleType" | "VectorType", [_, *_]:
            return _parameterised(name.removesuffix("Type").lower(), node.parameters, _of_class)
    raise CqlTypeError(f"{name!r} is not supported")


def _from_hex(name: str) -> str:
    return bytes.fromhex(name).decode()


def _parameterised(name: str, parameters: list[_Node], read: Callable[[_Node], CqlType]) -> CqlType:
    """Return the type with a name of CQL and these parameters, which `read` reads."""
    match name, parameters:
        case "frozen", [one]:
            return freeze(read(one))
        case ("list" | "set", [_]) | ("map", [_, _]):
            return Collection(name, tuple(freeze(read(node)) for node in parameters))
        case "tuple", _:
            return Tuple(tuple(freeze(read(node)) for node in parameters))
        case "vector", [element, dimension]:
            if dimension.kind != "name" or not dimension.word.isdecimal() or not int(dimension.word):
                raise CqlTypeError(f"the dimension of a vector must be a positive number, not {dimension.word!r}")
            return Vector(freeze(read(element)), int(dimension.word))
    raise CqlTypeError(f"there is no type {name!r} with {pluralize(len(parameters), 'parameter')}")


def marshal_name(cql_type: CqlType) -> str:
    """Return the marshal class name of a column's type, as Cassandra writes it: the inverse of `parse_marshal`. All
    within a frozen type is frozen without a mark.
    """
    if _is_marked_frozen(cql_type):
        return f"{MARSHAL}FrozenType({_unmarked(cql_type)})"
    return _unmarked(cql_type) if isinstance(cql_type, Tuple | Vector) else _marshal(cql_type, marshal_name)


def scylla_name(cql_type: CqlType) -> str:
    """Return the same as ScyllaDB writes it: with marks at any depth. Its parser needs these (`type_parser.cc`), and
    accepts a space before the dimension of a vector only after simple types.
    """
    name = _marshal(cql_type, scylla_name, (", ", ", "))
    return f"{MARSHAL}FrozenType({name})" if _is_marked_frozen(cql_type) else name


def _is_marked_frozen(cql_type: CqlType) -> bool:
    return isinstance(cql_type, Collection | Udt) and cql_type.frozen


def _unmarked(cql_type: CqlType) -> str:
    return _marshal(cql_type, _unmarked)


def _marshal(cql_type: CqlType, inner: Callable[[CqlType], str], commas: tuple[str, str] = (",", " , ")) -> str:
    """Return the class name without a mark that it is frozen, with the names that `inner` gives to its parameters, and
    the commas in tuples and in vectors.
    """
    match cql_type:
        case Native(name):
            return MARSHAL + _NATIVES[name][0]
        case Collection(kind, arguments):
            return f"{MARSHAL}{kind.capitalize()}Type({','.join(map(inner, arguments))})"
        case Tuple(arguments):
            return f"{MARSHAL}TupleType({commas[0].join(map(inner, arguments))})"
        case Udt(keyspace, name, fields):
            named = [f"{n.encode().hex()}:{inner(t)}" for n, t in fields]
            return f"{MARSHAL}UserType({','.join([keyspace, name.encode().hex(), *named])})"
        case Vector(element, dimension):
            return f"{MARSHAL}VectorType({inner(element)}{commas[1]}{dimension})"
    raise AssertionError(cql_type)
