"""Columns that the database masks for the role of a session (Cassandra 5.0, dynamic data masking).

A role without UNMASK on a table reads other values in place of those that are stored, without an error. SELECT_MASKED
only lets it filter by these columns. `system_schema.column_masks` has the columns, whether masking is on or off.
"""

from cassandra import InvalidRequest, Unauthorized
from cassandra.cluster import Session
from cassandra.protocol import ServerError

from writetime.clients.database import is_without_answer
from writetime.schema.types import quote_name

_SWITCH = "SELECT value FROM system_views.settings WHERE name = 'dynamic_data_masking_enabled'"


def masking_fault(session: Session, keyspace: str, table: str) -> str | None:
    """Return which columns of a table this session reads masked, and the remedy; None if it reads what is stored."""
    assert session.cluster is not None
    role = getattr(session.cluster.auth_provider, "username", None)
    if role is None:
        return None
    try:
        query = "SELECT column_name FROM system_schema.column_masks WHERE keyspace_name = %s AND table_name = %s"
        columns = sorted(row.column_name for row in session.execute(query, [keyspace, table]))
    except InvalidRequest:
        # Before Cassandra 5.0, and in ScyllaDB.
        return None
    name = f"{quote_name(keyspace)}.{quote_name(table)}"
    if not columns or not _is_on(session) or _may_unmask(session, name, quote_name(role)):
        return None
    return (
        f"the database masks the values of {', '.join(columns)} of {keyspace}.{table} for the role {role}, so they "
        f"cannot be compared: GRANT UNMASK ON TABLE {name} TO {quote_name(role)}"
    )


def _is_on(session: Session) -> bool:
    try:
        row = session.execute(_SWITCH).one()
    except Unauthorized as e:
        if is_without_answer(e):
            raise
        return True
    return row is None or row.value != "false"


def _may_unmask(session: Session, table: str, role: str) -> bool:
    """Return whether a role has UNMASK, by itself, by a role that it has, or as a superuser."""
    try:
        if session.execute(f"LIST UNMASK ON TABLE {table} OF {role}").one() is not None:
            return True
        return any(row.super for row in session.execute(f"LIST ROLES OF {role}"))
    except (InvalidRequest, ServerError):
        # The database has no roles, or no rights: everyone has all of them.
        return True
