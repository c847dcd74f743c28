"""A sensor skips a tick for a fault that may pass, and fails for one that only an operator can end."""

from typing import Any

import pytest
from dagster import SensorEvaluationContext, SkipReason, build_sensor_context

from writetime.core.config import InvalidSettings
from writetime.core.errors import Transient
from writetime_dagster.assets.automation import sensor_of


def ticked(error: Exception, fault: str | None) -> Any:
    """The answer of a sensor whose tick raises an error."""

    def tick(context: SensorEvaluationContext) -> SkipReason:
        raise error

    with build_sensor_context() as context:
        return sensor_of(30, "A sensor.", fault=fault)(tick)(context)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Transient("no broker answers"), "the lag cannot be read: no broker answers"),
        (ConnectionRefusedError(111, "Connection refused"), "the lag cannot be read: ConnectionRefusedError: [Errno"),
    ],
)
def test_a_fault_that_may_pass_skips_the_tick(error: Exception, reason: str) -> None:
    answer = ticked(error, "the lag cannot be read")
    assert isinstance(answer, SkipReason)
    assert str(answer.skip_message).startswith(reason)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (InvalidSettings("writetime.toml", ["kafka.port: unknown"]), "the lag cannot be read"),
        (Transient("no broker answers"), None),
    ],
    ids=["invalid settings", "a sensor that reads nothing"],
)
def test_other_faults_fail_the_tick(error: Exception, fault: str | None) -> None:
    with pytest.raises(type(error), match=str(error)):
        ticked(error, fault)
