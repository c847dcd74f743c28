"""From logs to Kafka and the lake: an agent that is killed, streams that change, gaps.

Oracle: the writer of the logs (`tests.scylla_cdc.writer`), by ScyllaDB's rules: the origins of all its groups.
"""

import random
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.scylla_cdc.agents import (
    assert_view,
    insert,
    is_marked,
    land,
    reached,
    settings_for,
    source_of,
    sources,
    truncate,
    wait_for_metrics,
    wait_until,
)
from tests.scylla_cdc.conftest import Logged, Written
from tests.scylla_cdc.databases import SECOND, CdcDatabase, now, stream_set
from tests.scylla_cdc.examples import LATE
from tests.scylla_cdc.writer import Group
from tests.support.generate import SEED
from tests.support.lake_answers import view_rows
from tests.support.programs import Program, agent
from tests.support.settings import write_settings
from tests.support.status import status_lines
from tests.support.waiting import wait_for
from writetime.capture import scylla_agent
from writetime.capture.metrics import read_status
from writetime.capture.state_files import write_json
from writetime.cli.status import agents_lines
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.config import Settings
from writetime.lake import state, views
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.horizon import captured_until, next_horizon, registered_sources
from writetime.lake.table import open_table
from writetime.landing.landing import Landing
from writetime.scylla_cdc.offsets import Offset
from writetime.scylla_cdc.source import CdcSource
from writetime.servers.process import free_port
from writetime.verify.comparison import verify
from writetime.wire.watermarks import WatermarkTopic, statuses

pytestmark = pytest.mark.long


@pytest.mark.long_only("kills and starts an agent again and again")
def test_logs_reach_the_lake_however_often_the_agent_is_killed(
    cdc: CdcDatabase, logged: list[Logged], tmp_path: Path
) -> None:
    """The streams change twice within the interval that is read, with vnodes and with tablets."""
    r = random.Random(SEED)
    tables = logged[1:3]
    settings = settings_for(cdc, tmp_path, *tables, window_seconds=8, batch_seconds=8)
    write_settings(settings, tmp_path / "writetime.toml")
    program = Program(tmp_path, "agent", "agent")
    first, last = tables[0].sets[0].time, max(group.time for table in tables for group in table.groups)
    program.start()
    try:
        for _ in range(2):
            wait_until(settings, tables[0], r.randrange(first, last))
            time.sleep(r.random() / 5)
            program.kill()
        for table in tables:
            wait_until(settings, table, last + 1)
        program.end()
    finally:
        program.kill()
        program.end()
    assert program.ends == {-9: 2, 0: 1}, program.tail()
    for table in tables:
        found = land(settings, table)
        assert found.keys() == set(table.origins)
        # Some windows per kill are read again.
        assert found.total() < 2 * len(table.origins)
        assert_view(settings, table)
        changes = open_table(settings, table.schema.full_name).changes.load()
        assert registered_sources(changes) == {source_of(table)}
        assert captured_until(changes) == reached(settings)[table.schema.full_name]
    shown = list(status_lines(settings))
    assert any(f"{tables[0].schema.full_name}: published up to " in line for line in shown)
    said = statuses(WatermarkTopic(settings).read())[source_of(tables[0])]
    assert said["logs"].keys() == {tables[0].schema.full_name}
    assert said["held_by"] is None
    assert any(line.startswith(f"agent of {source_of(tables[1])} ") for line in agents_lines(settings))


def delete(cdc: CdcDatabase, table: Logged, key: int) -> int:
    """Delete a partition now; return when that is."""
    at = now()
    cdc.session.execute(f"DELETE FROM {table.schema.full_name} USING TIMESTAMP {at} WHERE p = {key}")
    data = struct.pack(">i", key)
    table.origins += cdc.log(table.schema, [Group(data, at, [{"operation": b"\x04", "p": data}])], table.sets, key)
    return at


def test_a_log_is_followed_while_its_streams_change(cdc: CdcDatabase, late: Logged, tmp_path: Path) -> None:
    """Its watermark follows, so tombstones go once their grace is over."""
    cdc.session.execute(f"ALTER TABLE {late.schema.full_name} WITH gc_grace_seconds = 1")
    late.sets = [stream_set(random.Random(1), now() - SECOND, [0, (1 << 63) - 1])]
    cdc.announce_tablets(late.schema, late.sets)
    settings = settings_for(cdc, tmp_path, late, window_seconds=0.5, confidence_seconds=2)
    with agent(settings):
        for key in range(10):
            insert(cdc, late, key)
        deleted = delete(cdc, late, 0)
        # Announced before it begins, as ScyllaDB does.
        late.sets.append(stream_set(random.Random(2), now() // 1000 * 1000 + 2 * SECOND, [-5, 5]))
        cdc.announce_tablets(late.schema, late.sets)
        cdc.session.execute(f"ALTER TABLE {late.schema.full_name} ADD w int")
        cdc.session.execute(f"ALTER TABLE {late.schema.full_name}_scylla_cdc_log ADD w int")
        cdc.session.execute(f'ALTER TABLE {late.schema.full_name}_scylla_cdc_log ADD "cdc$deleted_w" boolean')
        while now() < late.sets[1].time + SECOND:
            insert(cdc, late, random.randrange(10, 1000))
            time.sleep(0.1)
        wait_until(settings, late, now())
    late.schema = cdc.current(late.schema)
    assert [c.name for c in late.schema.regular] == ["v", "w"]
    found = land(settings, late)
    assert found.keys() == set(late.origins)
    # Windows that the agent read while the table was altered are read again, once per ALTER at most.
    assert max(found.values()) <= 4
    assert_view(settings, late)
    table = open_table(settings, late.schema.full_name)
    state.fold(table)
    horizon = next_horizon(table, now(), 1e-9)
    assert horizon is not None
    assert horizon > deleted
    assert state.drop_tombstones(table, horizon) == 1
    assert_view(settings, late)


def test_the_agent_finds_and_counts_late_rows(cdc: CdcDatabase, late: Logged, tmp_path: Path) -> None:
    """Also those in streams of a set that was closed; no watermark passes them."""
    closed = now() // 1000 * 1000 - 2 * SECOND
    times = (closed - 30 * SECOND, closed)
    late.sets = [stream_set(random.Random(i), time, [0, (1 << 63) - 1]) for i, time in enumerate(times)]
    cdc.announce_tablets(late.schema, late.sets)
    settings = settings_for(cdc, tmp_path, late, window_seconds=1, rescan_seconds=10)
    port = free_port()
    capture = settings.capture.model_copy(update={"metrics_port": port})
    settings = settings.model_copy(update={"capture": capture})

    def log(at: int, key: int, *, old: bool) -> None:
        name, data = late.schema.full_name, struct.pack(">i", key)
        cdc.session.execute(f"INSERT INTO {name} (p, v) VALUES ({key}, {key}) USING TIMESTAMP {at}")
        rows: list[dict[str, bytes | None]] = [{"operation": b"\x02", "ttl": None, "p": data, "v": data}]
        late.origins += cdc.log(late.schema, [Group(data, at, rows)], late.sets[:1] if old else late.sets, key)

    def watermark() -> int:
        return sources(settings)[source_of(late)].tables[late.schema.full_name].until

    log(closed - SECOND, 1, old=True)
    log(closed + SECOND, 2, old=False)
    with agent(settings):
        wait_until(settings, late, closed + 3 * SECOND)
        assert watermark() < closed - SECOND
        log(closed - SECOND, 3, old=True)
        log(closed + SECOND, 4, old=True)
        log(closed + SECOND, 5, old=False)
        log(now(), 6, old=True)
        wait_until(settings, late, closed + 13 * SECOND)
        wait_for(lambda: watermark() >= closed + 2 * SECOND)
        counted = 'writetime_capture_log_findings_total{{kind="{}",table="{}"}} {}'
        wanted = [counted.format(kind, late.schema.full_name, n) for kind, n in (("closed_set", 3.0), ("late", 1.0))]
        wait_for_metrics(port, *wanted)
    assert land(settings, late).keys() == set(late.origins)
    assert_view(settings, late)


def test_a_gap_stops_its_table_until_a_snapshot_closes_it(
    cdc: CdcDatabase, late: Logged, written: Written, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cdc.announce_tablets(late.schema, late.sets)
    name = late.schema.full_name
    settings = settings_for(cdc, tmp_path, late, window_seconds=1, log_ttl_seconds=30)
    start: dict[str, Any] = {"newest": late.sets[0].time, "since": written.base, "table_id": str(late.schema.id)}
    settings.capture.state_dir.mkdir()
    write_json(settings.capture.state_dir / "logs.json", {name: {"until": written.base, **start}})
    with agent(settings):
        wait_for(lambda: any("the log keeps rows for 30 seconds" in line for line in agents_lines(settings)))
    assert f"writetime backfill {name} PATHS" in caplog.text
    assert reached(settings) == {name: written.base}
    said = sources(settings)[source_of(late)]
    # From the start, it delays the steps that wait for watermarks.
    assert said.tables[name].until <= written.base
    assert "the log keeps rows for 30 seconds" in said.status["held_by"]
    with agent(settings, snapshot_at=now()):
        wait_until(settings, late, now() - 5 * SECOND)
        wait_for(lambda: sources(settings)[source_of(late)].tables[name].until > written.base)


def test_an_agent_keeps_the_snapshot_that_closes_a_gap(
    cdc: CdcDatabase, late: Logged, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be started without it while the log still lacks rows."""
    late.sets = [stream_set(random.Random(1), now() - 1000 * SECOND, [0, (1 << 63) - 1])]
    cdc.announce_tablets(late.schema, late.sets)
    name, began = late.schema.full_name, now() - 900 * SECOND
    settings = settings_for(cdc, tmp_path, late, window_seconds=10, batch_seconds=10, log_ttl_seconds=300)
    start = Offset(began, late.sets[0].time // 1000 * 1000, began, str(late.schema.id))
    settings.capture.state_dir.mkdir()
    write_json(settings.capture.state_dir / "logs.json", {name: asdict(start)})
    # It cannot read further, however fast it is.
    slow = settings.scylla_cdc.model_copy(update={"confidence_seconds": 600.0})
    with agent(settings.model_copy(update={"scylla_cdc": slow}), snapshot_at=now()):
        wait_for(lambda: reached(settings)[name] > began)
    assert reached(settings)[name] < now() - 300 * SECOND
    with agent(settings):
        wait_until(settings, late, now() - 15 * SECOND)
    assert "cannot be read from its log" not in caplog.text


def test_a_snapshot_that_is_named_is_published_with_the_log(
    cdc: CdcDatabase, late: Logged, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows from before the log began are in the lake, together with the log's later changes."""
    name = late.schema.full_name
    cdc.write(f"INSERT INTO {name} (p, v) VALUES ({key}, {key})" for key in range(100))
    old = take_snapshot(cdc.settings, name, "old")
    late.sets = [stream_set(random.Random(1), now(), [0, (1 << 63) - 1])]
    cdc.announce_tablets(late.schema, late.sets)
    settings = settings_for(cdc, tmp_path, late, window_seconds=0.5)

    def with_snapshot(folders: list[Path]) -> Settings:
        named = {"snapshot": "initial", "snapshot_folders": {name: [str(path) for path in folders]}}
        return settings.model_copy(update={"capture": settings.capture.model_copy(update=named)})

    insert(cdc, late, 100)
    delete(cdc, late, 1)
    with agent(with_snapshot(old)):
        wait_for(lambda: "neither has the writes in between" in caplog.text)
        wait_until(settings, late, now())
    assert sources(settings)[source_of(late)].tables[name].until == 0
    new = take_snapshot(cdc.settings, name, "new")
    insert(cdc, late, 2)
    delete(cdc, late, 3)
    with agent(with_snapshot(new)):
        wait_until(settings, late, now())
        wait_for(lambda: sources(settings)[source_of(late)].tables[name].until)
    assert all(path.is_dir() for path in new)
    found = land(settings, late)
    assert {origin: count for origin, count in found.items() if origin.startswith("0x")} == Counter(late.origins)
    assert sum(count for origin, count in found.items() if not origin.startswith("0x")) == 102
    assert_view(settings, late)
    assert captured_until(open_table(settings, name).changes.load()) > 0


def test_a_table_that_is_truncated(cdc: CdcDatabase, late: Logged, tmp_path: Path) -> None:
    """Earlier rows of the log no longer count; after a later snapshot the watermark advances again."""
    name = late.schema.full_name
    late.sets = [stream_set(random.Random(1), now() - SECOND, [0, (1 << 63) - 1])]
    cdc.announce_tablets(late.schema, late.sets)
    settings = settings_for(cdc, tmp_path, late, window_seconds=0.5)

    def watermark() -> int:
        return captured_until(open_table(settings, name).changes.load())

    with agent(settings):
        for key in range(5):
            insert(cdc, late, key)
        wait_until(settings, late, now())
        land(settings, late)
        assert_view(settings, late)
        insert(cdc, late, 5)
        truncate(cdc, late)
        truncated_at = now()
        time.sleep(0.01)
        insert(cdc, late, 3)
        wait_until(settings, late, now())
        wait_for(lambda: sources(settings)[source_of(late)].tables[name].truncation)
        landing = Landing(settings, name)
        landing.drain()
        assert_view(settings, late)
        assert [row["p"] for row in view_rows(views.virtual(open_table(settings, name)))] == [3]
        assert watermark() < truncated_at
        assert f"{name} was truncated at" in (landing.held_by or "")
        assert watermark() < truncated_at
        assert verify(settings, open_table(settings, name), 0).differences == []
        found = find_snapshots([str(folder) for folder in take_snapshot(cdc.settings, name, "later")])
        assert sum(changes for _, changes in backfill(open_table(settings, name), found))
        insert(cdc, late, 4)
        wait_until(settings, late, now())
        wait_for(lambda: landing.drain() >= 0 and watermark() > truncated_at)
        assert landing.held_by is None
    assert_view(settings, late)


def test_a_table_that_is_dropped_and_created_again(cdc: CdcDatabase, late: Logged, tmp_path: Path) -> None:
    settings = settings_for(cdc, tmp_path, late, window_seconds=0.5)
    name = late.schema.full_name
    for key in range(2):
        late.sets = [stream_set(random.Random(1), now() - SECOND, [0, (1 << 63) - 1])]
        cdc.announce_tablets(late.schema, late.sets)
        with agent(settings):
            insert(cdc, late, key)
            wait_until(settings, late, now())
            land(settings, late)
            assert_view(settings, late)
            insert(cdc, late, key + 10)
            wait_until(settings, late, now())
        for table in (name, f"{name}_scylla_cdc_log"):
            cdc.session.execute(f"DROP TABLE {table}")
        late.schema = cdc.create(replace(late.schema, id=None))
    assert view_rows(views.virtual(open_table(settings, name))) == [{"p": 1, "v": 1}]


def test_truncations_that_cannot_be_read_hold_the_watermark(
    cdc: CdcDatabase, late: Logged, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As it is not known whether the table was truncated. Its changes are published."""
    late.sets = [stream_set(random.Random(1), now() - SECOND, [0, (1 << 63) - 1])]
    cdc.announce_tablets(late.schema, late.sets)
    settings = settings_for(cdc, tmp_path, late, window_seconds=0.5, truncations="system.nothing")
    with agent(settings):
        insert(cdc, late, 1)
        wait_until(settings, late, now())
        wait_for(lambda: "system.nothing cannot be read, so watermarks do not advance" in caplog.text)
    assert sources(settings)[source_of(late)].tables[late.schema.full_name].until == 0
    assert land(settings, late) == Counter(late.origins)
    assert_view(settings, late)


# The work of each for a table while its agent lets it advance.
BOUNDARIES: dict[str, tuple[type, str, Callable[..., str]]] = {
    "settled": (CdcSource, "settled", lambda source: source.schema.full_name),
    "read": (CdcSource, "read", lambda source, *_: source.schema.full_name),
    "check_schema": (CdcSource, "check_schema", lambda source, *_: source.schema.full_name),
    "send": (scylla_agent.ChangePublisher, "send", lambda _, schema, *__: schema.full_name),
    "save": (scylla_agent.LogProgress, "save", lambda _, table, *__: table),
}


class Two:
    """An agent of two tables, of which one raises an error at a boundary while `is_broken`."""

    def __init__(self, settings: Settings, failing: Logged, other: Logged) -> None:
        self.port = free_port()
        capture = settings.capture.model_copy(update={"metrics_port": self.port})
        self.settings = settings.model_copy(update={"capture": capture})
        self.failing, self.other = failing, other
        self.name = failing.schema.full_name
        self.is_broken = False

    def fail_at(self, monkeypatch: pytest.MonkeyPatch, boundary: str, error: Exception) -> None:
        owner, method, table_of = BOUNDARIES[boundary]
        original = getattr(owner, method)

        def fail(this: Any, *arguments: Any, **named: Any) -> Any:
            if self.is_broken and table_of(this, *arguments) == self.name:
                raise error
            return original(this, *arguments, **named)

        monkeypatch.setattr(owner, method, fail)

    def watermark(self, table: Logged) -> int:
        return sources(self.settings)[source_of(table)].tables[table.schema.full_name].until

    def fault(self) -> str | None:
        status = read_status(self.settings.capture.state_dir)
        return None if status is None else status["logs"][self.name]["fault"]

    def lag(self) -> float:
        status = read_status(self.settings.capture.state_dir)
        return -1.0 if status is None else status["lag"]["lag_seconds"]

    def is_not_done(self, at: int, reason: str, kind: str) -> bool:
        """Whether a failed part counts as not done: in the file, in the watermark and in the status."""
        until, status = reached(self.settings)[self.name], read_status(self.settings.capture.state_dir)
        if status is None or until >= at or self.watermark(self.failing) > until:
            return False
        mine, other = (status["logs"][table.schema.full_name] for table in (self.failing, self.other))
        held = (mine["until"], status["held_by"], other["fault"]) == (until, reason, None)
        return held and status["errors"][kind] >= 1


@pytest.fixture
def two(cdc: CdcDatabase, late: Logged, written: Written, tmp_path: Path) -> Two:
    other = Logged(cdc.create(replace(LATE, name=f"other{time.time_ns()}")), written.groups[LATE.name], [], [])
    for table in (late, other):
        table.sets = [stream_set(random.Random(1), now() - SECOND, [0, (1 << 63) - 1])]
        cdc.announce_tablets(table.schema, table.sets)
    return Two(settings_for(cdc, tmp_path, late, other, window_seconds=0.5), late, other)


def test_the_lag_is_that_of_settled_windows(cdc: CdcDatabase, two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is not behind has none, although the newest window is not published."""
    two.fail_at(monkeypatch, "read", RuntimeError("a bug"))
    with agent(two.settings):
        for table in (two.failing, two.other):
            insert(cdc, table, 1)
            wait_until(two.settings, table, now())
        wait_for(lambda: two.lag() == 0)
        two.is_broken = True
        insert(cdc, two.failing, 2)
        wait_for(lambda: two.lag() > 1)


def test_an_error_of_one_watermark_does_not_stop_the_others(
    cdc: CdcDatabase, two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = scylla_agent.LogAgent._mark
    two.is_broken = True

    def fail(this: scylla_agent.LogAgent, table: Any) -> None:
        if two.is_broken and table.name == two.name:
            raise RuntimeError("a bug")
        mark(this, table)

    monkeypatch.setattr(scylla_agent.LogAgent, "_mark", fail)
    with agent(two.settings):
        for table in (two.failing, two.other):
            insert(cdc, table, 1)
        wait_until(two.settings, two.other, now())
        wait_for_metrics(two.port, 'writetime_capture_errors_total{what="unexpected"}')
        wait_for(lambda: two.name in reached(two.settings))
        assert not is_marked(two.settings, two.failing)
        two.is_broken = False
        wait_until(two.settings, two.failing, now())


def test_a_full_disk_between_two_steps_is_counted_as_such(
    cdc: CdcDatabase, two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = scylla_agent.LogAgent._measure

    def fail(this: scylla_agent.LogAgent) -> None:
        if two.is_broken:
            raise OSError(28, "No space left on device")
        measure(this)

    monkeypatch.setattr(scylla_agent.LogAgent, "_measure", fail)
    with agent(two.settings):
        insert(cdc, two.failing, 1)
        wait_until(two.settings, two.failing, now())
        two.is_broken = True
        wait_for_metrics(two.port, 'writetime_capture_errors_total{what="disk"}')
        two.is_broken = False
        insert(cdc, two.failing, 2)
        wait_until(two.settings, two.failing, now())


@pytest.mark.parametrize(
    ("boundary", "error", "kind"),
    [
        *((name, RuntimeError("a bug"), "unexpected") for name in BOUNDARIES),
        ("save", OSError(28, "No space left on device"), "disk"),
    ],
)
def test_an_error_of_one_table_does_not_stop_the_others(
    cdc: CdcDatabase,
    two: Two,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    boundary: str,
    error: Exception,
    kind: str,
) -> None:
    two.fail_at(monkeypatch, boundary, error)
    reason = f"{type(error).__name__}: {error}"
    with agent(two.settings):
        for table in (two.failing, two.other):
            insert(cdc, table, 1)
        for table in (two.failing, two.other):
            wait_until(two.settings, table, now())
        two.is_broken = True
        for table in (two.failing, two.other):
            insert(cdc, table, 2)
        wait_for(lambda: two.fault() == reason)
        at = now()
        insert(cdc, two.other, 3)
        wait_until(two.settings, two.other, at + SECOND)
        wait_for(lambda: two.watermark(two.other) > at)
        # The windows before the one that fails may be published, and end the fault each time.
        wait_for(lambda: two.is_not_done(at, reason, kind))
        assert_counted_and_logged(two, reason, kind, caplog)
        two.is_broken = False
        insert(cdc, two.failing, 3)
        wait_until(two.settings, two.failing, now())
        wait_for(lambda: two.watermark(two.failing) > at)
        wait_for(lambda: two.fault() is None)
    for table in (two.failing, two.other):
        assert land(two.settings, table).keys() == set(table.origins)
        assert_view(two.settings, table)


def assert_counted_and_logged(two: Two, reason: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    metrics = wait_for_metrics(two.port, f'writetime_capture_errors_total{{what="{kind}"}}')
    assert f'writetime_capture_log_lag_seconds{{table="{two.name}"}}' in metrics
    logged = [record for record in caplog.records if record.message == f"{two.name}: {reason}; trying again"]
    # An unknown error has its traceback.
    assert {bool(record.exc_info) for record in logged} == {kind == "unexpected"}


def test_a_place_that_cannot_be_saved_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the agent would continue from a first offset that a crash loses, and would find no gap later."""
    progress = scylla_agent.LogProgress(tmp_path)
    offset = Offset(until=1, newest=1, since=1, table_id="x")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(scylla_agent, "write_json", full)
        with pytest.raises(OSError, match="No space left"):
            progress.save("ks.t", offset)
    assert progress.offsets == {}
    progress.save("ks.t", offset)
    progress.close()
    again = scylla_agent.LogProgress(tmp_path)
    assert again.offsets == {"ks.t": offset}
    again.close()
