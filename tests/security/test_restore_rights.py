"""A restore by a user without rights names the missing one, and needs only those of docs/security.md."""

import re
import time
from pathlib import Path

import pytest

from tests.security.conftest import Secured
from tests.security.servers import ROLES_SECONDS, grant
from tests.support.made import SCHEMA, add, write
from tests.support.waiting import wait_for
from writetime.clients.database import connect
from writetime.core.errors import WritetimeError
from writetime.core.server_settings import Cassandra
from writetime.lake.table import create_table
from writetime.restore.into import restore_into

pytestmark = pytest.mark.long

ROLE = "restorer"


def test_each_missing_right_is_named(secured: Secured, tmp_path: Path) -> None:
    cassandra = Cassandra.model_validate(
        secured.settings.cassandra.model_dump() | {"username": ROLE, "password": "hush-of-the-restorer"}
    )
    lake = secured.settings.lake.model_copy(update={"path": str(tmp_path / "lake")})
    settings = secured.settings.model_copy(update={"cassandra": cassandra, "lake": lake})
    table = create_table(settings, SCHEMA)
    add(table, [write(i, 0, i, v="v") for i in range(10)], 0)
    with connect(secured.admin) as admin:
        grant(admin, ROLE, "hush-of-the-restorer", [])
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        admin.execute(f"CREATE KEYSPACE restored WITH replication = {replication}")
        admin.execute("CREATE TABLE restored.closed (id int, n int, v text, w int, PRIMARY KEY (id, n))")

        def is_refused(name: str, reason: str) -> bool:
            """Cassandra keeps the rights of a role for two seconds."""
            with pytest.raises(WritetimeError) as caught:
                restore_into(settings, table, str(tmp_path / name), f"restored.{name}")
            return re.search(reason, str(caught.value)) is not None

        assert is_refused(
            "closed", r"restored.closed cannot be read \(.*no SELECT .*: if a right is missing, GRANT SELECT"
        )
        assert is_refused(
            "items", r"restored.items cannot be created \(.*no CREATE .*: grant the right .*\s*CREATE TABLE"
        )
        admin.execute(f"GRANT CREATE ON KEYSPACE restored TO {ROLE}")
        wait_for(
            lambda: is_refused("items", r"settings of the node .* cannot be read \(.*no SELECT .*: grant the right")
        )
        admin.execute(f"GRANT SELECT ON KEYSPACE system_views TO {ROLE}")
        time.sleep(ROLES_SECONDS)
    report = restore_into(settings, table, str(tmp_path / "items"), "restored.items")
    assert report.comparison is not None
    assert (report.comparison.rows, report.comparison.differing) == (10, 0)
