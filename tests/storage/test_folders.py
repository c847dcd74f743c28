"""The places in which SSTables are found: snapshots, backups, identifiers of both kinds, and remote file systems."""

import re
from pathlib import Path

import fsspec
import pytest

from tests.storage import handmade
from tests.storage.written import Written
from tests.support.expected import as_rows
from writetime.schema.table import TableSchema
from writetime.storage.infer import infer_schema
from writetime.storage.locations import Location, find_sstables
from writetime.storage.sstable import SSTable


def all_rows(locations: list[Location]) -> list[str]:
    schema = infer_schema(locations)
    return sorted(row for location in locations for row in as_rows(SSTable(location, schema).scan()))


def snapshot(written: Written, table: str, name: str) -> Path:
    _, locations = written.handmade(table)
    return Path(locations[0].folder) / "snapshots" / name


def test_a_snapshot_of_several_generations(written: Written) -> None:
    for table in ("dropped", "altered", "counted"):
        schema, live = written.handmade(table)
        (first,) = find_sstables(str(snapshot(written, table, "first")))
        both = list(find_sstables(str(snapshot(written, table, "second"))))
        assert {location.id for location in both} == {location.id for location in live}
        assert first.id in {location.id for location in both}
        assert len(both) == 2
        found = infer_schema(both)
        assert (found.full_name, found.id) == (schema.full_name, schema.id)
        assert (found.partition_key, found.clustering) == (schema.partition_key, schema.clustering)
        assert (found.static, found.regular) == (schema.static, schema.regular)
        # A snapshot has the time of a drop in microseconds, the system tables in milliseconds.
        assert {(d.name, d.static, d.dropped_at // 1000) for d in found.dropped} == {
            (d.name, d.static, d.dropped_at // 1000) for d in schema.dropped
        }
        for a, b in zip(sorted(both, key=lambda x: x.id), sorted(live, key=lambda x: x.id), strict=True):
            assert as_rows(SSTable(a, found).scan()) == as_rows(SSTable(b, schema).scan())


def test_backups_hold_the_flushed_data(written: Written) -> None:
    schema, live = written.handmade("many")
    backups = list(find_sstables(str(Path(live[0].folder) / "backups")))
    assert [location.id for location in backups] == [location.id for location in live]
    assert as_rows(SSTable(backups[0], schema).scan()) == as_rows(SSTable(live[0], schema).scan())


def test_identifiers_of_both_kinds(written: Written) -> None:
    _, (location,) = written.handmade("wide")
    assert re.fullmatch(r"\d+" if location.version not in {"da", "ea"} else r"\w{4}_\w{4}_\w{18}", location.id)


@pytest.mark.parametrize("scheme", ["file", "memory", "local"])
def test_other_file_systems(written: Written, scheme: str) -> None:
    """`file` by pyarrow, the others by fsspec."""
    folder = snapshot(written, "dropped", "second")
    uri = f"{scheme}://{folder}"
    if scheme == "memory":
        filesystem = fsspec.filesystem("memory")
        filesystem.put(str(folder), f"/{written.server.port}", recursive=True)
        uri = f"memory://{written.server.port}/"
    found = list(find_sstables(uri.rstrip("/")))
    assert all_rows(found) == all_rows(list(find_sstables(str(folder))))
    splits = SSTable(found[0], infer_schema(found)).splits(1)
    rows = [row for split in splits for row in as_rows(SSTable(found[0], infer_schema(found)).scan(split=split))]
    assert sorted(rows) == as_rows(SSTable(found[0], infer_schema(found)).scan())


def test_compact_storage_is_refused_by_name(written: Written) -> None:
    found = written.answers.compact
    for name in ("dense", "static"):
        assert f"table {handmade.COMPACT}.{name} has COMPACT STORAGE" in str(found[f"{handmade.COMPACT}.{name}"])
    readable = found[f"{handmade.COMPACT}.readable"]
    assert isinstance(readable, TableSchema)
    assert [c.name for c in readable.columns] == ["k", "v"]
