"""Backups that were copied, so that their files have other times, or are not all there. The rows are those of the
database, or the command refuses them.
"""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.backups.nights import NODES, Nightly, medusa_of, tree
from tests.support.backups import Medusa
from tests.support.made import settings_at
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.lake.backfill import backfill, backup_names, find_snapshots
from writetime.lake.horizon import complete_snapshot, raise_snapshot
from writetime.lake.table import create_table

pytestmark = pytest.mark.long


def copy_of(place: Path, oldest_last: list[str]) -> None:
    """Copy a place, as `cp -r` does: each file gets the time of its copying. Folders with these names come last."""
    copied = shutil.copytree(place, place.with_name("copied"), copy_function=shutil.copyfile)
    for later, name in enumerate(oldest_last):
        for file in copied.glob(f"*/{name}/meta/*"):
            os.utime(file, (time.time() + later, time.time() + later))
    shutil.rmtree(place)
    copied.rename(place)


@pytest.mark.parametrize("differential", [True, False])
def test_a_place_of_medusa_that_was_copied(nightly: Nightly, *, differential: bool) -> None:
    """The newest backup is the newest by the index, on each node: one node has no third backup."""
    nights, now = nightly.nights, int(time.time())
    assert nights.schema.id is not None
    medusa = Medusa(nightly.place, nights.table, nights.schema.id, differential)
    for night, begun in enumerate((now - 3000, now - 2000, now - 1000)):
        for node in NODES[: 1 if night == 2 else 2]:
            medusa.backup(node, f"n{night}", nights.snapshots[night], nights.cql, NODES, begun)
    # The second node has begun it.
    medusa.backup(NODES[1], "n2", nights.snapshots[2], nights.cql, NODES, now - 1000).unlink()
    next(nightly.place.rglob(f"finished_{NODES[1]}_{now - 999}*")).unlink()
    copy_of(nightly.place, ["n2", "n1", "n0"])
    # As `medusa build-indices` adds it in the copy.
    for node in NODES:
        (nightly.place / "index" / "backup_index" / "n0" / f"finished_{node}_{now}.timestamp").touch()
    names = [f"{NODES[0]}/n2/meta/manifest.json", f"{NODES[1]}/n1/meta/manifest.json"]
    assert backup_names([str(nightly.place)], nights.table) == names
    found = nightly.find()
    assert found.taken_at == (now - 1000) * 1_000_000
    assert found.oldest_at == found.snapshot_at == (now - 2000) * 1_000_000
    nightly.backfill()
    nightly.assert_rows(2)


def test_a_backup_of_medusa_that_was_not_entered_as_finished(nightly: Nightly) -> None:
    """Medusa was killed after it had written the manifest."""
    now = int(time.time())
    for night in range(3):
        medusa_of(nightly, "node-1", night, now - 3000 + 1000 * night)
    next(nightly.place.rglob(f"finished_node-1_{now - 999}.timestamp")).unlink()
    copy_of(nightly.place, ["n2", "n1", "n0"])
    assert nightly.find().taken_at == (now - 1000) * 1_000_000
    nightly.backfill()
    nightly.assert_rows(2)


def test_a_copy_of_medusa_without_its_index_is_refused(nightly: Nightly) -> None:
    medusa_of(nightly, "node-1", 0, time.time() - 60)
    index = nightly.place / "index"
    away = index.rename(nightly.place.with_name("index"))
    fault = f"{index}/backup_index/n0 has no file started_node-1_<seconds>.timestamp, so it is not known when"
    assert fault in nightly.refused()
    away.rename(index)
    medusa_of(nightly, "node-1", 1, time.time())
    # Which of the two is newer is not known, either.
    shutil.rmtree(index / "backup_index" / "n0")
    assert fault in nightly.refused()
    # As the message proposes.
    shutil.rmtree(nightly.place / "node-1" / "n0")
    nightly.backfill()
    nightly.assert_rows(1)


@pytest.mark.parametrize("gone", ["Data.db", "Statistics.db", "CompressionInfo.db", "Filter.db", "TOC.txt"])
def test_a_copy_of_medusa_without_a_component(nightly: Nightly, gone: str) -> None:
    medusa_of(nightly, "node-1", 0, time.time())
    file = min(nightly.place.rglob(f"*-{gone}"))
    content = file.read_bytes()
    for damage in (file.unlink, lambda: file.write_bytes(content[:-1])):
        damage()
        if gone in ("Filter.db", "TOC.txt"):
            nightly.backfill()
            nightly.assert_rows(0)
        else:
            assert f"{file} does not exist or has not the {pluralize(len(content), 'byte')} that" in nightly.refused()


def without_times(snapshot: Path) -> None:
    """Make a snapshot one of Cassandra 4.0 that was copied: nothing has its time, but the names of its SSTables."""
    manifest = snapshot / "manifest.json"
    manifest.write_text(json.dumps({"files": json.loads(manifest.read_text())["files"]}))


def test_copied_snapshots_without_times(nightly: Nightly) -> None:
    """The newest one has the newest write, whatever the times of the files are."""
    for night in (2, 1, 0):
        without_times(tree(nightly, "node-1", night))
        for file in nightly.place.glob(f"**/night{night}/*"):
            os.utime(file)
    found = nightly.find()
    assert {file.location.folder.rpartition("/")[2] for file in found.files} == {"night2"}
    until = nightly.nights.written_until
    assert until[1] < found.snapshot_at == found.taken_at <= until[2] < found.complete_at
    nightly.backfill()
    nightly.assert_rows(2)


def test_a_snapshot_without_a_time_is_as_old_as_its_newest_write(nightly: Nightly) -> None:
    """So the lake does not count as having later writes, and a deletion that is dropped does not come back."""
    without_times(tree(nightly, "node-1", 0))
    for file in nightly.place.glob("**/night0/*"):
        os.utime(file)
    found = nightly.find()
    table = create_table(nightly.settings, nightly.nights.schema)
    # Ten days later, and one second.
    grace = nightly.nights.schema.gc_grace_seconds * 1_000_000
    raise_snapshot(table, nightly.nights.written_until[0] + grace + 1_000_000)
    with pytest.raises(WritetimeError, match="is refused, because deletions up to "):
        list(backfill(table, found))
    other = create_table(settings_at(nightly.place.with_name("other"), buckets=2), nightly.nights.schema)
    list(backfill(other, found))
    assert complete_snapshot(other.changes.load()) == found.snapshot_at <= nightly.nights.written_until[0]


@pytest.mark.parametrize(
    ("tag", "taken_at"),
    [
        ("1763000000000", 1_763_000_000_000_000),
        ("writetime-20251113T021320-0badcafe", 1_763_000_000_000_000),
        ("writetime-20251399T021320-0badcafe", None),
        ("nightly-1763000000000", None),
        ("176300000000", None),
    ],
)
def test_the_time_in_a_tag(nightly: Nightly, tag: str, taken_at: int | None) -> None:
    """Of the agent and `writetime snapshot`, and of nodetool by default."""
    snapshot = tree(nightly, "node-1", 0)
    without_times(snapshot)
    named = snapshot.rename(snapshot.with_name(tag))
    for place in (nightly.place, named):
        found = find_snapshots([str(place)], table=nightly.nights.table)
        assert (found.snapshot_at == taken_at) == (taken_at is not None)
