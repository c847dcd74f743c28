"""Backups like those of operators, made from a real server's snapshots, compared with the database's rows."""

import dataclasses
import os
import re
import shutil
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from tests.backups.nights import NODES, Nightly, medusa_of, tree
from tests.support import oracle
from tests.support.backups import Medusa
from writetime.backups.backup import newest_table
from writetime.changes.starts import Start, Truncation
from writetime.core.errors import WritetimeError
from writetime.core.instants import instant_text
from writetime.delta.bucketed_table import Conflict
from writetime.lake import backfilled
from writetime.lake.backfill import backfill, backup_names, find_snapshots, untaken
from writetime.lake.generation import renew
from writetime.lake.horizon import complete_snapshot, register_source, retire_source
from writetime.lake.table import GENERATION, create_table, open_table

pytestmark = pytest.mark.long


@pytest.mark.parametrize("differential", [True, False])
def test_medusa(nightly: Nightly, *, differential: bool) -> None:
    nights = nightly.nights
    assert nights.schema.id is not None
    medusa = Medusa(nightly.place, nights.table, nights.schema.id, differential)
    now = int(time.time())
    medusa.backup("node-1", "n0", nights.snapshots[0], nights.cql, NODES, now - 30)
    report = nightly.backfill()
    assert "node-2 has no backup, so rows that only this node has are missing" in report
    assert "2 of 2 SSTables new" in report
    nightly.assert_rows(0)
    # A watermark that waits for a snapshot must not pass the rows of the other node.
    assert complete_snapshot(open_table(nightly.settings, nights.table).changes.load()) == 0
    medusa.backup("node-2", "n0", nights.snapshots[0], nights.cql, NODES, now - 30)
    report = nightly.backfill()
    assert "2 of 4 SSTables new" in report
    assert "missing" not in report
    assert complete_snapshot(open_table(nightly.settings, nights.table).changes.load()) == (now - 30) * 1_000_000
    assert "0 of 4 SSTables new" in nightly.backfill()
    names = backup_names([str(nightly.place)], nights.table)
    medusa.backup("node-1", "n1", nights.snapshots[1], nights.cql, NODES, now - 20)
    assert backup_names([str(nightly.place)], nights.table) != names
    # One that is not complete does not count.
    medusa.backup("node-2", "n1", nights.snapshots[1], nights.cql, NODES, now - 20).unlink()
    assert "1 of 5 SSTables new" in nightly.backfill()
    nightly.assert_rows(1)
    for node in NODES:
        medusa.backup(node, "n2", nights.snapshots[2], nights.cql, NODES, now - 10)
    # Both nodes have compacted the earlier ones into one, and flushed another.
    assert "4 of 4 SSTables new" in nightly.backfill()
    nightly.assert_rows(2)
    # Medusa began this backup before, and again.
    begun = nightly.place / "index" / "backup_index" / "n2" / f"started_node-1_{now - 40}.timestamp"
    begun.write_text(str(now - 40))
    assert nightly.find().oldest_at == (now - 40) * 1_000_000


def test_trees_of_snapshots(nightly: Nightly) -> None:
    first, _ = (tree(nightly, node, 0) for node in NODES)
    # The database takes one before it drops or truncates the table.
    shutil.copytree(nightly.nights.snapshots[2], first.with_name("truncated-1763000000000-items"))
    assert "4 of 4 SSTables new" in nightly.backfill()
    nightly.assert_rows(0)
    # Repair rewrites Statistics.db.
    [path, _] = sorted(first.glob("*-Data.db"))
    statistics = path.with_name(path.name.replace("Data.db", "Statistics.db"))
    before = statistics.read_bytes()
    tool = "org.apache.cassandra.tools.SSTableRepairedAtSetter"
    subprocess.run(oracle.java_command(tool, "--really-set", "--is-repaired", path), check=True, capture_output=True)
    assert statistics.read_bytes() != before
    # A copy has another time, and no other content.
    os.utime(path)
    assert "0 of 4 SSTables new" in nightly.backfill()
    tree(nightly, "node-1", 1)
    assert "1 of 5 SSTables new" in nightly.backfill()
    nightly.assert_rows(1)


def test_fewer_snapshots_than_agents_are_not_complete(nightly: Nightly) -> None:
    """A watermark that waits for a snapshot must not pass the rows that only the other node has."""
    table = create_table(nightly.settings, nightly.nights.schema)
    for node in NODES:
        register_source(table, node)
    [path, *_] = sorted(tree(nightly, "node-1", 0).glob("*-Data.db"))
    list(backfill(table, find_snapshots([str(path)], nightly.nights.schema)))
    assert complete_snapshot(table.changes.load()) == 0
    fewer = f"2 agents publish changes of {table.name}, and the places have whole snapshots of 1 node"
    assert fewer in nightly.backfill()
    assert complete_snapshot(table.changes.load()) == 0
    tree(nightly, "node-2", 0)
    assert "agents" not in nightly.backfill()
    assert complete_snapshot(table.changes.load()) > 0
    # SSTables that are named one by one are no snapshot, even if one agent publishes all changes.
    retire_source(table, "node-2")
    before = complete_snapshot(table.changes.load())
    several = sorted(tree(nightly, "node-1", 2).glob("*-Data.db"))
    list(backfill(table, find_snapshots([str(each) for each in several], nightly.nights.schema)))
    assert complete_snapshot(table.changes.load()) == before
    nightly.assert_rows(2)


def test_a_name_that_returns_with_another_content(nightly: Nightly) -> None:
    first = tree(nightly, "node-1", 0)
    nightly.backfill()
    taken = min(first.glob("*-Data.db")).name.removesuffix("Data.db")
    later = tree(nightly, "node-1", 2)
    compacted = max(later.glob("*-Data.db"), key=lambda path: path.stat().st_size).name.removesuffix("Data.db")
    for file in later.glob(f"{compacted}*"):
        file.rename(later / file.name.replace(compacted, taken))
    manifest = later / "manifest.json"
    manifest.write_text(manifest.read_text().replace(compacted, taken))
    assert "2 of 2 SSTables new" in nightly.backfill()
    nightly.assert_rows(2)


def test_incremental_backups(nightly: Nightly) -> None:
    """The SSTables that were flushed after a snapshot, and those that the node compacted from them."""
    first = tree(nightly, "node-1", 0)
    nightly.backfill()
    increments = shutil.copytree(nightly.nights.flushed, first.parents[1] / "backups")
    flushed = len(list(increments.glob("*-Data.db")))
    assert flushed == 4
    # The snapshot has two of them.
    assert "2 of 6 SSTables new" in nightly.backfill()
    nightly.assert_rows(2)
    shutil.rmtree(first.parent)
    assert "pass a file with CREATE TABLE as --schema, or keep a snapshot" in nightly.refused()


def test_a_truncation_between_a_snapshot_and_its_increments(nightly: Nightly) -> None:
    """The truncated rows are in the snapshot, whatever the node flushed later."""
    first = tree(nightly, "node-1", 0)
    shutil.copytree(nightly.nights.flushed, first.parents[1] / "backups")
    found = nightly.find()
    until = nightly.nights.written_until
    assert found.snapshot_at < until[1] < found.oldest_at == found.taken_at <= until[2]
    table = create_table(nightly.settings, nightly.nights.schema)
    register_source(table, "node-1")
    assert renew(table, {"node-1": Start(truncation=Truncation(until[1], 1, 0))})
    with pytest.raises(WritetimeError, match=f"truncated at .* taken at {re.escape(instant_text(found.snapshot_at))}"):
        list(backfill(table, found))


def test_a_manifest_that_is_corrupt(nightly: Nightly) -> None:
    medusa_of(nightly, "node-1", 0, time.time() - 60)
    manifest = medusa_of(nightly, "node-1", 1, time.time())
    sound = manifest.read_text()
    for corrupt in (sound[:-9], "{}", sound.replace('"size"', '"siz"'), '["a"]'):
        manifest.write_text(corrupt)
        report = nightly.refused()
        assert f"{manifest} is not a manifest of Cassandra Medusa" in report
        assert "restore this file, or delete the backup with `medusa delete-backup`" in report
    # As the message proposes.
    manifest.unlink()
    nightly.backfill()
    nightly.assert_rows(0)


def test_backups_that_are_too_far_apart(nightly: Nightly) -> None:
    grace = nightly.nights.schema.gc_grace_seconds
    medusa_of(nightly, "node-1", 1, time.time())
    medusa_of(nightly, "node-2", 0, time.time() - grace - 60)
    report = nightly.refused()
    assert f"{nightly.nights.table}: the backup of node node-2 was taken at " in report
    assert "more than gc_grace_seconds (and a day) before the newest one" in report
    # It has left the cluster.
    shutil.rmtree(nightly.place / "node-2")
    nightly.backfill()
    nightly.assert_rows(1)
    # A backup that is older than that, of a place that had none.
    shutil.rmtree(nightly.place)
    medusa_of(nightly, "node-3", 0, time.time() - grace - 60)
    assert "is refused, because deletions up to " in nightly.refused()


def test_backups_within_a_day_are_one(nightly: Nightly) -> None:
    """A backup of a cluster takes hours, and some tables keep no tombstone for that long."""
    now, schema = time.time(), dataclasses.replace(nightly.nights.schema, gc_grace_seconds=0)
    medusa_of(nightly, "node-1", 0, now)
    medusa_of(nightly, "node-2", 1, now - 3600)
    found = find_snapshots([str(nightly.place)], schema, nightly.nights.table)
    lake = create_table(nightly.settings, schema)
    assert next(backfill(lake, found))[1] > 0
    # A second run completes it.
    assert dict(backfill(lake, found))[1] > 0
    nightly.assert_rows(1)
    medusa_of(nightly, "node-3", 1, now - 90_000)
    with pytest.raises(WritetimeError, match=r"the backup of node node-3 was taken at .* remove its backups if it has"):
        find_snapshots([str(nightly.place)], schema, nightly.nights.table)


def test_a_backfill_that_is_killed(nightly: Nightly, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the record of SSTables and their changes, and between two buckets."""
    lake = create_table(nightly.settings, nightly.nights.schema)
    for night in range(2):
        medusa_of(nightly, "node-1", night, time.time())
        found = nightly.find()
        with monkeypatch.context() as patch:
            patch.setattr(lake.changes, "append", lambda *_: pytest.fail("killed"))
            with pytest.raises(pytest.fail.Exception):
                next(backfill(lake, found))
        # The second bucket lacks those of the first night, too.
        assert len(untaken(lake, found)) == 2 + night
        # One bucket is done, then the next night comes.
        assert next(backfill(lake, found))[0] == 0
        assert len(untaken(lake, found)) == 2 + night
        assert dict(backfill(lake, found, [0])) == {0: 0}
    assert dict(backfill(lake, nightly.find()))[1] > 0
    assert untaken(lake, nightly.find()) == []
    nightly.assert_rows(1)


def test_the_remains_of_backfills_do_not_grow(nightly: Nightly, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a transaction per bucket, and a record lists the nodes' SSTables."""
    monkeypatch.setattr(backfilled, "MOST_LISTED", 0)
    monkeypatch.setattr(backfilled, "KEPT_SECONDS", -1)
    for night in range(3):
        medusa_of(nightly, "node-1", night, time.time())
        nightly.backfill()
        nightly.assert_rows(night)
    changes = open_table(nightly.settings, nightly.nights.table).changes
    names = {name for version in range(changes.load().version + 1) for name in changes.transactions_of(version)}
    assert {name for name in names if name.startswith("backfill")} == {"backfill/0", "backfill/1"}
    folder = Path(nightly.settings.lake.path) / nightly.nights.table / "backfilled"
    assert "0 of 2 SSTables new" in nightly.backfill()
    [record] = folder.iterdir()
    assert record.read_text().count("crc32:") == 2
    # Without the commit that it belongs to, as in a lake that was restored to an earlier version, it does not count.
    record.rename(folder / "other.json")
    assert "2 of 2 SSTables new" in nightly.backfill()
    [record] = folder.iterdir()
    assert "0 of 2 SSTables new" in nightly.backfill()
    record.write_text("[]")
    assert f"{record} is not a record of a backfill" in nightly.refused()


def test_two_backfills_at_once(nightly: Nightly, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same one counts once. Of two others, one may be refused, and nothing is lost."""
    lake = create_table(nightly.settings, nightly.nights.schema)
    other = open_table(nightly.settings, nightly.nights.table)
    for night in range(2):
        medusa_of(nightly, "node-1", night, time.time())
        found = nightly.find()
        one = backfill(lake, found)
        assert next(one)[0] == 0
        assert dict(backfill(other, found))[1] > 0
        assert list(one) == [(1, 0)]
        nightly.assert_rows(night)
    # The node has other SSTables now. Another backfill sees some of them first.
    medusa_of(nightly, "node-1", 2, time.time())
    found = nightly.find()
    with monkeypatch.context() as patch:
        patch.setattr(lake.changes, "append", lambda *_: False)
        with pytest.raises(Conflict, match="another backfill has committed bucket"):
            list(backfill(lake, found))
    one = backfill(lake, found)
    assert next(one)[0] == 0
    assert dict(backfill(other, dataclasses.replace(found, files=found.files[:1])))[1] > 0
    with suppress(Conflict):
        list(one)
    list(backfill(other, found))
    assert untaken(other, found) == []
    nightly.assert_rows(2)


def test_a_generation_begins_without_earlier_backups(nightly: Nightly) -> None:
    """After TRUNCATE the lake may have left out changes of SSTables that the table still has."""
    medusa_of(nightly, "node-1", 0, time.time())
    nightly.backfill()
    lake = open_table(nightly.settings, nightly.nights.table)
    assert untaken(lake, nightly.find()) == []
    lake.changes.append([], GENERATION, 1)
    assert len(untaken(lake, nightly.find())) == 2


def test_the_last_of_two_tables_of_one_name() -> None:
    earlier, later = (uuid.uuid1().hex for _ in range(2))
    chosen = uuid.uuid4().hex
    assert newest_table("shop.items", [later, earlier, later]) == later
    assert newest_table("shop.items", [chosen]) == chosen
    with pytest.raises(WritetimeError, match=r"two tables shop\.items, .* A user chose an id"):
        newest_table("shop.items", [earlier, chosen])
