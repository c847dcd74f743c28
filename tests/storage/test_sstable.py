"""SSTables: windows, tokens, fields, older versions, refusals; on files of real servers.

Oracle: our own second path: the changes of a whole read. `test_sstable_cql` and `test_sstable_dump` compare them with
the database.
"""

import dataclasses
import random
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from tests.storage.written import Written, changes, one_of_each
from tests.support.examples import rounds
from tests.support.expected import assert_same, without_origin
from tests.support.generate import SEED
from tests.support.rewriting import as_older, compression, copy, set_compression
from writetime.schema.table import SchemaError
from writetime.storage.file_errors import MissingFile, Unsupported
from writetime.storage.locations import find_sstables
from writetime.storage.sstable import SSTable


def test_any_window_gives_the_same_changes(written: Written) -> None:
    for schema, location in one_of_each(written):
        whole = changes(location, schema, window=1 << 24)
        assert_same(changes(location, schema, window=1), whole)


def test_tokens_choose_partitions(written: Written) -> None:
    chooser = random.Random(SEED)
    for schema, location in one_of_each(written):
        sstable = SSTable(location, schema)
        everything = changes(location, schema)
        tokens = everything["token"].to_pylist()
        assert tokens == sorted(tokens)
        for wanted in chooser.sample(different := sorted(set(tokens)), min(rounds(len(different)), len(different))):
            (split,) = sstable.splits(1 << 30, (wanted, wanted))
            found = without_origin(sstable.scan(split=split, tokens=(wanted, wanted)), schema)
            assert_same(found, everything.filter(pa.array([t == wanted for t in tokens])))
            assert_same(without_origin(sstable.scan(tokens=(wanted, wanted)), schema), found)
        # An index of `big` does not record whether it ends there.
        (split,) = sstable.splits(1 << 30, (max(tokens) + 1, max(tokens) + 1))
        assert split.start.offset == sstable.index.positions[-1]
        assert not list(sstable.scan(split=split, tokens=(max(tokens) + 1, max(tokens) + 1)))
        assert sstable.splits(1, (min(tokens) - 1, min(tokens) - 1)) == []


def test_fields_may_be_chosen(written: Written) -> None:
    for schema, location in one_of_each(written):
        everything = changes(location, schema)
        fields = ["token", *[c.name for c in (schema.regular + schema.static)[:1]], "kind"]
        found = pa.Table.from_batches(list(SSTable(location, schema).scan(fields)))
        assert_same(found, everything.select(fields))


def test_positions_are_in_the_order_of_the_file(written: Written) -> None:
    for schema, location in one_of_each(written):
        found = changes(location, schema).select(["kind", "token", "key", "position"]).to_pylist()
        rows = [(c["token"], c["key"], c["position"]) for c in found if c["kind"] in ("row", "static")]
        assert rows == sorted(rows)


@pytest.mark.parametrize("version", ["mc", "md", "me", "ms", "mt"])
def test_older_versions_and_those_of_scylladb(written: Written, tmp_path: Path, version: str) -> None:
    for schema, location in one_of_each(written):
        if location.version != "nb" or "min_compress_ratio" in Path(location.path("CompressionInfo.db")).name:
            continue
        if location.exists("CompressionInfo.db") and b"min_compress_ratio" in location.read("CompressionInfo.db"):
            continue
        older = as_older(location, tmp_path / schema.name, version)
        assert_same(changes(older, schema), changes(location, schema))


def test_unsupported_features_are_refused_by_name(written: Written, tmp_path: Path) -> None:
    schema, location = next((s, x) for s, x in one_of_each(written) if x.exists("CompressionInfo.db"))
    here = copy(location, tmp_path / "compressor")
    _, options, rest = compression(here)
    set_compression(here, "LZ5Compressor", options, rest)
    with pytest.raises(Unsupported, match="LZ5Compressor"):
        changes(here, schema)
    (tmp_path / "zz-1-big-Data.db").write_bytes(b"")
    with pytest.raises(Unsupported, match="version zz"):
        list(find_sstables(str(tmp_path)))


def test_compaction_ends_a_file_with_an_empty_chunk(written: Written) -> None:
    """Not a test of the reader: it makes sure that the others read such files."""
    extra = 0
    for _, location in one_of_each(written):
        if location.exists("CompressionInfo.db"):
            _, _, rest = compression(location)
            chunk_length, _, length, count = struct.unpack_from(">iiqi", rest)
            extra += count - -(-length // chunk_length)
    assert extra > 0


_NEEDED = (
    "Data.db",
    "Statistics.db",
    "CompressionInfo.db",
    "CRC.db",
    "Digest.crc32",
    "Index.db",
    "Partitions.db",
    "Rows.db",
)


def test_components(written: Written, tmp_path: Path) -> None:
    """One that is read and missing is refused by name, and each other one does not matter."""
    for number, (schema, location) in enumerate(one_of_each(written)):
        wanted = changes(location, schema)
        here = copy(location, tmp_path / str(number))
        for component in location.read("TOC.txt").decode().split():
            path = Path(here.path(component))
            content = path.read_bytes()
            path.unlink()
            if component in (*_NEEDED, "TOC.txt"):
                with pytest.raises(MissingFile, match=f"{path.name} is missing, "):
                    list(find_sstables(here.folder))
            else:
                assert list(find_sstables(here.folder)) == [here]
                assert_same(changes(here, schema), wanted)
            path.write_bytes(content)


def test_components_of_an_sstable_that_only_the_manifest_lists(written: Written, tmp_path: Path) -> None:
    """A node writes no `TOC.txt` for an SSTable that it received as a whole, and maybe no digest."""
    for number, (schema, location) in enumerate(one_of_each(written)):
        wanted = changes(location, schema)
        here = copy(location, tmp_path / str(number))
        (Path(here.folder) / "manifest.json").write_text("{}")
        Path(here.path("TOC.txt")).unlink()
        for path in sorted(Path(here.folder).glob("*-*")):
            content = path.read_bytes()
            path.unlink()
            if path.name.rpartition("-")[2] in {*_NEEDED} - {"Digest.crc32"}:
                with pytest.raises(MissingFile, match=f"{path.name} is missing|CompressionInfo.db is missing"):
                    list(find_sstables(here.folder))
            else:
                assert list(find_sstables(here.folder)) == [here]
                assert_same(changes(here, schema), wanted)
            path.write_bytes(content)


def test_components_of_indexes(written: Written, tmp_path: Path) -> None:
    """A TOC names some that do not exist, and does not name some that do."""
    schema, location = one_of_each(written)[0]
    here = copy(location, tmp_path / "set")
    with Path(here.path("TOC.txt")).open("a") as toc:
        toc.write("SAI+aa+by_v+Meta.db\nSAI+ba+GroupMeta.db\nSI_by_v.db\nTieredData.db\nSAI+a")
    for name in ("SAI+ba+by_w+ColumnComplete.db", "SI_by_w.db", "Filter.db.tmp"):
        Path(here.path(name)).write_bytes(b"")
    (Path(here.folder) / ".by_v").mkdir()
    assert list(find_sstables(here.folder)) == [here]
    assert_same(changes(here, schema), changes(location, schema))


def test_an_sstable_that_a_node_is_writing_is_left_out(written: Written, tmp_path: Path) -> None:
    _, location = one_of_each(written)[0]
    here = copy(location, tmp_path / "set")
    toc = Path(here.path("TOC.txt"))
    for name in (f"{here.version}_txn_flush_5b1b6b90-eb32-11f1-ae32-02fc00000001.log", f"{toc.name}.tmp"):
        marker = toc.with_name(name)
        content = toc.read_bytes()
        toc.unlink()
        with pytest.raises(MissingFile, match=rf"{toc.name} is missing, .* run this again later"):
            list(find_sstables(here.folder))
        marker.write_bytes(b"")
        assert list(find_sstables(here.folder)) == []
        marker.unlink()
        toc.write_bytes(content)


def test_a_place_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="does not exist"):
        list(find_sstables(str(tmp_path / "nowhere")))


def test_a_schema_of_another_table_is_refused(written: Written) -> None:
    schema, location = next((s, x) for s, x in one_of_each(written) if s.clustering)
    reversed_ = tuple(dataclasses.replace(c, reversed=not c.reversed) for c in schema.clustering)
    with pytest.raises(SchemaError, match="clustering columns"):
        SSTable(location, dataclasses.replace(schema, clustering=reversed_))
    with pytest.raises(SchemaError, match=r"no .* column"):
        SSTable(location, dataclasses.replace(schema, regular=(), static=()))
