"""Attacks the HTTP ingress: `python -m tests.attack.http [--seconds N | --rounds N] [--seed S] [--first N]`.

It starts ZooKeeper, Kafka, Cassandra and `writetime serve`, and sends calls that are valid, broken, slow, cut off or
too large, on several connections at once. Each call must have a documented answer, and the expected one if it is known.
The process must survive, use bounded memory, and answer valid calls of others meanwhile. At the end, the topic must
have exactly the acknowledged events, each once per acknowledgement, and the database the work items. Each input follows
from its number and the seed, and `--first` tries it again.
"""

import json
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from tests.attack import calls
from tests.attack.answers import Answer, Connection, Ending
from tests.attack.calls import CUT, DOCUMENTED, TOKEN, Input
from tests.attack.command import conclude, numbers, options
from tests.attack.report import Report
from tests.attack.serving import Ingress
from tests.attack.values import is_same
from tests.support.servers import running_servers
from writetime.clients.database import connect
from writetime.clients.kafka import end_offsets, messages_between
from writetime.core.config import Settings
from writetime.ingest.topics import ensure_ingest_topics
from writetime.servers.process import free_port

MIB = 1 << 20
# The number of connections at once, in addition to the probe.
_CONNECTIONS = 12
# A call has to arrive in this time, and its answer in that.
_REQUEST_SECONDS = 2.0
_ANSWER_SECONDS = 15.0
# How often it is looked whether others are served, and in which time they must be.
_PROBE_EVERY_SECONDS = 0.25
_PROBE_SECONDS = 5.0
# By how much the process may grow: bodies are bounded by `max_unfinished_bytes`, and parsed one at a time.
_MAX_GROWTH_MIB = 256


def attacked(settings: Settings) -> Settings:
    """Return settings of an ingress with tokens and small limits."""
    own = {
        "port": free_port(),
        "tokens": [SecretStr(TOKEN)],
        "request_seconds": _REQUEST_SECONDS,
        "max_unfinished_bytes": 32 * MIB,
    }
    return settings.model_copy(update={"ingest": settings.ingest.model_copy(update=own)})


class Attack:
    """One run against one process."""

    def __init__(self, settings: Settings, home: Path, seed: int) -> None:
        self.report = Report()
        self._settings = settings
        self._seed = seed
        self._ingress = Ingress(settings, home)
        self._lock = threading.Lock()
        self._firsts = end_offsets(settings, settings.ingest.topic)
        # Event ids by the number of their acknowledgements, the contents of valid calls' events, and ids of work items.
        self._acknowledged: Counter[str] = Counter()
        self._said: dict[str, dict[str, Any]] = {}
        self._items: set[str] = set()
        self._in_flight: set[int] = set()
        self._stopping = threading.Event()
        self._slowest_probe = 0.0

    def run(self, first: int, rounds: int | None, seconds: float | None) -> Report:
        """Try inputs, then compare the acknowledged events and items with the stored ones."""
        self._probe()
        before = self._ingress.memory()
        prober = threading.Thread(target=self._probe_on)
        prober.start()
        inputs = numbers(first, rounds, seconds)
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            workers = [pool.submit(self._work, inputs) for _ in range(_CONNECTIONS)]
            for worker in workers:
                worker.result()
        self._stopping.set()
        prober.join()
        self._check_process(before)
        self._check_topic()
        self._check_items()
        return self.report

    def _work(self, numbers: Iterator[int]) -> None:
        while True:
            with self._lock:
                number = next(numbers, None)
                if number is None:
                    return
                self._in_flight.add(number)
            sent = calls.make(self._seed, number)
            outcome = self._try(number, sent)
            with self._lock:
                self._in_flight.discard(number)
                self.report.add(sent.kind, outcome)
                if (code := self._ingress.ended()) is not None:
                    self._find(f"inputs {sorted(self._in_flight | {number})}: the process ended with {code}")
                    self._ingress.restart()

    def _find(self, finding: str) -> None:
        self.report.findings.append(finding[:1000])

    # --- one connection -----------------------------------------------------------------------------------------------

    def _try(self, number: int, sent: Input) -> str:
        """Send an input and read the answers; return its outcome."""
        try:
            with Connection(self._ingress.port, _ANSWER_SECONDS) as connection:
                if sent.leaves:
                    return self._leave(connection, sent)
                name = f"sentinel-{number}"
                # Twice, as a call that is cut short may take the first for its end.
                connection.send(*sent.pieces, (2 * calls.sentinel(name), 0.0))
                answers, ending = connection.answers(name)
        except OSError as e:
            self._note(number, sent, f"no connection: {e}")
            return "finding"
        with self._lock:
            faults = self._judge(sent, answers, ending)
            for fault in faults:
                self._find(f"input {number}, {sent.kind}: {fault}; sent {sent.data[:200]!r}")
        if faults:
            return "finding"
        statuses = {answer.status for answer in answers}
        if 202 in statuses:
            return "acknowledged"
        return "refused" if statuses - {200} else "answered" if statuses else "no call"

    def _note(self, number: int, sent: Input, fault: str) -> None:
        with self._lock:
            self._find(f"input {number}, {sent.kind}: {fault}; sent {sent.data[:200]!r}")

    def _leave(self, connection: Connection, sent: Input) -> str:
        connection.send(*sent.pieces)
        if sent.leaves == "reset":
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return "left"

    def _judge(self, sent: Input, answers: list[Answer], ending: Ending) -> list[str]:
        """Record the acknowledgements, and return those that are wrong."""
        faults = [f"an answer that is not documented: {a}" for a in answers if (a.fault or a.status not in DOCUMENTED)]
        if ending not in ("sentinel", "closed"):
            faults.append(f"{ending} after {len(answers)} answers")
        for answer in answers:
            if answer.status == 202:
                self._acknowledged.update(answer.event_ids)
                self._items.update(answer.item_ids)
        if sent.calls is None:
            return faults
        wrong = [
            f"answer {i}: {answer.status}, not one of {sorted(call.statuses)}: {answer.body[:200]!r}"
            for i, (call, answer) in enumerate(zip(sent.calls, answers, strict=False))
            if answer.status not in call.statuses
        ]
        is_cut_short = any(answer.status == 408 for answer in answers)
        if not wrong and not is_cut_short and len(answers) != len(sent.calls):
            wrong.append(f"{len(answers)} answers to {len(sent.calls)} calls")
        is_last = bool(sent.calls) and sent.calls[-1].is_last
        if not wrong and not is_cut_short and ending == "closed" and not is_last:
            wrong.append("closed, though nothing was wrong with the calls")
        for call, answer in zip(sent.calls, answers, strict=False):
            if answer.status == 202 and call.events and answer.event_ids:
                if len(answer.event_ids) != len(call.events):
                    wrong.append(f"{len(answer.event_ids)} event ids of {len(call.events)} events")
                self._said.update(zip(answer.event_ids, call.events, strict=False))
        return faults + wrong

    # --- others meanwhile ---------------------------------------------------------------------------------------------

    def _probe_on(self) -> None:
        while not self._stopping.wait(_PROBE_EVERY_SECONDS):
            self._probe()

    def _probe(self) -> None:
        """See whether another client is served."""
        body = b'{"userId":"probe","eventType":"probe"}'
        began = time.monotonic()
        try:
            with Connection(self._ingress.port, _ANSWER_SECONDS) as connection:
                connection.send((calls.framed(b"POST", b"/events", [calls.AUTHORIZED], body), 0.0))
                answer = connection.answer()
        except OSError as e:
            answer = f"no connection: {e}"
        took = time.monotonic() - began
        with self._lock:
            self._slowest_probe = max(self._slowest_probe, took)
            if isinstance(answer, Answer) and answer.status == 202:
                self._acknowledged.update(answer.event_ids)
            if took > _PROBE_SECONDS or not isinstance(answer, Answer) or answer.status != 202:
                self._find(f"inputs {sorted(self._in_flight)}: a sound call took {took:.1f} s: {answer}")

    # --- expectations -------------------------------------------------------------------------------------------------

    def _check_process(self, before: int) -> None:
        deadline = time.monotonic() + 10
        unfinished = 1.0
        while unfinished and time.monotonic() < deadline:
            time.sleep(0.1)
            unfinished = self._ingress.metric("writetime_ingress_unfinished_bytes")
        if unfinished:
            self._find(f"{unfinished:.0f} bytes of unfinished bodies are counted, and no connection is there")
        grown = (self._ingress.memory() - before) / MIB
        if grown > _MAX_GROWTH_MIB:
            self._find(f"the process grew by {grown:.0f} MiB")
        if code := self._ingress.stop():
            self._find(f"the process ended with {code}")
        log = self._ingress.log()
        if "Traceback" in log or "ERROR" in log:
            self._find(f"the log has {log[-900:]}")
        self.report.notes.append(f"slowest probe {self._slowest_probe:.1f} s, memory grew by {grown:.0f} MiB")

    def _check_topic(self) -> None:
        """Compare the topic with the acknowledgements. Truncated calls may be in the topic, or not."""
        topic = self._settings.ingest.topic
        found: Counter[str] = Counter()
        cut = 0
        for message in messages_between(self._settings, topic, self._firsts, end_offsets(self._settings, topic)):
            stored = json.loads(message.value() or b"")
            event_id = stored["eventId"]
            if stored["userId"].startswith(CUT):
                cut += 1
                continue
            found[event_id] += 1
            if (message.key() or b"").decode() != stored["userId"]:
                self._find(f"event {event_id} has the key {message.key()!r} and the user {stored['userId']!r}")
            said = self._said.get(event_id)
            if said is not None and not _is_as_said(said, stored):
                self._find(f"event {event_id} is {str(stored)[:300]}, and was sent as {str(said)[:300]}")
        acknowledged = self._acknowledged
        differing = (acknowledged - found) + (found - acknowledged)
        for event_id in sorted(differing)[:10]:
            times = f"{acknowledged[event_id]} times, and is there {found[event_id]} times"
            self._find(f"event {event_id} was acknowledged {times}")
        self.report.notes.append(
            f"{sum(found.values())} events in the topic, as acknowledged, and {cut} of calls that were cut off"
        )

    def _check_items(self) -> None:
        with connect(self._settings) as session:
            rows = session.execute(f"SELECT queue, item_id FROM {self._settings.cassandra.keyspace}.queue_items")
            found = {str(row.item_id) for row in rows if row.queue != CUT}
        for what, ids in (("lost", self._items - found), ("not acknowledged", found - self._items)):
            if ids:
                self._find(f"{len(ids)} work items are {what}: {sorted(ids)[:3]}")
        self.report.notes.append(f"{len(found)} work items in the database, as acknowledged")


def _is_as_said(said: dict[str, Any], stored: dict[str, Any]) -> bool:
    names = ("userId", "eventType")
    is_then = "timestamp" not in said or _millis(said["timestamp"]) == _millis(stored["timestamp"])
    return is_then and all(said[n] == stored[n] for n in names) and is_same(said.get("payload"), stored["payload"])


def _millis(text: str) -> int:
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def attack(
    settings: Settings,
    home: Path,
    seed: int = 1,
    *,
    rounds: int | None = None,
    seconds: float | None = None,
    first: int = 0,
) -> Report:
    """Try so many inputs, or for so many seconds, on servers that run; return the results."""
    return Attack(attacked(settings), home, seed).run(first, rounds, seconds)


@options(seconds=60.0)
def main(seconds: float | None, rounds: int | None, seed: int, first: int) -> None:
    """Attack the HTTP ingress, and print the tries and findings."""
    with tempfile.TemporaryDirectory(prefix="attack-") as folder, running_servers(Path(folder)) as settings:
        ensure_ingest_topics(settings)
        report = attack(settings, Path(folder), seed, rounds=rounds, seconds=seconds, first=first)
    conclude(report, "http", seed)


if __name__ == "__main__":
    main()
