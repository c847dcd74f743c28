"""Each version of a Delta table is a snapshot of its Iceberg table, also after kills and beside other programs.

Oracle: delta-rs reads the Delta table, pyiceberg the Iceberg table.
"""

import io
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fastavro
import pyarrow as pa
import pytest
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile

from tests.support.iceberg_readers import metadata_of
from tests.support.iceberg_tables import AS_OF, MirroredTable
from writetime.delta.bucketed_table import BucketedTable
from writetime.delta.parquet import write_file
from writetime.delta.storage import Storage
from writetime.delta.table_changes import TableChange
from writetime.iceberg import metadata_files, publication, snapshots


@pytest.mark.parametrize("seed", range(2))
def test_each_snapshot_is_a_version(tmp_path: Path, seed: int) -> None:
    table, wanted = MirroredTable.at(tmp_path, seed), []
    with patch.object(snapshots, "FULL", 4):
        for number in range(12):
            table.commit(removes=number % 3 // 2)
            table.iceberg.publish()
            assert table.ids() == table.wanted()
            wanted.append(table.wanted())
    found = table.published().metadata
    assert found.format_version == 3
    assert [table.ids(each.snapshot_id) for each in found.snapshots] == wanted
    times = [each.timestamp_ms for each in found.snapshots]
    assert times == [10**12 + 1000 * (number + 1) for number in range(12)]


def test_a_snapshot_costs_what_it_changes(tmp_path: Path) -> None:
    table = MirroredTable.at(tmp_path)
    for _ in range(30):
        table.commit(vectors=False)
        table.iceberg.publish()
    assert len(_manifests(table)) <= 8
    assert table.ids() == table.wanted()


def _manifests(table: MirroredTable) -> list[Any]:
    opened = table.published()
    found = opened.current_snapshot()
    assert found
    return found.manifests(opened.io)


def test_all_values_are_those_of_delta(tmp_path: Path) -> None:
    table = MirroredTable.at(tmp_path)
    for _ in range(3):
        table.commit()
    table.iceberg.publish()
    names = ["id", "text", "pairs", "parts", "token_bucket"]
    found = table.published().scan().to_arrow().select(names).to_pylist()
    assert _sorted(found) == _sorted(table.delta.read(names).to_pylist())


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def test_a_vector_has_its_number_of_rows(tmp_path: Path) -> None:
    """No reader here needs the number. Trino refuses a vector with another one."""
    table = MirroredTable.at(tmp_path)
    for number in range(6):
        table.commit(removes=number % 2)
        table.iceberg.publish()
    opened = table.published()
    found = [file for manifest in _manifests(table) if manifest.content == 1 for file in _files(manifest)]
    assert found
    for file in found:
        puffin, of = PuffinFile(_bytes(file["file_path"])), file["referenced_data_file"]
        (blob,) = [each for each in puffin.footer.blobs if each.properties["referenced-data-file"] == of]
        (vector,) = [v for v in deletion_vectors_from_puffin_file(puffin) if v.referenced_data_file == of]
        rows = len(vector.to_vector())
        assert (blob.properties["cardinality"], file["record_count"]) == (str(rows), rows)
        assert (blob.offset, blob.length) == (file["content_offset"], file["content_size_in_bytes"])
    snapshot = opened.current_snapshot()
    assert snapshot
    assert snapshot.summary
    totals = [int(snapshot.summary[f"total-{name}"] or 0) for name in ("records", "position-deletes", "delete-files")]
    assert totals == [len(table.wanted()) + totals[1], sum(file["record_count"] for file in found), len(found)]


def _files(manifest: Any) -> list[dict[str, Any]]:
    """The live files of a manifest, as fastavro reads it."""
    entries: Any = fastavro.reader(io.BytesIO(_bytes(manifest.manifest_path)))
    return [entry["data_file"] for entry in entries if entry["status"] != 2]


def _bytes(address: str) -> bytes:
    return Path(address.removeprefix("file://")).read_bytes()


def test_no_row_id_is_given_twice(tmp_path: Path) -> None:
    table = MirroredTable.at(tmp_path)
    with patch.object(snapshots, "FULL", 3):
        for number in range(20):
            table.commit(removes=number % 2)
            (table.iceberg if number % 3 else table.again()).publish()
    state = table.again()._load()
    assert state
    spans = sorted(
        (e["data_file"]["first_row_id"], e["data_file"]["record_count"]) for e in state.manifests.files().values()
    )
    assert all(first + rows <= then for (first, rows), (then, _) in pairwise(spans))
    assert sum(spans[-1]) <= state.metadata["next-row-id"] == 100


def test_a_table_without_vectors_is_of_version_2(tmp_path: Path) -> None:
    table = MirroredTable.at(tmp_path)
    for _ in range(4):
        table.commit(vectors=False, removes=1)
        table.iceberg.publish()
        assert table.ids() == table.wanted()
    assert table.published().format_version == 2
    table.commit()
    table.iceberg.publish()
    assert table.published().format_version == 3
    assert table.ids() == table.wanted()


def test_nothing_new_writes_nothing(tmp_path: Path) -> None:
    table = MirroredTable.at(tmp_path)
    table.iceberg.publish()
    assert not Path(table.storage.address, "metadata").exists()
    table.commit()
    table.iceberg.publish()
    before = sorted(Path(table.storage.address, "metadata").iterdir())
    table.again().publish()
    table.delta.append([], "other", 1)
    table.again().publish()
    table.iceberg.publish()
    assert sorted(Path(table.storage.address, "metadata").iterdir()) == before


def test_fields_keep_their_ids(tmp_path: Path) -> None:
    table = MirroredTable.at(tmp_path)
    table.commit()
    table.iceberg.publish()
    before = table.published().schema()
    small = pa.struct([("small", pa.int8()), ("at", pa.timestamp("us", "UTC")), ("new", pa.string())])
    table.delta.add_fields(pa.schema([("parts", pa.list_(pa.field("element", small))), ("late", pa.float64())]))
    table.iceberg.publish()
    table.commit()
    table.again().publish()
    after = table.published().schema()
    assert all(after.find_field(name) == before.find_field(name) for name in ("id", "text", "parts.small"))
    assert {before.highest_field_id + 1, before.highest_field_id + 2} == {
        after.find_field(name).field_id for name in ("parts.element.new", "late")
    }
    rows = table.published().scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == table.wanted()
    assert rows["late"].null_count == len(rows)


def test_a_field_of_another_form_gets_another_id(tmp_path: Path) -> None:
    """No snapshot has the column as it was, and no field the id of one that is gone."""
    table = MirroredTable.at(tmp_path)
    table.commit()
    table.iceberg.publish()
    before, first = table.delta.load(), table.published()
    reshaped = pa.schema([("id", pa.int64()), ("text", pa.binary())])
    table.delta.commit(before, TableChange(before.files, fields=reshaped), {AS_OF: 2 * 10**15})
    table.iceberg.publish()
    table.delta.add_fields(pa.schema([("late", pa.string())]))
    table.again().publish()
    then = table.published()
    assert (len(then.metadata.snapshots), table.ids()) == (1, [])
    last = first.schema().highest_field_id
    ids = {field.name: field.field_id for field in then.schema().fields}
    assert ids == {
        "id": first.schema().find_field("id").field_id,
        "text": last + 1,
        "token_bucket": first.schema().find_field("token_bucket").field_id,
        "late": last + 2,
    }


def test_no_list_of_the_metadata_grows(tmp_path: Path) -> None:
    """Not with refreshes, and not with changes of the schema, of which some come without rows."""
    table, found = MirroredTable.at(tmp_path), []
    with patch.object(publication, "MOST_SNAPSHOTS", 5), patch.object(publication, "EARLIER_VERSIONS", 3):
        for number in range(12):
            table.commit(removes=number > 4)
            table.iceberg.publish()
            for part in range(2):
                table.delta.add_fields(pa.schema([(f"late_{number}_{part}", pa.string())]))
                table.iceberg.publish()
            metadata = json.loads(Path(metadata_of(Path(table.storage.address))).read_text())
            found.append({name: len(value) for name, value in metadata.items() if isinstance(value, list)})
    # There is a schema for each snapshot, and the newest one.
    assert found[-1] == {
        "schemas": 6,
        "partition-specs": 1,
        "sort-orders": 1,
        "snapshots": 5,
        "snapshot-log": 5,
        "metadata-log": 3,
        "statistics": 0,
        "partition-statistics": 0,
    }
    assert found[5:] == found[-1:] * 7
    assert len(_manifests(table)) <= 8
    ids = {each.schema_id for each in table.published().metadata.schemas}
    assert all(each.schema_id in ids for each in table.published().metadata.snapshots)
    assert table.ids() == table.wanted()


def test_snapshots_go_before_their_files(tmp_path: Path) -> None:
    table = MirroredTable.at(tmp_path)
    with patch.object(publication, "MOST_SNAPSHOTS", 5), patch.object(publication, "EARLIER_VERSIONS", 3):
        for number in range(20):
            table.commit(removes=number % 2)
            table.iceberg.publish()
        found = [each.snapshot_id for each in table.published().metadata.snapshots]
        assert len(found) == 5
        assert all(table.ids(each) for each in found)
        assert len(table.published().metadata.metadata_log) == 3
        # Nothing else stays.
        assert table.iceberg.sweep(2**40) == []
        assert table.ids() == table.wanted()
    with patch.object(publication, "KEPT_SECONDS", -1):
        table.again().publish()
    assert len(table.published().metadata.snapshots) == 1
    assert table.ids() == table.wanted()


def test_a_sweep_leaves_what_others_write(tmp_path: Path) -> None:
    table = MirroredTable.at(tmp_path)
    table.commit()
    table.iceberg.publish()
    folder = Path(table.storage.address, "metadata")
    theirs = ["00001-0a1b2c3d-0000-4000-8000-000000000000.metadata.json", "00001-0a1b.gz.metadata.json", "1.stats"]
    ours = ["7-00000000000000ff-list.avro", "7-00000000000000ff-manifest-2.avro", "7-00000000000000ff-vectors.puffin"]
    ours += ["v99.metadata.json", f"{'a' * 32}.tmp"]
    for name in (*theirs, *ours):
        (folder / name).touch()
    assert sorted(table.iceberg.sweep(2**40)) == sorted(f"metadata/{name}" for name in ours)
    assert table.ids() == table.wanted()
    assert all((folder / name).exists() for name in theirs)


@pytest.mark.parametrize("pattern", ["v*.json", "*-list.avro", "*-manifest-*.avro"])
@pytest.mark.parametrize("content", [None, b"", b"{ damaged", b"Obj\x01 damaged"])
def test_a_table_with_missing_or_damaged_metadata_begins_again(
    tmp_path: Path, pattern: str, content: bytes | None
) -> None:
    table = MirroredTable.at(tmp_path)
    for _ in range(3):
        table.commit()
        table.iceberg.publish()
    before = table.published().metadata.table_uuid
    for path in Path(table.storage.address, "metadata").glob(pattern):
        path.unlink() if content is None else path.write_bytes(content)
    for _ in range(2):
        table.again().publish()
        assert table.ids() == table.wanted()
        assert table.published().metadata.table_uuid != before
        table.commit()


@pytest.mark.parametrize("seed", range(3))
def test_a_table_that_lost_commits_begins_again(tmp_path: Path, seed: int) -> None:
    """As after a restore from a copy. Then other rows of the same files are marked, as many as before."""
    table, copy = MirroredTable.at(tmp_path, seed), tmp_path / "copy"
    for _ in range(2):
        table.commit()
        table.iceberg.publish()
    log = Path(table.storage.address, "_delta_log")
    shutil.copytree(log, copy)
    table.commit()
    table.iceberg.publish()
    shutil.rmtree(log)
    shutil.copytree(copy, log)
    table.delta = BucketedTable(table.storage)
    table.commit()
    table.again().publish()
    assert table.ids() == table.wanted()


def test_commits_without_files_do_not_replace_a_snapshot(tmp_path: Path) -> None:
    """A snapshot is kept from the commit that replaced its files, and packing keeps the rows."""
    table = MirroredTable.at(tmp_path)
    table.commit()
    table.iceberg.publish()
    table.delta.append([], "other", 1)
    before = table.delta.load()
    packed = write_file(table.storage, table.rows(range(5)), 0, None)
    table.delta.commit(before, TableChange(before.files, [packed], is_new_data=False), {AS_OF: 2 * 10**15})
    table.delta.append([], "other", 2)
    table.again().publish()
    commit = Path(table.storage.address, f"_delta_log/{before.version + 1:020}.json").read_text().splitlines()
    (at,) = (json.loads(line)["commitInfo"]["timestamp"] for line in commit if "commitInfo" in line)
    summary = table.published().metadata.snapshots[-1].summary
    assert summary
    assert (summary.operation.value, summary["writetime.replaced-at"]) == ("replace", str(at))


@pytest.mark.parametrize("writes", range(9))
def test_a_kill_leaves_the_version_before(tmp_path: Path, writes: int) -> None:
    """Kill a publication before each of its writes: of files, of the metadata, and of the hint."""
    table = MirroredTable.at(tmp_path)
    for _ in range(2):
        table.commit()
    table.iceberg.publish()
    before = table.ids()
    table.commit()
    left = writes

    class Killed(BaseException):
        pass

    def dying(function: Any) -> Any:
        def call(*args: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return function(*args)

        return call

    names = ("put_new", "_hint", "delete")
    with (
        patch.multiple(metadata_files, **{name: dying(getattr(metadata_files, name)) for name in names}),
        patch.object(Storage, "sync", dying(Storage.sync)),
        pytest.raises(Killed),
    ):
        table.iceberg.publish()
    assert table.ids() in (before, table.wanted())
    table.again().publish()
    # Also by the hint, while no more rows come.
    assert table.ids() == table.wanted()
    table.commit()
    table.again().publish()
    assert table.ids() == table.wanted()
    table.again().sweep(2**40)
    assert all(table.ids(each.snapshot_id) for each in table.published().metadata.snapshots)


def test_of_two_publications_at_once_both_end(tmp_path: Path) -> None:
    table = MirroredTable.at(tmp_path)
    table.commit()
    table.iceberg.publish()
    table.commit()
    commit = metadata_files.commit

    def later(*args: Any) -> bool:
        with patch.object(metadata_files, "commit", commit):
            table.again().publish()
        table.commit()
        return commit(*args)

    with patch.object(metadata_files, "commit", _once(later, commit)):
        table.iceberg.publish()
    assert table.ids() == table.wanted()
    assert [each.sequence_number for each in table.published().metadata.snapshots] == [1, 2, 3]


def _once(first: Any, then: Any) -> Any:
    """Call one function the first time, and then another one."""
    left = [first]
    return lambda *args: left.pop()(*args) if left else then(*args)
