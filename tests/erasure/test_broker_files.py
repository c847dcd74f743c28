"""When the files of a broker lose the messages that an erasure deleted.

Oracle: the bytes of the files. The topic's messages are not compressed.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import without_database
from tests.support.made import write
from tests.support.published import schema_of, send
from tests.support.servers import running, server_addresses
from tests.support.topics import alter_topic
from tests.support.waiting import wait_for
from writetime.changes.position import PARTITION_POSITION
from writetime.core.config import Settings
from writetime.erasure.certificate import erase
from writetime.erasure.keys import ranges_of
from writetime.lake.table import open_table
from writetime.landing.landing import Landing
from writetime.servers.kafka import KafkaServer
from writetime.wire.topic_names import changes_topic

pytestmark = pytest.mark.long
GONE, NEW = b"5ec2e7" * 4, b"07e2aa" * 4


class HastyBroker(KafkaServer):
    """A broker that looks for files to delete more often than every five minutes."""

    def configuration(self) -> dict[str, object]:
        hurry = {"log.retention.check.interval.ms": 200, "log.initial.task.delay.ms": 200}
        return super().configuration() | hurry


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Settings, Path]]:
    """Settings of a broker that runs, and the folder of its topics."""
    with server_addresses(tmp_path / "servers") as addresses, running(HastyBroker(addresses)) as broker:
        yield without_database(addresses, tmp_path, monkeypatch), broker.folder / "data"


def test_a_segment_is_deleted_when_another_one_has_begun(servers: tuple[Settings, Path]) -> None:
    settings, folder = servers
    schema = schema_of(settings, "erased")
    name, topic = schema.full_name, changes_topic(schema.full_name)
    # The first call makes the topic.
    send(settings, schema)
    alter_topic(settings, topic, {"compression.type": "uncompressed"})
    written = write(1, 0, 5, v=GONE.decode())
    deletion = {"kind": "partition_tombstone", "position": PARTITION_POSITION}
    deletion |= {"tombstone": {"write_time": 10, "deletion_time": 0}}
    send(settings, schema, written, {name: written[name] for name in ("id", "key", "token")} | deletion)
    Landing(settings, name).drain()
    table = open_table(settings, name)
    erase(settings, table, ranges_of(['{"id": 1}'], schema), delete_records=True)

    def are_in_files(text: bytes) -> bool:
        files = [path for path in folder.glob(f"{topic}-*/*.log*") if path.is_file()]
        return any(text in path.read_bytes() for path in files)

    assert are_in_files(GONE)
    alter_topic(settings, topic, {"segment.ms": "1", "file.delete.delay.ms": "0"})
    assert are_in_files(GONE)
    send(settings, schema, write(1, 0, 20, v=NEW.decode()))
    wait_for(lambda: not are_in_files(GONE))
    assert are_in_files(NEW)
