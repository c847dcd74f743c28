"""Finds the table that a misspelt name is meant for."""

import difflib
from collections.abc import Iterable

# The least similarity of names with other keyspaces; the default is 0.6.
_WHOLE_NAMES = 0.8


def most_similar(name: str, known: Iterable[str]) -> str | None:
    """Return the known table with the most similar name: one that differs in case or quotes only; then among those of
    the same keyspace, or of all keyspaces if none is named. Whole names are similar because of their keyspaces, so
    those must be closer. Return None if no name is similar. Case does not count, as CQL ignores it without quotes.
    """
    tables = {k.casefold(): k for k in sorted(known)}
    wanted = name.replace('"', "").casefold()
    if found := tables.get(wanted):
        return found
    keyspace, _, table = wanted.rpartition(".")
    here = {k.rpartition(".")[2]: k for k in tables if not keyspace or k.startswith(f"{keyspace}.")}
    if found := difflib.get_close_matches(table, here, n=1):
        return tables[here[found[0]]]
    return next((tables[k] for k in difflib.get_close_matches(wanted, tables, n=1, cutoff=_WHOLE_NAMES)), None)
