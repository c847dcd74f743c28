"""Logins that a node refuses for a while."""

from cassandra.cluster import Session

from tests.security.conftest import SECRETS, USER
from tests.security.servers import SecuredCassandra
from writetime.runtime.nodetool import nodetool


def end_connections(node: SecuredCassandra) -> None:
    """Cut the connections of all clients; new ones are accepted."""
    nodetool(node.jmx_port, "disablebinary")
    nodetool(node.jmx_port, "enablebinary")


def change_password(admin: Session) -> None:
    """Refuse the logins of our user."""
    admin.execute(f"ALTER ROLE {USER} WITH PASSWORD = 'another'")


def restore_password(admin: Session) -> None:
    """Accept them again."""
    admin.execute(f"ALTER ROLE {USER} WITH PASSWORD = '{SECRETS['cassandra']}'")
