"""CQL statements that a class declares as attributes, and that are prepared when an object of the class is made."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from cassandra import ConsistencyLevel, InvalidRequest
from cassandra.cluster import Session
from cassandra.query import PreparedStatement

from writetime.clients.database import DRIVER_FAULTS, is_without_answer
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError


class UnknownWrite(Transient):
    """The database did not answer in time, or not at all: a write may have been applied."""


@contextmanager
def driver_faults_named(needed_by: str) -> Iterator[None]:
    """Convert the driver's exceptions in the block to `UnknownWrite`, or to a `WritetimeError` if the database refuses.

    Other exceptions, as of a value that no statement can have, do not pass by themselves, and are left.
    """
    try:
        yield
    except DRIVER_FAULTS as e:
        if is_without_answer(e):
            # Timeouts, unavailable replicas, overload, lost connections.
            raise UnknownWrite(f"{type(e).__name__}: {e}") from None
        raise WritetimeError(f"the database refuses a statement of {needed_by}: {e}") from None


class Statement:
    """A statement of a class, in which `{}` stands for the keyspace. An object of the class has it prepared."""

    def __init__(self, cql: str, *, serial: bool = False, page_rows: int | None = None) -> None:
        """Declare a statement. `serial`: it is read at the serial consistency level, which sees all conditional writes.
        `page_rows` are the rows of a page, if not the driver's number.
        """
        self.cql, self.serial, self.page_rows = cql, serial, page_rows
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, statements: "Statements", owner: type) -> PreparedStatement:
        return statements.prepared[self._name]


class Statements:
    """The statements that a subclass declares, prepared for one session."""

    needed_by: ClassVar[str]
    """The kind of queues that need the statements, for errors."""

    def __init__(self, session: Session, settings: Settings) -> None:
        """Prepare the statements. Raises `WritetimeError` if the tables are missing, or reads would not see
        acknowledged writes.
        """
        if settings.cassandra.consistency == "LOCAL_ONE":
            raise WritetimeError(
                f"{self.needed_by} need cassandra.consistency LOCAL_QUORUM or more: reads must see all writes"
            )
        self.prepared: dict[str, PreparedStatement] = {}
        for name, each in vars(type(self)).items():
            if isinstance(each, Statement):
                self.prepared[name] = self._prepare(session, settings, each)

    def _prepare(self, session: Session, settings: Settings, declared: Statement) -> PreparedStatement:
        try:
            statement = session.prepare(declared.cql.replace("{}", settings.cassandra.keyspace))
        except InvalidRequest as e:
            raise WritetimeError(
                f"the tables of {self.needed_by} are not as expected ({e}); run `writetime init`"
            ) from None
        if declared.serial:
            statement.consistency_level = getattr(ConsistencyLevel, settings.cassandra.serial_consistency)
        if declared.page_rows:
            statement.fetch_size = declared.page_rows
        return statement
