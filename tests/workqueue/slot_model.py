"""The items of a schedule's slots as a small model, explored state by state.

Any of two workers may look after the schedule at any moment, also both: a lease is not needed. It claims the name of
the newest slot by a conditional write, and then inserts the item that has the name, by a plain one. Each write is a
message that may reach the database at any later moment, never, or several times; workers are killed between any two
steps. Slots pass at any moment. At any moment, an item may become too old to be inserted, because its bucket may be
closed. By then no insert of it is on its way: they end much earlier. A worker then replaces it if it was not inserted.

Checked in each state: a slot has at most one item. Checked at the end: from each reachable state, a state can be
reached in which the newest slot has its item.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.workqueue.exploring import explore_states

SLOTS = 2


class Claim(NamedTuple):
    """A name on its way: applied if the name is free, or has the item `before`."""

    slot: int
    item: int
    before: int | None


class Insert(NamedTuple):
    """An item on its way."""

    slot: int
    item: int


Message = Claim | Insert


class Worker(NamedTuple):
    """A worker's local state: what it does for a slot, with the item that it has made or found."""

    phase: str = "idle"
    slot: int = 0
    item: int = 0
    before: int | None = None


@dataclass(frozen=True)
class State:
    """The database, the messages on their way to it, the workers, and the newest slot."""

    newest: int = 0
    names: tuple[int | None, ...] = (None,) * SLOTS
    items: frozenset[Insert] = frozenset()
    old: frozenset[int] = frozenset()
    made: int = 0
    messages: frozenset[Message] = frozenset()
    workers: tuple[Worker, ...] = (Worker(), Worker())


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; a test removes one and checks that the model finds the fault."""

    # Whether a name is claimed with a condition.
    condition: bool = True
    # Whether a worker inserts the item of another one that has the name.
    adopts: bool = True
    # Whether a worker looks for an old item before it replaces it.
    looks: bool = True
    most_items: int = 4


def steps(state: State, rules: Rules) -> Iterator[State]:
    """Yield every state that may come next."""
    if state.newest + 1 < SLOTS:
        yield replace(state, newest=state.newest + 1)
    for item in {item for item in state.names if item is not None} - state.old:
        left = {m for m in state.messages if not (isinstance(m, Insert) and m.item == item)}
        yield replace(state, old=state.old | {item}, messages=frozenset(left))
    for message in state.messages:
        yield _arrived(state, message, rules)
    for number, worker in enumerate(state.workers):
        yield from _act(state, number, worker, rules)


def _arrived(state: State, message: Message, rules: Rules) -> State:
    match message:
        case Claim(slot, item, before):
            if state.names[slot] == before or not rules.condition:
                return replace(state, names=tuple(item if s == slot else n for s, n in enumerate(state.names)))
        case Insert():
            return replace(state, items=state.items | {message})
    return state


def _act(state: State, number: int, worker: Worker, rules: Rules) -> Iterator[State]:
    """Yield a worker's possible steps."""

    def now(worker: Worker, *sent: Message, made: int = 0) -> State:
        workers = tuple(worker if n == number else w for n, w in enumerate(state.workers))
        return replace(state, workers=workers, messages=state.messages | set(sent), made=state.made + made)

    if worker != Worker():
        yield now(Worker())
    slot = worker.slot
    match worker.phase:
        case "idle":
            if state.made < rules.most_items:
                item = state.made
                yield now(Worker("claiming", state.newest, item), Claim(state.newest, item, None), made=1)
        case "claiming":
            # An answer, or that of a repeated claim: both are of the name as it is now.
            name = state.names[slot]
            if name is None or (name == worker.before and rules.condition):
                return
            if name == worker.item or (rules.adopts and name not in state.old):
                yield now(worker._replace(phase="inserting", item=name))
            elif name in state.old and (not rules.looks or Insert(slot, name) not in state.items):
                if rules.adopts and state.made < rules.most_items:
                    item = state.made
                    yield now(Worker("claiming", slot, item, name), Claim(slot, item, name), made=1)
            else:
                yield now(Worker())
        case "inserting":
            # The time limit of the call ends before its item is old.
            if worker.item not in state.old:
                insert = Insert(slot, worker.item)
                yield now(worker, insert)
                if insert in state.items:
                    yield now(Worker())


def _fault(state: State) -> str | None:
    slots = [item.slot for item in state.items]
    return "a slot has two items" if len(slots) != len(set(slots)) else None


def _is_applied(state: State, message: Message) -> bool:
    """Whether a message has no effect any more."""
    match message:
        case Claim(slot, _, before):
            return state.names[slot] != before
        case Insert():
            return message in state.items


def explore(rules: Rules) -> tuple[int, str | None]:
    """Visit every state; return how many there are, and the first fault."""

    def following(state: State) -> Iterator[State]:
        for reached in steps(state, rules):
            left = frozenset(m for m in reached.messages if not rules.condition or not _is_applied(reached, m))
            yield replace(reached, messages=left)

    return explore_states(
        State(),
        following,
        _fault,
        is_end=lambda state: state.newest in {item.slot for item in state.items},
        # The number of items that workers make is limited only here. They need two: one for the claim, and one that
        # replaces an old one.
        may_go_on=lambda state: state.made + 2 <= rules.most_items,
    )
