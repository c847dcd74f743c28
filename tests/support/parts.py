"""Which long tests a run of `make test` contains."""

from collections.abc import Sequence

PARTS = 8


def of_other_parts(modules: Sequence[str], number: int) -> set[str]:
    """Return the modules of long tests that are not in a part: that of a number modulo `PARTS`.

    The modules of a folder are neighbours in the order of their names, so they are spread over the parts.
    """
    ordered = sorted(set(modules))
    return set(ordered) - set(ordered[number % PARTS :: PARTS])
