"""The ticks of the sensor of a replay queue: the runs that it requests, and what a tick costs after a long history."""

from collections.abc import Iterator

import pytest
from dagster import AssetMaterialization, DagsterInstance, SensorResult, build_sensor_context

from tests.support.sqlite_steps import Steps, counted_steps
from writetime_dagster.assets import replay
from writetime_dagster.resources import DatabaseResource

QUEUE = "flights"
KEY = replay.batches_key(QUEUE)


@pytest.fixture
def steps() -> Iterator[Steps]:
    with counted_steps() as counted:
        yield counted


@pytest.fixture
def instance(steps: Steps) -> Iterator[DagsterInstance]:
    del steps
    with DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first and the newest batch of the queue."""
    found = [1, 0]
    monkeypatch.setattr(replay, "extent", lambda _settings, _queue: tuple(found))
    monkeypatch.setattr(replay, "advance", lambda *_args: None)
    return found


def tick(instance: DagsterInstance, cursor: str | None) -> tuple[list[tuple[int, int]], str | None]:
    """The runs that the sensor requests, and its cursor; its partitions are added."""
    with build_sensor_context(instance, cursor, resources={"database": DatabaseResource()}) as context:
        answer = replay.new_batches(QUEUE)(context)
    assert isinstance(answer, SensorResult), answer
    for request in answer.dynamic_partitions_requests or []:
        instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
    tags = [request.tags for request in answer.run_requests or []]
    return [(int(t[replay.RANGE_START]), int(t[replay.RANGE_END])) for t in tags], answer.cursor


def copy(instance: DagsterInstance, *numbers: int) -> None:
    """Record batches as a run does."""
    for n in numbers:
        instance.report_runless_asset_event(AssetMaterialization(KEY, partition=str(n)))


def test_a_tick_costs_the_same_after_many_batches(instance: DagsterInstance, batches: list[int], steps: Steps) -> None:
    """If nothing is new, and if one batch is."""
    costs: list[tuple[int, int]] = []
    cursor, done = None, 0
    for many in (20, 300):
        batches[1] = many
        _, cursor = tick(instance, cursor)
        copy(instance, *range(done + 1, many + 1))
        _, cursor = tick(instance, cursor)
        began = steps.count
        assert tick(instance, cursor)[0] == []
        idle = steps.count - began
        batches[1] = done = many + 1
        began = steps.count
        found, cursor = tick(instance, cursor)
        assert found == [(done, done)]
        costs.append((idle, steps.count - began))
        copy(instance, done)
    (idle, new), (idle_later, new_later) = costs
    assert idle > 0
    assert idle_later < 1.5 * idle
    assert new_later < 1.5 * new


def test_materializations_in_any_order_are_found(instance: DagsterInstance, batches: list[int]) -> None:
    batches[1] = 6
    found, cursor = tick(instance, None)
    assert found == [(1, 6)]
    copy(instance, 5, 2)
    found, cursor = tick(instance, cursor)
    assert found == [(1, 1)]
    copy(instance, 2, 1, 3)
    found, cursor = tick(instance, cursor)
    assert found == [(4, 4)]
    # Retention deleted batch 4.
    batches[:] = [5, 7]
    found, cursor = tick(instance, cursor)
    assert found == [(6, 7)]
    copy(instance, 6, 7)
    assert tick(instance, cursor)[0] == []


def test_all_is_read_again_if_the_known_record_is_gone(instance: DagsterInstance, batches: list[int]) -> None:
    """After a wipe of the asset, also if batches were copied since, and after a reset of the cursor."""
    batches[1] = 3
    _, cursor = tick(instance, None)
    copy(instance, 1, 2, 3)
    found, cursor = tick(instance, cursor)
    assert found == tick(instance, None)[0] == []
    instance.wipe_assets([KEY])
    assert tick(instance, cursor)[0] == [(1, 3)]
    copy(instance, 2)
    found, cursor = tick(instance, cursor)
    assert found == tick(instance, None)[0] == [(1, 1)]
