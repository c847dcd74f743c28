"""An undo by a user without rights names the missing one, and needs only that of docs/security.md."""

import time
from pathlib import Path

import pytest

from tests.security.conftest import Secured
from tests.security.servers import ROLES_SECONDS, grant
from tests.support.made import SCHEMA, add, write
from writetime.clients.database import connect
from writetime.core.errors import WritetimeError
from writetime.core.server_settings import Cassandra
from writetime.lake.horizon import raise_complete_snapshot
from writetime.lake.table import create_table
from writetime.lake.views import time_now
from writetime.undo.applying import apply_plan
from writetime.undo.damage import Interval
from writetime.undo.plan import make_plan

pytestmark = pytest.mark.long

ROLE = "undoer"


def test_the_missing_right_is_named(secured: Secured, tmp_path: Path) -> None:
    cassandra = Cassandra.model_validate(
        secured.settings.cassandra.model_dump() | {"username": ROLE, "password": "hush-of-the-undoer"}
    )
    lake = secured.settings.lake.model_copy(update={"path": str(tmp_path / "lake")})
    settings = secured.settings.model_copy(update={"cassandra": cassandra, "lake": lake})
    table = create_table(settings, SCHEMA)
    add(table, [write(1, 0, 10, v="good"), write(1, 0, 1_500, v="bad")], 0)
    raise_complete_snapshot(table, time_now())
    plan = make_plan(table, Interval(1_000, 2_000))
    with connect(secured.admin) as admin:
        grant(admin, ROLE, "hush-of-the-undoer", [])
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        admin.execute(f"CREATE KEYSPACE IF NOT EXISTS shop WITH replication = {replication}")
        admin.execute(f"CREATE TABLE {SCHEMA.full_name} (id int, n int, v text, w int, PRIMARY KEY (id, n))")
        admin.execute(f"INSERT INTO {SCHEMA.full_name} (id, n, v) VALUES (1, 0, 'bad') USING TIMESTAMP 1500")
        with pytest.raises(
            WritetimeError, match=r"undo \d+ of shop.items: .* no MODIFY permission on <table shop.items>"
        ):
            apply_plan(settings, table, plan)
        admin.execute(f"GRANT MODIFY ON TABLE {SCHEMA.full_name} TO {ROLE}")
        time.sleep(ROLES_SECONDS)
        assert apply_plan(settings, table, plan) == 1
        assert admin.execute(f"SELECT v FROM {SCHEMA.full_name}").one().v == "good"
        admin.execute(f"DROP TABLE {SCHEMA.full_name}")
