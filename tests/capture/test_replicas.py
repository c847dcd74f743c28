"""What an agent that shares changes publishes at once, and what it waits for.

Oracle: written down for each case; the replicas of a token by a search through all ranges.
"""

import dataclasses
import random
import time
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from tests.support.made import SCHEMA, batch, settings_at, write
from writetime.capture.node_schemas import Ring, Unreachable
from writetime.capture.progress import SegmentProgress
from writetime.capture.replicas import Message, Offered, Replicas
from writetime.capture.sharing import Sharing
from writetime.changes.starts import Truncation
from writetime.core import config
from writetime.schema.table import TableSchema
from writetime.wire.change_messages import ChangeEncoder

FIRST, SECOND = (UUID(int=n) for n in (1, 2))
TABLE = dataclasses.replace(SCHEMA, id=FIRST)


def ring_of(keyspace: str) -> Ring:
    """Return nodes `a`, `b` and `c`, of which `a` comes first for all tokens."""
    if keyspace != "shop":
        raise Unreachable(keyspace)
    return Ring(np.array([0], np.int64), (("a", "b", "c"),))


class Node:
    """The agent of a node, without Kafka."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.replicas: Replicas[SegmentProgress] = Replicas(name, 0.0)
        self.sharing = Sharing(settings_at(folder), name, self.replicas, ring_of)
        self.sharing.follow_rings(["shop", "other"], 0.0)

    def read(self, *rows: dict[str, object], schema: TableSchema = TABLE, segment: int = 9) -> list[Message]:
        """Return the messages that it sends when a segment of its log has changes."""
        origin = {"source": "commitlog", "node": self.name, "file": f"{self.name}.log", "offset": 17}
        changes = batch([{**row, "origin": {**origin, "captured_at": datetime.now(UTC)}} for row in rows], schema)
        encoder = ChangeEncoder(schema)
        values, keys = encoder.encode(changes).to_pylist(), changes["key"].to_pylist()
        messages = [("changes", value, key, 0) for value, key in zip(values, keys, strict=True)]
        return self.sharing.choose(segment, schema, changes["token"], messages, encoder.origin_sizes(changes))

    def receive_from(self, other: "Node", now: float = 0.0) -> None:
        """Hear that Kafka has all that another one sent."""
        self.replicas.receive(other.name, other.replicas.acknowledged(), now)


def test_replicas_know_one_change_by_one_digest(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "a"), Node(tmp_path, "b")
    rows = [write(1, 2, 3, v="x"), write(1, 2, 4, v="x"), write(1, 2, 4, v="x", w=1)]
    assert len(first.read(*rows[:2])) == 2
    assert second.read(*rows) == []
    second.replicas.reached(1, SegmentProgress("log", 10))
    second.receive_from(first)
    second.replicas.acknowledged()
    # Other cells are another change, and so is the same one in a table of another id.
    assert second.replicas.settled() == {}
    assert [len(second.read(row)) for row in rows] == [0, 0, 0]
    assert second.read(rows[0], schema=dataclasses.replace(TABLE, id=SECOND)) == []
    waits = second.replicas.due(second.replicas.patience.grace, 10)
    assert len(waits) == 2
    second.replicas.acknowledged()
    assert second.replicas.settled() == {1: SegmentProgress("log", 10)}


def test_the_second_replica_comes_before_the_third(tmp_path: Path) -> None:
    second, third = Node(tmp_path, "b"), Node(tmp_path, "c")
    grace = second.replicas.patience.grace
    for node in (second, third):
        assert node.read(write(1, 1, 1), write(2, 1, 1)) == []
        for host in "abc":
            node.replicas.receive(host, [], grace)
    assert third.replicas.due(grace, 10) == []
    assert len(second.replicas.due(grace, 1)) == 1
    assert len(second.replicas.due(grace, 10)) == 1
    third.receive_from(second, grace)
    assert third.replicas.due(100 * grace, 10) == []


def test_whoever_is_in_doubt_publishes(tmp_path: Path) -> None:
    # It knows no replicas.
    assert len(Node(tmp_path, "c").read(write(1, 1, 1), schema=dataclasses.replace(TABLE, keyspace="other"))) == 1
    # The others send nothing any more.
    third = Node(tmp_path, "c")
    assert third.read(write(1, 1, 1)) == []
    later = third.replicas.patience.live
    assert len(third.replicas.due(later, 10)) == 1
    # More changes would have to wait than it keeps.
    many = [Offered(b"%d" % n, ("a", "c"), ("changes", bytes(1 << 20), b"", 0)) for n in range(100)]
    assert 30 <= len(Replicas[int]("c", 0.0).take(many, 0.0)) <= 40
    # It has forgotten the digest.
    some = Replicas[int]("c", 0.0)
    some.receive("a", [b"first"], 0.0)
    assert some.take([Offered(b"first", (), ("", b"", b"", 0))], 0.0) == []
    for start in range(0, 600_000, 1000):
        some.receive("a", [b"%d" % n for n in range(start, start + 1000)], 0.0)
    assert len(some.take([Offered(b"first", (), ("", b"", b"", 0))], 0.0)) == 1


def test_all_replicas_publish_what_a_truncation_may_concern(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "a"), Node(tmp_path, "b")
    row = write(1, 1, 1)
    first.read(row)
    now = time.time_ns() // 1000
    long_ago, just_now = Truncation(now - 3_600_000_000, 4, 5), Truncation(now, 6, 7)
    assert second.sharing.follow_truncations({FIRST: long_ago}) == []
    second.receive_from(first)
    assert [len(second.read(row, segment=number)) for number in (3, 4, 5)] == [1, 1, 0]
    second.replicas.reached(6, SegmentProgress("log"))
    assert second.sharing.follow_truncations({FIRST: just_now}) == [just_now]
    assert second.sharing.follow_truncations({FIRST: just_now}) == []
    # The changes that were read before are read again, and earlier digests do not count.
    assert second.replicas.last(6) is None
    assert len(second.read(row)) == 1
    assert second.replicas.acknowledged() == []
    other = dataclasses.replace(TABLE, id=SECOND)
    assert second.read(row, schema=other) == []
    second.sharing.follow_truncations({FIRST: long_ago})
    assert second.read(row) == []
    assert len(second.replicas.due(second.replicas.patience.grace, 10)) == 1


@pytest.mark.parametrize("ranges", [1, 2, 50])
def test_the_replicas_of_a_token_are_those_of_its_range(ranges: int) -> None:
    """Oracle: a range ends with the token of its node, and the first one goes on after the last token."""
    r = random.Random(ranges)
    ends = sorted(r.sample(range(-100, 100), ranges))
    ring = Ring(np.array(ends, np.int64), tuple((str(end),) for end in ends))
    tokens = [-(2**63), *range(-101, 102), 2**63 - 1]
    found = ring.of(pa.array(tokens, pa.int64()).to_numpy())
    assert found == [(str(next((end for end in ends if token <= end), ends[0])),) for token in tokens]


def test_only_agents_of_nodes_share() -> None:
    with pytest.raises(config.InvalidSettings, match="agents of nodes"):
        config.load(capture={"source": "scylla-cdc", "tables": ["shop.orders"], "snapshot": "never", "replicas": "one"})
