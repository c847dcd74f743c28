"""Masked columns: a role either reads what is stored, or gets an error that names the right."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Session
from click.testing import CliRunner

from tests.security.conftest import Secured
from tests.security.servers import grant
from tests.support.settings import write_settings
from writetime.cli.main import main
from writetime.clients import database
from writetime.core.errors import WritetimeError
from writetime.core.server_settings import Cassandra
from writetime.schema.system import read_schema
from writetime.verify.database_table import DatabaseTable
from writetime.verify.masked_columns import masking_fault

pytestmark = pytest.mark.long

KEYSPACE = "maskedKs"
QUOTED = '"maskedKs"'
# Masked are a regular column, a key column, a static column and none.
TABLES = {
    "Regular": "(id int PRIMARY KEY, v int MASKED WITH DEFAULT)",
    "key": "(id int MASKED WITH DEFAULT, c int, v int, PRIMARY KEY (id, c))",
    "clustering": "(id int, c int MASKED WITH DEFAULT, v int, PRIMARY KEY (id, c))",
    "static": "(id int, c int, v int STATIC MASKED WITH mask_null(), PRIMARY KEY (id, c))",
    "none": "(id int PRIMARY KEY, v int)",
}
# The rights of roles, beyond SELECT.
ROLES = {
    "nothing": [],
    "SelectMasked": ["SELECT_MASKED ON ALL KEYSPACES"],
    "other_table": [f"UNMASK ON TABLE {QUOTED}.none"],
    "table": [f'UNMASK ON TABLE {QUOTED}."{name}"' for name in TABLES],
    "keyspace": [f"UNMASK ON KEYSPACE {QUOTED}"],
    "all_keyspaces": ["UNMASK ON ALL KEYSPACES"],
    "everything": ["ALL ON ALL KEYSPACES"],
    "by_role": ['"keyspace"'],
    "superuser": [],
}


@pytest.fixture(scope="module")
def admin(cassandra_version: str, secured: Secured) -> Iterator[Session]:
    if cassandra_version != "5.0":
        pytest.skip("Cassandra masks columns from 5.0 on")
    with database.connect(secured.admin) as session:
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        session.execute(f"CREATE KEYSPACE {QUOTED} WITH replication = {replication}")
        for name, columns in TABLES.items():
            session.execute(f'CREATE TABLE {QUOTED}."{name}" {columns}')
            values = "(id, c, v) VALUES (1, 2, 3)" if "c int" in columns else "(id, v) VALUES (1, 3)"
            session.execute(f'INSERT INTO {QUOTED}."{name}" {values}')
        for role, rights in ROLES.items():
            grant(session, f'"{role}"', "hush", ["SELECT ON ALL KEYSPACES", *rights])
        session.execute("ALTER ROLE superuser WITH SUPERUSER = true")
        yield session
        session.execute(f"DROP KEYSPACE {QUOTED}")
        for role in ROLES:
            session.execute(f'DROP ROLE "{role}"')


@pytest.mark.parametrize("role", ROLES)
def test_a_role_reads_what_is_stored_or_gets_an_error(secured: Secured, admin: Session, role: str) -> None:
    changes = {"username": role, "password": "hush"}
    cassandra = Cassandra.model_validate(secured.settings.cassandra.model_dump() | changes)
    with database.connect(secured.settings.model_copy(update={"cassandra": cassandra})) as session:
        for name in TABLES:
            query = f'SELECT * FROM {QUOTED}."{name}"'
            masked = list(session.execute(query)) != list(admin.execute(query))
            fault = masking_fault(session, KEYSPACE, name)
            assert (fault is not None) is masked, (role, name, fault)
            if fault is not None:
                schema = read_schema(session, f"{KEYSPACE}.{name}")
                with pytest.raises(WritetimeError, match="GRANT UNMASK ON TABLE"):
                    DatabaseTable(session, schema)
                admin.execute(fault.partition(": ")[2])
                assert masking_fault(session, KEYSPACE, name) is None


def test_check_names_masked_tables_and_the_right(
    secured: Secured, admin: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("Regular", "clustering", "none")
    tables = {KEYSPACE: {name: {"capture": False} for name in names}}
    write_settings(secured.settings.model_copy(update={"tables": tables}), tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))

    def masked() -> list[str]:
        lines = CliRunner().invoke(main, ["check"]).stdout.splitlines()
        return [line.partition("cannot be compared: ")[2] for line in lines if "UNMASK" in line]

    rights = masked()
    assert len(rights) == 2
    assert {name for name in names for right in rights if f'."{name}"' in right or f".{name} " in right} == {
        "Regular",
        "clustering",
    }
    for right in rights:
        admin.execute(right)
    assert masked() == []
