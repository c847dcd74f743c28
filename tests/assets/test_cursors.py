"""A cursor that is not a sensor's own counts as none: the next tick is like the first one."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetMaterialization, DagsterInstance, SensorResult, SkipReason, build_sensor_context

from writetime_dagster.assets import replay, workqueue
from writetime_dagster.assets.copied_batches import CopiedBatches
from writetime_dagster.assets.cursors import of_cursor
from writetime_dagster.resources import DatabaseResource

KEY = replay.batches_key("flights")
OWN = {"newest": 1, "last": 3, "missing": [[2, 3]]}
FOREIGN = [
    "x",
    "",
    "{",
    "null",
    "7",
    '"2026-11-28"',
    "[]",
    "[[1, 2]]",
    "{}",
    "\0",
    '{"a": "b"}',
    '{"recorded": {}}',
    '{"stuck": [[], [], []], "at": 1e9}',
    *(json.dumps({name: value for name, value in OWN.items() if name != left}) for left in OWN),
    *(json.dumps(OWN | {name: value}) for name in OWN for value in (None, "1", 1.5, True, {}, -1)),
    *(
        json.dumps(OWN | {"missing": value})
        for value in (
            [2, 3],
            [[2]],
            [[3, 2]],
            [["2", "3"]],
            [[0, 1]],
            [[2, 3], [1, 1]],
            [[1, 10**12]],
            [[1, 2], [2]],
        )
    ),
    # Of a queue with more batches, of another instance, and of a queue of which nothing was copied yet.
    json.dumps(OWN | {"last": 4}),
    json.dumps(OWN | {"newest": 999}),
    json.dumps({"newest": 0, "last": 3, "missing": [[2, 3]]}),
    json.dumps({"newest": 0, "last": 3, "missing": []}),
    json.dumps({"newest": 0, "last": 2, "missing": [[1, 1]]}),
]


@pytest.fixture(autouse=True)
def queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three batches, and work that is stuck."""
    monkeypatch.setattr(replay, "extent", lambda *_: (1, 3))
    monkeypatch.setattr(replay, "advance", lambda *_: None)
    monkeypatch.setattr(workqueue, "_stuck", lambda _: (["q"], [], []))


@pytest.fixture(scope="module")
def instance() -> Iterator[DagsterInstance]:
    """The lake has the first batch."""
    with DagsterInstance.ephemeral() as made:
        made.add_dynamic_partitions("replay/flights", ["1", "2", "3"])
        made.report_runless_asset_event(AssetMaterialization(KEY, partition="1"))
        yield made


def ticked(instance: DagsterInstance, cursor: str | None) -> tuple[list[Mapping[str, str]], dict[str, Any]]:
    with build_sensor_context(instance, cursor, resources={"database": DatabaseResource()}) as context:
        answer = replay.new_batches("flights")(context)
    assert isinstance(answer, SensorResult), answer
    return [request.tags for request in answer.run_requests or []], json.loads(answer.cursor or "")


@pytest.mark.parametrize("cursor", FOREIGN)
def test_the_sensor_of_a_queue_reads_all_again(instance: DagsterInstance, cursor: str) -> None:
    first = ticked(instance, None)
    assert first[0] == [{replay.RANGE_START: "2", replay.RANGE_END: "3"}]
    assert ticked(instance, cursor) == first


def test_its_own_cursor_is_kept(instance: DagsterInstance) -> None:
    _, kept = ticked(instance, None)
    assert CopiedBatches.of_cursor(json.dumps(kept), 1, 3) == CopiedBatches(kept["newest"], 3, [2, 3])
    for own in ({"newest": 0, "last": 3, "missing": [[1, 3]]}, {"newest": 0, "last": 0, "missing": []}):
        assert CopiedBatches.of_cursor(json.dumps(own), 1, 3) is not None


@pytest.mark.parametrize("cursor", [*FOREIGN, json.dumps({"stuck": [["q"], [], []], "at": 9e99})])
def test_stuck_work_is_reported(instance: DagsterInstance, cursor: str) -> None:
    with build_sensor_context(instance, cursor, resources={"database": DatabaseResource()}) as context:
        assert not isinstance(workqueue.stuck_work(context), SkipReason)


@pytest.mark.parametrize("cursor", [*FOREIGN, '{"shop.orders": 5}', '{"shop.orders": null}'])
def test_digests_of_tables_are_texts(cursor: str) -> None:
    """The cursors of the sensors of schemas and backups."""
    found = of_cursor(cursor, dict[str, str])
    assert found is None or all(isinstance(value, str) for value in found.values())


def test_no_sensor_reads_json_of_its_cursor_in_another_way() -> None:
    for path in Path(replay.__file__).parent.glob("*.py"):
        assert "loads(context.cursor" not in path.read_text(), path
