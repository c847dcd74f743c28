"""User-defined types that gain fields while their log is read."""

import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.scylla_cdc.agents import assert_view, land, reached, settings_for, wait_until
from tests.scylla_cdc.conftest import Logged
from tests.scylla_cdc.databases import SECOND, CdcDatabase, now, stream_set
from tests.support.programs import agent
from writetime.capture.metrics import read_status
from writetime.core.errors import WritetimeError
from writetime.schema.system import read_schema, read_schemas
from writetime.schema.table import TableSchema
from writetime.scylla_cdc import source as source_module
from writetime.scylla_cdc.log import Altered, first_uuid
from writetime.scylla_cdc.offsets import interval
from writetime.scylla_cdc.source import open_source

COLUMNS = '"cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", "cdc$end_of_batch", p'


class Growing:
    """A table with a user-defined type, in a separate column and inside others, and its log."""

    def __init__(self, cdc: CdcDatabase) -> None:
        self.cdc = cdc
        self.udt = f"growing{time.time_ns()}"
        cdc.session.execute(f"CREATE TYPE generated.{self.udt} (a int, b int)")
        self.name = f"generated.t{self.udt}"
        cdc.session.execute(
            f"CREATE TABLE {self.name} (p int PRIMARY KEY, u {self.udt}, f frozen<{self.udt}>, "
            f"l frozen<list<frozen<{self.udt}>>>)"
        )
        self.schema = read_schema(cdc.session, self.name)
        cdc.create_log(self.schema)
        cdc.set_options(self.schema, enabled="true")
        self.sets = [stream_set(random.Random(3), now() - 60 * SECOND, [(1 << 63) - 1])]
        cdc.announce_tablets(self.schema, self.sets)

    def grow(self) -> None:
        self.cdc.session.execute(f"ALTER TYPE generated.{self.udt} ADD c text")

    def write(self, at: int, columns: str, values: str) -> None:
        """Write a row of the log."""
        self.cdc.session.execute(
            f"INSERT INTO {self.name}_scylla_cdc_log ({COLUMNS}, {columns}) "
            f"VALUES (0x{self.sets[0].streams[0].hex()}, {first_uuid(at)}, 0, 1, true, 1, {values})"
        )


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("u", "{c: 'new'}"),
        ('u, "cdc$deleted_elements_u"', "{a: 1}, {2}"),
        ("f", "{a: 1, c: 'new'}"),
        ("l", "[{a: 1, c: 'new'}]"),
    ],
)
def test_a_value_that_is_newer_than_the_schema(cdc: CdcDatabase, columns: str, values: str) -> None:
    growing = Growing(cdc)
    with open_source(cdc.settings, growing.name) as source:
        growing.grow()
        growing.write(now() - SECOND, columns, values)
        with pytest.raises(Altered, match=rf"{growing.name} was altered while its log was read: .*has [23]"):
            list(source.read(interval(source, None, None, None)))
    with open_source(cdc.settings, growing.name) as source:
        assert sum(batch.num_rows for batch in source.read(interval(source, None, None, None))) == 1


def test_the_agent_reads_the_schema_again(
    cdc: CdcDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The node that returns the schema may get a new field later than the node that accepted a write."""
    growing = Growing(cdc)
    table = Logged(growing.schema, [], growing.sets, [])
    settings = settings_for(cdc, tmp_path, table, window_seconds=0.5)
    asked, stale = [0], dict[str, TableSchema | WritetimeError]()

    def read(session: Any, *names: Any) -> dict[str, TableSchema | WritetimeError]:
        asked[0] += bool(stale)
        return stale if stale and asked[0] <= 2 else read_schemas(session, *names)

    monkeypatch.setattr(source_module, "read_schemas", read)
    with agent(settings):
        wait_until(settings, table, now() - 5 * SECOND)
        stale |= read_schemas(cdc.session, ["generated"])
        growing.grow()
        at = now()
        new = "{a: 1, b: null, c: 'new'}"
        cdc.session.execute(f"UPDATE {growing.name} USING TIMESTAMP {at} SET f = {new}, u.c = 'new' WHERE p = 1")
        growing.write(at, "f, u", f"{new}, {{c: 'new'}}")
        wait_until(settings, table, at + 1)
        status = read_status(settings.capture.state_dir)
    assert asked[0] > 2
    assert status is not None
    assert (status["errors"], status["held_by"]) == ({}, None)
    assert not [r for r in caplog.records if r.levelname == "ERROR" and r.name.startswith("writetime")]
    assert reached(settings)[growing.name] > at
    table.schema = cdc.current(growing.schema)
    land(settings, table)
    assert_view(settings, table)
