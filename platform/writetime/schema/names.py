"""Names for readers that ignore case, as Spark, Delta and DuckDB do.

A column or a field keeps its CQL name unless a reader could confuse it with another one. Then it gets the first free of
`<name>_2`, `<name>_3`, ...

Two names conflict if they differ in case only. Names with dots also conflict if one is the start of the other (`a` and
`a.b`), because Parquet joins the names of nested fields with dots.
"""

from collections.abc import Iterable, Sequence
from itertools import count


def fold(name: str) -> str:
    """Return the form that names share if a reader may confuse them.

    Readers fold case in different ways: Java (`String.equalsIgnoreCase`) by single characters, Rust and Python by the
    rules of Unicode. Names that any of them treats as equal have the same form here.
    """
    # U+0307 remains of the lower case of U+0130, which Java folds to a plain i.
    return name.upper().casefold().upper().casefold().replace("\u0307", "")


class TakenNames:
    """Reserved names, and the names that conflict with them."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._folded: set[str] = set()
        self._beginnings: set[str] = set()
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Reserve a name."""
        self._folded.add(fold(name))
        self._beginnings.update(_beginnings(name))

    def __contains__(self, name: str) -> bool:
        folded = fold(name)
        return folded in self._folded | self._beginnings or any(b in self._folded for b in _beginnings(name))


def candidates(name: str) -> Iterable[str]:
    """Yield the names that a CQL name may get, the best first; there is no last one."""
    yield name
    # Without the dots, which may be why the name itself is not free.
    plain = name.replace(".", "_")
    for number in count(2):
        yield f"{plain}_{number}"


def distinct(names: Sequence[str]) -> list[str]:
    """Return names in their order; change each one that conflicts with an earlier one.

    So a name that is added at the end, such as a field of a user-defined type, does not change the earlier names.
    """
    taken = TakenNames()
    found = []
    for name in names:
        free = next(c for c in candidates(name) if c not in taken)
        taken.add(free)
        found.append(free)
    return found


def _beginnings(name: str) -> list[str]:
    parts = fold(name).split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]
