"""SSTables that are written, in Cassandra's own tools: `sstabledump` shows the same, `sstableverify` accepts them, and
`sstablescrub` keeps the same rows.

Oracle: the tools on the files of Cassandra.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.storage.written import Written, changes
from tests.support import oracle
from tests.support.rewriting import copy
from writetime.core.arrow import pc
from writetime.schema.table import TableSchema
from writetime.storage.locations import Location, find_sstables
from writetime.storage.sstable_writer import SSTableWriter

pytestmark = pytest.mark.long
_VERIFY = ("org.apache.cassandra.tools.StandaloneVerifier", "--force", "--extended", "--debug")
_SCRUB = ("org.apache.cassandra.tools.StandaloneScrubber", "--debug")


_TABLES = ("t0", "t1", "t2", "t3", "t4", "wide64", "deep32", "statics")


def _rewrite(schema: TableSchema, location: Location, folder: Path) -> None:
    table = changes(location, schema)
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in ("token", "key", "position")])
    with SSTableWriter(str(folder), schema, version=location.version, block_size=300) as writer:
        for batch in table.take(order).to_batches(max_chunksize=100):
            writer.write(batch)


def _dumped(folder: Path) -> list[dict[str, Any]]:
    paths = [location.path("Data.db") for location in find_sstables(str(folder))]
    return [_comparable(partition) for path in paths for partition in oracle.dumped(path)]


def _comparable(value: Any) -> Any:
    """Leave out the places in the file, and what depends on the second of the dump. The values of a bound may have
    another form, such as 1 for 1.0; `test_sstable_writer` compares them by position.
    """
    if isinstance(value, list):
        return [_comparable(each) for each in value]
    if not isinstance(value, dict):
        return value
    left_out = {"position", "expired"}
    if value.keys() == {"type", "clustering", "deletion_info"}:
        left_out.add("clustering")
    return {name: _comparable(each) for name, each in value.items() if name not in left_out}


def _node(written: Written, home: Path) -> Path:
    """Make the folder of a stopped node with the same schemas. Return that of its data."""
    known = json.loads((written.server.folder / "cassandra.yaml").read_text())
    folders = ("commitlog_directory", "cdc_raw_directory", "hints_directory", "saved_caches_directory")
    known |= {name: str(home / name) for name in folders} | {"data_file_directories": [str(home / "data")]}
    shutil.copytree(written.server.folder / "data" / "system_schema", home / "data" / "system_schema")
    (home / "cassandra.yaml").write_text(json.dumps(known))
    return home / "data"


def _run(data: Path, tool: Sequence[str], folders: Iterable[Path]) -> list[str]:
    """Run a tool for the tables of these folders. Return their statuses."""
    commands = [(*tool, folder.parent.name, folder.name.partition("-")[0]) for folder in folders]
    printed = oracle.run_tools(data.parent / "cassandra.yaml", commands)
    return [line.split()[1] for line in printed.splitlines() if line.startswith("status ")]


@pytest.mark.from_cassandra_5("the tools are those of 5.0")
@pytest.mark.parametrize("written", ["nb", pytest.param("oa", marks=pytest.mark.long_only("as nb"))], indirect=True)
def test_tools_of_cassandra(written: Written, tmp_path: Path) -> None:
    """Scrub of 5.0.9 loses rows of Cassandra's own files by faults of its own: it takes a bound after a row with the
    same values for a duplicate of this row, for example. So both files are scrubbed. It keeps the simple table.
    """
    ours, theirs = (_node(written, tmp_path / name) for name in ("ours", "theirs"))
    found = [(schema, written.sstables[schema.name]) for schema in written.schemas if schema.name in _TABLES]
    pairs = []
    for schema, locations in [*found, *map(written.handmade, ("wide", "counted", "plain", "many"))]:
        name = Path(schema.keyspace) / Path(locations[0].folder).name
        _rewrite(schema, locations[0], ours / name)
        copy(locations[0], theirs / name)
        pairs.append((ours / name, theirs / name))
    before = [_dumped(folder) for folder, _ in pairs]
    assert before == [_dumped(folder) for _, folder in pairs]
    assert _run(ours, _VERIFY, [folder for folder, _ in pairs]) == ["0"] * len(pairs)
    statuses = _run(ours, _SCRUB, [folder for folder, _ in pairs])
    assert statuses == _run(theirs, _SCRUB, [folder for _, folder in pairs])
    after = [_dumped(folder) for folder, _ in pairs]
    assert after == [_dumped(folder) for _, folder in pairs]
    assert after[-1] == before[-1]
