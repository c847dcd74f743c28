"""CQL statements that a class declares as attributes, and that are prepared when an object of the class is made."""

from typing import ClassVar

from cassandra import ConsistencyLevel, InvalidRequest
from cassandra.cluster import Session
from cassandra.query import PreparedStatement

from writetime.core.config import Settings
from writetime.core.errors import WritetimeError


class Statement:
    """A statement of a class, in which `{}` stands for the keyspace. An object of the class has it prepared."""

    def __init__(self, cql: str, *, serial: bool = False, page_rows: int | None = None) -> None:
        """Declare a statement.

        Args:
            cql: its text.
            serial: read at the serial consistency level, which sees all conditional writes.
            page_rows: the rows of a page, if not the driver's number.
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
        """Prepare the statements.

        Raises:
            WritetimeError: the tables are missing, or reads would not see acknowledged writes.
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
