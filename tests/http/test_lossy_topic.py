"""A topic of events that would lose them after their acknowledgement: the ingress acknowledges none."""

import re
import uuid

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.http.serving import EVENT, Running, changed, running, stored, until
from tests.support.topics import alter_topic
from writetime.clients.kafka import client_config, delete_topics, ensure_topics
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.http import outbox
from writetime.http.ingress import serve

pytestmark = pytest.mark.slow

LOSSY = {
    "cleanup.policy": "compact",
    "retention.ms": "60000",
    "retention.bytes": "100000",
    "min.insync.replicas": "3",
}


@pytest.fixture
def settings(kafka: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(outbox, "TOPIC_CHECK_SECONDS", 0.1)
    return changed(kafka, topic=f"lossy-{uuid.uuid4().hex[:8]}", port=0, ack_timeout_seconds=20.0)


def answer(ingress: Running) -> tuple[int, str]:
    got = ingress.post(EVENT)
    return got.status_code, got.json().get("reason", "")


@pytest.mark.parametrize(("option", "value"), LOSSY.items())
def test_an_option_that_loses_events_is_refused(settings: Settings, option: str, value: str) -> None:
    """At the start, and while the ingress runs, until it is right again."""
    topic = settings.ingest.topic
    ensure_topics(settings, {topic: {}}, 1)
    with running(settings) as ingress:
        assert answer(ingress)[0] == 202
        alter_topic(settings, topic, {option: value})
        until(lambda: answer(ingress)[0] == 503)
        assert f"topic {topic} has {option}={value}, so" in answer(ingress)[1]
        assert option in ingress.client.get("/ready").text
        with pytest.raises(WritetimeError, match=re.escape(f"topic {topic} has {option}={value}, so")):
            serve(settings)
        repair = re.search(r"--add-config ([\w.]+)=(\S+)`", answer(ingress)[1])
        assert repair is not None
        alter_topic(settings, topic, {repair[1]: repair[2]})
        until(lambda: answer(ingress)[0] == 202)


def test_a_topic_that_was_created_again_is_checked(settings: Settings) -> None:
    """As by a broker that creates missing topics."""
    topic, admin = settings.ingest.topic, AdminClient(client_config(settings))
    ensure_topics(settings, {topic: {}}, 1)
    with running(settings) as ingress:
        assert answer(ingress)[0] == 202
        delete_topics(settings, [topic])
        admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})])[topic].result(30)
        until(lambda: "cleanup.policy=compact" in answer(ingress)[1])


def test_no_event_is_acknowledged_before_the_first_check(settings: Settings) -> None:
    """The broker may be reachable only after the start of the ingress."""
    admin = AdminClient(client_config(settings))
    new = NewTopic(settings.ingest.topic, 1, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([new])[settings.ingest.topic].result(30)
    with running(settings) as ingress:
        status, reason = answer(ingress)
        assert (status, "cleanup.policy=compact" in reason) == (503, True)
        assert len(stored(settings)) <= 1
        assert answer(ingress)[0] == 503
