"""The guarantees of the sink's modes, checked with CQL, and the faults that must stop it instead of losing events."""

import gc
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from cassandra import InvalidRequest
from confluent_kafka import Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.ingest.sinking import AT, an_event, dead_letters, produce, rows, run_once, with_ingest
from tests.support.waiting import PATIENCE_SECONDS, wait_for
from writetime.clients.consumer_groups import commit_offsets
from writetime.clients.database import connect
from writetime.clients.kafka import client_config, delete_topics
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.waiting import wait_until
from writetime.ingest import drain, event_pipeline, event_sink, writer
from writetime.ingest.event import Event
from writetime.ingest.topics import ensure_ingest_topics
from writetime.ingest.writer import EventWriter, Receipt

MODES = ["lwt", "lwt-batch", "upsert"]


@pytest.mark.parametrize("mode", ["lwt", "lwt-batch"])
def test_conditional_modes_keep_the_first_content_and_refuse_another(settings: Settings, mode: str) -> None:
    settings = with_ingest(settings, mode=mode)
    other_type, other = replace(an_event(1), event_type="other"), an_event(1, '"second"')
    produce(settings, [e.value() for e in (an_event(1), an_event(2), other, an_event(1), an_event(3), other_type)])
    receipts = run_once(settings)
    assert [r["outcome"] for r in receipts] == ["stored", "stored", "dead", "duplicate", "stored", "dead"]
    origin = f"{settings.ingest.topic}/0@0"
    assert receipts[3]["reason"] == f"stored by {origin}"
    assert {receipts[i]["reason"] for i in (2, 5)} == {
        f"{origin} has stored an event with this id, and another event type or payload"
    }
    assert rows(settings) == [(UUID(int=1), '"first"'), (UUID(int=2), '"first"'), (UUID(int=3), '"first"')]


@pytest.mark.parametrize("first", ['"a"', '"b"'])
def test_upsert_stamps_event_time_and_keeps_the_larger_content_in_any_order(settings: Settings, first: str) -> None:
    settings = with_ingest(settings, mode="upsert")
    produce(settings, [an_event(1, first).value(), an_event(1, '"b"' if first == '"a"' else '"a"').value()])
    assert [r["outcome"] for r in run_once(settings)] == ["stored", "stored"]
    assert rows(settings, "payload, writetime(payload)") == [('"b"', int(AT.timestamp()) * 1_000_000 + 123_000)]


@pytest.mark.parametrize("mode", MODES)
def test_reading_a_message_again_is_not_a_duplicate(settings: Settings, mode: str) -> None:
    settings = with_ingest(settings, mode=mode)
    produce(settings, [an_event(n).value() for n in range(50)])
    first = run_once(settings, commit=False)
    assert [r["outcome"] for r in first] == ["stored"] * 50
    assert run_once(settings) == first
    assert run_once(settings) == []


@pytest.mark.parametrize("bucket", ["none", "day"])
def test_timestamps_at_the_ends_of_the_calendar_are_stored(
    settings: Settings, pytestconfig: pytest.Config, bucket: str
) -> None:
    ends = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)]
    produce(settings, [an_event(n, at=at).value() for n, at in enumerate(ends)])
    for mode in MODES:
        found = run_once(with_ingest(settings, mode=mode, bucket=bucket), commit=False)
        if pytestconfig.getoption("--scylla") and mode == "upsert" and found[1]["outcome"] == "dead":
            # ScyllaDB refuses a write time that is so far ahead, but not in a batch.
            assert "more than 3 days into the future" in found[1]["reason"]
            found = found[:1]
        assert {r["outcome"] for r in found} == {"stored"}, (mode, [r["reason"] for r in found])


@pytest.mark.cassandra_only("the embedded database has segments of 8 MiB; those of ScyllaDB take larger rows")
def test_a_row_that_the_database_refuses_is_a_dead_letter_and_its_neighbours_are_stored(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without its own limit the sink hears the database's: a mutation of more than half a commit log segment. A
    # conditional write of that size is answered with timeouts, which is why the sink has a limit.
    monkeypatch.setattr(writer, "MAX_PAYLOAD_BYTES", 2**30)
    monkeypatch.setattr(writer, "MAX_BATCH_BYTES", 2**30)
    with connect(settings) as session:
        own = with_ingest(settings, mode="upsert")
        sink_writer = EventWriter(session, own)
        for number in range(5):
            payload = f'"{"x" * 4_300_000}"' if number == 2 else "1"
            sink_writer.submit(an_event(number, payload), 0, number, f"origin@{number}")
        done = _poll_until_done(sink_writer, 5)
    assert {number: outcome for number, (outcome, _) in done.items() if outcome != "stored"} == {2: "dead"}
    assert "the database refuses the row" in done[2][1]
    assert [event_id.int for event_id, _ in rows(settings)] == [0, 1, 3, 4]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", ["DROP TABLE {}", "ALTER TABLE {} DROP payload"])
def test_a_table_that_changes_under_the_sink_stops_it(settings: Settings, mode: str, change: str) -> None:
    with connect(settings) as session:
        sink_writer = EventWriter(session, with_ingest(settings, mode=mode))
        sink_writer.submit(an_event(1), 0, 0, "origin@0")
        assert _poll_until_done(sink_writer, 1)[0][0] == "stored"
        session.execute(change.format(f"{settings.cassandra.keyspace}.user_events"), timeout=60)
        for number in range(2, 5):
            sink_writer.submit(an_event(number), 0, number, f"origin@{number}")
        with pytest.raises(WritetimeError, match="refuses all writes"):
            _poll_until_done(sink_writer, 3)


def test_a_missing_topic_or_table_is_reported_at_once(settings: Settings) -> None:
    with pytest.raises(WritetimeError, match=r"no-such-topic does not exist.*writetime init"):
        event_sink.run(with_ingest(settings, topic="no-such-topic"), threading.Event())
    elsewhere = settings.model_copy(update={"cassandra": settings.cassandra.model_copy(update={"keyspace": "nowhere"})})
    with pytest.raises(WritetimeError, match=r"nowhere\.user_events is not as expected.*writetime init"):
        event_sink.run(elsewhere, threading.Event())


def test_messages_lost_to_retention_stop_the_sink_until_an_operator_decides(settings: Settings) -> None:
    topic, group = settings.ingest.topic, settings.ingest.group
    produce(settings, [an_event(n).value() for n in range(10)])
    commit_offsets(settings, topic, group, {0: 2})
    admin = AdminClient(client_config(settings))
    for future in admin.delete_records([TopicPartition(topic, 0, 5)]).values():
        future.result(15)
    with pytest.raises(WritetimeError, match=f"{topic}/0: offsets 2 to 4 were deleted by retention"):
        event_sink.run(settings, threading.Event())
    with pytest.raises(WritetimeError, match=f"{topic}/0: offsets 2 to 4 were deleted by retention"):
        drain.plan(settings)
    commit_offsets(settings, topic, group, {0: 5})
    assert len(run_once(settings)) == 5


def test_topics_that_were_lost_and_made_again(settings: Settings) -> None:
    """By the steps of docs/backup.md: clients repeat their calls, and nothing is stored twice."""
    ingest = settings.ingest
    produce(settings, [an_event(n).value() for n in range(3)])
    assert [r["outcome"] for r in run_once(settings)] == ["stored"] * 3
    delete_topics(settings, [ingest.topic, ingest.dead_letter_topic])
    with pytest.raises(WritetimeError, match=f"{ingest.topic} does not exist.*writetime init"):
        event_sink.run(settings, threading.Event())
    assert set(ensure_ingest_topics(settings)) == {ingest.topic, ingest.dead_letter_topic}
    # The group's offsets were deleted with the topic, so the first messages count, too.
    produce(settings, [an_event(n).value() for n in (3, 4, 0, 1, 2)])
    assert [r["outcome"] for r in run_once(settings)] == ["stored"] * 2 + ["duplicate"] * 3
    assert [event_id.int for event_id, _ in rows(settings)] == list(range(5))


@pytest.mark.parametrize("program", ["sink", "drain"])
def test_reading_pauses_while_unfinished_messages_have_too_many_bytes(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    values = [an_event(n, f'"{"x" * 1_000}"', user=f"u{n}").value() for n in range(100)]
    monkeypatch.setattr(event_pipeline, "MAX_UNFINISHED_BYTES", 10 * len(values[-1]))
    for module in (drain, event_sink):
        monkeypatch.setattr(module, "FETCH_MESSAGES", 2)
    most: list[int] = []
    take = event_pipeline.EventPipeline.take

    def counting(self: event_pipeline.EventPipeline, message: Message) -> None:
        take(self, message)
        most.append(self.unfinished)

    monkeypatch.setattr(event_pipeline.EventPipeline, "take", counting)
    produce(settings, values)
    if program == "drain":
        assert [r["outcome"] for r in run_once(settings)] == ["stored"] * 100
    else:
        stop = threading.Event()
        thread = threading.Thread(target=event_sink.run, args=(settings, stop))
        thread.start()
        try:
            wait_for(lambda: len(rows(settings)) == 100, 0.1)
        finally:
            stop.set()
            thread.join()
    assert 2 < max(most) <= 12


def test_a_bounded_run_keeps_no_payloads_of_messages_that_are_done(settings: Settings) -> None:
    values = [an_event(n, f'"kept {settings.ingest.topic} {n}"').value() for n in range(20)]
    produce(settings, values)
    [offsets] = drain.plan(settings)
    batches = drain.store_range(settings, offsets)
    # It waits where it has all receipts.
    assert len(next(batches)) == len(values)
    events = [found for found in gc.get_objects() if isinstance(found, Event)]
    assert [event.payload for event in events if f"kept {settings.ingest.topic}" in event.payload] == []
    assert list(batches) == []


def test_an_unfinished_message_holds_its_own_partition(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its dead letter is not accepted. The offsets after it may not pile up, and the other partitions are read on."""
    monkeypatch.setattr(event_sink, "MAX_REMEMBERED_OFFSETS", 200)
    monkeypatch.setattr(event_sink, "FETCH_MESSAGES", 10)
    topic, held = settings.ingest.dead_letter_topic, settings.ingest.partitions - 1
    produce(settings, [b"poison", *(an_event(n, user=f"u{n}").value() for n in range(400))])
    producer = Producer(client_config(settings))
    stop, others = threading.Event(), range(1000, 1400)
    thread = threading.Thread(target=event_sink.run, args=(settings, stop))
    delete_topics(settings, [topic])
    thread.start()
    try:
        wait_for(lambda: len(rows(settings)) >= 200 // settings.ingest.partitions - 1)
        for n in others:
            producer.produce(settings.ingest.topic, an_event(n, user=f"u{n}").value(), partition=held)
        assert producer.flush(30) == 0
        wait_for(lambda: {event_id.int for event_id, _ in rows(settings)} >= set(others))
        assert len(rows(settings)) < 800
        ensure_ingest_topics(settings)
        wait_for(lambda: len(rows(settings)) == 800)
    finally:
        stop.set()
        thread.join()


def test_messages_that_the_broker_has_lost_stop_the_sink_until_an_operator_decides(settings: Settings) -> None:
    """Otherwise later messages, at the offsets of the lost ones, would count as stored."""
    topic, group = settings.ingest.topic, settings.ingest.group
    produce(settings, [an_event(n).value() for n in range(4)])
    assert len(run_once(settings)) == 4
    commit_offsets(settings, topic, group, {0: 6})
    for start in (lambda: event_sink.run(settings, threading.Event()), lambda: drain.plan(settings)):
        with pytest.raises(WritetimeError, match=f"{topic}/0: it ends at 4, but was read up to 6 before.* to 0 with"):
            start()
    commit_offsets(settings, topic, group, {0: 0})
    produce(settings, [an_event(9).value()])
    assert [row["outcome"] for row in run_once(settings)] == ["stored"] * 5
    assert [event_id.int for event_id, _ in rows(settings)] == [0, 1, 2, 3, 9]


def test_a_fault_while_a_refused_send_is_handled_is_that_of_its_event(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not stop the sink, which would begin with the same event again."""
    bind = EventWriter._bind

    def refuse(*args: Any) -> Any:
        if "poison" in repr(args):
            raise InvalidRequest("injected")
        return bind(*args)

    def fail(_: object) -> bool:
        raise LookupError("injected, too")

    monkeypatch.setattr(EventWriter, "_bind", refuse)
    monkeypatch.setattr(writer, "nodes_agree", fail)
    produce(settings, [an_event(1).value(), an_event(2, '"poison"').value(), an_event(3).value()])
    assert [row["outcome"] for row in run_once(settings)] == ["stored", "dead", "stored"]
    [letter] = dead_letters(settings)
    assert "LookupError: injected, too" in letter.reason


def _poll_until_done(sink_writer: EventWriter, count: int) -> dict[int, tuple[str, str]]:
    """Return outcome and reason of every write, by offset. Each has one outcome."""
    receipts: list[Receipt] = []

    def are_done() -> bool:
        receipts.extend(sink_writer.poll(0.05))
        return len(receipts) >= count

    assert wait_until(are_done, PATIENCE_SECONDS, 0), sink_writer.last_error
    assert (sink_writer.poll(0), sink_writer.in_flight) == ([], 0)
    done = {r.offset: (str(r.outcome), r.reason) for r in receipts}
    assert len(done) == len(receipts) == count
    return done


@pytest.mark.parametrize(
    ("owner", "name"),
    [(event_pipeline, "decode"), (EventWriter, "submit"), (EventWriter, "_bind"), (EventWriter, "_handle_rows")],
)
def test_a_message_with_an_unforeseen_fault_is_a_dead_letter_and_others_are_stored(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    original = getattr(owner, name)

    def raising(*args: Any) -> Any:
        # The second event, by its payload, or its number among the writes.
        if "poison" in repr([getattr(a, "batch", a) for a in args]):
            raise LookupError("injected")
        return original(*args)

    monkeypatch.setattr(owner, name, raising)
    produce(settings, [an_event(1).value(), an_event(2, '"poison"').value(), an_event(3).value()])
    assert [row["outcome"] for row in run_once(settings)] == ["stored", "dead", "stored"]
    [letter] = dead_letters(settings)
    assert "LookupError: injected" in letter.reason
