"""Types whose values can be read as those of another: the stored values after ALTER TYPE."""

import operator
from collections.abc import Callable

from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector

Natives = Callable[[Native, Native], bool]


def is_readable(stored: CqlType, known: CqlType, natives: Natives = operator.eq) -> bool:
    """Return whether stored values can be read as those of a known type.

    Names of user-defined types and of their fields may have changed, and fields may have been added. A type inside
    another type is frozen, whether its text has the word or not. `natives` returns whether values of the first native
    type can be read as those of the second.
    """

    def are_readable(stored: tuple[CqlType, ...], known: tuple[CqlType, ...]) -> bool:
        return len(stored) <= len(known) and all(
            is_readable(a, b, natives) for a, b in zip(stored, known, strict=False)
        )

    match stored, known:
        case Native(), Native():
            return natives(stored, known)
        case Collection(), Collection():
            return stored.kind == known.kind and are_readable(stored.arguments, known.arguments)
        case (Tuple() | Udt(), Tuple() | Udt()):
            return are_readable(stored.parts, known.parts)
        case Vector(), Vector():
            return stored.dimension == known.dimension and is_readable(stored.element, known.element, natives)
    return False
