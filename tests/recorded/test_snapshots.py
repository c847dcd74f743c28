"""Snapshots of a real ScyllaDB in `writetime backfill`: their manifest, and the gaps of their schema.cql."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid1

import pyarrow as pa
import pytest
from cassandra import InvalidRequest, OperationTimedOut

from tests.recorded.conftest import RECORDED
from tests.recorded.recording import Recording, answered, texts
from tests.support.merged import with_one_form
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.files.row_form import to_micros
from writetime.lake import backfill as module
from writetime.lake import views
from writetime.lake.backfill import backfill, complete_schema, find_snapshots
from writetime.lake.table import create_table
from writetime.schema.table import SchemaError

RECORDING = Recording(RECORDED / "rec105")
# A column was dropped, that some SSTables have.
TABLE = "rec105.t3"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table's snapshot as ScyllaDB leaves it."""
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for location in RECORDING.sstables(TABLE):
        for path in Path(location.folder).glob(f"{location.version}-{location.id}-*"):
            shutil.copy(path, folder)
    shutil.copy(Path(RECORDING.sstables(TABLE)[0].folder) / "schema.cql", folder)
    manifest = {
        "manifest": {"version": "1.0"},
        "snapshot": {"name": "s", "created_at": 1_795_404_956},
        "table": {"table_id": str(RECORDING.schemas[TABLE].id)},
        "sstables": [{"toc_name": path.name} for path in folder.glob("*-TOC.txt")],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings with a lake, and a database that has the recorded schemas."""

    @contextmanager
    def connect(_: Settings) -> Iterator[None]:
        yield None

    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr(module, "read_schema", lambda _, name: RECORDING.schemas[name])
    return config.load(lake={"path": str(tmp_path / "lake")})


def test_the_manifest_has_the_time_of_a_snapshot(folder: Path) -> None:
    assert find_snapshots([str(folder)]).taken_at == 1_795_404_956_000_000


def test_a_snapshot_of_an_empty_table_is_one(folder: Path) -> None:
    for path in folder.glob("me-*"):
        path.unlink()
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"sstables": []}))
    found = find_snapshots([str(folder)])
    assert (found.paths, found.schema.full_name) == ((), TABLE)


def test_snapshots_of_two_tables_of_one_name_are_refused(folder: Path, settings: Settings, tmp_path: Path) -> None:
    """ScyllaDB keeps the snapshots of a dropped table in a folder next to that of the new table of this name."""
    earlier = Path(shutil.copytree(folder, tmp_path / "earlier"))
    manifest = json.loads((folder / "manifest.json").read_text())
    old_id = str(uuid1())
    (earlier / "manifest.json").write_text(json.dumps(manifest | {"table": {"table_id": old_id}}))
    with pytest.raises(WritetimeError, match=rf"two successive tables named {re.escape(TABLE)}, .*{old_id}"):
        find_snapshots([str(folder), str(earlier)])
    with pytest.raises(WritetimeError, match=rf"an earlier table {re.escape(TABLE)}, with the id {old_id}"):
        complete_schema(settings, find_snapshots([str(earlier)]))


def test_dropped_columns_come_from_the_database(folder: Path, settings: Settings) -> None:
    found = find_snapshots([str(folder)])
    complete = complete_schema(settings, found)
    assert set(complete.schema.dropped) == set(RECORDING.schemas[TABLE].dropped)


def test_without_the_database_a_complete_schema_is_requested(folder: Path, tmp_path: Path) -> None:
    nowhere = config.load(lake={"path": str(tmp_path / "lake")}, cassandra={"contact_points": ["127.0.0.1"], "port": 9})
    with pytest.raises(Transient, match=r"does not list the dropped columns of rec105\.t3.*--schema"):
        complete_schema(nowhere, find_snapshots([str(folder)]))


@pytest.mark.parametrize(
    ("error", "is_outage"),
    [(OperationTimedOut(), True), (InvalidRequest("no column"), False), (SchemaError("no table"), False)],
)
def test_a_database_that_stops_answering_is_an_outage(
    folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception, *, is_outage: bool
) -> None:
    """Dagster runs a backfill again after that, and not if the database has no such table."""

    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(module, "read_schema", refuse)
    with pytest.raises(WritetimeError, match="does not list the dropped columns") as raised:
        complete_schema(settings, find_snapshots([str(folder)]))
    assert isinstance(raised.value, Transient) == is_outage


def test_a_backfill_matches_the_database(folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = complete_schema(settings, find_snapshots([str(folder)]))
    table = create_table(settings, snapshot.schema)
    assert sum(changes for _, changes in backfill(table, snapshot)) > 0
    monkeypatch.setattr(views, "time_now", lambda: RECORDING.snapshot_at(TABLE) * 1_000_000)
    schema = RECORDING.schemas[TABLE]
    rows = with_one_form(pa.concat_tables(views.virtual(table)), schema)
    assert texts(rows) == texts(to_micros(answered(RECORDING.of(TABLE, "select"), schema), schema))
