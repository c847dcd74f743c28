"""On a ScyllaDB with roles, a restore and an undo by a user without rights name the missing one, and need only those of
docs/security.md.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cassandra.cluster import Session

from tests.support.made import SCHEMA, add, write
from tests.support.scylla_server import new_name
from tests.support.waiting import wait_for
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.server_settings import Cassandra
from writetime.lake.horizon import raise_complete_snapshot
from writetime.lake.table import create_table
from writetime.lake.views import time_now
from writetime.restore.into import restore_into
from writetime.schema.table import TableSchema
from writetime.undo.applying import apply_plan
from writetime.undo.damage import Interval
from writetime.undo.plan import make_plan

COLUMNS = "(id int, n int, v text, w int, PRIMARY KEY (id, n))"
# `permissions_validity_in_ms`, and a little more.
RIGHTS_SECONDS = 11


@pytest.fixture
def user(live: Settings, session: Session, tmp_path: Path) -> Iterator[Settings]:
    """Settings of a new role without rights, with a lake."""
    role = new_name("role")
    session.execute(f"CREATE ROLE {role} WITH PASSWORD = 'hush' AND LOGIN = true", timeout=120)
    cassandra = Cassandra.model_validate(live.cassandra.model_dump() | {"username": role, "password": "hush"})
    lake = live.lake.model_copy(update={"path": str(tmp_path / "lake")})
    try:
        yield live.model_copy(update={"cassandra": cassandra, "lake": lake})
    finally:
        session.execute(f"DROP ROLE {role}", timeout=120)


@pytest.fixture
def schema(live: Settings) -> TableSchema:
    return replace(SCHEMA, keyspace=live.cassandra.keyspace)


@pytest.mark.usefixtures("nodes")
def test_each_missing_right_of_a_restore(user: Settings, schema: TableSchema, session: Session, tmp_path: Path) -> None:
    table = create_table(user, schema)
    add(table, [write(i, 0, i, v="v") for i in range(10)], 0)
    keyspace, role = schema.keyspace, user.cassandra.username
    session.execute(f"CREATE TABLE {keyspace}.closed {COLUMNS}", timeout=120)

    def is_refused(name: str, reason: str) -> bool:
        """ScyllaDB keeps the rights of a role for some seconds."""
        with pytest.raises(WritetimeError) as caught:
            restore_into(user, table, str(tmp_path / name), f"{keyspace}.{name}")
        return re.search(reason, str(caught.value)) is not None

    assert is_refused("closed", r"closed cannot be read \(.*no SELECT .*: if a right is missing, GRANT SELECT")
    assert is_refused("copy", r"copy cannot be created \(.*no CREATE .*: grant the right .*\s*CREATE TABLE")
    session.execute(f"GRANT CREATE ON KEYSPACE {keyspace} TO {role}")
    wait_for(lambda: is_refused("copy", r"settings of the node .* cannot be read \(.*no SELECT .*: grant the right"))
    session.execute(f"GRANT SELECT ON system.config TO {role}")
    time.sleep(RIGHTS_SECONDS)
    report = restore_into(user, table, str(tmp_path / "copy"), f"{keyspace}.copy")
    assert report.comparison is not None
    assert (report.comparison.rows, report.comparison.differing) == (10, 0)


def test_the_missing_right_of_an_undo(user: Settings, schema: TableSchema, session: Session) -> None:
    table = create_table(user, schema)
    add(table, [write(1, 0, 10, v="good"), write(1, 0, 1_500, v="bad")], 0)
    raise_complete_snapshot(table, time_now())
    plan = make_plan(table, Interval(1_000, 2_000))
    session.execute(f"CREATE TABLE {schema.full_name} {COLUMNS}", timeout=120)
    session.execute(f"INSERT INTO {schema.full_name} (id, n, v) VALUES (1, 0, 'bad') USING TIMESTAMP 1500")
    with pytest.raises(WritetimeError, match=rf"of {schema.full_name}: .* no MODIFY permission on <table .*items>"):
        apply_plan(user, table, plan)
    session.execute(f"GRANT MODIFY ON TABLE {schema.full_name} TO {user.cassandra.username}")
    time.sleep(RIGHTS_SECONDS)
    assert apply_plan(user, table, plan) == 1
    assert session.execute(f"SELECT v FROM {schema.full_name}").one().v == "good"
