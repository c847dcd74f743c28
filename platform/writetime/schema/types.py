"""CQL types, read from CQL text (`map<text, frozen<list<int>>>`) and from marshal class names
(`MapType(UTF8Type,...)`).

SSTable headers have marshal class names: Cassandra's `org.apache.cassandra.db.marshal` and its `TypeParser`.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from writetime.core.errors import WritetimeError
from writetime.schema.names import distinct

MARSHAL = "org.apache.cassandra.db.marshal."

# The native types: the class of org.apache.cassandra.db.marshal that stores it, and the length from
# `valueLengthIfFixed` of that class: None if a value on disk is preceded by its length.
_NATIVES: dict[str, tuple[str, int | None]] = {
    "ascii": ("AsciiType", None),
    "bigint": ("LongType", 8),
    "blob": ("BytesType", None),
    "boolean": ("BooleanType", 1),
    "counter": ("CounterColumnType", None),
    "date": ("SimpleDateType", None),
    "decimal": ("DecimalType", None),
    "double": ("DoubleType", 8),
    "duration": ("DurationType", None),
    "empty": ("EmptyType", 0),
    "float": ("FloatType", 4),
    "inet": ("InetAddressType", None),
    "int": ("Int32Type", 4),
    "smallint": ("ShortType", None),
    "text": ("UTF8Type", None),
    "time": ("TimeType", None),
    "timestamp": ("TimestampType", 8),
    "timeuuid": ("TimeUUIDType", 16),
    "tinyint": ("ByteType", None),
    "uuid": ("UUIDType", 16),
    "varint": ("IntegerType", None),
}
_NATIVE_OF_CLASS = {cls: name for name, (cls, _) in _NATIVES.items()} | {
    "DateType": "timestamp",  # the stored form of `timestamp` before Cassandra 2.0
    "LegacyTimeUUIDType": "timeuuid",
}


class CqlTypeError(WritetimeError):
    """A CQL type or marshal class name that cannot be read, or that is not supported."""


@dataclass(frozen=True)
class Native:
    """A type without parameters, by its CQL name (`varchar` is `text`)."""

    name: str

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

    def __str__(self) -> str:
        text = f"{self.kind}<{', '.join(map(str, self.arguments))}>"
        return f"frozen<{text}>" if self.frozen else text


@dataclass(frozen=True)
class Tuple:
    """A tuple. Always frozen, except in Cassandra's record of a dropped column that was a non-frozen UDT."""

    arguments: tuple["CqlType", ...]
    frozen: bool = True

    fixed_length = None

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
    def distinct_fields(self) -> list[tuple[str, "CqlType"]]:
        """The fields by their names in Arrow, Spark and Avro, which differ by more than case; see `schema.names`."""
        return list(zip(distinct([name for name, _ in self.fields]), (t for _, t in self.fields), strict=True))

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
    def fixed_length(self) -> int | None:
        """Bytes of a value on disk, or None if its length precedes it."""
        length = self.element.fixed_length
        return None if length is None else length * self.dimension

    def __str__(self) -> str:
        return f"vector<{self.element}, {self.dimension}>"


CqlType = Native | Collection | Tuple | Udt | Vector


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


# --- CQL text ---------------------------------------------------------------------------------------------------------

_CQL_TOKEN = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z0-9_]+)|"(?P<quoted>(?:[^"]|"")*)"|'(?P<custom>[^']*)'|(?P<sign>[<>,.]))"""
)


def parse_cql(text: str, udts: Mapping[str, Udt] | None = None) -> CqlType:
    """Read a CQL type; `udts` are the keyspace's user-defined types by name.

    Raises:
        CqlTypeError: the text is not a CQL type, or names an unknown user-defined type.
    """
    tokens = list(_tokens(text, _CQL_TOKEN))
    cql_type, rest = _parse_cql(text, tokens, udts or {}, nested=False)
    if rest:
        raise CqlTypeError(f"CQL type {text!r}: unexpected {rest[0][1]!r}")
    return cql_type


# The deepest nesting of types; the functions that read values recurse to this depth.
_DEEPEST = 100


def _tokens(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    p = depth = 0
    end = len(text.rstrip())
    while p < end:
        match = pattern.match(text, p)
        if match is None or match.lastgroup is None:
            raise CqlTypeError(f"type {text!r}: cannot read {text[p:]!r}")
        found = match[match.lastgroup]
        if match.lastgroup == "sign":
            depth += (found in "(<") - (found in ")>")
        if depth > _DEEPEST:
            raise CqlTypeError(f"type {text[:100]!r}...: types are nested more than {_DEEPEST} deep")
        yield match.lastgroup, found
        p = match.end()


_Tokens = list[tuple[str, str]]


def _parse_cql(text: str, tokens: _Tokens, udts: Mapping[str, Udt], *, nested: bool) -> tuple[CqlType, _Tokens]:
    if not tokens or tokens[0][0] == "sign":
        raise CqlTypeError(f"CQL type {text!r}: a type is missing")
    (kind, word), rest = tokens[0], tokens[1:]
    if kind == "custom":
        return parse_marshal(word), rest
    if rest[:1] == [("sign", ".")]:  # keyspace.type
        (kind, word), rest = rest[1], rest[2:]
    name = word.replace('""', '"') if kind == "quoted" else word.lower()
    if kind == "name" and rest[:1] == [("sign", "<")]:
        arguments: list[CqlType] = []
        rest = rest[1:]
        dimension = None
        while True:
            if name == "vector" and arguments and dimension is None:
                dimension, rest = _dimension(text, rest), rest[1:]
            else:
                argument, rest = _parse_cql(text, rest, udts, nested=name != "frozen")
                arguments.append(argument)
            if not rest or rest[0][1] not in (",", ">"):
                raise CqlTypeError(f"CQL type {text!r}: ',' or '>' expected")
            (_, sign), rest = rest[0], rest[1:]
            if sign == ">":
                break
        return _generic(text, name, arguments, dimension, nested=nested), rest
    if kind == "name" and (name := "text" if name == "varchar" else name) in _NATIVES:
        return Native(name), rest
    if name not in udts:
        raise CqlTypeError(f"CQL type {text!r}: unknown type {name!r}")
    return (freeze(udts[name]) if nested else udts[name]), rest


def _dimension(text: str, tokens: _Tokens) -> int:
    kind, word = tokens[0] if tokens else ("", "")
    if kind != "name" or not word.isdecimal() or not int(word):
        raise CqlTypeError(f"type {text!r}: the dimension of a vector must be a positive number, not {word!r}")
    return int(word)


def _generic(text: str, name: str, arguments: list[CqlType], dimension: int | None, *, nested: bool) -> CqlType:
    expected = {"map": 2, "list": 1, "set": 1, "frozen": 1, "vector": 1}.get(name, len(arguments))
    if len(arguments) != expected:
        raise CqlTypeError(f"CQL type {text!r}: {name} takes {expected} types, not {len(arguments)}")
    match name:
        case "frozen":
            return freeze(arguments[0])
        case "list" | "set" | "map":
            return Collection(name, tuple(map(freeze, arguments)), frozen=nested)
        case "tuple":
            return Tuple(tuple(map(freeze, arguments)))
        case "vector" if dimension is not None:
            return Vector(freeze(arguments[0]), dimension)
    raise CqlTypeError(f"CQL type {text!r}: unknown type {name!r}")


# --- marshal class names ----------------------------------------------------------------------------------------------

_MARSHAL_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z0-9_.$=>+-]+)|(?P<sign>[(),:]))")


@dataclass(frozen=True)
class MarshalKey:
    """Properties of keys only: the components of a composite partition key, and whether a clustering column is
    reversed.
    """

    components: tuple[CqlType, ...]
    reversed: bool = False


def parse_marshal(text: str) -> CqlType:
    """Read a marshal class name as in an SSTable's header.

    Raises:
        CqlTypeError: it cannot be read, or names a class without a CQL type (a custom type, `DynamicCompositeType`,
        ...).
    """
    key = parse_marshal_key(text)
    if key.reversed or len(key.components) != 1:
        raise CqlTypeError(f"marshal type {text!r} is not the type of a column")
    return key.components[0]


def parse_marshal_key(text: str) -> MarshalKey:
    """Read the marshal class name of a partition key (possibly composite) or of a (possibly reversed) clustering
    column.
    """
    parser = _MarshalParser(text)
    name = parser.name()
    match name:
        case "ReversedType":
            return MarshalKey((parser.only(parser.arguments()),), reversed=True)
        case "CompositeType":
            return MarshalKey(tuple(parser.arguments()))
    return MarshalKey((parser.end(parser.type_of(name, nested=False)),))


_T = TypeVar("_T")


class _MarshalParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = deque(_tokens(text, _MARSHAL_TOKEN))

    def name(self) -> str:
        return self._take("name").removeprefix(MARSHAL)

    def arguments(self) -> list[CqlType]:
        """Read `(type, ...)` to the end of the text."""
        result = self._arguments()
        return self.end(result)

    def only(self, arguments: list[CqlType]) -> CqlType:
        if len(arguments) != 1:
            raise CqlTypeError(f"marshal type {self._text!r}: one type expected, not {len(arguments)}")
        return arguments[0]

    def end(self, result: _T) -> _T:
        if self._tokens:
            raise CqlTypeError(f"marshal type {self._text!r}: unexpected {self._tokens[0][1]!r}")
        return result

    def type_of(self, name: str, *, nested: bool) -> CqlType:
        if name in _NATIVE_OF_CLASS:
            return Native(_NATIVE_OF_CLASS[name])
        match name:
            case "FrozenType":
                return freeze(self.only(self._arguments()))
            case "ListType" | "SetType" | "MapType":
                arguments = tuple(map(freeze, self._arguments()))
                kind: Literal["list", "set", "map"] = name[:-4].lower()  # type: ignore[assignment]
                if len(arguments) != (2 if kind == "map" else 1):
                    raise CqlTypeError(f"marshal type {self._text!r}: {name} with {len(arguments)} types")
                return Collection(kind, arguments, frozen=nested)
            case "TupleType":
                return Tuple(tuple(map(freeze, self._arguments())))
            case "UserType":
                return self._udt(nested=nested)
            case "VectorType":
                self._take("sign", "(")
                element = freeze(self.type_of(self.name(), nested=True))
                self._take("sign", ",")
                dimension = _dimension(self._text, [("name", self._take("name"))])
                self._take("sign", ")")
                return Vector(element, dimension)
        raise CqlTypeError(f"marshal type {name!r} (in {self._text!r}) is not supported")

    def _udt(self, *, nested: bool) -> Udt:
        self._take("sign", "(")
        keyspace = self._take("name")
        self._take("sign", ",")
        name = bytes.fromhex(self._take("name")).decode()
        fields: list[tuple[str, CqlType]] = []
        while self._take("sign") == ",":
            field = bytes.fromhex(self._take("name")).decode()
            self._take("sign", ":")
            fields.append((field, freeze(self.type_of(self.name(), nested=True))))
        return Udt(keyspace, name, tuple(fields), frozen=nested)

    def _arguments(self) -> list[CqlType]:
        self._take("sign", "(")
        result = [self.type_of(self.name(), nested=True)]
        while self._take("sign") == ",":
            result.append(self.type_of(self.name(), nested=True))
        return result

    def _take(self, kind: str, value: str | None = None) -> str:
        if not self._tokens or self._tokens[0][0] != kind or value not in (None, self._tokens[0][1]):
            found = self._tokens[0][1] if self._tokens else "the end"
            raise CqlTypeError(f"marshal type {self._text!r}: {value or kind} expected, found {found!r}")
        return self._tokens.popleft()[1]


def marshal_name(cql_type: CqlType) -> str:
    """Return the marshal class name of a column's type: the inverse of `parse_marshal`."""
    return f"{MARSHAL}FrozenType({_marshal(cql_type)})" if _is_marked_frozen(cql_type) else _marshal(cql_type)


def _is_marked_frozen(cql_type: CqlType) -> bool:
    return isinstance(cql_type, Collection | Udt) and cql_type.frozen


def _marshal(cql_type: CqlType) -> str:
    """Return the class name without a mark that it is frozen. All within a frozen type is frozen without a mark."""
    match cql_type:
        case Native(name):
            return MARSHAL + _NATIVES[name][0]
        case Collection(kind, arguments):
            inner = map(_marshal if cql_type.frozen else marshal_name, arguments)
            return f"{MARSHAL}{kind.capitalize()}Type({','.join(inner)})"
        case Tuple(arguments):
            return f"{MARSHAL}TupleType({','.join(map(_marshal, arguments))})"
        case Udt(keyspace, name, fields):
            inner = [f"{n.encode().hex()}:{_marshal(t) if cql_type.frozen else marshal_name(t)}" for n, t in fields]
            return f"{MARSHAL}UserType({','.join([keyspace, name.encode().hex(), *inner])})"
        case Vector(element, dimension):
            return f"{MARSHAL}VectorType({_marshal(element)} , {dimension})"
    raise AssertionError(cql_type)
