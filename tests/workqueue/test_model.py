"""The model of the protocol has no fault, and it would show a fault: each fence is needed."""

from dataclasses import replace

import pytest

from tests.workqueue import slot_model
from tests.workqueue.model import Rules, explore

pytestmark = pytest.mark.slow


def test_no_state_of_the_protocol_is_wrong(is_long: bool) -> None:
    count, wrong = explore(Rules(epochs=3 if is_long else 2))
    assert wrong is None
    assert count > (10_000 if is_long else 1_000)


def test_no_state_is_wrong_if_items_are_cancelled() -> None:
    count, wrong = explore(Rules(epochs=2, cancels=True))
    assert wrong is None
    assert count > 2 * explore(Rules(epochs=2))[0]


def test_no_state_is_wrong_if_items_have_steps() -> None:
    for cancels in (False, True):
        count, wrong = explore(Rules(epochs=2, cancels=cancels, steps=True))
        assert wrong is None
        assert count > explore(Rules(epochs=2, cancels=cancels))[0]


@pytest.mark.parametrize("options", [{}, {"cancels": True}, {"steps": True}, {"steps": True, "events": True}])
@pytest.mark.parametrize("rules", [Rules(epochs=2, epoch_fence=False), Rules(epochs=2, op_fence=False)])
def test_without_a_fence_there_is_a_wrong_state(rules: Rules, options: dict[str, bool]) -> None:
    assert explore(replace(rules, **options))[1] is not None


def test_no_state_is_wrong_if_an_item_waits_for_an_event() -> None:
    for cancels in (False, True):
        count, wrong = explore(Rules(epochs=2, cancels=cancels, steps=True, events=True))
        assert wrong is None
        assert count > explore(Rules(epochs=2, cancels=cancels, steps=True))[0]


def test_a_worker_that_looks_for_an_event_only_once_misses_it() -> None:
    wrong = explore(Rules(epochs=2, steps=True, events=True, looks_again=False))[1]
    assert wrong == "a worker lets an item sleep whose event it has read"


def test_a_worker_that_reads_no_steps_of_others_repeats_one() -> None:
    assert explore(Rules(epochs=2, steps=True, reads_steps=False))[1] == "a step was recorded twice"


def test_no_slot_has_two_items_and_the_newest_has_one() -> None:
    count, wrong = slot_model.explore(slot_model.Rules())
    assert wrong is None
    assert count > 1_000


@pytest.mark.parametrize("rule", ["condition", "adopts", "looks"])
def test_without_a_rule_a_slot_is_wrong(rule: str) -> None:
    wrong = slot_model.explore(slot_model.Rules(**{rule: False}))[1]
    assert wrong is not None
    assert ("two items" in wrong) == (rule != "adopts")
