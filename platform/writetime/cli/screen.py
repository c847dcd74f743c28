"""Fits reports to one screen: of a long list, only the first entries are shown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LINES = 24
"""Lines of a screen."""

# The limits that are tried in turn until a report fits: entries per list, and lines per entry.
_CUTS = ((3, 9), (3, 2), (2, 2), (1, 2), (1, 1))


@dataclass(frozen=True)
class Entries:
    """A list in a report: the lines of each entry, the most important entry first, and the name of the entries."""

    lines: Sequence[Sequence[str]]
    kind: str = "tables"


def fit(parts: Iterable[str | Entries], lines: int | None) -> list[str]:
    """Return the lines of a report: single lines, which are always shown, and lists, which are cut to fit a screen of
    some lines, down to one line each. None shows everything.
    """
    parts = list(parts)
    if lines is None:
        return [line for part in parts for line in _lines(part, None, None)]
    shown: list[str] = []
    for cut in _CUTS:
        shown = [line for part in parts for line in _lines(part, *cut)]
        if len(shown) <= lines:
            break
    return shown


def _lines(part: str | Entries, entries: int | None, lines: int | None) -> list[str]:
    if isinstance(part, str):
        return [part]
    shown = [line for entry in part.lines[:entries] for line in entry[:lines]]
    left = 0 if entries is None else len(part.lines) - entries
    return [*shown, f"  ... and {left:,} more {part.kind}: writetime status --all"] if left > 0 else shown
