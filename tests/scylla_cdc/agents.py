"""The progress of agents of logs, and of their changes in the lake."""

import random
import struct
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from tests.scylla_cdc.conftest import Logged
from tests.scylla_cdc.databases import SECOND, CdcDatabase, now, stream_set
from tests.scylla_cdc.logs import origins
from tests.scylla_cdc.writer import Group
from tests.support import answers
from tests.support.expected import assert_same
from tests.support.merged import with_one_form
from tests.support.status import status_lines
from tests.support.waiting import PATIENCE_SECONDS, wait_for
from writetime.capture.state_files import read_json
from writetime.changes.model import change_schema
from writetime.core.config import Capture, Settings
from writetime.core.errors import WritetimeError
from writetime.delta.parquet import read_file
from writetime.files.row_form import to_micros
from writetime.lake import views
from writetime.lake.table import open_table, view_schema
from writetime.landing.landing import Landing
from writetime.wire.watermarks import Sources, WatermarkTopic

# By their brokers.
_topics: dict[str, WatermarkTopic] = {}


def settings_for(cdc: CdcDatabase, folder: Path, *tables: Logged, **scylla_cdc: object) -> Settings:
    """Settings of an agent of some tables, with a separate lake."""
    # Tests write while the agent reads. Each write takes a while to reach the log, so no window is read right at its
    # end.
    settings = cdc.with_options(**{"confidence_seconds": 0.25, **scylla_cdc})
    names = [table.schema.full_name for table in tables]
    capture = Capture(
        source="scylla-cdc", tables=names, state_dir=folder / "state", partitions=2, snapshot="schema-only"
    )
    lake = settings.lake.model_copy(update={"path": str(folder / "lake"), "buckets": 4})
    return settings.model_copy(update={"capture": capture, "lake": lake})


def reached(settings: Settings) -> dict[str, int]:
    """Up to which write time the agent has published each table."""
    path = settings.capture.state_dir / "logs.json"
    return {name: found["until"] for name, found in (read_json(path) or {}).items()}


def wait_until(settings: Settings, table: Logged, at: int) -> None:
    """Wait until a table is published up to a write time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while reached(settings).get(table.schema.full_name, 0) < at:
        assert time.monotonic() < deadline, f"the agent is late: {'; '.join(status_lines(settings))}"
        time.sleep(0.05)
    wait_for(lambda: is_marked(settings, table))


def is_marked(settings: Settings, table: Logged) -> bool:
    """Whether the agent has published a mark of the table that it reads. It saves its place before."""
    name = table.schema.full_name
    saved = (read_json(settings.capture.state_dir / "logs.json") or {})[name]["table_id"]
    with suppress(WritetimeError):
        found = sources(settings).get(source_of(table))
        return found is not None and name in found.tables and found.tables[name].id == saved
    return False


def sources(settings: Settings) -> Sources:
    """The last mark of each source. The topic has the messages of all tests, of which only new ones are read."""
    brokers = settings.kafka.bootstrap_servers
    if brokers not in _topics:
        _topics[brokers] = WatermarkTopic(settings)
    return _topics[brokers].read()


def source_of(table: Logged) -> str:
    """The source of a table's changes."""
    return f"{table.schema.full_name}_scylla_cdc_log"


def wait_for_metrics(port: int, *wanted: str) -> str:
    """Wait until an agent's metrics have these lines, which it counts after it has saved how far it is; return all."""

    def metrics() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return answer.read().decode()

    wait_for(lambda: all(line in metrics() for line in wanted))
    return metrics()


def land(settings: Settings, table: Logged) -> Counter[str]:
    """Land the published changes of a table; return how often the lake then has each row of the log."""
    Landing(settings, table.schema.full_name).drain()
    changes = open_table(settings, table.schema.full_name).changes
    schema = change_schema(table.schema)
    return Counter(o for f in changes.load().files for o in origins(read_file(changes.storage, f.path, schema)))


def assert_view(settings: Settings, table: Logged) -> None:
    """Compare the lake's view with the database's rows of the base table."""
    schema = table.schema
    parts = [view_schema(schema).empty_table(), *views.virtual(open_table(settings, schema.full_name))]
    with answers.raw_session(settings.cassandra.port) as session:
        wanted = to_micros(answers.decoded(answers.rows(session, schema), schema), schema)
    assert_same(with_one_form(pa.concat_tables(parts), schema), with_one_form(wanted, schema))


def insert(cdc: CdcDatabase, table: Logged, key: int) -> None:
    """Write now, and add the rows that ScyllaDB would log."""
    at = now()
    name = table.schema.full_name
    cdc.session.execute(f"INSERT INTO {name} (p, v) VALUES ({key}, {key}) USING TIMESTAMP {at}")
    data = struct.pack(">i", key)
    rows: list[dict[str, bytes | None]] = [{"operation": b"\x02", "ttl": None, "p": data, "v": data}]
    table.origins += cdc.log(table.schema, [Group(data, at, rows)], table.sets, key)


def follow(cdc: CdcDatabase, table: Logged, seconds: int) -> None:
    """Give a table streams that began some seconds ago."""
    table.sets = [stream_set(random.Random(1), now() - seconds * SECOND, [0, (1 << 63) - 1])]
    cdc.announce_tablets(table.schema, table.sets)


def truncate(cdc: CdcDatabase, table: Logged) -> None:
    """Truncate a table, and record it as ScyllaDB would."""
    cdc.session.execute(f"TRUNCATE {table.schema.full_name}")
    query = f"INSERT INTO {cdc.settings.scylla_cdc.truncations} (table_uuid, shard, truncated_at) VALUES (%s, 0, %s)"
    cdc.session.execute(query, [table.schema.id, now() // 1000])
