"""Backups like those of operators, made from a real server's snapshots, compared with the database's rows."""

import dataclasses
import os
import shutil
import subprocess
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support import oracle
from tests.support.backups import Medusa
from tests.support.lake_answers import cql_rows, view_rows
from tests.support.made import SCHEMA, new_table
from tests.support.settings import write_settings
from writetime.changes.starts import Start, Truncation
from writetime.cli.main import main
from writetime.clients.database import connect
from writetime.clients.node_snapshots import local_node, take_snapshot
from writetime.core.config import Lake, Settings
from writetime.core.errors import WritetimeError
from writetime.lake import backfilled, views
from writetime.lake.backfill import SnapshotFiles, backfill, backup_names, complete_schema, find_snapshots, untaken
from writetime.lake.backup import newest_table
from writetime.lake.delta import Conflict
from writetime.lake.generation import renew
from writetime.lake.horizon import register_source
from writetime.lake.table import GENERATION, create_table, open_table
from writetime.runtime.nodetool import nodetool
from writetime.schema.describe import to_cql
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema

pytestmark = pytest.mark.long

NODES = ("node-1", "node-2")


@dataclass(frozen=True)
class Nights:
    """A table in the database, its snapshots of three nights, its rows then, and the SSTables that it flushed."""

    settings: Settings
    schema: TableSchema
    cql: str
    snapshots: list[Path]
    rows: list[list[dict[str, Any]]]
    flushed: Path

    @property
    def table(self) -> str:
        return self.schema.full_name

    @property
    def folder(self) -> str:
        """The table's folder below a data folder."""
        assert self.schema.id is not None
        return f"{self.schema.keyspace}/{self.schema.name}-{self.schema.id.hex}"


@pytest.fixture(scope="module")
def nights(cassandra: Settings, tmp_path_factory: pytest.TempPathFactory) -> Nights:
    """In the first night a column was dropped; before the third, the database compacted its SSTables."""
    keyspace, folder = f"t{uuid.uuid4().hex[:12]}", tmp_path_factory.mktemp("nights")
    table, taken, rows = f"{keyspace}.items", [], []
    with connect(cassandra) as session:
        session.execute(
            f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        session.execute(f"CREATE TYPE {keyspace}.place (x int, y int)")
        session.execute(
            f"CREATE TABLE {table} (id int, n int, v text, gone int, at frozen<place>, PRIMARY KEY (id, n)) "
            "WITH compaction = {'class': 'SizeTieredCompactionStrategy', 'enabled': 'false'}"
        )
        _, port = local_node(session)
        nodetool(port, "enablebackup")
        for i in range(30):
            session.execute(f"INSERT INTO {table} (id, n, v, gone, at) VALUES ({i}, 1, 'a', 1, {{x: {i}}})")
        nodetool(port, "flush", keyspace)
        session.execute(f"ALTER TABLE {table} DROP gone")
        for night in range(3):
            for i in range(night, 30, 3):
                session.execute(f"INSERT INTO {table} (id, n, v) VALUES ({i}, {night}, 'of night {night}')")
                session.execute(f"DELETE FROM {table} WHERE id = {i} AND n = {night + 1}")
            if night == 2:
                nodetool(port, "compact", keyspace)
            taken += take_snapshot(cassandra, table, f"night{night}")
            rows.append(cql_rows(session, read_schema(session, table)))
        nodetool(port, "disablebackup")
        schema = read_schema(session, table)
        assert session.cluster is not None
        session.cluster.refresh_schema_metadata()
        # As Medusa has it: with other keyspaces.
        described = session.cluster.metadata.keyspaces
        cql = "\n\n".join(described[name].export_as_string() for name in ("system_auth", keyspace))
    snapshots = [shutil.copytree(each, folder / each.name) for each in taken]
    flushed = shutil.copytree(taken[0].parents[1] / "backups", folder / "backups")
    return Nights(cassandra, schema, cql, snapshots, rows, flushed)


@pytest.fixture
def nightly(nights: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Nightly":
    lake = Lake(path=str(tmp_path / "lake"), buckets=2, cache=str(tmp_path / "cache"))
    settings = nights.settings.model_copy(update={"lake": lake})
    write_settings(settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    return Nightly(nights, settings, tmp_path / "place")


@dataclass(frozen=True)
class Nightly:
    """A place, and a separate lake for its backups."""

    nights: Nights
    settings: Settings
    place: Path

    def backfill(self) -> str:
        """Run the command; return its report."""
        answer = CliRunner(catch_exceptions=False).invoke(main, ["backfill", self.nights.table, str(self.place)])
        assert answer.exit_code == 0, answer.output
        return answer.stderr

    def find(self) -> SnapshotFiles:
        return complete_schema(self.settings, find_snapshots([str(self.place)], table=self.nights.table))

    def refused(self) -> str:
        answer = CliRunner(catch_exceptions=False).invoke(main, ["backfill", self.nights.table, str(self.place)])
        assert answer.exit_code == 1
        return answer.output

    def assert_rows(self, night: int) -> None:
        """The lake answers as the database did in a night."""
        rows = view_rows(views.virtual(open_table(self.settings, self.nights.table)))
        assert rows == self.nights.rows[night]


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
    medusa.backup("node-2", "n0", nights.snapshots[0], nights.cql, NODES, now - 30)
    report = nightly.backfill()
    assert "2 of 4 SSTables new" in report
    assert "missing" not in report
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


def tree(nightly: Nightly, node: str, night: int) -> Path:
    """Add a snapshot to the data folder of a node; return its folder."""
    folder = nightly.place / node / "data" / nightly.nights.folder / "snapshots" / f"night{night}"
    return shutil.copytree(nightly.nights.snapshots[night], folder)


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


def test_a_truncation_between_a_snapshot_and_its_increments(tmp_path: Path) -> None:
    """The truncated rows are in the snapshot, whatever the node flushed later."""
    folder = tmp_path / "place" / "node-1" / "shop" / f"items-{uuid.uuid1().hex}"
    for name, content in {
        "snapshots/nightly/manifest.json": '{"files": [], "created_at": "1970-01-01T00:00:02Z"}',
        "snapshots/nightly/schema.cql": to_cql(SCHEMA),
        "backups/nb-1-big-TOC.txt": "Data.db\nTOC.txt\n",
        "backups/nb-1-big-Data.db": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    os.utime(folder / "backups" / "nb-1-big-Data.db", (4, 4))
    found = find_snapshots([str(tmp_path / "place")], table="shop.items")
    assert (found.snapshot_at, found.oldest_at, found.taken_at) == (2_000_000, 4_000_000, 4_000_000)
    table = new_table(tmp_path / "lake")
    register_source(table, "node-1")
    assert renew(table, {"node-1": Start(truncation=Truncation(3_000_000, 1, 0))})
    with pytest.raises(WritetimeError, match=r"truncated at 1970-01-01T00:00:03.* taken at 1970-01-01T00:00:02"):
        list(backfill(table, found))


def medusa_of(nightly: Nightly, node: str, night: int, at: float) -> Path:
    nights = nightly.nights
    assert nights.schema.id is not None
    medusa = Medusa(nightly.place, nights.table, nights.schema.id)
    return medusa.backup(node, f"n{night}", nights.snapshots[night], nights.cql, NODES, int(at))


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
