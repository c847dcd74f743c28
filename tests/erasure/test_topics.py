"""Topics of a table whose partitions are erased, and messages that come again.

Oracle: Kafka's own offsets and messages, and the rows that the test wrote.
"""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import without_database
from tests.support.lake_answers import view_rows
from tests.support.made import write
from tests.support.messages import messages
from tests.support.published import schema_of, send
from writetime.changes.position import PARTITION_POSITION
from writetime.clients.kafka import beginning_offsets, end_offsets
from writetime.core.config import Settings
from writetime.core.errors import Transient
from writetime.erasure.certificate import erase
from writetime.erasure.places import in_places, place_of
from writetime.lake import views
from writetime.lake.table import LakeTable, open_table
from writetime.landing.landing import Landing
from writetime.row_events.publish import publish
from writetime.row_events.stream import extend
from writetime.schema.table import TableSchema
from writetime.wire.topic_names import changes_topic, row_events_topic

SECRET, OTHER = "5ec2e7" * 4, "07e2" * 6


@pytest.fixture
def settings(kafka: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    return without_database(kafka, tmp_path, monkeypatch)


def writes() -> list[dict[str, Any]]:
    return [write(1, 0, 5, v=SECRET), write(2, 0, 5, v=OTHER)]


def deletion(at: int) -> dict[str, Any]:
    made = {name: value for name, value in write(1, 0, at).items() if name in {"id", "key", "token"}}
    gone = {"tombstone": {"write_time": at, "deletion_time": 0}}
    return made | gone | {"kind": "partition_tombstone", "position": PARTITION_POSITION}


def landed(settings: Settings, schema: TableSchema) -> LakeTable:
    Landing(settings, schema.full_name).drain()
    table = open_table(settings, schema.full_name)
    extend(table)
    return table


def deleted(settings: Settings, name: str) -> tuple[TableSchema, LakeTable]:
    """A table with two rows, of which one was deleted, and its row events."""
    schema = schema_of(settings, name)
    send(settings, schema, *writes())
    publish(settings, landed(settings, schema))
    send(settings, schema, deletion(10))
    return schema, landed(settings, schema)


def test_records_are_deleted_and_do_not_come_back(settings: Settings) -> None:
    schema, table = deleted(settings, "erased")
    places = in_places([place_of(writes()[0]["key"])])
    with pytest.raises(Transient, match="row events of what is to be erased are not published yet"):
        erase(settings, table, places, delete_records=True)
    publish(settings, table)
    certificate = erase(settings, table, places, delete_records=True)
    topics = [changes_topic(schema.full_name), row_events_topic(schema.full_name)]
    assert [each["topic"] for each in certificate["topics"]] == topics
    assert {each["by"] for each in certificate["topics"]} == {"deletion of records"}
    for topic in topics:
        assert beginning_offsets(settings, topic) == end_offsets(settings, topic)
        assert not messages(settings, topic)
    # An agent sends them again, and the person returns.
    send(settings, schema, *writes(), deletion(10), write(1, 0, 20, v="new"))
    landing = Landing(settings, schema.full_name)
    assert (landing.drain(), landing.offsets_landed) == (2, 2)
    assert {(row["id"], row["v"]) for row in view_rows(views.virtual(table))} == {(1, "new"), (2, OTHER)}
    extend(table)
    assert publish(settings, table) == 1
    ((_, _, value),) = messages(settings, topics[1], beginning_offsets(settings, topics[1]))
    assert b"new" in value
    assert SECRET.encode() not in value


def test_retention_is_named(settings: Settings) -> None:
    schema, table = deleted(settings, "retained")
    publish(settings, table)
    certificate = erase(settings, table, in_places([place_of(writes()[0]["key"])]))
    changes, events = certificate["topics"]
    assert changes["topic"] == changes_topic(schema.full_name)
    assert {each["by"] for each in (changes, events)} == {"retention"}
    # A week of retention, and a week in which a segment takes messages.
    stays = [datetime.fromisoformat(at) for at in (certificate["erased_at"], changes["gone_after"])]
    assert stays[1] - stays[0] > timedelta(days=13)
    assert len(messages(settings, changes["topic"])) == 3
    # Kafka keeps the events that it has, and erased events are not sent.
    assert publish(settings, table) == 0
