"""CDC options that change: CDC off and on, and `delta` from `keys` to `full`. Writes that were not logged are a gap."""

import json
import random
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.scylla_cdc.agents import reached, settings_for, source_of, sources, wait_until
from tests.scylla_cdc.conftest import Logged, Written
from tests.scylla_cdc.databases import SECOND, CdcDatabase, StreamSet, now, stream_set
from tests.scylla_cdc.odd import STREAM, Odd, read
from tests.support.programs import agent
from tests.support.status import status_lines
from tests.support.waiting import wait_for
from writetime.capture.metrics import read_status
from writetime.scylla_cdc.log import LogError, LogGap
from writetime.scylla_cdc.offsets import Offset, first_offset, interval, next_offset, pieces_between
from writetime.scylla_cdc.source import open_source

pytestmark = pytest.mark.long

LACKING = pytest.mark.parametrize(
    ("options", "while_so", "afterwards"),
    [
        ({"enabled": "false"}, "CDC is off; turn it on again first", "CDC was off"),
        ({"enabled": "true", "delta": "keys"}, "delta is keys, .* set it to full first", "delta was keys"),
    ],
    ids=["off", "keys"],
)
BARE = {"operation": 1, "p": 1, "c": 1}


@LACKING
def test_a_stream_while_the_log_lacks_written_values(
    cdc: CdcDatabase, late: Logged, written: Written, options: dict[str, str], while_so: str, afterwards: str
) -> None:
    cdc.announce_tablets(late.schema, late.sets)
    name = late.schema.full_name
    with open_source(cdc.settings, name) as source:
        offset = first_offset(source, written.base, None)
    cdc.set_options(late.schema, **options)
    between = now()
    with open_source(cdc.settings, name) as source:
        off = next_offset(source, offset, now(), None)
        assert (off.until, off.off_since) == (offset.until, offset.until)
        assert pieces_between(source, offset, off) == []
        with pytest.raises(LogGap, match=while_so):
            next_offset(source, off, now(), now())
    time.sleep(0.01)
    cdc.set_options(late.schema, enabled="true")
    with open_source(cdc.settings, name) as source:
        # A snapshot from between does not have the later writes up to the change of the options.
        seen = next_offset(source, off, now(), between)
        assert off.until == seen.until
        assert between < (seen.off_until or 0) <= now()
        for snapshot_at in (None, between):
            with pytest.raises(LogGap, match=afterwards) as raised:
                next_offset(source, seen, now(), snapshot_at)
            assert (raised.value.start, raised.value.end) == (offset.until, seen.off_until)
    # Another change moves no end of a gap that was seen.
    cdc.set_options(late.schema, enabled="true", ttl="1000")
    with open_source(cdc.settings, name) as source:
        on = next_offset(source, seen, now(), seen.off_until)
        assert (on.off_since, on.off_until, on.snapshot_at) == (None, None, seen.off_until)
        assert on.until > off.until
        assert Offset(**json.loads(json.dumps(asdict(on)))) == on
        # And off again, before the end of the gap is known or after it.
    cdc.set_options(late.schema, **options)
    with open_source(cdc.settings, name) as source:
        again = next_offset(source, seen, now(), seen.off_until)
        assert (again.off_since, again.off_until) == (offset.until, None)


def test_a_ttl_that_is_raised_or_lowered(cdc: CdcDatabase, late: Logged) -> None:
    """Rows keep the one that they were written with, so a raised one hides no gap, and moves with the rows read."""
    hour = 3600 * SECOND
    late.sets = [stream_set(random.Random(1), now() - 10 * hour, [0, (1 << 63) - 1])]
    cdc.announce_tablets(late.schema, late.sets)
    cdc.set_options(late.schema, enabled="true", ttl="86400")
    start = Offset(now() - 3 * hour, late.sets[0].time, late.sets[0].time, str(late.schema.id), ttl=hour)
    with open_source(cdc.settings, late.schema.full_name) as source:
        with pytest.raises(LogGap, match="the log keeps rows for 3600 seconds") as raised:
            next_offset(source, start, now(), None)
        assert abs(raised.value.end - (now() - hour)) < 60 * SECOND
        # Its rows had not expired, or were written after the alteration.
        recent = replace(start, until=now() - hour // 2)
        assert next_offset(source, recent, now() - hour // 4, None).ttl == hour
        end = next_offset(source, replace(recent, until=source.options_since), now() + 60 * SECOND, None)
        assert end.ttl == 24 * hour
    cdc.set_options(late.schema, enabled="true", ttl="60")
    with open_source(cdc.settings, late.schema.full_name) as source, pytest.raises(LogGap, match="for 60 seconds"):
        next_offset(source, replace(recent, ttl=24 * hour), now(), None)


def test_a_batch_of_a_log_that_lacks_written_values(
    cdc: CdcDatabase, late: Logged, caplog: pytest.LogCaptureFixture
) -> None:
    cdc.announce_tablets(late.schema, late.sets)
    cdc.set_options(late.schema, enabled="false")
    with open_source(cdc.settings, late.schema.full_name) as source:
        interval(source, None, None, None)
        assert "is off: its log does not have" in caplog.text
    cdc.set_options(late.schema, enabled="true", delta="keys")
    refused = pytest.raises(LogError, match=r"CDC option delta: keys.*ALTER TABLE generated.late\d+ WITH cdc")
    with open_source(cdc.settings, late.schema.full_name) as source, refused:
        interval(source, None, None, None)


def test_a_table_with_only_keys_lacks_nothing(cdc: CdcDatabase) -> None:
    odd = Odd(cdc, "p int, c int, PRIMARY KEY (p, c)")
    odd.log(1, {"operation": 2, "p": 1, "c": 1})
    cdc.set_options(odd.schema, enabled="true", delta="keys")
    assert read(odd)[0].num_rows == 1


def test_updates_without_values_make_a_gap(cdc: CdcDatabase) -> None:
    """No one was there to see that `delta` was `keys`, but the rows show it, up to when the table was altered."""
    odd = Odd(cdc)
    odd.log(1, {**BARE, "v": 1})
    odd.log(2, BARE, {"operation": 3, "p": 1, "c": 2})
    odd.log(3, {"operation": 1, "p": 1})
    cdc.set_options(odd.schema, enabled="true")
    with open_source(cdc.settings, odd.name) as source:
        altered = source.options_since
    with pytest.raises(
        LogGap, match=r"updates have no values, because the table's CDC option delta was keys"
    ) as raised:
        read(odd)
    assert (raised.value.start, raised.value.end) == (odd.start + 2 * SECOND, altered)
    with pytest.raises(LogGap):
        read(odd, odd.start + 3 * SECOND)
    changes, found = read(odd, altered)
    assert changes["kind"].to_pylist() == ["row", "row"]
    assert found == {"in_snapshot": 2}
    assert odd.changes(empty_updates="pass").num_rows == 4
    # Later on they are of another making, which no snapshot helps against.
    odd.start = altered + 11 * SECOND
    odd.log(0, BARE)
    settings = cdc.with_options(confidence_seconds=-12)
    with open_source(settings, odd.name) as source:
        pieces = interval(source, altered, None, None)
        with pytest.raises(LogError, match=r"is an update without values, although .*: if clients"):
            list(source.read(pieces, snapshot_at=now() + 20 * SECOND))


def test_inserts_without_values_are_counted(cdc: CdcDatabase) -> None:
    """They may be inserts of keys alone, or of the time when `delta` was `keys`."""
    odd = Odd(cdc)
    for second in range(1, 4):
        odd.log(second, {"operation": 2, "p": second, "c": 1})
    odd.log(4, {"operation": 2, "p": 4, "c": 1, "v": 1})
    cdc.set_options(odd.schema, enabled="true")
    changes, found = read(odd)
    assert changes.num_rows == 4
    assert found == {"doubtful_insert": 3}
    assert read(odd, now())[1] == {}
    with open_source(cdc.settings, odd.name) as source:
        counts: Counter[str] = Counter()
        list(source.read(interval(source, None, None, None), ["kind"], found=counts))
        assert not counts.total()


def test_the_agent_reports_a_gap_until_a_younger_snapshot_closes_it(
    cdc: CdcDatabase, late: Logged, tmp_path: Path
) -> None:
    """Its state records the options that it read, so an agent that starts later also detects the gap."""
    odd = Odd(cdc)
    tables = [Logged(odd.current(), [], [StreamSet(odd.start, (STREAM,))], []), late]
    cdc.announce_tablets(late.schema, late.sets)
    settings = settings_for(cdc, tmp_path, *tables, window_seconds=0.5)

    def state() -> dict[str, Any]:
        return json.loads((settings.capture.state_dir / "logs.json").read_text())[odd.name]

    def fault() -> str:
        return (read_status(settings.capture.state_dir) or {"logs": {}})["logs"].get(odd.name, {}).get("fault") or ""

    cdc.set_options(odd.schema, enabled="true", delta="keys")
    odd.log(1, {"operation": 2, "p": 1, "c": 1})
    with agent(settings):
        wait_for(lambda: "set it to full first" in fault())
        wait_until(settings, late, now())
    between = now()
    stopped = reached(settings)[odd.name]
    assert state()["off_since"] == stopped
    cdc.set_options(odd.schema, enabled="true", delta="full")
    for snapshot_at in (None, between):
        with agent(settings, snapshot_at=snapshot_at):
            wait_for(lambda: "delta was keys" in fault())
            assert any("writetime backfill" in line for line in status_lines(settings))
        assert reached(settings)[odd.name] == stopped
    assert sources(settings)[source_of(tables[0])].tables[odd.name].until <= stopped
    snapshot_at = now()
    with agent(settings, snapshot_at=snapshot_at):
        wait_until(settings, tables[0], now())
    assert (state()["off_since"], state()["snapshot_at"]) == (None, snapshot_at)
    with agent(settings):
        wait_until(settings, tables[0], now())
        wait_for(lambda: not fault())


def test_the_agent_keeps_the_snapshot_that_has_unreadable_rows(cdc: CdcDatabase, tmp_path: Path) -> None:
    """It may be killed and restarted without the option while it reads older rows."""
    odd = Odd(cdc)
    for second in range(1, 30):
        odd.log(second, {**BARE, "c": second})
    cdc.set_options(odd.schema, enabled="true")
    table = Logged(odd.current(), [], [StreamSet(odd.start, (STREAM,))], [])
    settings = settings_for(cdc, tmp_path, table, window_seconds=1, batch_seconds=2)
    with agent(settings, snapshot_at=now()):
        wait_until(settings, table, odd.start + 3 * SECOND)
    with agent(settings):
        wait_until(settings, table, odd.start + 40 * SECOND)
        text = "rows skipped, which cannot be read, and are in the snapshot that closed the gap"
        wait_for(lambda: any(text in line for line in status_lines(settings)))
