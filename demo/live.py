"""The last part of the demo: it writes for some seconds while `writetime follow` publishes row events and updates the
view.

Each write has a number. This part records the times at which the database acknowledges the write, a consumer of
committed messages reads its row event, and the view's files have it.
"""

import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition

from demo import dataset
from demo.settings import LIVE_TABLE
from writetime.clients import database
from writetime.clients.kafka import client_config, end_offsets, ensure_topics
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.lake.followed_tables import cdc_option
from writetime.lake.table import is_in_lake, open_table
from writetime.wire.topic_names import row_events_topic

EVENT, VIEW = "row event", "view"
_CREATE = "CREATE TABLE IF NOT EXISTS {} (tail text PRIMARY KEY, report text, miles int) WITH cdc = {}"
MARK = re.compile(r"write(\d{9})")
"""The number of a write, in the value of a column that each write sets."""
_PLANES, _RATE, _TICK_SECONDS = 500, 50, 0.1
_PATIENCE_SECONDS = 120.0


ALL = range(10**9)


@dataclass
class Delays:
    """The times at which writes were acknowledged (seconds since 1970), and their delays until visible (seconds)."""

    acknowledged: dict[int, float] = field(default_factory=dict)
    seen: dict[str, dict[int, float]] = field(default_factory=lambda: {EVENT: {}, VIEW: {}})

    def see(self, where: str, numbers: Sequence[int]) -> None:
        """Record that writes are visible now."""
        now, known = time.time(), self.seen[where]
        for number in numbers:
            known.setdefault(number, now)

    def of(self, where: str, numbers: range = ALL) -> dict[int, float]:
        """Return the delays of these writes. The next write to a row may hide one from the view."""
        seen = dict(self.seen[where])
        return {n: max(seen[n] - at, 0.0) for n, at in list(self.acknowledged.items()) if n in numbers and n in seen}

    def fresh(self, where: str, now: float) -> float | None:
        """Return the age of the newest write that is visible in a place; None if there is none."""
        seen = self.acknowledged.keys() & self.seen[where].keys()
        return max(now - self.acknowledged[max(seen)], 0.0) if seen else None

    def ages(self, where: str) -> list[tuple[float, float]]:
        """Return the age of the newest write that is visible in a place, before and after each change of that age:
        instants (seconds since 1970), and ages (seconds).
        """
        sights: dict[float, float] = {}
        for number, delay in self.of(where).items():
            at = self.acknowledged[number]
            # Writes that become visible together have one instant.
            instant = round(at + delay, 3)
            sights[instant] = max(at, sights.get(instant, at))
        found: list[tuple[float, float]] = []
        newest: float | None = None
        for instant, at in sorted(sights.items()):
            if newest is None or at > newest:
                found += [(instant, instant - known) for known in (newest, at) if known is not None]
                newest = at
        return found

    def percentiles(self, where: str, numbers: range = ALL) -> tuple[float, float, int]:
        """Return the median and the 99th percentile of the delays of these writes, and the number of delays."""
        found = sorted(self.of(where, numbers).values())
        p50, p99 = (found[round(share * (len(found) - 1))] if found else 0.0 for share in (0.5, 0.99))
        return p50, p99, len(found)

    def lines(self, numbers: range = ALL) -> list[str]:
        """Return the delays of these writes, a line for each place."""
        shown = []
        for where in self.seen:
            p50, p99, count = self.percentiles(where, numbers)
            shown.append(
                f"{where:10} p50 {p50 * 1000:5,.0f} ms, p99 {p99 * 1000:5,.0f} ms ({pluralize(count, 'write', ',')})"
            )
        return shown


@dataclass(frozen=True)
class Marked:
    """A table whose writes have numbers: its name as keyspace.table, and its column with `write` and the number."""

    table: str
    column: str


@contextmanager
def watched(settings: Settings, marked: Marked, every: float) -> Iterator[Delays]:
    """Watch row events and view of a table during a `with` block; `every` is the pause between two reads of the view
    (seconds).
    """
    with (
        watched_topic(settings, row_events_topic(marked.table)) as delays,
        _running(lambda stop: _watch_view(settings, marked, every, stop, delays)),
    ):
        yield delays


@contextmanager
def watched_topic(settings: Settings, topic: str) -> Iterator[Delays]:
    """Watch the messages that come to a topic during a `with` block, as a consumer of committed messages."""
    ensure_topics(settings, {topic: {}}, settings.row_events.partitions)
    delays, begin = Delays(), end_offsets(settings, topic)
    with _running(lambda stop: _watch_topic(settings, topic, begin, stop, delays)):
        yield delays


@contextmanager
def _running(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run a function in a thread during a `with` block. The function must return once its event is set."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _watch_topic(
    settings: Settings, topic: str, begin: Mapping[int, int], stop: threading.Event, delays: Delays
) -> None:
    own = {"group.id": "watching", "isolation.level": "read_committed", "fetch.wait.max.ms": 50}
    consumer = Consumer(client_config(settings, **own))
    consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in begin.items()])
    while not stop.is_set():
        for message in consumer.consume(1000, 0.05):
            # The image after the write is the last one in the message.
            if message.error() is None and (found := MARK.findall((message.value() or b"").decode(errors="replace"))):
                delays.see(EVENT, [max(map(int, found))])
    consumer.close()


def _watch_view(settings: Settings, marked: Marked, every: float, stop: threading.Event, delays: Delays) -> None:
    opened = open_table(settings, marked.table) if is_in_lake(settings, marked.table) else None
    known = set(opened.view.load().by_path) if opened else set()
    while not stop.wait(every):
        if opened is None and is_in_lake(settings, marked.table):
            opened = open_table(settings, marked.table)
        if opened is None:
            continue
        files, filesystem = opened.view.load().by_path, opened.view.storage.filesystem()
        for path in files.keys() - known:
            with suppress(FileNotFoundError), pq.ParquetFile(path, filesystem=filesystem) as source:
                values = source.read([marked.column])[marked.column].to_pylist()
                delays.see(VIEW, [int(found[1]) for value in values if (found := MARK.fullmatch(value or ""))])
        known = set(files)


def run(settings: Settings, seconds: float, show: Callable[[Delays], None]) -> Delays:
    """Write for some seconds, and call `show` with the delays each second. `writetime agent` and `follow` must be
    running or starting: the first write, whose delay does not count, waits for them.

    Raises:
        WritetimeError: the first or the last write is not seen in time.
    """
    table = f"{settings.cassandra.keyspace}.{LIVE_TABLE}"
    # The numbers of an earlier run are lower, so no number occurs twice.
    first = round(time.time()) % 10**6 * 1000
    with watched(settings, Marked(table, "report"), 0.05) as delays, database.connect(settings) as session:
        update = session.prepare(f"UPDATE {table} SET report = ?, miles = ? WHERE tail = ?")

        def write(number: int, tail: str) -> None:
            session.execute(update, (f"write{number:09}", random.randrange(3000), tail))

        write(first, "first")
        _wait_for(first, delays)
        _write(write, first, seconds, delays, show)
        _wait_for(max(delays.acknowledged), delays)
    show(delays)
    return delays


def _wait_for(number: int, delays: Delays) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not all(number in seen for seen in delays.seen.values()):
        if time.monotonic() > deadline:
            raise WritetimeError("a write is not in the row events and in the view; see `writetime status`")
        time.sleep(_TICK_SECONDS)


def ensure_table(settings: Settings) -> str:
    """Create the captured table of the live part; return its name."""
    table = f"{settings.cassandra.keyspace}.{LIVE_TABLE}"
    with database.connect(settings) as session:
        session.execute(_CREATE.format(table, cdc_option(settings)), timeout=60)
    return table


def _write(
    write: Callable[[int, str], None],
    number: int,
    seconds: float,
    delays: Delays,
    show: Callable[[Delays], None],
) -> None:
    """Update the positions of planes at random, by writes with the next numbers."""
    tails: list[str] = dataset.read("planes")["tailnum"].head(_PLANES).tolist()
    begin = next_show = time.monotonic()
    while (now := time.monotonic()) < begin + seconds:
        for _ in range(round(_RATE * _TICK_SECONDS)):
            number += 1
            write(number, random.choice(tails))
            delays.acknowledged[number] = time.time()
        if now >= next_show:
            show(delays)
            next_show += 1
        time.sleep(max(now + _TICK_SECONDS - time.monotonic(), 0))
