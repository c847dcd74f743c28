"""The alerts of a step that fails: one per lasting fault, regardless of earlier faults."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from tests.support.waiting import wait_for
from tests.support.webhooks import receiving
from writetime.core.config import Alerts, Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.follow.steps import Step
from writetime.view.expected_rows import Unexpected

AWAY = Transient("no broker answers")


@pytest.fixture
def posted() -> Iterator[tuple[Step, list[dict[str, Any]]]]:
    """A step, and the alerts that it posts."""
    with receiving() as (url, posted):
        yield Step(Settings(alerts=Alerts(webhook=SecretStr(f"{url}token"))), "view", "k.t", 0.0), posted


@pytest.mark.parametrize(
    ("faults", "alerted"),
    [
        ([AWAY, AWAY], []),
        ([AWAY, RuntimeError("a bug"), RuntimeError("a bug")], ["RuntimeError: a bug"]),
        ([RuntimeError("a bug"), AWAY, RuntimeError("a bug")], ["RuntimeError: a bug"]),
        (
            [RuntimeError("a bug"), WritetimeError("rebuild it"), RuntimeError("a bug")],
            ["RuntimeError: a bug", "rebuild it"],
        ),
        ([WritetimeError("offset 7 of part-1f.parquet"), WritetimeError("offset 12 of part-2e.parquet")], None),
        ([Unexpected("1 of 2 rows, e.g. ann"), AWAY, Unexpected("2 of 4 rows, e.g. ben")], None),
        ([RuntimeError("a bug"), None, RuntimeError("a bug")], ["RuntimeError: a bug"] * 2),
    ],
)
def test_each_lasting_fault_is_alerted_once(
    posted: tuple[Step, list[dict[str, Any]]], faults: list[Exception | None], alerted: list[str] | None
) -> None:
    """None for a fault is an attempt that succeeds; None for the alerts is the first fault alone."""
    step, sent = posted
    for fault in faults:
        assert step.attempt(lambda fault=fault: raised(fault)) == (fault is None)
    # Each alert is sent by a thread of its own.
    wait_for(lambda: "alert" not in [thread.name for thread in threading.enumerate()])
    lines = [line for alert in sent for line in alert["lines"]]
    assert sorted(lines) == sorted([str(faults[0])] if alerted is None else alerted)
    assert {alert["title"] for alert in sent} <= {"k.t: view fails, and is retried"}


def raised(fault: Exception | None) -> int:
    if fault is not None:
        raise fault
    return 1
