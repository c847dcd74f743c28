"""The topic of dead letters is missing for a while: no offset after the poison may be committed until it is back."""

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from tests.faults.stage import MODES, Stage
from tests.support.topics import alter_topic
from writetime.clients.kafka import client_config
from writetime.ingest.topics import ensure_ingest_topics

pytestmark = pytest.mark.long

POISON = b"{" + b"x" * 5000


@pytest.mark.parametrize("mode", MODES)
def test_dead_letter_topic_is_missing_for_a_while(stage: Callable[..., Stage], mode: str) -> None:
    s = stage(mode=mode)
    topic = s.settings.ingest.dead_letter_topic
    admin = AdminClient(client_config(s.settings))
    admin.delete_topics([topic])[topic].result(15)
    _poison_holds_commits_back(s)
    ensure_ingest_topics(s.settings)
    s.finish()


def test_dead_letter_topic_takes_only_small_messages_for_a_while(stage: Callable[..., Stage]) -> None:
    s = stage(mode="lwt-batch")
    topic = s.settings.ingest.dead_letter_topic
    alter_topic(s.settings, topic, {"max.message.bytes": "100"})
    _poison_holds_commits_back(s)
    alter_topic(s.settings, topic, {"max.message.bytes": "100000"})
    s.finish()


def _poison_holds_commits_back(s: Stage) -> None:
    """Let the sink store all but the poison message, kill it, and let another one reach the same point."""
    s.ledger.events(60, users=10)
    poison = s.ledger.send_poison(POISON)
    events = s.ledger.events(60, users=10)
    s.ledger.flush()
    sink = s.sink()
    s.wait_for_rows(events)
    s.wait_for_samples(3)
    sink.kill()
    s.sink()
    s.wait_for_samples(15)
    assert poison.place is not None
    partition, offset = poison.place
    assert all(committed[partition] <= offset for committed in s.watch.commits)
