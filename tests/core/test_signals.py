"""Services end at a signal, at any moment."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from writetime.core.signals import stopped_by_signal


@pytest.fixture(autouse=True)
def in_a_terminal() -> Iterator[None]:
    """A program whose parent ignores no signal, as `nohup` does."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noticed_while_the_program_begins_to_wait_for_it(number: signal.Signals) -> None:
    """`Event.wait` and `Event.set` take the same lock, and a handler runs in the thread that waits."""
    stop = stopped_by_signal()
    # As it is within `wait`.
    with vars(stop)["_cond"]:
        signal.raise_signal(number)
    assert stop.wait(10)


def test_nohup_lets_a_service_outlive_its_terminal() -> None:
    program = (
        "import os, signal\n"
        "from writetime.core.signals import stopped_by_signal\n"
        "stop = stopped_by_signal()\n"
        "os.kill(os.getpid(), signal.SIGHUP)\n"
        "print(stop.wait(0.5))\n"
    )
    for command, stops in ([], "True"), (["nohup"], "False"):
        ended = subprocess.run([*command, sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert ended.stdout.strip() == stops
