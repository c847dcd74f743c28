"""Changes that wait for the target, while the lake is kept small. Oracle: the numbers and times that the test wrote, in
the answers of the target.
"""

from dataclasses import replace

import pytest

from tests.replication.conftest import Clusters
from tests.support.generate import KEYSPACE
from tests.support.made import SCHEMA, add, write
from tests.support.replicated import Replicated
from writetime.core.config import Settings
from writetime.lake import packing, retention, state
from writetime.lake.retention import needed_changes, used_changes
from writetime.lake.table import create_table, open_table
from writetime.view.refreshing import refresh
from writetime.view.upkeep import upkeep

pytestmark = pytest.mark.long

_SCHEMA = replace(SCHEMA, keyspace=KEYSPACE, name="waiting")
_BEFORE, _AFTER = 40, 70


@pytest.fixture
def table(clusters: Clusters, replicated: Replicated) -> Replicated:
    clusters.target.write_one(f"DROP TABLE IF EXISTS {_SCHEMA.full_name}")
    lake = replicated.settings.lake.model_copy(update={"keep_history_days": 0})
    replicated.settings = replicated.settings.model_copy(update={"lake": lake})
    replicated.lake = create_table(replicated.settings, _SCHEMA)
    return replicated


def keep_small(settings: Settings, table: Replicated, number: int) -> None:
    """Do what `follow` does after a batch with this number, and `maintain` sometimes."""
    state.fold(table.lake)
    refresh(settings, table.lake)
    if number % 16 == 15:
        packing.pack_batches(table.lake, table.lake.changes.load())
        retention.trim_stream(table.lake, settings.lake.vacuum_hours)
        upkeep(settings, table.lake)


def add_batches(table: Replicated, first: int, last: int) -> None:
    for number in range(first, last):
        add(table.lake, [write(number, n, 1000 + number, v="v") for n in range(4)], number, _SCHEMA)
        keep_small(table.settings, table, number)


def assert_all_there(clusters: Clusters, count: int) -> None:
    found = clusters.target.session().execute(f"SELECT id, n, writetime(v) FROM {_SCHEMA.full_name}")
    assert sorted(map(tuple, found)) == [(number, n, 1000 + number) for number in range(count) for n in range(4)]


def kept(table: Replicated) -> tuple[int, int]:
    """The versions of the changes that all steps have read, with the replication and without it."""
    lake = open_table(table.settings, _SCHEMA.full_name)
    needed, used = needed_changes(lake), used_changes(lake)
    assert needed is not None
    assert used is not None
    return needed.version, used.version


def test_only_changes_are_sent_after_an_outage(
    clusters: Clusters, table: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if each batch came hours after the one before it.
    monkeypatch.setattr(retention, "STREAM_HOURS", 0)
    add_batches(table, 0, _BEFORE)
    assert table.replicate() == 4 * _BEFORE
    position = table.lake.changes.load().version
    add_batches(table, _BEFORE, _BEFORE + _AFTER)
    assert len(table.lake.changes.load().files) < (_BEFORE + _AFTER) // 2
    needed, used = kept(table)
    assert needed == position < used
    assert table.replicate() == 4 * _AFTER
    assert_all_there(clusters, _BEFORE + _AFTER)
    assert table.replicate() == 0


def test_a_position_whose_log_is_gone_keeps_nothing(
    clusters: Clusters, table: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "STREAM_HOURS", 0)
    add_batches(table, 0, 1)
    table.replicate()
    add_batches(table, 1, 30)
    needed, used = kept(table)
    assert needed < used
    retention.trim_stream(table.lake, 0)
    assert kept(table) == (used, used)
    table.lake = open_table(table.settings, _SCHEMA.full_name)
    # All is sent again.
    assert table.replicate() == 4 * 30
    assert_all_there(clusters, 30)
