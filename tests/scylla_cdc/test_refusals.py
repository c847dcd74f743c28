"""Logs that cannot be read, or only in part, for which each error names the remedy; and schemas that change."""

import time
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from tests.scylla_cdc.databases import SECOND, CdcDatabase, StreamSet, now
from tests.scylla_cdc.logs import read_all
from tests.scylla_cdc.odd import STREAM, Odd
from writetime.cli.main import main
from writetime.core.errors import WritetimeError
from writetime.merge import live_rows, merge
from writetime.schema.system import read_schema
from writetime.scylla_cdc.log import LogError, first_uuid
from writetime.scylla_cdc.offsets import interval
from writetime.scylla_cdc.source import open_source
from writetime.sources.scylla_cdc import ScyllaCdcSource


@pytest.fixture(scope="module")
def odd(cdc: CdcDatabase) -> Odd:
    """One table for all tests that do not alter it."""
    return Odd(cdc)


UPDATE = {"operation": 1, "p": 1, "c": 1, "v": 1}


@pytest.mark.parametrize(
    ("rows", "complete", "message"),
    [
        ([{**UPDATE, "operation": 10}], True, "has the operation 10, which this version"),
        ([{**UPDATE, "p": None}], True, "lacks its key, although no key column was renamed"),
        ([{**UPDATE, "c": None}], True, "lacks its key, although no key column was renamed"),
        ([{"operation": 3, "p": 1}], True, "lacks its key, although no key column was renamed"),
        ([UPDATE, UPDATE], False, "lacks some rows of a group"),
        ([{"operation": 5, "p": 1, "c": 1}], True, "lacks some rows of a group"),
        ([UPDATE, {"operation": 7, "p": 1, "c": 1}], True, "lacks some rows of a group"),
        ([{**UPDATE, "cdc$deleted_v": True}], True, "both writes and deletes column v"),
        ([{"operation": 6, "p": 1, "c": 3}, {"operation": 8, "p": 1, "c": 2}], True, "ends before it starts"),
    ],
)
def test_rows_that_scylladb_does_not_write(
    cdc: CdcDatabase, odd: Odd, rows: list[dict[str, Any]], complete: bool, message: str
) -> None:
    odd.log(1, UPDATE)
    assert odd.changes().num_rows == 1
    odd.log(2, *rows, complete=complete)
    with pytest.raises(LogError, match=message):
        odd.changes()
    cdc.session.execute(f"TRUNCATE {odd.name}_scylla_cdc_log")


def test_log_rows_that_are_not_changes(cdc: CdcDatabase) -> None:
    """Images are not changes; the server's deletion when a row's TTL ends is a change."""
    odd = Odd(cdc)
    image = {"p": 1, "c": 1, "v": 7, "s": None}
    odd.log(1, {"operation": 0, **image}, {**UPDATE, "v": 8}, {"operation": 9, **image})
    odd.log(2, {"operation": 0, **image}, {"operation": -3, "p": 1, "c": 2})
    odd.log(3, {"operation": -4, "p": 2})
    found = odd.changes()
    assert found["kind"].to_pylist() == ["row", "row", "partition_tombstone"]
    assert [t and t["write_time"] - odd.start for t in found["tombstone"].to_pylist()] == [None, 2 * SECOND, 3 * SECOND]
    assert found["v"].to_pylist()[0]["value"] == 8


def test_a_table_that_is_altered(cdc: CdcDatabase) -> None:
    odd = Odd(cdc)
    odd.log(1, UPDATE)
    odd.log(2, {"operation": 1, "p": 1, "c": 2, "v": 2})
    with open_source(cdc.settings, odd.name) as source:
        odd.cdc.session.execute(f"ALTER TABLE {odd.name} ADD w text")
        with pytest.raises(
            LogError, match=r"_w as none, and should have it as boolean: .* is being altered, so try again"
        ):
            source.check_schema(source.schema)
        odd.cdc.session.execute(f'ALTER TABLE {odd.name}_scylla_cdc_log ADD (w text, "cdc$deleted_w" boolean)')
        odd.log(3, {"operation": 1, "p": 1, "c": 1, "w": "new"})
        with pytest.raises(LogError, match="was altered while its log was read"):
            source.check_schema(source.schema)
    found = live_rows(merge([odd.changes()], odd.current()), odd.current(), 0)
    assert found.to_pylist() == [
        {"p": 1, "c": 1, "s": None, "v": 1, "w": "new"},
        {"p": 1, "c": 2, "s": None, "v": 2, "w": None},
    ]
    odd.alter("DROP v", 'DROP (v, "cdc$deleted_v")')
    found = live_rows(merge([odd.changes()], odd.current()), odd.current(), 0)
    assert found.to_pylist() == [{"p": 1, "c": 1, "s": None, "w": "new"}]


def test_a_type_that_gets_a_field(cdc: CdcDatabase) -> None:
    udt = f"grown{time.time_ns()}"
    cdc.session.execute(f"CREATE TYPE generated.{udt} (a int, b int)")
    table = f"t{udt}"
    cdc.session.execute(f"CREATE TABLE generated.{table} (p int PRIMARY KEY, u {udt}, f frozen<{udt}>)")
    schema = read_schema(cdc.session, f"generated.{table}")
    cdc.create_log(schema)
    start = (now() - 60 * SECOND) // 1000 * 1000
    cdc.announce_tablets(schema, [StreamSet(start, (STREAM,))])
    log = f"generated.{table}_scylla_cdc_log"
    columns = '"cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", "cdc$end_of_batch", p'

    def write(i: int, more: str, values: str) -> None:
        uuid = first_uuid(start + i * SECOND)
        cdc.session.execute(
            f"INSERT INTO {log} ({columns}, {more}) VALUES (0x{STREAM.hex()}, {uuid}, 0, 1, true, 1, {values})"
        )

    write(1, "u, f", "{a: 1, b: 2}, {a: 1}")
    cdc.session.execute(f"ALTER TYPE generated.{udt} ADD c text")
    write(2, 'u, "cdc$deleted_elements_u"', "{c: 'new'}, {1}")
    grown = read_schema(cdc.session, f"generated.{table}")
    changes = read_all(cdc, grown)
    whole = {"a": 1, "b": None, "c": "new"}
    assert live_rows(merge([changes], grown), grown, 0).to_pylist() == [
        {"p": 1, "f": {"a": 1, "b": None, "c": None}, "u": whole}
    ]


def test_a_table_that_is_not_a_log(cdc: CdcDatabase) -> None:
    cdc.session.execute("CREATE TABLE IF NOT EXISTS generated.plain (p int PRIMARY KEY)")
    with (
        pytest.raises(LogError, match=r"generated\.plain has no CDC log: ALTER TABLE generated\.plain WITH cdc = "),
        open_source(cdc.settings, "generated.plain"),
    ):
        pass
    with (
        pytest.raises(LogError, match=r"the database has no table generated\.nothing"),
        open_source(cdc.settings, "generated.nothing"),
    ):
        pass
    cdc.session.execute("CREATE TABLE IF NOT EXISTS generated.plain_scylla_cdc_log (p int PRIMARY KEY)")
    with (
        pytest.raises(LogError, match="is not a CDC log: its primary key is not"),
        open_source(cdc.settings, "generated.plain"),
    ):
        pass


def test_times_that_are_not_settled(cdc: CdcDatabase, odd: Odd) -> None:
    not_settled = pytest.raises(LogError, match="are not settled yet: read up to")
    with open_source(cdc.settings, odd.name) as source, not_settled:
        interval(source, None, now() + SECOND, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option table"),
        ({"table": "a.b", "tabel": "c"}, "has no option tabel; it has"),
        ({"table": "a.b", "window_seconds": "0"}, "window_seconds: Input should be greater than 0"),
        ({"table": "a.b", "from": "yesterday"}, "is neither a time such as"),
    ],
)
def test_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(WritetimeError, match=message):
        ScyllaCdcSource(options).schema()


def test_the_command(cdc: CdcDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Odd(cdc)
    odd.log(1, UPDATE)
    odd.log(2, {"operation": 3, "p": 1, "c": 2})
    monkeypatch.setattr("writetime.cli.scylla_cdc.config.load", lambda: cdc.settings)
    lines = CliRunner().invoke(main, ["scylla-cdc", odd.name, "--fields", "kind,v,origin"]).stdout.splitlines()
    assert len(lines) == 2
    assert '"kind":"row","v":{"value":1,"write_time"' in lines[0]
    assert f"0x{STREAM.hex()}/{first_uuid(odd.start + SECOND)}" in lines[0]
    late = ["scylla-cdc", odd.name, "--from", str(odd.start + 2 * SECOND), "--stats"]
    assert '"changes": 1' in CliRunner().invoke(main, late).stdout
    gap = CliRunner().invoke(main, ["scylla-cdc", odd.name, "--from", "2020-01-01"])
    assert gap.exit_code == 1
    assert "cannot be read from its log" in gap.stderr


def test_uuids() -> None:
    for micros in (0, 1, -5, 1_700_000_000_123_456):
        assert (UUID(bytes=first_uuid(micros).bytes).time - 0x01B21DD213814000) // 10 == micros
    with pytest.raises(LogError, match="no UUID has the time"):
        first_uuid(1 << 62)
