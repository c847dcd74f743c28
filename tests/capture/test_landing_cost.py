"""The cost of landing: nothing for tables without new messages, and one read of the topics that all tables share."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message

from tests.capture.agents import count
from tests.support.landing_once import look
from tests.support.published import mark, publish, published, schema_of
from writetime.clients import kafka
from writetime.clients.kafka import messages_between
from writetime.core.config import Settings
from writetime.delta.bucketed_table import BucketedTable
from writetime.lake.table import LakeTable, table_storage
from writetime.lake.views import time_now
from writetime.landing import landing, schema_changes, topics
from writetime.landing.following import LandedTables
from writetime.schema.stored import from_json
from writetime.schema.table import TableSchema
from writetime.wire import publishing
from writetime.wire.publishing import SCHEMAS_TOPIC
from writetime.wire.watermarks import SourceMarks, TableMark, ensure_watermarks_topic


class Counted:
    """Counts the calls that cost time. By the clock of landing, each check is two seconds after the one before: it
    requests the ids of topics again after one second, which on a busy machine are over in one check and not in another.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: dict[str, int] = {}
        self._now = 0.0
        for module in (landing, topics):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self._now))
        targets: list[tuple[Any, str]] = [(BucketedTable, "load"), (BucketedTable, "exists"), (kafka, "ask_cluster")]
        targets += [(BucketedTable, "transactions_of"), (LakeTable, "require_parts")]
        for owner, name in targets:
            self._count(monkeypatch, owner, name)

    def _count(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def counting(*arguments: Any, **named: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            return call(*arguments, **named)

        monkeypatch.setattr(owner, name, counting)

    def of(self, tables: LandedTables) -> Mapping[str, int]:
        """The functions that a check calls."""
        self.calls.clear()
        self._now += 2.0
        look(tables)
        return dict(self.calls)


def test_a_table_without_new_messages_costs_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    names = published(settings, *(f"t{i}" for i in range(6)))
    ensure_watermarks_topic(settings)
    now = time_now()
    mark(settings, settings.cassandra.keyspace, SourceMarks({name: TableMark(now) for name in names}))
    counted = Counted(monkeypatch)
    tables = LandedTables(settings, names)
    counted.of(tables)
    few = LandedTables(settings, names[:2])
    counted.of(few)
    # Its own reports are read once; from then on a look costs the same for each number of tables.
    counted.of(tables)
    idle = counted.of(tables)
    assert idle == counted.of(few)
    assert idle.keys() == {"ask_cluster"}
    # A new process asks the lake for one small file of each table.
    started = counted.of(LandedTables(settings, names))
    assert started["transactions_of"] == len(names)
    assert not {"load", "exists", "require_parts"} & started.keys()
    # Only where something is new a table is opened.
    publish(settings, schema_of(settings, "t3"), 5)
    assert 0 < counted.of(tables)["load"] <= 12
    assert count(settings, names[3]) == 4
    # A report that does not fit the lake is not believed: here it has been restored from a copy.
    mark(settings, settings.cassandra.keyspace, SourceMarks({name: TableMark(now + 1) for name in names}))
    log_folder = Path(table_storage(settings, names[3]).address) / "changes" / "_delta_log"
    newest = max(log_folder.glob("*.json"))
    newest.unlink()
    look(LandedTables(settings, names))
    assert count(settings, names[3]) == 4


def test_tables_share_one_reading_of_the_schemas(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic of the schemas is read once for all tables, and each schema is parsed once."""
    names = published(settings, *(f"shared{i}" for i in range(6)))
    read: Counter[int] = Counter()
    parsed: Counter[str] = Counter()

    def count_messages(of: Settings, topic: str, *offsets: Mapping[int, int]) -> Iterator[Message]:
        for message in messages_between(of, topic, *offsets):
            if topic == SCHEMAS_TOPIC:
                read[message.offset() or 0] += 1
            yield message

    def count_parsed(stored: Any) -> TableSchema:
        schema = from_json(stored)
        parsed[schema.full_name] += 1
        return schema

    monkeypatch.setattr(publishing, "messages_between", count_messages)
    monkeypatch.setattr(schema_changes, "from_json", count_parsed)
    tables = LandedTables(settings, names)
    look(tables)
    assert [count(settings, name) for name in names] == [3] * len(names)
    assert len(read) >= len(names)
    assert set(read.values()) == {1}
    assert parsed == dict.fromkeys(names, 1)
    # Of more changes, only the messages of the schemas that are new are read, as each publisher registers its own.
    for name in names:
        publish(settings, schema_of(settings, name.split(".")[1]), 4)
    look(tables)
    assert [count(settings, name) for name in names] == [4] * len(names)
    assert set(read.values()) == {1}
    assert parsed == dict.fromkeys(names, 1)
    # Another process parses no schema that the lake has already.
    look(LandedTables(settings, names))
    assert parsed == dict.fromkeys(names, 1)
