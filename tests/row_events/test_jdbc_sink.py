"""A consumer that is in common use: Debezium's JDBC sink writes the row events of a Cassandra table to a Postgres
table.
"""

import datetime
import random
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from click.testing import CliRunner

from tests.row_events.connect import run_java, word
from tests.support.messages import messages
from tests.support.postgres import USER, Postgres
from tests.support.settings import write_settings
from writetime.cli.main import main
from writetime.clients.database import connect
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.config import Settings
from writetime.wire.topic_names import row_events_topic

COLUMNS = "customer, id, item, total, price, paid, at, day"
TABLE = """CREATE TABLE {} (customer text, id int, item text, total bigint, price decimal, paid boolean, at timestamp,
    day date, PRIMARY KEY (customer, id))"""


def write(session: Any, table: str, count: int, chooser: random.Random) -> None:
    """Write rows at random: whole ones, some columns, and deletions of rows and partitions."""
    for _ in range(count):
        key = (chooser.choice("abcdefgh"), chooser.randrange(12))
        n = chooser.randrange(1000)
        match chooser.randrange(8):
            case 0:
                session.execute(f"DELETE FROM {table} WHERE customer = %s AND id = %s", key)
            case 1 if n < 200:
                session.execute(f"DELETE FROM {table} WHERE customer = %s", key[:1])
            case 2:
                session.execute(
                    f"UPDATE {table} SET item = %s, total = null WHERE customer = %s AND id = %s", ("é", *key)
                )
            case _:
                at = datetime.datetime(2026, 1, 1) + datetime.timedelta(milliseconds=n * 1001)
                values = (*key, f'"{n}"', n << 40, n / 4, n % 2 == 0, at, at.date())
                session.execute(f"INSERT INTO {table} ({COLUMNS}) VALUES ({', '.join(['%s'] * 8)})", values)


@pytest.mark.long_only("starts Postgres and a sink, and downloads 27 MB of jars")
def test_postgres_has_the_rows_of_the_database(settings: Settings, postgres: Postgres, tmp_path: Path) -> None:
    form = settings.row_events.model_copy(update={"format": "debezium"})
    write_settings(settings.model_copy(update={"row_events": form}), tmp_path / "writetime.toml")
    table = f"{settings.cassandra.keyspace}.sales"
    chooser = random.Random(7)
    with connect(settings) as session:
        session.execute(TABLE.format(table))
        for number in range(2):
            write(session, table, 150, chooser)
            [folder] = take_snapshot(settings, table, f"s{number}")
            for command in (["backfill", table, str(folder)], ["publish", table]):
                done = CliRunner(catch_exceptions=False).invoke(main, command)
                assert done.exit_code == 0, done.output
        rows = [row._asdict() for row in session.execute(f"SELECT {COLUMNS} FROM {table}")]
    # A decimal is text in JSON, as Debezium's connectors write it with `decimal.handling.mode` set to `string`.
    texts = [row | {"price": None if row["price"] is None else str(row["price"])} for row in rows]
    wanted = {(row["customer"], row["id"]): tuple(row.values()) for row in texts}
    sent = messages(settings, row_events_topic(table))
    assert {value is None for _, _, value in sent} == {False}
    lines = [f"{partition} {word(key)} {word(value)}\n" for partition, key, value in sent]
    (tmp_path / "messages").write_text("".join(lines))
    url = f"jdbc:postgresql://{postgres.place}"
    run_java("Sink", ["sink", "connect", "kafka"], tmp_path, tmp_path / "messages", url, USER, "sales")
    with psycopg2.connect(postgres.url) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {COLUMNS} FROM sales")
        found = {row[:2]: row for row in cursor.fetchall()}
    assert len(wanted) > 20
    assert found == wanted
