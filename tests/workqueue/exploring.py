"""Explores a model state by state, breadth first."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

_S = TypeVar("_S", bound=Hashable)


def explore_states(
    first: _S,
    steps: Callable[[_S], Iterable[_S]],
    fault: Callable[[_S], str | None],
    *,
    is_end: Callable[[_S], bool],
    may_go_on: Callable[[_S], bool] = lambda _: True,
) -> tuple[int, str | None]:
    """Visit every state; return how many there are, and the first fault: that of a state, or a state from which no end
    can be reached although it may go on.
    """
    numbers: dict[_S, int] = {first: 0}
    earlier: list[list[int]] = [[]]
    ends: list[int] = []
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        number = numbers[state]
        if wrong := fault(state):
            return len(numbers), wrong
        if is_end(state):
            ends.append(number)
        for following in steps(state):
            found = numbers.get(following)
            if found is None:
                found = numbers[following] = len(numbers)
                earlier.append([])
                waiting.append(following)
            earlier[found].append(number)
    met = _before(ends, earlier)
    stuck = next((state for state, number in numbers.items() if number not in met and may_go_on(state)), None)
    return len(numbers), None if stuck is None else f"nothing leads to the end from {stuck}"


def _before(ends: list[int], earlier: list[list[int]]) -> set[int]:
    """Return the states from which one of the ends can be reached."""
    met = set(ends)
    waiting = deque(ends)
    while waiting:
        for number in earlier[waiting.popleft()]:
            if number not in met:
                met.add(number)
                waiting.append(number)
    return met
