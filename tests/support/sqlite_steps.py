"""Counts what SQLite does, such as for Dagster's storage: work that any statement does, and no times."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine


class Steps:
    """The steps of SQLite's virtual machine, in tens. They grow with the rows and the index entries that a statement
    reads, whichever statement it is.
    """

    def __init__(self) -> None:
        self.count = 0

    def _step(self) -> None:
        self.count += 1

    def of(self, connection: Any, _record: object) -> None:
        """Count those of a connection."""
        connection.set_progress_handler(self._step, 10)


@contextmanager
def counted_steps() -> Iterator[Steps]:
    """Count those of all connections that are opened in a `with` block."""
    steps = Steps()
    event.listen(Engine, "connect", steps.of)
    try:
        yield steps
    finally:
        event.remove(Engine, "connect", steps.of)
