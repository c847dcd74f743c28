"""Steps of an item's handler. The result of a finished step is written with the item's state, under the fence of the
shard. So a step that is recorded is not run again, and a worker that has lost its shard records none. The end of a
sleep, and a received event, are steps, too. A handler that sleeps ends, and begins again later.

A handler runs on the event loop of coroutines, and the worker reads and writes on its own. So a step costs one write,
and items without steps cost nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from inspect import isawaitable
from typing import Any, Protocol

from writetime.core.errors import WritetimeError
from writetime.core.json_texts import from_json
from writetime.core.setting_types import YEAR_SECONDS

MAX_STEP_NAME_BYTES = 1024
# Names of steps have no line break, so these are others.
_SLEEP, _WAIT, _EVENT = "sleep\n", "wait\n", "event\n"


class StepRefused(WritetimeError):
    """The attempt no longer owns its item, because of its time limit, a cancel, or a lost shard. Its step is not run,
    or not recorded.
    """


class Asleep(BaseException):
    """Ends the attempt of a handler whose item sleeps until a time (milliseconds), or until an event is sent. `step` is
    the step that records this.
    """

    def __init__(self, until: int, step: str, event: str | None = None) -> None:
        super().__init__("the item sleeps")
        self.until = until
        self.step = step
        self.event = event


class StepStore(Protocol):
    """The steps of one item, for the worker's event loop."""

    async def load(self) -> Mapping[str, str]:
        """Return the results of the recorded steps, as JSON by their names."""
        ...

    async def record(self, name: str, result: str) -> None:
        """Record a finished step. Raises `ShardFenced` if the shard has another owner."""
        ...

    async def event(self, name: str) -> str | None:
        """Return the payload of an event, as JSON; None if there is none."""
        ...

    def now(self) -> int:
        """Return the database's time in milliseconds since 1970."""
        ...


class AttemptSteps:
    """The steps of one attempt."""

    def __init__(
        self,
        store: StepStore,
        held: Callable[[], bool],
        loop: asyncio.AbstractEventLoop,
        to_text: Callable[[Any], str | None],
    ) -> None:
        """Set up. `loop` is the worker's; `held` returns whether the attempt still owns the item."""
        self._store = store
        self._held = held
        self._loop = loop
        self._to_text = to_text

    async def run(self, name: str, work: Callable[[], Any]) -> Any:
        """Do as `Item.step`."""
        require_name(name)
        recorded = await self._on_worker(self._store.load())
        if name not in recorded:
            self._require_held(name)
            value = work()
            text = self._to_text(await value if isawaitable(value) else value)
            await self._on_worker(self._record(name, "null" if text is None else text))
        # As a later attempt gets it.
        return from_json(recorded[name])

    async def sleep(self, name: str, seconds: float) -> None:
        """Do as `Item.sleep`."""
        require_name(name)
        step = _SLEEP + name
        recorded = await self._on_worker(self._store.load())
        until = self._until(recorded.get(step), seconds)
        if self._store.now() < until:
            raise Asleep(until, step)

    async def wait_event(self, name: str, timeout_seconds: float) -> Any:
        """Do as `Item.wait_event`."""
        require_name(name)
        recorded = await self._on_worker(self._store.load())
        if _EVENT + name not in recorded:
            until = self._until(recorded.get(_WAIT + name), timeout_seconds)
            payload = await self._on_worker(self._store.event(name))
            if payload is None and self._store.now() < until:
                raise Asleep(until, _WAIT + name, name)
            # A late event changes nothing any more.
            await self._on_worker(self._record(_EVENT + name, "[]" if payload is None else f"[{payload}]"))
        found = from_json(recorded[_EVENT + name])
        if not found:
            raise TimeoutError(f"the event {name!r} was not sent in time")
        return found[0]

    def _until(self, recorded: str | None, seconds: float) -> int:
        """Return the end of a sleep, which is the recorded one if there is one."""
        if not 0 <= seconds <= YEAR_SECONDS:
            raise ValueError(f"an item sleeps for 0 to {YEAR_SECONDS} seconds (366 days)")
        return self._store.now() + round(seconds * 1000) if recorded is None else int(recorded)

    async def _record(self, name: str, text: str) -> None:
        self._require_held(name)
        await self._store.record(name, text)

    def _require_held(self, name: str) -> None:
        if not self._held():
            raise StepRefused(f"the step {name!r} is refused: its attempt no longer owns the item")

    async def _on_worker(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def require_name(name: str) -> None:
    """Raise `ValueError` if a step or an event cannot have this name."""
    if not 0 < len(name.encode()) <= MAX_STEP_NAME_BYTES or not name.isprintable():
        raise ValueError(f"the name of a step or event must be printable, and have 1 to {MAX_STEP_NAME_BYTES} bytes")
