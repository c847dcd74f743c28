"""Handlers of replay queues that do not end, or whose code never runs; programs on real servers."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.settings import write_settings
from tests.support.waiting import wait_for
from writetime.clients.prepared_statements import UnknownWrite
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.replay import Publisher, Subscriber, lag
from writetime.replay.coordination import Moved

pytestmark = pytest.mark.long

HANDLERS = """
import ctypes, pathlib, subprocess, threading, time

def begin():
    (pathlib.Path(__file__).parent / "begun").touch()

def sleeps(batch):
    begin()
    time.sleep(600)

def waits_in_a_library(batch):
    begin()
    while True:
        ctypes.CDLL(None).sleep(600)

def waits_for_a_lock(batch):
    begin()
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def retries(batch):
    begin()
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass
"""
KINDS = "sleeps", "waits_in_a_library", "waits_for_a_lock", "retries"


@pytest.fixture
def published(replay_settings: Settings, queue: str) -> Settings:
    with Publisher(replay_settings, queue) as publisher:
        publisher.publish([b"x"])
    return replay_settings


def start(settings: Settings, queue: str, handler: str, folder: Path, **own: float) -> "subprocess.Popen[str]":
    """Start a processor, and wait for its handler."""
    replay = settings.replay.model_copy(update=own)
    write_settings(settings.model_copy(update={"replay": replay}), folder / "writetime.toml")
    (folder / "endless.py").write_text(HANDLERS)
    environment = {**os.environ, "PYTHONPATH": str(folder), "WRITETIME_CONFIG": str(folder / "writetime.toml")}
    command = [Path(sys.executable).with_name("writetime"), "replay", "work", queue, "p"]
    process = subprocess.Popen(
        [*command, "--handler", f"endless:{handler}"], env=environment, stderr=subprocess.PIPE, text=True
    )
    wait_for((folder / "begun").exists)
    return process


def end(process: "subprocess.Popen[str]") -> str:
    try:
        return process.communicate(timeout=60)[1]
    finally:
        process.kill()


@pytest.mark.parametrize("handler", KINDS)
def test_a_processor_obeys_sigterm_whatever_its_handler_does(
    published: Settings, queue: str, tmp_path: Path, handler: str
) -> None:
    process = start(published, queue, handler, tmp_path, drain_seconds=1.0)
    process.terminate()
    log = end(process)
    assert process.returncode == 1
    assert f"batch {queue}-1 is not done: its handler has not ended replay.drain_seconds (1 s) after the signal" in log
    assert [found.batches for found in lag(published, queue)] in ([], [1])


@pytest.mark.parametrize("handler", KINDS)
def test_a_second_sigterm_ends_a_processor_at_once(
    published: Settings, queue: str, tmp_path: Path, handler: str
) -> None:
    process = start(published, queue, handler, tmp_path, drain_seconds=500.0)
    process.terminate()
    time.sleep(1)
    assert process.poll() is None
    process.terminate()
    end(process)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_processor_ends_at_the_time_limit(published: Settings, queue: str, tmp_path: Path) -> None:
    process = start(published, queue, "waits_in_a_library", tmp_path, time_limit_seconds=1.0)
    log = end(process)
    assert process.returncode == 1
    assert f"batch {queue}-1 is not done: its handler has not ended within replay.time_limit_seconds (1 s)" in log


async def coroutine(_: Any) -> None:
    raise AssertionError("never runs")


def generator(_: Any) -> Iterator[None]:
    yield


class Later:
    async def __call__(self, _: Any) -> None:
        raise AssertionError("never runs")


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize(
    "handler", [coroutine, Later(), partial(coroutine), generator], ids=["function", "object", "partial", "generator"]
)
def test_a_handler_whose_code_does_not_run_completes_no_batch(
    published: Settings, queue: str, handler: Callable[[Any], Any]
) -> None:
    with Subscriber(published, queue, "p") as subscriber, pytest.raises(WritetimeError, match="which nothing runs"):
        subscriber.run(handler, until_idle=True)
    done: list[Any] = []
    with Subscriber(published, queue, "p") as subscriber:
        subscriber.run(done.append, until_idle=True)
    assert [batch.n for batch in done] == [1]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "error", [UnknownWrite("mine"), Moved("mine"), StopIteration(), GeneratorExit(), SystemExit(0)]
)
def test_an_error_of_a_handler_ends_the_run(published: Settings, queue: str, error: BaseException) -> None:
    def handle(_: Any) -> None:
        raise error

    with Subscriber(published, queue, "p") as subscriber, pytest.raises(type(error)):
        subscriber.run(handler=handle, until_idle=True)
