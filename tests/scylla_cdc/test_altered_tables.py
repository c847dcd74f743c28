"""Logs of tables that were altered: rows that lost their values or keys, which are skipped, or make a gap."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.scylla_cdc.agents import settings_for, wait_for_metrics, wait_until
from tests.scylla_cdc.conftest import Logged
from tests.scylla_cdc.databases import SECOND, CdcDatabase, StreamSet, now
from tests.scylla_cdc.odd import STREAM, Odd, read
from tests.support.programs import agent
from tests.support.status import status_lines
from tests.support.waiting import wait_for
from writetime.cli.main import main
from writetime.scylla_cdc.log import LogError, LogGap
from writetime.servers.process import free_port

ROW = {"operation": 1, "p": 1, "c": 1, "v": 1}
STATIC = {"operation": 1, "p": 1, "s": 5}


@pytest.mark.parametrize("statics", ["", "s2 int static, "])
def test_rows_of_a_dropped_static_column_are_skipped(cdc: CdcDatabase, statics: str) -> None:
    odd = Odd(cdc, f"p int, c int, {statics}v int, PRIMARY KEY (p, c)")
    odd.alter("ADD s int static", 'ADD (s int, "cdc$deleted_s" boolean)')
    odd.log(1, ROW)
    odd.log(2, STATIC)
    odd.log(3, {**STATIC, "operation": 0}, {**STATIC, "s": 6}, {**STATIC, "operation": 9, "s": 6})
    odd.log(4, {"operation": 1, "p": 1, "cdc$deleted_s": True}, {**ROW, "c": 2})
    assert read(odd)[0]["kind"].to_pylist() == ["row", "static", "static", "static", "row"]
    odd.alter("DROP s", 'DROP (s, "cdc$deleted_s")')
    changes, found = read(odd)
    assert changes["kind"].to_pylist() == ["row", "row"]
    assert found == {"static_dropped": 3}
    # None of the kind is written after the column was dropped.
    odd.start = now()
    odd.log(0, {"operation": 1, "p": 1})
    with pytest.raises(
        LogGap if statics else LogError, match="have no values" if statics else "no key column was renamed"
    ):
        read(odd)


def test_updates_of_a_dropped_column(cdc: CdcDatabase) -> None:
    """The drop of a base table's column may have an early timestamp; the log's column is dropped when it happens."""
    odd = Odd(cdc)
    odd.log(1, ROW)
    cdc.session.execute(f"ALTER TABLE {odd.name} DROP v USING TIMESTAMP 5")
    cdc.session.execute(f'ALTER TABLE {odd.name}_scylla_cdc_log DROP (v, "cdc$deleted_v")')
    changes, found = read(odd)
    assert changes.num_rows == 1
    assert found == {}


CLUSTERED: list[tuple[dict[str, Any], ...]] = [
    (ROW,),
    ({**ROW, "operation": 2},),
    ({"operation": 3, "p": 1, "c": 1},),
    # Without its clustering key this would delete the whole partition.
    ({"operation": 6, "p": 1, "c": 1}, {"operation": 7, "p": 1}),
]


@pytest.mark.parametrize("rows", CLUSTERED, ids=["update", "insert", "delete", "range"])
def test_rows_from_before_a_key_column_was_renamed_make_a_gap(
    cdc: CdcDatabase, rows: tuple[dict[str, Any], ...]
) -> None:
    odd = Odd(cdc)
    odd.log(1, STATIC)
    odd.log(2, {"operation": 4, "p": 2})
    odd.log(3, *rows)
    odd.alter("RENAME c TO d", "DROP c")
    cdc.session.execute(f"ALTER TABLE {odd.name}_scylla_cdc_log ADD d int")
    after = now()
    odd.start = after
    odd.log(0, {"operation": 1, "p": 1, "d": 1, "v": 1})
    with pytest.raises(LogGap, match=r"key column c was renamed.*To close the gap, take a snapshot") as raised:
        read(odd)
    assert raised.value.end <= after
    with pytest.raises(LogGap):
        read(odd, raised.value.end - 1)
    changes, found = read(odd, after)
    assert changes["kind"].to_pylist() == ["static", "partition_tombstone", "row"]
    assert found == {"in_snapshot": len(rows)}


def test_rows_from_before_a_renamed_key_column(cdc: CdcDatabase) -> None:
    """Of a partition key nothing; of two clustering columns one that shows which rows are static."""
    partition = Odd(cdc, "p int, q int, v int, PRIMARY KEY ((p, q))")
    partition.log(1, {"operation": 4, "p": 1, "q": 1})
    partition.alter("RENAME q TO r", "DROP q")
    cdc.session.execute(f"ALTER TABLE {partition.name}_scylla_cdc_log ADD r int")
    with pytest.raises(LogGap, match="key column q was renamed"):
        read(partition)
    clustering = Odd(cdc, "p int, c int, b int, s int static, v int, PRIMARY KEY (p, c, b)")
    clustering.log(1, STATIC)
    clustering.log(2, {"operation": 1, "p": 1, "cdc$deleted_s": True})
    clustering.alter("RENAME c TO d", "DROP c")
    cdc.session.execute(f"ALTER TABLE {clustering.name}_scylla_cdc_log ADD d int")
    assert read(clustering)[0]["kind"].to_pylist() == ["static", "static"]


def test_skipped_rows_are_shown(cdc: CdcDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the agent's status and metrics, and by the command."""
    odd = Odd(cdc, "p int, c int, v int, PRIMARY KEY (p, c)")
    odd.alter("ADD s int static", 'ADD (s int, "cdc$deleted_s" boolean)')
    for second in range(1, 4):
        odd.log(second, STATIC)
    odd.log(4, ROW)
    odd.alter("DROP s", 'DROP (s, "cdc$deleted_s")')
    table = Logged(odd.current(), [], [StreamSet(odd.start, (STREAM,))], [])
    settings = settings_for(cdc, tmp_path, table, window_seconds=1)
    port = free_port()
    capture = settings.capture.model_copy(update={"metrics_port": port})
    settings = settings.model_copy(update={"capture": capture})
    with agent(settings):
        wait_until(settings, table, odd.start + 5 * SECOND)
        wait_for_metrics(port, f'writetime_capture_log_findings_total{{kind="static_dropped",table="{odd.name}"}} 3.0')
        text = "3 rows skipped, which had values of dropped static columns only"
        wait_for(lambda: any(text in line for line in status_lines(settings)))
    monkeypatch.setattr("writetime.cli.scylla_cdc.config.load", lambda: cdc.settings)
    shown = CliRunner().invoke(main, ["scylla-cdc", odd.name, "--fields", "kind"])
    assert shown.stdout.splitlines() == ['{"kind":"row"}']
    assert text in shown.stderr
