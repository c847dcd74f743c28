"""Handlers that do not end, or end in any way, never stop the worker; programs on a real database."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.sinks import to_toml
from tests.workqueue.conftest import with_queue
from tests.workqueue.working import states, until, until_stored
from writetime.core.config import Settings
from writetime.workqueue import Enqueuer, NewItem

pytestmark = pytest.mark.long

HANDLERS = """
import asyncio, json, pathlib, threading, time
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).parent
POOL = ThreadPoolExecutor()

def begin(item):
    with (HERE / "begun").open("a") as file:
        print(json.dumps([item.payload, item.attempt]), file=file)
    return isinstance(item.payload, int)

def sleeps(item):
    begin(item) or time.sleep(600)

def waits_for_another_thread(item):
    begin(item) or POOL.submit(time.sleep, 600).result()

async def blocks(item):
    begin(item) or time.sleep(600)

async def awaits(item):
    begin(item) or await asyncio.sleep(600)

async def swallows(item):
    while not begin(item):
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

async def waits_for_a_thread(item):
    begin(item) or await asyncio.to_thread(time.sleep, 600)

async def leaves_a_task(item):
    asyncio.create_task(swallows(item))
    begin(item) or await asyncio.sleep(600)

def returns_late(item):
    if not begin(item) and item.attempt == 1:
        time.sleep(20)
    return item.attempt
"""
KINDS = "sleeps", "waits_for_another_thread", "blocks", "awaits", "swallows", "waits_for_a_thread", "leaves_a_task"


class Program:
    """`writetime work` with one of the handlers above."""

    def __init__(self, settings: Settings, queue: str, handler: str, folder: Path) -> None:
        (folder / "writetime.toml").write_text(to_toml(settings))
        (folder / "endless.py").write_text(HANDLERS)
        self._begun = folder / "begun"
        command = [Path(sys.executable).with_name("writetime"), "work", "--queue", queue, "--handler"]
        environment = {**os.environ, "PYTHONPATH": str(folder), "WRITETIME_CONFIG": str(folder / "writetime.toml")}
        self.process = subprocess.Popen(
            [*command, f"endless:{handler}"], env=environment, stderr=subprocess.PIPE, text=True
        )

    def begun(self) -> list[Any]:
        return [json.loads(line) for line in self._begun.read_text().splitlines()] if self._begun.exists() else []

    def end(self, seconds: float = 60) -> str:
        """Wait for the end; return the log."""
        try:
            return self.process.communicate(timeout=seconds)[1]
        finally:
            self.process.kill()


def enqueue(settings: Settings, queue: str, *payloads: Any) -> None:
    with Enqueuer(settings) as enqueuer:
        enqueuer.enqueue_many(queue, [NewItem(payload, "k" if payload == "hang" else None) for payload in payloads])


def owners(settings: Settings, queue: str) -> set[str | None]:
    from writetime.clients import database

    with database.connect(settings) as session:
        rows = session.execute(
            f"SELECT owner FROM {settings.cassandra.keyspace}.queue_shards WHERE queue = %s", [queue]
        )
        return {row.owner for row in rows}


@pytest.mark.parametrize("handler", KINDS)
def test_a_worker_obeys_sigterm_whatever_its_handler_does(
    queue_settings: Settings, jobs: str, tmp_path: Path, handler: str
) -> None:
    settings = with_queue(queue_settings, jobs, {"shards": 1}, drain_seconds=1.0)
    enqueue(settings, jobs, "hang")
    program = Program(settings, jobs, handler, tmp_path)
    until(lambda: len(program.begun()) > 0)
    program.process.terminate()
    # Drain, release, and the pause for threads; the lease is 15 s.
    began = time.monotonic()
    program.end()
    assert program.process.returncode == 0
    assert time.monotonic() - began < 40
    # No other worker has to wait for the end of the lease.
    assert owners(settings, jobs) == {None}


@pytest.mark.parametrize("handler", ["sleeps", "blocks", "swallows"])
def test_a_second_sigterm_ends_a_worker_at_once(
    queue_settings: Settings, jobs: str, tmp_path: Path, handler: str
) -> None:
    settings = with_queue(queue_settings, jobs, {"shards": 1}, drain_seconds=500.0)
    enqueue(settings, jobs, "hang")
    program = Program(settings, jobs, handler, tmp_path)
    until(lambda: len(program.begun()) > 0)
    program.process.terminate()
    time.sleep(1)
    assert program.process.poll() is None
    program.process.terminate()
    program.end()
    assert program.process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("handler", [kind for kind in KINDS if kind != "blocks"])
def test_an_item_that_hangs_fails_at_its_limit_and_the_others_continue(
    queue_settings: Settings, jobs: str, tmp_path: Path, handler: str
) -> None:
    own = {"shards": 1, "concurrency": 1, "max_attempts": 2, "time_limit_seconds": 1.0}
    settings = with_queue(queue_settings, jobs, own, threads=3, drain_seconds=1.0)
    enqueue(settings, jobs, "hang", 1, 2, 3)
    program = Program(settings, jobs, handler, tmp_path)
    try:
        until_stored(
            lambda: sorted(row.status for row in states(settings, jobs).values()) == ["COMPLETED"] * 3 + ["DEAD"]
        )
        [error] = [row.error for row in states(settings, jobs).values() if row.error]
        assert error == "the handler did not end within 1 s, the time limit of its queue"
    finally:
        program.process.terminate()
    program.end()
    assert program.process.returncode == 0


@pytest.mark.parametrize(("of_queue", "of_item"), [(600.0, 1.0), (1.0, 600.0)])
def test_the_limit_of_an_item_replaces_that_of_its_queue(
    queue_settings: Settings, jobs: str, tmp_path: Path, of_queue: float, of_item: float
) -> None:
    own = {"shards": 1, "max_attempts": 1, "time_limit_seconds": of_queue}
    settings = with_queue(queue_settings, jobs, own, drain_seconds=1.0)
    with Enqueuer(settings) as enqueuer:
        limited = enqueuer.enqueue(jobs, "hang", time_limit_seconds=of_item)
        neighbour = enqueuer.enqueue(jobs, "hang")
    ends, stays = (limited, neighbour) if of_item < of_queue else (neighbour, limited)
    program = Program(settings, jobs, "awaits", tmp_path)
    try:
        until_stored(lambda: (found := states(settings, jobs)).keys() >= {ends} and found[ends].status == "DEAD")
        found = states(settings, jobs)
        whose = "item" if of_item < of_queue else "queue"
        assert found[ends].error == f"the handler did not end within 1 s, the time limit of its {whose}"
        assert (found[stays].status, found[stays].error) == ("PROCESSING", None)
    finally:
        program.process.terminate()
    program.end()
    assert program.process.returncode == 0


@pytest.mark.parametrize(
    ("handler", "text"), [("sleeps", "handlers still run"), ("blocks", "event loop of all async handlers is blocked")]
)
def test_a_worker_without_threads_for_its_handlers_ends_with_an_error(
    queue_settings: Settings, jobs: str, tmp_path: Path, handler: str, text: str
) -> None:
    own = {"shards": 1, "max_attempts": 100, "time_limit_seconds": 1.0}
    settings = with_queue(queue_settings, jobs, own, threads=2, drain_seconds=1.0)
    enqueue(settings, jobs, "hang")
    program = Program(settings, jobs, handler, tmp_path)
    log = program.end(120)
    assert program.process.returncode == 1
    assert "Error: the worker ends, and must be started again" in log
    assert text in log
    assert owners(settings, jobs) == {None}


def test_a_late_result_of_an_abandoned_handler_is_not_stored(
    queue_settings: Settings, jobs: str, tmp_path: Path
) -> None:
    own = {"shards": 1, "time_limit_seconds": 1.0}
    settings = with_queue(queue_settings, jobs, own)
    enqueue(settings, jobs, "hang")
    program = Program(settings, jobs, "returns_late", tmp_path)
    try:
        until_stored(lambda: [row.status for row in states(settings, jobs).values()] == ["COMPLETED"])
        time.sleep(15)
        [row] = states(settings, jobs).values()
        assert (row.result, row.attempts) == ("2", 2)
    finally:
        program.process.terminate()
    program.end()
    assert program.process.returncode == 0
