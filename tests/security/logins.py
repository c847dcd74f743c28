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


def set_auth_reads(node: SecuredCassandra, level: str) -> None:
    """Let the node read its tables of roles and rights at another consistency level from now on."""
    bean = "org.apache.cassandra.auth:type=AuthProperties"
    nodetool(node.jmx_port, "sjk", "mx", "-ms", "-b", bean, "-f", "ReadConsistencyLevel", "-v", level)
