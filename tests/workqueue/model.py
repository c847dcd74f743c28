"""The protocol of one shard as a small model, explored state by state: `python -m tests.workqueue.model`.

There are two workers, one shard, and two items of one key in one partition. Each conditional write is a message that
may reach the database at any later moment, never, or several times. This is like a write whose answer is lost, and that
is sent again while the first one is still in flight. There is no time: a worker may take the shard over at any moment,
and may be paused between any two of its steps for any time, whether it owns the shard or not. So all possible effects
of leases and clocks are explored. With `cancels`, anyone may request at any moment that an item is cancelled. A worker
reads the requests when it opens the partition, and again at any moment. It begins no item that it knows to be
cancelled, and writes that a begun one is completed or cancelled. With `steps`, an item has a step. Its worker runs the
step, unless it has read that the step is recorded, and records it before it completes the item. With `events`, the
step of the first item waits for an event without a time limit, which anyone may send at any moment: the item sleeps, if
its worker has looked for the event in vain. The worker reads the events again at any moment after they have changed,
and wakes the item then, or when it has written that the item sleeps.

Checked in each state: an item's end is written once, its step is recorded once, no item sleeps whose worker has read
its event, no write replaces that of a later owner, no item is cancelled without a request, and the second item
begins only after the first is finished. Checked at the end: from each reachable
state, a state can be reached in which both items are finished.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.workqueue.exploring import explore_states

ITEMS = 2
NEW, PROCESSING, DONE, CANCELLED = 0, 1, 2, 3
# Not a status: the write of a step.
STEP = 4
SLEEPING = 5
FINAL = (DONE, CANCELLED)


class Write(NamedTuple):
    """A fenced batch on its way: applied only if the partition has its epoch and the `op` before its own."""

    worker: int
    epoch: int
    op: int
    item: int
    status: int


class Stamp(NamedTuple):
    """A new epoch on its way to the partition, in place of the one that was read."""

    worker: int
    epoch: int
    before: int


class Take(NamedTuple):
    """A take-over of the shard on its way."""

    worker: int
    epoch: int


Message = Write | Stamp | Take


@dataclass(frozen=True)
class Worker:
    """A worker's local state. `waits` is the message whose answer has not arrived."""

    phase: str = "idle"
    epoch: int = 0
    op: int = 0
    statuses: tuple[int, ...] = ()
    # The items whose steps are known to be recorded.
    steps: frozenset[int] = frozenset()
    requests: frozenset[int] = frozenset()
    # Whether it has read the event; has looked for it in vain for an item that runs; and lets the first item sleep.
    event: bool = False
    in_vain: bool = False
    asleep: bool = False
    waits: Message | None = None


@dataclass(frozen=True)
class State:
    """The database, the messages on their way to it, and the workers."""

    shard_owner: int | None = None
    shard_epoch: int = 0
    epoch: int = 0
    op: int = 0
    rows: tuple[int, ...] = (NEW,) * ITEMS
    ends: tuple[int, ...] = (0,) * ITEMS
    # How often the step of each item was recorded.
    steps: tuple[int, ...] = (0,) * ITEMS
    requests: frozenset[int] = frozenset()
    event: bool = False
    messages: frozenset[Message] = frozenset()
    workers: tuple[Worker, ...] = (Worker(), Worker())


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; a test removes one and checks that the model finds the fault."""

    epoch_fence: bool = True
    op_fence: bool = True
    cancels: bool = False
    steps: bool = False
    # Whether a worker reads the steps of earlier owners.
    reads_steps: bool = True
    events: bool = False
    # Whether a worker looks at the events that it has read once more when it has written that the item sleeps.
    looks_again: bool = True
    epochs: int = 3


def without_effect(state: State, message: Message) -> bool:
    """Whether a message can never be applied again: epochs and `op` only grow."""
    match message:
        case Take(_, epoch):
            return epoch <= state.shard_epoch
        case Stamp(_, _, before):
            return before < state.epoch
        case Write(_, epoch, op, _, _):
            return epoch < state.epoch or (epoch == state.epoch and op <= state.op)


def steps(state: State, rules: Rules) -> Iterator[State]:
    """Yield every state that may come next."""
    for message in state.messages:
        yield apply(state, message, rules)
    if rules.cancels:
        for item in range(ITEMS):
            if item not in state.requests and state.rows[item] not in FINAL:
                yield replace(state, requests=state.requests | {item})
    if rules.events and not state.event:
        yield replace(state, event=True)
    for number, worker in enumerate(state.workers):
        yield from act(state, number, worker, rules)


def apply(state: State, message: Message, rules: Rules) -> State:
    """Return the state after a conditional write has arrived."""
    match message:
        case Take(worker, epoch):
            if state.shard_epoch == epoch - 1:
                return replace(state, shard_owner=worker, shard_epoch=epoch)
        case Stamp(_, epoch, before):
            if state.epoch == before:
                return replace(state, epoch=epoch, op=0)
        case Write(_, epoch, op, item, status):
            if (not rules.epoch_fence or state.epoch == epoch) and (not rules.op_fence or state.op == op - 1):
                if status == STEP:
                    return replace(state, op=op, steps=_set(state.steps, item, state.steps[item] + 1))
                rows = _set(state.rows, item, status)
                ends = _set(state.ends, item, state.ends[item] + (status in FINAL))
                return replace(state, op=op, rows=rows, ends=ends)
    return state


def act(state: State, number: int, worker: Worker, rules: Rules) -> Iterator[State]:
    """Yield a worker's possible steps. It reads only when it is its turn, and its local state may be old by then."""

    def now(worker: Worker, *sent: Message) -> State:
        workers = tuple(worker if n == number else w for n, w in enumerate(state.workers))
        return replace(state, workers=workers, messages=state.messages | set(sent))

    # At any moment it may be killed; another with an empty memory takes its place.
    if worker != Worker():
        yield now(Worker())
    match worker.phase:
        case "idle":
            if state.shard_epoch < rules.epochs:
                take = Take(number, state.shard_epoch + 1)
                yield now(Worker("taking", take.epoch, waits=take), take)
        case "taking":
            # An answer, or a serial read after none: both are of the row as it is now.
            if (state.shard_owner, state.shard_epoch) == (number, worker.epoch):
                yield now(replace(worker, phase="taken", waits=None))
            elif state.shard_epoch >= worker.epoch:
                yield now(Worker())
        case "taken":
            if state.epoch > worker.epoch:
                yield now(Worker())
            elif state.epoch < worker.epoch:
                stamp = Stamp(number, worker.epoch, state.epoch)
                yield now(replace(worker, phase="stamping", waits=stamp), stamp)
        case "stamping":
            if state.epoch == worker.epoch:
                yield now(replace(worker, phase="stamped", waits=None))
            else:
                # It reads the partition again, which may have another epoch than it had.
                yield now(replace(worker, phase="taken", waits=None))
        case "stamped":
            steps = frozenset(i for i in range(ITEMS) if state.steps[i] and rules.reads_steps)
            begun = replace(worker, phase="working", statuses=state.rows, steps=steps, requests=state.requests)
            # The event is read after the states. An item that sleeps and has an event begins at once.
            yield now(replace(begun, event=state.event, asleep=state.rows[0] == SLEEPING and not state.event))
        case "working":
            yield from _work(state, number, worker, rules, now)
        case "writing":
            yield from _await(state, worker, rules, now)


def _work(state: State, number: int, worker: Worker, rules: Rules, now: Callable[..., State]) -> Iterator[State]:
    """Yield the steps of a worker that has nothing on its way."""
    item = next((i for i, s in enumerate(worker.statuses) if s not in FINAL), None)
    if worker.requests != state.requests:
        yield now(replace(worker, requests=state.requests))
    if item is None:
        yield now(Worker())
        return
    if worker.event != state.event:
        yield now(replace(worker, event=True, asleep=False))
    begun = worker.statuses[item] == PROCESSING and worker.op > 0
    ends = [(i, CANCELLED) for i in worker.requests if worker.statuses[i] not in FINAL]
    needs_step = begun and rules.steps and item not in worker.steps
    if needs_step and rules.events and item == 0 and not (worker.in_vain or state.event):
        yield now(replace(worker, in_vain=True))
    elif (begun or item not in worker.requests) and not (worker.asleep and item == 0):
        ran = SLEEPING if worker.in_vain else STEP if needs_step else DONE
        ends.append((item, ran if begun else PROCESSING))
    for place, status in ends:
        write = Write(number, worker.epoch, worker.op + 1, place, status)
        yield now(replace(worker, phase="writing", op=worker.op + 1, waits=write), write)


def _await(state: State, worker: Worker, rules: Rules, now: Callable[..., State]) -> Iterator[State]:
    """Yield the steps of a worker that waits for the answer of a write."""
    write = worker.waits
    assert isinstance(write, Write)
    if worker.event != state.event:
        yield now(replace(worker, event=True, asleep=False))
    if (state.epoch, state.op) == (worker.epoch, worker.op) or not rules.op_fence:
        if write.status == STEP:
            yield now(replace(worker, phase="working", steps=worker.steps | {write.item}, waits=None))
            return
        statuses = _set(worker.statuses, write.item, write.status)
        after = replace(worker, phase="working", statuses=statuses, waits=None)
        if write.item == 0:
            asleep = write.status == SLEEPING and not (worker.event and rules.looks_again)
            after = replace(after, in_vain=False, asleep=asleep)
        yield now(after)
    elif state.epoch != worker.epoch:
        yield now(Worker())


def _set(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*values[:place], value, *values[place + 1 :])


def fault(state: State) -> str | None:
    """Return the fault of a state."""
    if max(state.ends) > 1:
        return "an item was finished twice"
    if max(state.steps) > 1:
        return "a step was recorded twice"
    if any(worker.asleep and worker.event for worker in state.workers):
        return "a worker lets an item sleep whose event it has read"
    for item, status in enumerate(state.rows):
        if state.ends[item] and status not in FINAL:
            return "a finished item is no longer finished"
        if status == CANCELLED and item not in state.requests:
            return "an item was cancelled that nobody has cancelled"
        if item and status not in (NEW, CANCELLED) and state.rows[item - 1] not in FINAL:
            return "an item was begun before the one before it was finished"
    return None


def explore(rules: Rules) -> tuple[int, str | None]:
    """Visit every state; return how many there are, and the first fault."""

    def following(state: State) -> Iterator[State]:
        for reached in steps(state, rules):
            useless = set[Message]()
            if rules.epoch_fence and rules.op_fence:
                useless = {m for m in reached.messages if without_effect(reached, m)}
            yield replace(reached, messages=reached.messages - useless) if useless else reached

    return explore_states(
        State(),
        following,
        fault,
        is_end=lambda state: all(status in FINAL for status in state.rows),
        may_go_on=lambda state: state.shard_epoch < rules.epochs,
    )


if __name__ == "__main__":
    for epochs in (2, 3, 4):
        count, wrong = explore(Rules(epochs=epochs))
        print(f"{count:,} states with {epochs} take-overs: {wrong or 'no fault'}")
