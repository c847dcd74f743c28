"""Sends real flights through the whole platform under Dagster, on real servers, and checks that all numbers add up."""

import http.client
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from demo import board, enrichment, figures, live, programs, stages
from demo.dagster_run import Dagster, RunResult
from demo.page import write_page
from demo.report import Report, render
from demo.settings import number_of
from writetime import servers
from writetime.clients import database
from writetime.clients.kafka import client_config
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.ingest.topics import ensure_ingest_topics
from writetime.lake.followed_tables import cdc_statement, followed_tables
from writetime.runtime import jars
from writetime.servers.process import port_answers
from writetime.workqueue.inspect import inspecting
from writetime_dagster.assets.backfill import token_ranges
from writetime_dagster.assets.replay import RANGE_END, RANGE_START
from writetime_dagster.resources import KafkaResource

# Messages of a sender that bypasses the ingress, which would reject each of them.
BROKEN_MESSAGES = [
    b"not json",
    b'{"userId": "N14228"}',
    b"[]",
    None,
    b'{"eventId": "1", "userId": "", "eventType": ""}',
]
# Work items that are not flights. The handler gives them up.
BROKEN_ITEMS = [None, "UA1545", {"flight": "UA1545"}]


def main() -> int:
    """Run the demo. Return 0 if all numbers add up, the view is proven, and all checks passed."""
    flights, live_seconds = number_of("DEMO_FLIGHTS", 20_000), number_of("DEMO_LIVE_SECONDS", 20)
    settings = config.load()
    _require(settings)
    home = Path(os.environ["DAGSTER_HOME"])
    log_file, page = home / "demo.log", home.parent / "demo.html"
    logging.basicConfig(filename=log_file, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    jars.fetch(*settings.embedded.servers, "spark")
    steps: dict[str, float] = {}
    step = partial(_step, steps)
    with step(_start_of(settings.embedded.servers)):
        live_table = _start(settings)
    tables = _followed(settings)
    with programs.programs(log_file) as running:
        runs = _run(settings, log_file, running, tables, flights=flights, step=step)
        with step("counting in the data set, in the database and in the lake"):
            report = _report(settings, runs, tables, steps)
        rates = _rates(runs)
        print(f"  the page {page} shows the next {live_seconds} seconds")
        with (
            step("writing while `writetime follow` takes each write to row events and view"),
            programs.following(live_table, log_file),
        ):
            delays = live.run(settings, live_seconds, lambda now: write_page(report, rates, page, now, is_live=True))
    write_page(report, rates, page, delays)
    print(render(report, delays, {"page": page, "of each run": runs.verify.report.parent, "log": log_file}))
    return 0 if report.good else 1


@contextmanager
def _step(steps: dict[str, float], what: str) -> Iterator[None]:
    """Print a step while its `with` block runs, and add its duration (seconds) to the steps."""
    began = time.monotonic()
    print(f"- {what} ...", end="", flush=True)
    try:
        yield
    except BaseException:
        print()
        raise
    steps[what] = time.monotonic() - began
    print(f" {steps[what]:.0f} s", flush=True)


def _start_of(names: Sequence[str]) -> str:
    """Return the description of the first step. `names` are those of the embedded servers; there may be none."""
    if not names:
        return "making keyspaces, tables and topics"
    *first, last = ({"zookeeper": "ZooKeeper"}.get(name, name.capitalize()) for name in reversed(names))
    return f"starting {', '.join(first)} and {last}" if first else f"starting {last}"


# --- before ---------------------------------------------------------------------------------------------------------


def _require(settings: Settings) -> None:
    """Reject settings that the demo cannot run with."""
    if settings.ingest.mode == "upsert":
        raise WritetimeError("the demo counts duplicates, which mode upsert cannot count: set ingest.mode to lwt-batch")
    if port_answers(settings.ingest.port):
        raise WritetimeError(f"ingest.port {settings.ingest.port} is in use; stop that program (a `writetime serve`?)")
    entries = settings.tables.get(settings.cassandra.keyspace, {})
    if not {board.TABLE, settings.ingest.table} <= set(entries) or "flights" not in settings.replay.queues:
        raise WritetimeError(
            f"{config.config_path()} lacks the demo's tables or its replay queue: copy them from demo/writetime.toml"
        )


def _followed(settings: Settings) -> list[str]:
    tables, refused = followed_tables(settings)
    own = {f"{settings.cassandra.keyspace}.{name}" for name in (board.TABLE, settings.ingest.table)}
    for entry in refused:
        if entry.name in own:
            raise WritetimeError(f"the demo's table {entry.name} is refused: {entry.reason}")
    return [table.name for table in tables if table.name in own]


def _start(settings: Settings) -> str:
    """Start the embedded servers, and create what the demo uses on them. Return the table of the live part."""
    servers.up(settings)
    database.apply_schema(settings)
    ensure_ingest_topics(settings)
    board.ensure_board(settings)
    _capture(settings)
    return live.ensure_table(settings)


def _capture(settings: Settings) -> None:
    """Turn on the log of changes for the table of events. The board's table has it already."""
    with database.connect(settings) as session:
        table = f"{settings.cassandra.keyspace}.{settings.ingest.table}"
        session.execute(cdc_statement(settings, table), timeout=60)


# --- meanwhile ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Runs:
    """The runs of the jobs, and the time (milliseconds) and the number of stored events before them."""

    since: int
    rows_before: int
    replayed: RunResult
    ingest: list[RunResult]
    boarded: RunResult
    snapshot: list[RunResult]
    caught_up: RunResult
    verify: RunResult


def _run(
    settings: Settings,
    log_file: Path,
    running: Sequence[programs.Program],
    tables: list[str],
    *,
    flights: int,
    step: Callable[[str], AbstractContextManager[None]],
) -> _Runs:
    """Send flights through all jobs. `running` are the ingress, the worker and the agent."""
    ingress, worker, agent = running
    with Dagster(settings, log_file) as dagster:
        if _lag(settings):
            with step("storing the events that an earlier run left"):
                _ingest_all(settings, dagster)
        rows_before = _count_rows(settings)
        with inspecting(settings) as audit:
            since = audit.now()
        programs.wait_for_ingress(settings, ingress, log_file)
        with step(f"replaying {flights:,} real flights as HTTP events and work items (job replay_flights)"):
            ops = {op: {"config": {"flights": flights}} for op in ("sources__flights", "sources__flight_items")}
            replayed = dagster.launch("replay_flights", {"ops": ops})
        _send_broken_messages(settings)
        _enqueue_broken_items(settings)
        with step("storing, checking and committing the events (job ingest)"):
            ingest = _ingest_all(settings, dagster)
        with step("waiting until each flight has its plane and weather (`writetime work`)"):
            programs.wait_for_work(settings, worker, log_file)
        with step("publishing them as batches, and applying these to the departures board (job board)"):
            ops = {"demo__flight_batches": {"config": {"since_millis": since}}}
            boarded = dagster.launch("board", {"ops": ops})
        snapshot: list[RunResult] = []
        # A ScyllaDB node takes no snapshot over the network, but the CDC log of its tables has all writes.
        if settings.capture.source == "commitlog":
            with step("reading a snapshot of both tables into the lake (jobs snapshot and backfill)"):
                snapshot = _backfill(dagster)
        with step("waiting for the agent to publish the writes since then (`writetime agent`)"):
            programs.wait_for_capture(settings, tables, agent, log_file)
        with step("landing and merging them, renewing the views, publishing row events (job catch_up)"):
            caught_up = dagster.launch("catch_up")
        with step("proving the views against the database (job verify)"):
            verify = dagster.launch("verify")
        return _Runs(since, rows_before, replayed, ingest, boarded, snapshot, caught_up, verify)


def _ingest_all(settings: Settings, dagster: Dagster) -> list[RunResult]:
    """Run the job `ingest` until no event is left. A run stores at most ingest.max_events_per_run events."""
    results = [dagster.launch("ingest")]
    while _lag(settings):
        results.append(dagster.launch("ingest"))
    return results


def _backfill(dagster: Dagster) -> list[RunResult]:
    """Take a snapshot, and read all of its token ranges."""
    ranges = token_ranges.get_partition_keys()
    return [
        dagster.launch("snapshot"),
        dagster.launch("backfill", tags={RANGE_START: ranges[0], RANGE_END: ranges[-1]}),
    ]


def _lag(settings: Settings) -> int:
    return KafkaResource().progress(settings.ingest.topic, settings.ingest.group).total_lag


def _enqueue_broken_items(settings: Settings) -> None:
    connection = http.client.HTTPConnection(settings.ingest.host, settings.ingest.port, timeout=60)
    body = json.dumps([{"payload": payload} for payload in BROKEN_ITEMS])
    connection.request("POST", f"/queues/{enrichment.QUEUE}/items", body)
    response = connection.getresponse()
    if response.status != 202:
        raise WritetimeError(f"POST /queues/{enrichment.QUEUE}/items: {response.status} {response.read().decode()}")
    connection.close()


def _send_broken_messages(settings: Settings) -> None:
    producer = Producer(client_config(settings, acks="all"))
    errors: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error.str())

    for i, value in enumerate(BROKEN_MESSAGES):
        producer.produce(settings.ingest.topic, key=f"broken-{i}".encode(), value=value, on_delivery=delivered)
    if producer.flush(30) or errors:
        raise WritetimeError(f"{settings.ingest.topic} does not take messages: {errors or 'no answer for 30 s'}")


def _count_rows(settings: Settings) -> int:
    with database.connect(settings) as session:
        table = f"{settings.cassandra.keyspace}.{settings.ingest.table}"
        return database.count_rows(session, table, settings.ingest.partition_key)


def _report(settings: Settings, runs: _Runs, tables: list[str], steps: dict[str, float]) -> Report:
    """Count in the data set, in the database and in the lake."""
    account = enrichment.account(settings, runs.since)
    rows_added = _count_rows(settings) - runs.rows_before
    in_queue = runs.boarded.metadata["demo/flight_batches"]["flights_in_queue"]
    counted = {
        "data set": figures.published_figures(in_queue),
        "database": figures.database_figures(settings),
        "lake": figures.lake_figures(settings),
    }
    shown = [
        stages.ingested(runs.replayed, runs.ingest, rows_added, len(BROKEN_MESSAGES)),
        stages.worked(runs.replayed, account, len(BROKEN_ITEMS)),
        stages.replayed(runs.boarded, counted["database"]),
        *(stages.followed_table(settings, name, runs.snapshot, runs.caught_up, runs.verify) for name in tables),
    ]
    ran = [runs.replayed, *runs.ingest, runs.boarded, *runs.snapshot, runs.caught_up, runs.verify]
    checks = {name: all(run.checks.get(name, True) for run in ran) for run in ran for name in run.checks}
    return Report(shown, counted, checks, steps)


def _rates(runs: _Runs) -> dict[str, float]:
    events = [run.metadata["ingest/user_events"] for run in runs.ingest]
    landed: list[dict[str, Any]] = [of for name, of in runs.caught_up.metadata.items() if name.endswith("_changes")]
    return {
        "events acknowledged": runs.replayed.metadata["sources/flights"]["events_per_second"],
        "events stored": sum(e["messages"] for e in events) / sum(e["drain_seconds"] for e in events),
        "items enqueued": runs.replayed.metadata["sources/flight_items"]["items_per_second"],
        "flights published in batches": runs.boarded.metadata["demo/flight_batches"]["flights_per_second"],
        "flights applied to the board": runs.boarded.metadata["demo/board"]["flights_per_second"],
        "changes landed": sum(of["changes_landed"] for of in landed) / sum(of["landing_seconds"] for of in landed),
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WritetimeError as e:
        sys.exit(f"Error: {e}")
