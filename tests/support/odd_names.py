"""Similar names of columns."""

from hypothesis import strategies as st

from writetime.changes.model import RESERVED
from writetime.delta.parquet import PARTITION
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Native

INT = Native("int")
PIECES = [*RESERVED, PARTITION, "column_", "_2", "_x20_", "_x", "_", "2", "a", "A", "n", "N", " ", ".", '"', "'", ";"]
PIECES += [
    "é",
    "É",
    "ß",
    "ẞ",
    "SS",
    "ı",
    "İ",
    "i",
    "I",
    "ſ",
    "s",
    "\u212a",
    "k",
    "ς",
    "σ",
    "Σ",
    "\U00010428",
    "\U00010400",
]
NAMES = st.lists(
    st.one_of(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map("".join), st.text(min_size=1, max_size=3)),
    min_size=1,
    max_size=12,
    unique=True,
)


def columns(names: list[str]) -> list[Column]:
    return [Column(name, INT) for name in names]


def table(names: list[str]) -> TableSchema:
    first, *others = columns(names)
    return TableSchema("k", "t", (first,), regular=tuple(others))
