"""A short attack on the readers of topics: it finds nothing, and it would find known faults."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.attack.landings import Landings
from tests.attack.messages import attack
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.landing import following, landing, tasks
from writetime.wire.publishing import CompactedTopic

pytestmark = pytest.mark.long


def test_no_message_harms_a_reader(settings: Settings, tmp_path: Path) -> None:
    report = attack(settings, tmp_path, seed=49, rounds=4)
    print(report.text())
    assert not report.findings, report.text()
    decoded, events = report.counts["changes.<table>, decoded"], report.counts["events of the sink"]
    assert min(decoded["read"], decoded["refused"], events["stored"], events["dead letter"]) > 0
    assert report.counts["changes.<table>"]["refused"] > 0
    assert report.counts.keys() >= {"writetime.schemas", "writetime.watermarks"}


def name_the_next(patch: pytest.MonkeyPatch) -> None:
    """Let errors name the message behind the one that is refused."""
    unreadable: Callable[..., WritetimeError] = tasks._unreadable

    def name(message: Any, error: Exception) -> WritetimeError:
        offset = message.offset()
        return WritetimeError(str(unreadable(message, error)).replace(f"offset {offset}:", f"offset {offset + 50}:"))

    patch.setattr(tasks, "_unreadable", name)


def let_watermarks_pass(patch: pytest.MonkeyPatch) -> None:
    """Let skipped messages hold no watermark."""
    patch.setattr(landing, "held_since", lambda _: 0)


def replace_the_first(patch: pytest.MonkeyPatch) -> None:
    """Let landing lose a message of each part. It counts the changes, so another message takes its place."""
    decoded = tasks._decoded

    def lose(decoder: Any, schema: Any, messages: list[Any]) -> Any:
        return decoded(decoder, schema, [*messages[1:], messages[-1]])

    patch.setattr(tasks, "_decoded", lose)


def stop_all(patch: pytest.MonkeyPatch) -> None:
    """Let a message that cannot be read stop the reader of a compacted topic."""
    read_on = CompactedTopic.read_on

    def fail(topic: CompactedTopic[Any]) -> list[tuple[int, Any]]:
        found = read_on(topic)
        if topic.skipped:
            raise ValueError("it cannot be read")
        return found

    patch.setattr(CompactedTopic, "read_on", fail)


@pytest.mark.parametrize(
    ("break_it", "topic", "found"),
    [
        (name_the_next, "changes.<table>", "a sound message is refused"),
        (let_watermarks_pass, "changes.<table>", "the watermark is"),
        (replace_the_first, "changes.<table>", "are missing"),
        (stop_all, "writetime.schemas", "are missing|no table is landed"),
    ],
)
def test_the_attack_finds_known_faults(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, break_it: Callable[..., None], topic: str, found: str
) -> None:
    for name in ("PAUSE_SECONDS", "SET_ASIDE_SECONDS", "REPORT_SECONDS"):
        monkeypatch.setattr(following, name, getattr(following, name))
    monkeypatch.setattr(landing, "WATERMARK_MICROS", landing.WATERMARK_MICROS)
    landings = Landings(settings)
    trials = (run for _, target, run in landings.trials(1, 0, 20, None) if target == topic)
    break_it(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        next(trials)()
