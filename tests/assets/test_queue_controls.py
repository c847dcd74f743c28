"""The job `control_queue`: each action of the launchpad is one call of the engine; others are refused."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from dagster import DagsterInvalidConfigError, ExecuteInProcessResult, Failure

from writetime_dagster.assets import workqueue
from writetime_dagster.resources import DatabaseResource

pytestmark = pytest.mark.slow

ITEM = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
CALLS = [
    ({"pause": {}}, ("pause", ["jobs", None], {}), {"changed": True}),
    ({"pause": {"key": "ada"}}, ("pause", ["jobs", "ada"], {}), {"changed": True}),
    ({"resume": {"key": "ada"}}, ("resume", ["jobs", "ada"], {}), {"changed": False}),
    ({"cancel_item": {"item_id": str(ITEM)}}, ("cancel", ["jobs", ITEM], {}), {"status": "cancelled"}),
    (
        {"cancel_items": {"key": "ada", "older_than_seconds": 60}},
        ("cancel_all", ["jobs"], {"key": "ada", "older_than_seconds": 60.0}),
        {"cancelling": 7},
    ),
    (
        {"cancel_items": {"all_items": True}},
        ("cancel_all", ["jobs"], {"key": None, "older_than_seconds": None}),
        {"cancelling": 7},
    ),
    ({"redrive": {"error": "Timeout"}}, ("redrive", ["jobs"], {"key": None, "error": "Timeout"}), {"redriven": 3}),
]
ANSWERS = {
    "pause": True,
    "resume": False,
    "cancel": SimpleNamespace(status="cancelled"),
    "cancel_all": 7,
    "redrive": 3,
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """The calls of the engine, without the settings."""
    made: list[tuple[str, list[Any], dict[str, Any]]] = []

    def answer(name: str) -> Any:
        def call(_settings: Any, *given: Any, **named: Any) -> Any:
            made.append((name, [*given], named))
            return ANSWERS[name]

        return call

    for name in ANSWERS:
        monkeypatch.setattr(workqueue, name, answer(name))
    return made


def control(action: dict[str, Any]) -> ExecuteInProcessResult:
    job = next(job for job in workqueue.definitions.jobs or () if job.name == "control_queue")
    config = {"ops": {"control_queue_op": {"config": {"queue": "jobs", "control": action}}}}
    return job.execute_in_process(config, resources={"database": DatabaseResource()})  # pyright: ignore


def test_an_action_is_one_call_whose_result_is_metadata(calls: list[Any]) -> None:
    for action, call, found in CALLS:
        events = control(action).all_events
        [output] = [event.event_specific_data for event in events if event.event_type_value == "STEP_OUTPUT"]
        assert calls == [call]
        metadata = {name: value.value for name, value in output.metadata.items()}  # pyright: ignore
        assert metadata == {"queue": "jobs", "action": next(iter(action)), **found}
        calls.clear()


def test_other_configurations_are_refused_before_anything_is_done(calls: list[Any]) -> None:
    for action in (
        {},
        {"pause": {}, "resume": {}},
        {"purge": {}},
        {"pause": {"error": "Timeout"}},
        {"redrive": {"older_than_seconds": 60}},
        {"cancel_item": {}},
    ):
        with pytest.raises(DagsterInvalidConfigError):
            control(action)
    with pytest.raises(Failure, match="name the items to cancel"):
        control({"cancel_items": {}})
    assert calls == []
