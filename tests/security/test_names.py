"""Names that look like something else: they are quoted in each statement, and never name another place.

Cassandra allows letters, digits and '_' for keyspaces and tables, and anything in quotes for columns, types and fields.
"""

import os
import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.security.conftest import Secured
from tests.security.steps import command, in_thread, landed
from writetime.capture.commitlog_agent import run as run_agent
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.lake import views
from writetime.lake.table import open_table, table_storage
from writetime.schema.cql import parse_table
from writetime.schema.describe import to_cql
from writetime.schema.table import Column, DroppedColumn, TableSchema
from writetime.schema.types import Native, Udt
from writetime.verify.comparison import verify

NAMES = [
    *('a"b', '"', '""', "'q'", "größe", "列", "Mixed", "select", "desc", " lead", "trail ", "tab\tx", "nl\nx", "\\"),
    *("x.y/../z", "../../up", "a (b), c; --", "a)b", "(", "{x}", "<b>", "a,b", "a=b", "a`b", "${x}", "%s", "/* c */"),
    *("//", "$$", "PRIMARY KEY", "PRIMARY KEY (a)", "static", "a static", "x MASKED WITH y", "a DESC", "ID = 1"),
    *("COMPACT STORAGE", "WITH", "writetime", "token", "_1", "value", "gc_grace_seconds = 1"),
]
INT, TEXT = Native("int"), Native("text")


@pytest.mark.parametrize("seed", range(int(os.environ.get("NAME_SEEDS", "100"))))
def test_schemas_as_cql(seed: int) -> None:
    rng = random.Random(seed)
    names = iter(rng.sample(NAMES, len(NAMES)))

    def columns(count: int, of: Native) -> tuple[Column, ...]:
        return tuple(Column(next(names), of) for _ in range(count))

    inner = Udt("Ks", next(names), tuple((next(names), INT) for _ in range(3)))
    outer = Udt("Ks", next(names), ((next(names), replace(inner, frozen=True)),))
    schema = TableSchema(
        "Ks",
        rng.choice(["Select", "t"]),
        columns(rng.randint(1, 2), TEXT),
        tuple(replace(c, reversed=rng.random() < 0.5) for c in columns(rng.randint(1, 3), INT)),
        columns(1, TEXT),
        (*columns(5, INT), Column(next(names), outer)),
        dropped=(DroppedColumn(next(names), INT, False, 5),),
    )
    assert parse_table(to_cql(schema)) == schema


@pytest.mark.parametrize("name", ["../up.t", "ks./etc", "ks", "ks.t.u", "ks.t/..", "", "ks.größe", 'ks."t"', "ks.t\n"])
def test_no_name_leads_out_of_the_lake(name: str) -> None:
    with pytest.raises(WritetimeError, match="names no table"):
        table_storage(Settings(), name)


def test_a_table_with_such_names_from_capture_to_verification(secured: Secured, in_force: Settings) -> None:
    """The lake has the rows that a real database returns, column by column."""
    key, clustering, static, outer, field, udt, *rest = (n for n in NAMES if n != "a)b")
    # The protocol announces new types by name, and the driver accepts names in ASCII only.
    inner = "a)b"
    quoted = {name: '"' + name.replace('"', '""') + '"' for name in NAMES}
    with connect(secured.admin) as session:
        for statement in (
            """CREATE KEYSPACE "Ks" WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}""",
            f'CREATE TYPE "Ks".{quoted[inner]} ({quoted[field]} int, {quoted["../../up"]} text)',
            f'CREATE TYPE "Ks".{quoted[outer]} ({quoted["select"]} frozen<{quoted[inner]}>)',
            f'CREATE TABLE "Ks"."Select" ({quoted[key]} int, {quoted[clustering]} int, {quoted[static]} int STATIC, '
            f"{quoted[udt]} frozen<{quoted[outer]}>, {', '.join(f'{quoted[name]} int' for name in rest)}, "
            f"PRIMARY KEY ({quoted[key]}, {quoted[clustering]})) "
            f"WITH cdc = true AND CLUSTERING ORDER BY ({quoted[clustering]} DESC)",
        ):
            session.execute(statement)
        names = [key, clustering, static, *rest]
        insert = session.prepare(
            f'INSERT INTO "Ks"."Select" ({", ".join(quoted[n] for n in names)}, {quoted[udt]}) VALUES '
            f"({'?, ' * len(names)}{{{quoted['select']}: {{{quoted[field]}: 7, {quoted['../../up']}: 'x'}}}})"
        )
        with in_thread(run_agent, in_force) as outcome:
            for i in range(6):
                session.execute(insert, [i % 3, i, *range(i * 100, i * 100 + len(names) - 2)])
            landed(in_force, "Ks.Select", 9, outcome)
        table = open_table(in_force, "Ks.Select")
        assert verify(in_force, table, 0).proven
        columns = ", ".join(quoted[c.name] for c in table.schema().columns if c.name != udt)
        answered = sorted(map(tuple, session.execute(f'SELECT {columns} FROM "Ks"."Select"')))
    found = pa.concat_tables(views.virtual(table)).drop_columns([udt])
    assert sorted(zip(*(column.to_pylist() for column in found.columns), strict=True)) == answered
    folders = command("snapshot", "Ks.Select").splitlines()
    assert "changes added" in command("backfill", "Ks.Select", *folders)
    assert verify(in_force, table, 0).proven
    assert command("publish", "Ks.Select")
    assert (Path(in_force.lake.path) / "Ks.Select").is_dir()
