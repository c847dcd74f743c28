"""Mutations that no node writes, from a file that was made to harm its reader.

Oracle: none about values: an error or changes, without access beyond a buffer.
"""

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.storage.scylla_writer import vint
from tests.support.examples import rounds
from tests.support.guarded import guard, in_a_process, read_beyond
from tests.support.segments import one_section
from writetime.api.files import read_commitlog
from writetime.cli.main import main
from writetime.schema.cql import parse_schemas
from writetime.schema.table import SchemaError, TableSchema
from writetime.sources.commitlog import CommitLogSource
from writetime.storage import batch, commitlog
from writetime.storage.commitlog import CommitLogReader, SegmentReport
from writetime.storage.file_errors import CorruptFile
from writetime.storage.segment import Segment, find_segments

ID = UUID("6d7a0c00-0000-11f0-8000-000000000001")
OTHER = UUID("6d7a0c00-0000-11f0-8000-000000000002")
# Fields of user-defined types have lines among those of the columns, which no update names.
CQL = f"""
CREATE TYPE ks.wide ({", ".join(f"f{i} int" for i in range(40))});
CREATE TABLE ks.t (k text, c int, s1 int STATIC, s2 int STATIC, a int, b int, u wide, PRIMARY KEY (k, c))
WITH ID = {ID};
"""
STATICS, REGULARS = ["s1", "s2"], ["a", "b", "u"]


def named(names: Sequence[str]) -> bytes:
    return vint(len(names)) + b"".join(vint(len(n)) + n.encode() for n in names)


def none_of(names: Sequence[str]) -> bytes:
    """Encode that a row has none of the columns."""
    return vint((1 << min(len(names), 14)) - 1)


def mutation(statics: Sequence[str], regulars: Sequence[str]) -> bytes:
    """A mutation with one update."""
    return vint(1) + update_of(ID, statics, regulars)


def update_of(table: UUID, statics: Sequence[str] = (), regulars: Sequence[str] = ()) -> bytes:
    """An update that names columns, and deletes the static row and then one row: in all versions in the same bytes."""
    flags = 0x08 if statics else 0
    update = table.bytes + vint(1) + b"k" + bytes([flags]) + vint(0) * 3
    if statics:
        update += named(statics)
    update += named(regulars)
    if statics:
        update += b"\x90\x01" + vint(1) + vint(1) + none_of(statics)
    return update + b"\x10" + vint(0) + struct.pack(">i", 7) + vint(1) + vint(1) + none_of(regulars) + b"\x01"


def write(folder: Path, content: bytes, number: int = 1700000000000) -> Segment:
    path = folder / f"CommitLog-7-{number}.log"
    path.touch()
    (segment,) = find_segments(str(path))
    path.write_bytes(one_section(segment, [content]))
    return segment


def schema() -> TableSchema:
    (found,) = parse_schemas(CQL)
    return found


def read(segment: Segment) -> pa.Table:
    return pa.Table.from_batches([batch for _, batch in CommitLogReader([schema()]).read(segment)])


def test_columns_in_their_order(tmp_path: Path) -> None:
    found = read(write(tmp_path, mutation(STATICS, REGULARS)))
    assert found["kind"].to_pylist() == ["static", "row"]
    assert found["c"].to_pylist() == [None, 7]


@pytest.mark.parametrize(
    ("statics", "regulars", "fault"),
    [
        ([], ["a", "a"], "an update that names a column twice"),
        ([], ["a", "b", "a"], "an update that names a column twice"),
        (["s1", "s1"], REGULARS, "an update that names a column twice"),
        ([], ["a"] * 40, "a set of columns that the header does not have"),
        (["s1"] * 40, ["a"] * 40, "a set of columns that the header does not have"),
        (STATICS, [*REGULARS, "a"], "a set of columns that the header does not have"),
        ([], ["s1"], "a column that the table's schema does not have"),
        ([], ["a", ""], "a column that the table's schema does not have"),
    ],
)
def test_columns_that_an_update_cannot_have(
    tmp_path: Path, statics: list[str], regulars: list[str], fault: str
) -> None:
    with pytest.raises(CorruptFile, match=fault):
        read(write(tmp_path, mutation(statics, regulars)))


def read_random_names(folder: str, seed: int, count: int) -> None:
    """Read updates of random lists of columns: those that repeat none are read, the others refused."""
    guard()
    chooser = random.Random(seed)
    reader = CommitLogReader([schema()])
    outcomes = {True: 0, False: 0}
    for _ in range(count):
        statics = chooser.choices(STATICS, k=chooser.choice([0, 1, 2, 3, 60]))
        regulars = chooser.choices(REGULARS, k=chooser.choice([0, 1, 2, 3, 4, 5, 60]))
        segment = write(Path(folder), mutation(statics, regulars))
        legal = len(set(statics)) == len(statics) and len(set(regulars)) == len(regulars)
        try:
            list(reader.read(segment))
            assert legal, (statics, regulars)
        except CorruptFile:
            assert not legal, (statics, regulars)
        outcomes[legal] += 1
    print(outcomes)
    assert min(outcomes.values()) > count // 10


def test_random_lists_of_columns_with_guards(tmp_path: Path) -> None:
    answer = in_a_process(read_random_names, str(tmp_path), 1, rounds(2000))
    assert answer.returncode == 0, answer.stderr[-2000:]


def test_the_guard_ends_a_process_that_reads_beyond() -> None:
    answer = in_a_process(read_beyond)
    assert answer.returncode < 0


def changes_of(policy: Any, segment: Segment) -> tuple[int, SegmentReport]:
    report = SegmentReport()
    reader = CommitLogReader([schema()], on_unknown_table=policy)
    return sum(batch.num_rows for _, batch in reader.read(segment, report=report)), report


def test_a_write_after_one_to_an_unknown_table_is_never_lost_silently(tmp_path: Path) -> None:
    known, unknown = update_of(ID, [], ["a"]), update_of(OTHER)
    alone, before, behind = (vint(1) + unknown), (vint(2) + known + unknown), (vint(3) + known + unknown + known)
    found, report = changes_of("count", write(tmp_path, alone))
    assert (found, report.unknown_tables, report.hiding.total()) == (0, {OTHER: 1}, 0)
    found, report = changes_of("count", write(tmp_path, before))
    assert (found, report.unknown_tables, report.hiding.total()) == (1, {OTHER: 1}, 0)
    segment = write(tmp_path, behind)
    with pytest.raises(SchemaError, match=r"is not known, and the same mutation writes to ks\.t after it"):
        changes_of("count", segment)
    found, report = changes_of("skip", segment)
    assert (found, report.unknown_tables, report.hiding) == (1, {OTHER: 1}, {OTHER: 1})
    for content in (alone, before, behind):
        with pytest.raises(SchemaError, match=f"of table {OTHER} is not known$"):
            changes_of("fail", write(tmp_path, content))


def test_the_sources_read_one_table_by_its_schema(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, vint(2) + update_of(ID, [], ["a"]) + update_of(OTHER))
    source = CommitLogSource({"path": str(tmp_path), "schema": CQL})
    reader = source.reader(source.schema())
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 1
    assert "1 mutation to 1 table without a schema" in caplog.text
    assert "lost" not in caplog.text
    assert read_commitlog(str(tmp_path), CQL).read_all().num_rows == 1
    (tmp_path / "schema.cql").write_text(CQL)
    write(tmp_path, vint(3) + update_of(ID) + update_of(OTHER) + update_of(ID))
    with pytest.raises(SchemaError, match="add the CREATE TABLE of this table"):
        read_commitlog(str(tmp_path), CQL).read_all()
    answer = CliRunner().invoke(main, ["commitlog", str(tmp_path), "--schema", str(tmp_path / "schema.cql")])
    assert len(answer.stdout.splitlines()) == 1
    assert f"table {OTHER} on: its schema is not known; 1 of them write to requested tables" in answer.stderr


PLAIN = UUID("6d7a0c00-0000-11f0-8000-000000000003")
PLAIN_CQL = f"CREATE TABLE ks.plain (k text, c int, v varint, PRIMARY KEY (k, c)) WITH ID = {PLAIN};"
# Python makes no text of so many digits.
BAD_VARINT = b"\x01" + bytes(2000)


def inserts(key: bytes, values: Sequence[bytes]) -> bytes:
    """A mutation that inserts rows."""
    update = PLAIN.bytes + vint(len(key)) + key + bytes([0]) + vint(0) * 3 + named(["v"])
    for c, value in enumerate(values):
        body = vint(0) + b"\x08" + vint(len(value)) + value
        update += b"\x24" + vint(0) + struct.pack(">i", c) + body
    return vint(1) + update + b"\x01"


def write_all(folder: Path, mutations: Sequence[bytes]) -> Segment:
    segment = write(folder, b"")
    Path(segment.path).write_bytes(one_section(segment, list(mutations)))
    return segment


@pytest.mark.parametrize("place", [0, 1, 2, 37, 99])
@pytest.mark.parametrize("fault", ["value", "bytes"])
def test_mutations_before_a_bad_one_stay(tmp_path: Path, place: int, fault: str) -> None:
    """With `skip-file`, however many are read at a time, and the report covers them."""
    mutations = [inserts(b"%d" % i, [b"\x01"]) for i in range(100)]
    mutations[place] = inserts(b"bad", [BAD_VARINT]) if fault == "value" else mutations[place][:-2]
    segment = write_all(tmp_path, mutations)
    schemas, report = parse_schemas(PLAIN_CQL), SegmentReport()
    reader = CommitLogReader(schemas, on_corrupt="skip-file")
    found = [k for _, changes in reader.read(segment, report=report) for k in changes["k"].to_pylist()]
    assert found == [str(i) for i in range(place)]
    assert report.mutations == place
    assert len(report.skipped) == 1
    assert place == 0 or report.position > 30 * place
    where = r"offset \d+: ks.plain, partition 0x626164" if fault == "value" else r"offset \d+: found"
    with pytest.raises(CorruptFile, match=where):
        list(CommitLogReader(schemas).read(segment))


def test_long_keys_of_many_small_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change has its key: such mutations are read by fewer, and one by parts."""
    for module in (batch, commitlog):
        monkeypatch.setattr(module, "KEY_BYTES", 1 << 20)
    keys = [b"a" * 60_000, b"b" * 50_000, b"c" * 1000, b"d" * 1000]
    segment = write_all(tmp_path, [inserts(key, [b"\x01"] * 100) for key in keys])
    report = SegmentReport()
    found: list[dict[str, Any]] = []
    covered: list[tuple[int, int]] = []
    for window in CommitLogReader(parse_schemas(PLAIN_CQL)).windows(segment, report=report):
        covered.append((len(found), report.mutations))
        assert sum(changes["key"].get_total_buffer_size() for _, changes in window) < 1.1 * (1 << 20)
        found += [change for _, changes in window for change in changes.to_pylist()]
        assert len(found) <= 200 or report.mutations > 1
    assert [(change["key"], change["c"]) for change in found] == [(key, c) for key in keys for c in range(100)]
    assert report.mutations == 4
    # A mutation counts when all of its parts were returned.
    assert all(seen >= 100 * min(mutations, 2) for seen, mutations in covered)
    assert len(covered) > 10


def test_a_reader_that_knows_no_table_reads_all_segments(tmp_path: Path) -> None:
    """As an agent's before the first table is captured."""
    report, segment = SegmentReport(), write(tmp_path, vint(1) + update_of(OTHER))
    assert list(CommitLogReader([], on_unknown_table="count").read(segment, report=report)) == []
    assert report.unknown_tables == {OTHER: 1}
