"""The lake, and the snapshots that are read into it, in an object store."""

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid1, uuid4

import polars as pl
import pyarrow as pa
import pytest
from pyarrow import fs

from tests.support import oracle
from tests.support.backups import Medusa, ScyllaManager
from tests.support.lake_answers import view_rows
from tests.support.made import SCHEMA, add, batch, new_table, rewrite, write
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.recordings import RecordedTable
from writetime.changes.starts import Start, Truncation
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.delta import commits
from writetime.delta.bucketed_table import Conflict
from writetime.delta.store_clock import clock_fault
from writetime.lake import retention, state, views
from writetime.lake.backfill import backfill, find_snapshots, untaken
from writetime.lake.changes import ChangeWriter
from writetime.lake.generation import renew
from writetime.lake.horizon import raise_complete_snapshot
from writetime.lake.table import create_table, open_table
from writetime.restore.to_folder import restore
from writetime.row_events.stream import extend
from writetime.schema.describe import to_cql
from writetime.storage.locations import Location, find_sstables
from writetime.storage.sstable import SSTable
from writetime.undo import applying
from writetime.undo.damage import Interval
from writetime.undo.plan import examples, folder_of, make_plan, plan_ids, read_plan
from writetime.view.refreshing import refresh

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an SSTable of the table `bench.events`."""
    folder = tmp_path_factory.mktemp("written") / "bench" / "events"
    folder.mkdir(parents=True)
    subprocess.run(oracle.java_command("Oracle", "write", folder, "1000"), check=True, capture_output=True)
    return folder


def settings_of(store: ObjectStore, folder: str, **options: str) -> Settings:
    lake = {"path": f"s3://{BUCKET}/{folder}", "buckets": 2, "storage_options": store.options | options}
    return config.load(lake=lake)


def test_what_a_truncation_removed_is_kept(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create_table(settings_of(store, "truncated"), SCHEMA)
    origin = {"source": "commitlog", "node": "a", "file": "CommitLog-7-1.log", "offset": 0}
    add(table, [write(i, 1, 50, v="a") | {"origin": origin} for i in range(20)], 1)
    with monkeypatch.context() as patch:
        patch.setattr(commits, "millis", lambda _: 0)
        assert renew(table, {"a": Start(truncation=Truncation(100, 2, 0))})
    retention.trim_stream(table, 168)
    assert len(view_rows(view.rows() for view in views.views_at(table, 99))) == 20
    retention.trim_stream(table, 0)
    with pytest.raises(WritetimeError, match=r"were deleted.*lake\.vacuum_hours"):
        views.views_at(table, 99)
    retention.vacuum(table, 0)
    assert table.storage.filesystem().get_file_info(fs.FileSelector("earlier", allow_not_found=True)) == []


def test_a_plan_to_undo_is_in_the_store(store: ObjectStore) -> None:
    table = create_table(settings_of(store, "undone"), SCHEMA)
    add(table, [write(1, 1, 10, v="good"), write(1, 1, 1_500, v="bad")], 0)
    raise_complete_snapshot(table, 10**9)
    commits.put_new(table.storage, "undo/17/undo.json", b"{}")
    made = make_plan(table, Interval(1_000, 2_000))
    # The one that is too old is deleted.
    assert plan_ids(table) == [made.id]
    assert read_plan(table, made.id) == made
    assert [cell["before"] for cell in examples(table, made)] == ['"good"']
    assert [applying._begin(folder_of(table, made.id), made) for _ in range(3)] == [1, 2, 3]
    for some in applying._unwritten(table, made):
        assert [cell["value"] for row in some for cell in row] == [b"good"]
    assert list(applying._unwritten(table, made)) == []


def test_a_lake_in_a_store_is_that_of_a_disk(store: ObjectStore, tmp_path: Path) -> None:
    settings = settings_of(store, "whole")
    tables = create_table(settings, SCHEMA), new_table(tmp_path)
    for table in tables:
        for number in range(3):
            add(table, [write(i, number, 5 + number, v="x" * number) for i in range(20)], number)
            assert not add(table, [write(i, number, 5 + number, v="other") for i in range(20)], number)
            state.fold(table)
        state.compact(table)
        rewrite(table)
        assert clock_fault(table.changes.storage) is None
        retention.vacuum(table, 0)
    rows = view_rows(views.virtual(tables[1]))
    assert view_rows(views.virtual(open_table(settings, "shop.items"))) == rows
    view = pl.read_delta(tables[0].view.storage.address, storage_options=store.options)
    assert view.select("id", "n", "v").sort("id", "n").rows() == sorted((r["id"], r["n"], r["v"]) for r in rows)


def test_how_many_puts_a_batch_takes(store: ObjectStore) -> None:
    """The figures of docs/benchmarks.md: four per batch of changes and row events, three per refresh, two per fold."""
    settings = settings_of(store, "puts")
    table = create_table(settings, SCHEMA)
    counts = [store.puts()]
    for number in range(40):
        add(table, [write(i, i, 5 + number, v=f"{number}") for i in range(20)], number)
        extend(table)
        refresh(settings, table)
        state.fold(table)
        counts.append(store.puts())
    # The store counts a request after its answer. Packing and checkpoints add a tenth to the nine.
    assert 5 * 40 < counts[-1] - counts[0] <= 1.1 * 9 * 40 + 1


def test_writers_that_meet_lose_nothing(store: ObjectStore, is_long: bool) -> None:
    count = 6 if is_long else 3
    table = create_table(settings_of(store, "meeting"), SCHEMA)

    def writes(writer: int) -> list[dict[str, Any]]:
        return [write(writer, n, 7, v=f"{writer}/{n}") for n in range(count)]

    def send(writer: int) -> None:
        own = deepcopy(table)
        for number, each in enumerate(writes(writer), 1):
            files = ChangeWriter.of(table, SCHEMA).write([batch([each])])
            # The same batch once more, as a retry sends it.
            assert [own.changes.append(files, f"writer {writer}", number) for _ in range(2)] == [True, False]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, range(4)))
    assert len(table.changes.load().files) == 4 * count
    assert sorted(row["v"] for row in view_rows(views.virtual(table))) == sorted(
        f"{writer}/{n}" for writer in range(4) for n in range(count)
    )


def test_views_that_are_refreshed_at_once(store: ObjectStore, is_long: bool) -> None:
    writers, each = (3, 4) if is_long else (2, 2)
    settings = settings_of(store, "refreshed")
    table = create_table(settings, SCHEMA)
    add(table, [write(i, 1, 5, v="a") for i in range(20)], 0)
    refresh(settings, table)

    def work(writer: int) -> None:
        own = deepcopy(table)
        for number in range(1, each + 1):
            files = ChangeWriter.of(own, SCHEMA).write([batch([write(5 * writer + number, 1, 6, v="b")])])
            own.changes.append(files, f"writer {writer}", number)
            for _ in range(20):
                # Another one was first.
                with suppress(Conflict):
                    refresh(settings, own)
                    break

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(work, range(writers)))
    refresh(settings, table)
    view = pl.read_delta(table.view.storage.address, storage_options=store.options)
    rows = sorted((r["id"], r["n"], r["v"]) for r in view_rows(views.virtual(table)))
    assert view.select("id", "n", "v").sort("id", "n").rows() == rows
    assert [v for _, _, v in rows].count("b") == writers * each


def test_options_of_the_store(store: ObjectStore) -> None:
    """All that delta-rs takes: names in any case and form, those of the connection, and those of delta-rs alone."""
    wanted = {"AWS_S3_ALLOW_UNSAFE_RENAME": "true", "max_retries": "3", "timeout": "20s", "Connect_Timeout": "5s"}
    settings = settings_of(store, "options", **wanted)
    table = create_table(settings, SCHEMA)
    add(table, [write(1, 1, 5, v="a")], 0)
    assert refresh(settings, table).rows == 1
    wrong = settings_of(store, "options", AWS_VIRTUAL_HOSTED_STYLE_REQUEST="perhaps")
    with pytest.raises(WritetimeError, match=r"s3://.* cannot be opened .*perhaps"):
        add(open_table(wrong, "shop.items"), [write(2, 1, 5, v="a")], 1)


def test_sstables_in_a_store(store: ObjectStore, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store.options.items():
        monkeypatch.setenv(name, value)
    fs.copy_files(str(written), f"{BUCKET}/snapshot", destination_filesystem=store.filesystem())
    (there,) = find_sstables(f"s3://{BUCKET}/snapshot?endpoint_override={store.host}&scheme=http")
    (here,) = find_sstables(str(written))
    assert rows_of(there) == rows_of(here)


def test_a_table_is_restored_to_a_store(store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store.options.items():
        monkeypatch.setenv(name, value)
    table = create_table(settings_of(store, "restored"), SCHEMA)
    add(table, [write(n, 1, 5, v=f"v{n}") for n in range(30)], 0)
    address = f"s3://{BUCKET}/given-back?endpoint_override={store.host}&scheme=http"
    sstables = restore(table, address).sstables
    found = list(find_sstables(address))
    assert len(found) == len(sstables) > 1
    assert sum(len(rows_of(location)) for location in found) == 30
    with pytest.raises(WritetimeError, match=f"{BUCKET}/given-back has files already"):
        restore(table, address)


def test_backups_in_a_store(store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backups of Scylla Manager, into a lake in the same store: each night, only the new SSTables are read."""
    recorded = RecordedTable("rec104", "x_0")
    schema, files = recorded.schema, recorded.locations
    place = ScyllaManager(tmp_path / "place", schema.full_name, uuid1(), to_cql(schema), uuid4(), uuid4())
    for name, value in store.options.items():
        monkeypatch.setenv(name, value)
    address = f"s3://{BUCKET}/place?endpoint_override={store.host}&scheme=http"
    table = create_table(settings_of(store, "backups"), schema)
    node = uuid4()
    for night in range(len(files)):
        components = [f for each in files[: night + 1] for f in Path(each.folder).glob(f"{each.version}-{each.id}-*")]
        place.backup(node, datetime(2026, 5, 1 + night, tzinfo=UTC), components)
        fs.copy_files(str(place.place), f"{BUCKET}/place", destination_filesystem=store.filesystem())
        found = find_snapshots([address], table=schema.full_name)
        table.follow(found.schema)
        # The copy has uploaded the first one again, with another time.
        assert [len(found.paths), len(untaken(table, found))] == [night + 1, 1]
        list(backfill(table, found))
    assert untaken(table, find_snapshots([address], table=schema.full_name)) == []
    monkeypatch.setattr(views, "time_now", lambda: recorded.snapshot_at * 1_000_000)
    rows = pa.concat_tables(views.virtual(table))
    assert recorded.texts(rows) == recorded.answer()


def test_snapshots_of_several_nodes_in_a_store(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data folders of the nodes, without a tool for backups: each night, only the new SSTables are read."""
    recorded = RecordedTable("rec104", "x_0")
    schema, [first, second, *others] = recorded.schema, recorded.locations
    for name, value in store.options.items():
        monkeypatch.setenv(name, value)
    address = f"s3://{BUCKET}/nodes?endpoint_override={store.host}&scheme=http"
    table = create_table(settings_of(store, "trees"), schema)
    folder = f"data/{schema.keyspace}/{schema.name}-{uuid1().hex}/snapshots"
    # The nodes have one SSTable in common; the second night has the SSTables of the first, and new ones.
    nights = [{"node-1": [first], "node-2": [first]}, {"node-1": [first, second], "node-2": [first, *others]}]
    counts = []
    for night, nodes in enumerate(nights):
        for node, sstables in nodes.items():
            snapshot = tmp_path / node / folder / f"night{night}"
            snapshot.mkdir(parents=True)
            (snapshot / "schema.cql").write_text(to_cql(schema))
            files = [Path(each.path("Data.db")).name for each in sstables]
            (snapshot / "manifest.json").write_text(json.dumps({"files": files}))
            for each in sstables:
                for file in Path(each.folder).glob(f"{each.version}-{each.id}-*"):
                    shutil.copy2(file, snapshot)
        fs.copy_files(str(tmp_path), f"{BUCKET}/nodes", destination_filesystem=store.filesystem())
        found = find_snapshots([address], table=schema.full_name)
        table.follow(found.schema)
        counts.append((len(found.paths), len(untaken(table, found))))
        list(backfill(table, found))
        assert untaken(table, find_snapshots([address], table=schema.full_name)) == []
    assert counts == [(2, 2), (3 + len(others), 1 + len(others))]
    monkeypatch.setattr(views, "time_now", lambda: recorded.snapshot_at * 1_000_000)
    assert recorded.texts(pa.concat_tables(views.virtual(table))) == recorded.answer()


def test_medusa_in_a_store(store: ObjectStore, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its manifests name files from the bucket on, whatever the prefix is."""
    medusa = Medusa(tmp_path / "prefix", "bench.events", uuid1())
    cql = "CREATE TABLE bench.events (id uuid PRIMARY KEY)"
    medusa.backup("node-1", "first", written, cql, ["node-1", "node-2"], 1_777_600_000)
    for name, value in store.options.items():
        monkeypatch.setenv(name, value)
    fs.copy_files(str(medusa.place), f"{BUCKET}/of/medusa", destination_filesystem=store.filesystem())
    address = f"s3://{BUCKET}/of/medusa/?endpoint_override={store.host}&scheme=http"
    here, there = (find_snapshots([place], table="bench.events") for place in (str(medusa.place), address))
    assert there.missing_nodes == ("node-2",)
    assert there.taken_at == 1_777_600_000_000_000
    [of_disk, of_store] = (found.files[0] for found in (here, there))
    assert (of_disk.node, of_disk.size, of_disk.mark) == (of_store.node, of_store.size, of_store.mark)
    # A task has the address alone.
    [opened] = find_sstables(of_store.address)
    assert rows_of(opened) == rows_of(of_disk.location)


def rows_of(location: Location) -> list[dict[str, Any]]:
    """Its changes, without the fields that name the file."""
    batches = [batch.drop_columns(["origin"]) for batch in SSTable(location).scan()]
    return [row for b in batches for row in b.to_pylist()]
