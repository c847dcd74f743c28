"""A backlog that never ends, because more changes are written meanwhile than each call lands."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid1

import pytest

from tests.support.broker import without_database
from tests.support.examples import is_long_run
from tests.support.published import mark, publish, schema_of
from writetime.clients.kafka import end_offsets
from writetime.core.config import Settings
from writetime.lake.horizon import watermark_of
from writetime.lake.table import open_table
from writetime.landing import landing
from writetime.landing.landing import Landing
from writetime.schema.table import TableSchema
from writetime.wire.topic_names import changes_topic
from writetime.wire.watermarks import SourceMarks, TableMark

_MESSAGES = 12
_TURNS = 29 if is_long_run() else 15


@pytest.fixture
def settings(kafka: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    return without_database(kafka, tmp_path, monkeypatch)


@pytest.fixture
def schema(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> TableSchema:
    monkeypatch.setattr(landing, "BATCH_MESSAGES", 2)
    return schema_of(settings, "a")


@dataclass
class Written:
    """Writes changes, then a watermark; and lands a batch."""

    settings: Settings
    schema: TableSchema
    # The ends of the topic at each watermark.
    ends: dict[int, dict[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.landing = Landing(self.settings, self.schema.full_name)

    def write(self, until: int, table_id: str = "") -> None:
        name = self.schema.full_name
        publish(self.settings, self.schema, *range(_MESSAGES))
        self.ends[until] = end_offsets(self.settings, changes_topic(name))
        mark(self.settings, "node", SourceMarks({name: TableMark(until, id=table_id)}))

    def land(self) -> int:
        """Return the watermark in the lake."""
        topics = self.landing.topics
        sources = topics.watermarks.read()
        ends = end_offsets(self.settings, changes_topic(self.schema.full_name))
        topics.schemas.read_on()
        self.landing.land(ends, sources, one_batch=True)
        found = watermark_of(open_table(self.settings, self.schema.full_name).changes.load(), "node")
        assert all((self.landing.landed or {})[p] >= end for p, end in self.ends.get(found, {}).items())
        return found


def test_watermarks_go_on_while_a_backlog_stays(settings: Settings, schema: TableSchema) -> None:
    written = Written(settings, schema)
    found = []
    for turn in range(1, _TURNS + 1):
        written.write(turn)
        found.append(written.land())
    assert found == sorted(found)
    assert len(set(found)) > 3
    assert set(found) <= {0, *written.ends}
    assert written.landing.landed != written.ends[_TURNS]
    while written.landing.landed != written.ends[_TURNS]:
        found.append(written.land())
    assert found[-1] == _TURNS


def test_watermarks_of_an_earlier_table_do_not_count(settings: Settings, schema: TableSchema) -> None:
    """The table was created again during the backlog."""
    first, second = replace(schema, id=uuid1()), replace(schema, id=uuid1())
    written = Written(settings, first)
    written.write(1, str(first.id))
    assert written.land() == 0
    written.schema = second
    written.write(2, str(second.id))
    found = [written.land()]
    while written.landing.landed != written.ends[2]:
        found.append(written.land())
    assert set(found) == {0, 2}
