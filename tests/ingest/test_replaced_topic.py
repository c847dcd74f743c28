"""A topic of ingest that is deleted and created again: the offsets of the earlier one do not count in it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.ingest.sinking import an_event, produce, rows, run_once, with_ingest
from tests.support.sinks import SinkProcess
from tests.support.waiting import wait_for
from writetime.clients.consumer_groups import OtherTopic, commit_offsets, committed, committed_offsets, topic_of_note
from writetime.clients.kafka import client_config, delete_topics, end_offsets
from writetime.core.config import Settings
from writetime.ingest import dead_letter_topic, drain
from writetime.ingest.topics import ensure_ingest_topics
from writetime_dagster.resources import KafkaResource

pytestmark = pytest.mark.long


def replaced(settings: Settings, topic: str, *values: bytes) -> None:
    """Delete a topic, create it again, and put messages into it."""
    delete_topics(settings, [topic])
    ensure_ingest_topics(settings)
    own = with_ingest(settings, topic=topic)
    produce(own, list(values))


@pytest.fixture
def sinks(settings: Settings, tmp_path: Path) -> Iterator[list[SinkProcess]]:
    started: list[SinkProcess] = []
    yield started
    for sink in started:
        if sink.running:
            sink.kill()
        print(sink.log.read_text())


def start(settings: Settings, folder: Path, sinks: list[SinkProcess]) -> SinkProcess:
    sinks.append(SinkProcess(settings, folder, len(sinks)))
    return sinks[-1]


@pytest.mark.parametrize("count", [10, 50, 51, 400])
def test_a_sink_that_runs_reads_no_other_topic(
    settings: Settings, tmp_path: Path, sinks: list[SinkProcess], count: int
) -> None:
    """Whether it has fewer messages than before, as many, or more. Once its remedy was applied, all are stored."""
    settings = with_ingest(settings, commit_interval_seconds=0.2)
    ingest = settings.ingest
    sink = start(settings, tmp_path, sinks)
    produce(settings, [an_event(number).value() for number in range(50)])
    wait_for(lambda: committed_offsets(settings, ingest.topic, ingest.group)[0] == 50)
    replaced(settings, ingest.topic, *(an_event(1000 + number).value() for number in range(count)))
    wait_for(lambda: not sink.running)
    error = sink.log.read_text()
    assert f"topic {ingest.topic} is not the one that group {ingest.group} has read" in error
    assert re.search(rf"--group {ingest.group} --topic {ingest.topic} --reset-offsets --to-earliest", error)
    commit_offsets(settings, ingest.topic, ingest.group, dict.fromkeys(end_offsets(settings, ingest.topic), 0))
    start(settings, tmp_path, sinks)
    wait_for(lambda: len(rows(settings, "event_id")) == 50 + count)


def test_an_offset_of_the_topic_before_is_refused_everywhere(settings: Settings) -> None:
    """As if a sink had committed it just after the topic was created again."""
    ingest = settings.ingest
    produce(settings, [an_event(number).value() for number in range(5)])
    ranges = drain.plan(settings)
    run_once(settings)
    replaced(settings, ingest.topic, *(an_event(1000 + number).value() for number in range(8)))
    with pytest.raises(OtherTopic):
        drain.commit(settings, ranges)
    commit_offsets(settings, ingest.topic, ingest.group, {0: 5}, ranges[0].topic_id)
    with pytest.raises(OtherTopic):
        drain.plan(settings)
    progress = KafkaResource().progress(ingest.topic, ingest.group)
    assert f"topic {ingest.topic} is not the one" in progress.faults[0]
    assert progress.total_lag == 8
    commit_offsets(settings, ingest.topic, ingest.group, {0: 0})
    assert [r["outcome"] for r in run_once(settings)] == ["stored"] * 8
    assert KafkaResource().progress(ingest.topic, ingest.group).faults == []


def test_letters_of_a_new_topic_were_not_redriven(settings: Settings) -> None:
    """The offsets that an earlier redrive has committed count in the topic before."""
    topic = settings.ingest.dead_letter_topic
    produce(settings, [b"poison"] * 3)
    run_once(settings)
    assert dead_letter_topic.redrive(settings).count == 3
    (before,) = {note for note in notes(settings, topic) if note}
    replaced(settings, topic, b"letter", b"letter", b"letter", b"letter")
    commit_offsets(settings, topic, f"{topic}.redrive", {0: 3}, before)
    assert list(dead_letter_topic.status_lines(settings)) == [
        "ingest     4 dead letters not redriven: writetime dead-letters list"
    ]
    assert dead_letter_topic.redrive(settings).count == 4
    assert list(dead_letter_topic.status_lines(settings)) == []


def notes(settings: Settings, topic: str) -> set[int]:
    """The ids of topics that the commits of redriving have."""
    group = f"{topic}.redrive"
    consumer = Consumer(client_config(settings, **{"group.id": group}))
    try:
        places = [TopicPartition(topic, p) for p in end_offsets(settings, topic)]
        return {topic_of_note(tp.metadata) for tp in committed(settings, consumer, group, places)}
    finally:
        consumer.close()
