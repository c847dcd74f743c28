"""The stop of an agent whose snapshots wait for the broker, without a node or a broker."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast
from uuid import UUID, uuid1

from tests.support.made import SCHEMA
from writetime.capture.change_publisher import ChangePublisher
from writetime.capture.metrics import AgentMetrics
from writetime.capture.snapshots import Snapshots, TakenSnapshot
from writetime.capture.state_files import write_json
from writetime.core import config


class NoTaker:
    """Takes nothing: the snapshot was taken before."""

    def take(self, tables: Mapping[str, UUID], tag: str) -> Mapping[str, TakenSnapshot]:
        raise AssertionError((tables, tag))

    def delete(self, tables: Sequence[str], tag: str) -> None:
        raise AssertionError((tables, tag))


def test_a_stop_before_the_broker_knows_of_a_snapshot_waits_for_it_once(tmp_path: Path) -> None:
    """Each call of `announce` takes as long as the publisher waits when it stops."""
    schema = replace(SCHEMA, id=uuid1())
    taken = {"table": schema.full_name, "tag": "t", "status": "taken", "folders": [str(tmp_path)]}
    write_json(tmp_path / "snapshots.json", {str(schema.id): taken})
    settings = config.load(capture={"state_dir": str(tmp_path), "snapshot": "initial"})
    waited = 0

    def announce(stop: threading.Event) -> bool:
        nonlocal waited
        assert waited < 3
        stop.set()
        waited += 1
        return False

    with closing(Snapshots(settings, NoTaker(), None, AgentMetrics(settings), announce)) as snapshots:
        assert not snapshots.step([(schema, True)], cast("ChangePublisher", None), threading.Event())
    assert waited == 1
