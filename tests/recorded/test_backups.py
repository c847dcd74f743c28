"""Backups of Scylla Manager, made from the SSTables of a real ScyllaDB, compared with its own rows."""

import gzip
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa
import pytest

from tests.recorded.conftest import RECORDED
from tests.recorded.recording import Recording, answered, texts
from tests.support.backups import ScyllaManager
from tests.support.merged import with_one_form
from tests.support.vault import vault
from writetime.changes.starts import Start, Truncation
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.delta.bucketed_table import Conflict
from writetime.delta.buckets import token_range
from writetime.files.row_form import to_micros
from writetime.lake import backfill as backfill_module
from writetime.lake import backfilled as records
from writetime.lake import views
from writetime.lake.backfill import BackfillTask, backfill, backup_names, find_snapshots, untaken
from writetime.lake.generation import renew
from writetime.lake.horizon import complete_snapshot, register_source
from writetime.lake.table import create_table
from writetime.schema.describe import to_cql
from writetime.storage import sstable
from writetime.storage.file_errors import CorruptFile
from writetime.storage.index import PartitionIndex, read_index
from writetime.storage.locations import Location
from writetime.storage.split import Split

pytestmark = pytest.mark.slow

RECORDING = Recording(RECORDED / "rec101")
TABLE = "rec101.Tab2"
TAKEN_AT = datetime.fromtimestamp(RECORDING.snapshot_at(TABLE), UTC)
NODE = uuid4()


@pytest.fixture
def place(tmp_path: Path) -> ScyllaManager:
    schema = RECORDING.schemas[TABLE]
    assert schema.id is not None
    return ScyllaManager(tmp_path / "place", TABLE, schema.id, to_cql(schema), uuid4(), uuid4())


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return config.load(lake={"path": str(tmp_path / "lake"), "buckets": 2})


def components(count: int = 2) -> list[Path]:
    """The files of the first SSTables of the table."""
    locations = RECORDING.sstables(TABLE)[:count]
    return [file for each in locations for file in Path(each.folder).glob(f"{each.version}-{each.id}-*")]


def backfilled(settings: Settings, *places: Path | str) -> int:
    """Bring backups in; return how many SSTables were new."""
    found = find_snapshots(list(map(str, places)), table=TABLE)
    table = create_table(settings, found.schema)
    new = len(untaken(table, found))
    list(backfill(table, found))
    return new


def test_nightly_backups(place: ScyllaManager, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    place.backup(NODE, TAKEN_AT - timedelta(days=1), components(1))
    assert backfilled(settings, place.place) == 1
    names = backup_names([str(place.place)], TABLE)
    manifest = place.backup(NODE, TAKEN_AT, components())
    # A task of its own may back up other keyspaces only, later.
    content = json.loads(gzip.decompress(manifest.read_bytes()))
    other = manifest.with_name(f"task_{uuid4()}_tag_sm_20990101000000UTC_manifest.json.gz")
    other.write_bytes(gzip.compress(json.dumps(content | {"index": []}).encode()))
    # Another backup is not complete yet.
    (manifest.parent / f"{manifest.name.replace('_tag_sm_2', '_tag_sm_3')}.tmp").write_bytes(b"")
    assert backup_names([str(place.place)], TABLE) != names
    found = find_snapshots([str(place.place)], table=TABLE)
    assert found.taken_at == RECORDING.snapshot_at(TABLE) * 1_000_000
    recorded = RECORDING.schemas[TABLE]
    assert found.lists_dropped
    assert found.schema.id == recorded.id
    assert [d.dropped_at for d in found.schema.dropped] == [d.dropped_at for d in recorded.dropped]
    assert len(found.paths) == 2
    assert backfilled(settings, place.place) == 1
    assert backfilled(settings, place.place) == 0
    monkeypatch.setattr(views, "time_now", lambda: RECORDING.snapshot_at(TABLE) * 1_000_000)
    rows = with_one_form(pa.concat_tables(views.virtual(create_table(settings, recorded))), recorded)
    assert texts(rows) == texts(to_micros(answered(RECORDING.of(TABLE, "select"), recorded), recorded))


def test_faults_of_a_place(place: ScyllaManager, settings: Settings) -> None:
    manifest = place.backup(NODE, TAKEN_AT, components(2))
    sound = manifest.read_bytes()
    for corrupt in (sound[:-9], gzip.compress(b"{}"), gzip.compress(b"[1]"), b"{}"):
        manifest.write_bytes(corrupt)
        with pytest.raises(WritetimeError, match=rf"{manifest.name} is not a manifest of .*: restore this file, or"):
            backfilled(settings, place.place)
    manifest.write_bytes(sound)
    with pytest.raises(WritetimeError, match=r"none of its backups has rec101\.none"):
        find_snapshots([str(place.place)], table="rec101.none")
    # No reader needs this one.
    next(place.place.rglob("*-Filter.db")).unlink()
    gone = next(place.place.rglob("*-CompressionInfo.db"))
    gone.rename(gone.with_suffix(".away"))
    with pytest.raises(WritetimeError, match=rf"{gone.name} does not exist, and the manifest .* lists it"):
        backfilled(settings, place.place)
    gone.with_suffix(".away").rename(gone)
    # The next backup has begun to replace a file of the same name.
    data = next(place.place.rglob("*-Data.db"))
    later = shutil.copy(data, f"{data}.sm_20990101000000UTC")
    with pytest.raises(Transient, match=rf"{data.name} was replaced by a backup that has no manifest yet"):
        backfilled(settings, place.place)
    Path(later).unlink()
    for schema in place.place.rglob("*_schema_with_internals.json.gz"):
        schema.unlink()
    with pytest.raises(WritetimeError, match=r"_schema_with_internals\.json\.gz does not exist"):
        backfilled(settings, place.place)


def test_two_clusters_in_a_place(place: ScyllaManager, settings: Settings) -> None:
    place.backup(NODE, TAKEN_AT, components(1))
    other = ScyllaManager(place.place, TABLE, place.table_id, place.cql, UUID(int=7), place.task)
    other.backup(NODE, TAKEN_AT, components(2))
    with pytest.raises(WritetimeError, match=r"several clusters: name one of them, .*/backup/meta/cluster/0{8}-"):
        backfilled(settings, place.place)
    assert backfilled(settings, place.place / "backup" / "meta" / "cluster" / str(UUID(int=7))) == 2


def test_a_password_in_an_address_is_not_shown(place: ScyllaManager, settings: Settings, tmp_path: Path) -> None:
    """Neither by errors, nor by the lake's record of the SSTables."""
    tree = tmp_path / "node" / "data" / "rec101" / f"Tab2-{place.table_id.hex}" / "snapshots" / "now"
    tree.mkdir(parents=True)
    for file in components(1):
        shutil.copy(file, tree)
    (tree / "schema.cql").write_text(place.cql)
    (tree / "manifest.json").write_text(json.dumps({"files": [path.name for path in tree.glob("*-Data.db")]}))
    assert backfilled(settings, vault(tmp_path / "node")) == 1
    assert backfilled(settings, vault(tmp_path / "node", "rotated")) == 0
    kept = [file.read_bytes() for file in (tmp_path / "lake").rglob("*.json")]
    assert any(b"vault://user@host/" in content for content in kept)
    assert not [content for content in kept if b"secret@" in content]
    place.backup(NODE, TAKEN_AT, components(1))
    (place.place / "empty").mkdir()
    for folder, table in (("empty", TABLE), (".", "rec101.none"), ("backup/sst", TABLE), ("none", TABLE)):
        with pytest.raises(WritetimeError) as refused:
            find_snapshots([vault(place.place / folder)], table=table)
        assert "secret" not in str(refused.value)
    next(place.place.rglob("*_manifest.json.gz")).write_bytes(b"")
    with pytest.raises(WritetimeError, match=r"vault://user@host/.*_manifest\.json\.gz is not a manifest"):
        find_snapshots([vault(place.place)], table=TABLE)


@pytest.mark.parametrize("done", [0, 1])
def test_a_truncation_during_a_backfill(place: ScyllaManager, settings: Settings, done: int) -> None:
    """No bucket that is committed after it brings rows back, also if the lake had none when it learned of it."""
    place.backup(NODE, TAKEN_AT, components(2))
    found = find_snapshots([str(place.place)], table=TABLE)
    table = create_table(settings, found.schema)
    register_source(table, "node")
    before = list(range(done))
    assert [bucket for bucket, _ in backfill(table, found, before)] == before

    def truncated(function: Callable[[BackfillTask], Any], tasks: Iterable[BackfillTask]) -> Iterator[Any]:
        for task in tasks:
            written = function(task)
            renew(table, {"node": Start(truncation=Truncation(views.time_now(), 1, 0))})
            yield written

    with pytest.raises(Conflict, match="run this again"):
        list(backfill(table, found, run=truncated))
    assert sum(rows.num_rows for rows in views.virtual(table)) == 0
    with pytest.raises(WritetimeError, match=r"was truncated at .* its rows would come back; .* `nodetool snapshot`"):
        list(backfill(table, found))


def test_a_snapshot_is_complete_once_all_buckets_have_it(place: ScyllaManager, settings: Settings) -> None:
    """And it is as old as its first node's. Until then it releases no watermark."""
    place.backup(NODE, TAKEN_AT - timedelta(hours=1), components(1))
    place.backup(uuid4(), TAKEN_AT, components(2))
    found = find_snapshots([str(place.place)], table=TABLE)
    table = create_table(settings, found.schema)
    assert next(backfill(table, found))[0] == 0
    assert complete_snapshot(table.changes.load()) == 0
    list(backfill(table, found, [1]))
    assert complete_snapshot(table.changes.load()) == found.oldest_at == found.taken_at - 3_600_000_000


def test_an_old_record_that_cannot_be_deleted(
    place: ScyllaManager, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The snapshot counts as complete all the same."""
    place.backup(NODE, TAKEN_AT, components(1))
    found = find_snapshots([str(place.place)], table=TABLE)
    table = create_table(settings, found.schema)
    monkeypatch.setattr(records, "KEPT_SECONDS", -1)
    (Path(table.storage.address) / "backfilled" / "stuck.json").mkdir(parents=True)
    list(backfill(table, found))
    assert "old records of backfills cannot be deleted" in caplog.text
    assert complete_snapshot(table.changes.load()) == found.snapshot_at


def test_an_index_is_read_once(place: ScyllaManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not by the task of each bucket, which reads the same part of the data."""
    place.backup(NODE, TAKEN_AT, components(2))
    found = find_snapshots([str(place.place)], table=TABLE)
    table = create_table(config.load(lake={"path": str(tmp_path / "lake"), "buckets": 64}), found.schema)
    read: list[str] = []

    def reading(location: Location) -> PartitionIndex:
        read.append(location.path("Index.db"))
        return read_index(location)

    monkeypatch.setattr(sstable, "read_index", reading)
    seen: list[BackfillTask] = []

    def running(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for task in tasks:
            seen.extend([task] if isinstance(task, BackfillTask) else [])
            yield function(task)

    assert [bucket for bucket, _ in backfill(table, found, run=running)] == list(range(64))
    assert len(read) == len(set(read)) == 2
    for task in seen:
        assert (task.ranges >= 0).all()
        alone = replace(task, ranges=np.full_like(task.ranges, -1))
        of_task, of_alone = (
            [change for batch in backfill_module._read(each) for change in batch.drop_columns("origin").to_pylist()]
            for each in (task, alone)
        )
        assert of_task == of_alone
    assert len(read) == 2 + 2 * 64


def test_a_part_that_cannot_be_found_is_a_fault_of_its_bucket(
    place: ScyllaManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are completed."""
    place.backup(NODE, TAKEN_AT, components(2))
    found = find_snapshots([str(place.place)], table=TABLE)
    table = create_table(config.load(lake={"path": str(tmp_path / "lake"), "buckets": 64}), found.schema)
    splits = sstable.SSTable.splits

    def failing(self: sstable.SSTable, target_bytes: int, tokens: tuple[int, int]) -> list[Split]:
        if tokens == token_range(40, 64):
            raise CorruptFile(self.data.path, 7, "a partition was expected")
        return splits(self, target_bytes, tokens)

    with monkeypatch.context() as patch:
        patch.setattr(sstable.SSTable, "splits", failing)
        with pytest.raises(WritetimeError, match=r"offset 7: a partition was expected \(in bucket 40\)"):
            list(backfill(table, found))
    assert not untaken(table, found, [*range(40), *range(41, 64)])
    assert untaken(table, found)
    assert complete_snapshot(table.changes.load()) == 0
    list(backfill(table, found))
    assert not untaken(table, found)
