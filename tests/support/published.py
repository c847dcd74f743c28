"""Tables whose changes are published without an agent, and the landing of these tables with its reports."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from tests.support.made import SCHEMA, batch, write
from writetime.capture.change_publisher import ChangePublisher
from writetime.cli.main import main
from writetime.clients.kafka import client_config
from writetime.core.config import Settings
from writetime.landing import following
from writetime.landing.landing import Landing
from writetime.schema.table import TableSchema
from writetime.wire import watermarks
from writetime.wire.publishing import Sender
from writetime.wire.watermarks import LandingReport, SourceMarks, WatermarkTopic


def schema_of(settings: Settings, name: str) -> TableSchema:
    return dataclasses.replace(SCHEMA, keyspace=settings.cassandra.keyspace, name=name)


def publish(settings: Settings, schema: TableSchema, *ids: int) -> None:
    """Publish changes as an agent does."""
    send(settings, schema, *(write(i, 0, 5, v=str(i)) for i in ids))


def send(settings: Settings, schema: TableSchema, *rows: dict[str, Any]) -> None:
    """The same for any changes."""
    publisher = ChangePublisher(settings)
    publisher.announce(schema)
    if rows:
        publisher.send(schema, batch(list(rows), schema))
    assert publisher.flush()


def published(settings: Settings, *names: str) -> list[str]:
    """Tables with three changes each."""
    schemas = [schema_of(settings, name) for name in names]
    for schema in schemas:
        publish(settings, schema, 1, 2, 3)
    return [schema.full_name for schema in schemas]


def produce(settings: Settings, topic: str, *messages: tuple[bytes | None, bytes | None], partition: int = 0) -> None:
    """Put messages as they are into a topic: keys and values."""
    producer = Producer(client_config(settings))
    for key, value in messages:
        producer.produce(topic, value, key, partition)
    assert producer.flush(15) == 0


def mark(settings: Settings, source: str, marks: SourceMarks) -> None:
    """Send the report of an agent."""
    sender = Sender(settings, "test")
    watermarks.send(sender, source, marks)
    assert sender.flush()


def reports(settings: Settings) -> Mapping[str, LandingReport]:
    topic = WatermarkTopic(settings)
    topic.read()
    return topic.reports


def reports_of(settings: Settings, table: str) -> tuple[str, int]:
    report = reports(settings)[table]
    return report.status, report.attempts


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once, and report at once."""
    for name in ("PAUSE_SECONDS", "SET_ASIDE_SECONDS", "REPORT_SECONDS"):
        monkeypatch.setattr(following, name, 0.0)


class Broken:
    """Lets landing of one table raise an error at its boundary."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, table: str, error: Exception) -> None:
        self.error: Exception | None = error
        self.tried = 0
        land = Landing.land

        def fail(this: Landing, *arguments: Any, **named: Any) -> int:
            if this.name == table and self.error is not None:
                self.tried += 1
                raise self.error
            return land(this, *arguments, **named)

        monkeypatch.setattr(Landing, "land", fail)


def command(*arguments: str) -> Any:
    return CliRunner().invoke(main, list(arguments))
