"""A cutover while clients still write to the source. Oracle: the answers of both clusters."""

import itertools
import json
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.replication.conftest import Clusters
from tests.support.generate import KEYSPACE
from tests.support.published import command, send
from tests.support.repeated import repeated
from tests.support.replicated import Replicated
from tests.support.settings import write_settings
from writetime.core.config import Settings
from writetime.core.instants import instant_text
from writetime.lake.views import time_now

pytestmark = pytest.mark.long

_TABLE = f"{KEYSPACE}.moved"


def written(clusters: Clusters) -> AbstractContextManager[None]:
    """A client that goes on writing to a row."""
    update = clusters.source.session().prepare(f"UPDATE {_TABLE} SET v = ? WHERE k = 1")
    numbers = itertools.count()
    return repeated(lambda: clusters.source.session().execute(update, [next(numbers)]), 0.02)


def test_a_cutover_is_not_passed_while_clients_write(
    clusters: Clusters, kafka: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = clusters.settings(tmp_path).model_copy(update={"kafka": kafka.kafka})
    write_settings(settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    replicated = Replicated(clusters.source, settings)
    schema = replicated.create("moved", f"CREATE TABLE {_TABLE} (k int PRIMARY KEY, v int)")
    replicated.write([f"INSERT INTO {_TABLE} (k, v) VALUES ({k}, {k})" for k in range(10)])
    # Its topic, without changes: they come by snapshots.
    send(settings, schema)
    report = tmp_path / "report.json"

    def cutover() -> tuple[int, str, dict[str, object]]:
        at = instant_text(time_now())
        replicated.capture()
        done = command("cutover", _TABLE, "--to", "target", "--at", at, "--report", str(report))
        return done.exit_code, done.output, json.loads(report.read_text())

    with written(clusters):
        status, output, found = cutover()
    assert (status, found["equal"], found["differing"], found["lagging"]) == (1, False, 0, 1)
    assert f"{_TABLE}: clients still write to one of the two clusters" in output
    assert "are not equal" in output
    status, output, found = cutover()
    assert (status, found["equal"], found["lagging"]) == (0, True, 0), output
    clusters.assert_same(schema)
