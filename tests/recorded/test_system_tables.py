"""The columns of system tables that the product reads, compared with those of a real ScyllaDB."""

import re
from pathlib import Path

import writetime
from tests.recorded.conftest import RECORDED
from tests.recorded.recording import Recording
from writetime.core.config import ScyllaCdc

_QUERY = re.compile(
    r"SELECT (?:DISTINCT )?([^\"']+?) FROM (?:(system\w*\.\w+)|\{(?:quote_table\(\w*\.?_?settings\.)?(\w+))"
)


def test_requested_columns() -> None:
    recordings = [Recording(RECORDED / name) for name in ("rec101", "rec102")]
    known = {
        path.name.removesuffix(".jsonl"): recording.system(path.name.removesuffix(".jsonl")).names
        for recording in recordings
        for path in (recording.folder / "system").glob("*.jsonl")
    }
    # The virtual tables of streams are recorded per table of the keyspace.
    known |= {name.rpartition(".")[0]: names for name, names in known.items() if name.count(".") == 2}
    defaults = {name: field.default for name, field in ScyllaCdc.model_fields.items()}
    asked: dict[str, set[str]] = {}
    for path in Path(writetime.__file__).parent.rglob("*.py"):
        # A query may continue in the next line.
        source = re.sub(r"\"\s*\n\s*f?\"", "", path.read_text())
        for columns, named, setting in _QUERY.findall(source):
            table = named or str(defaults.get(setting))
            if table in known:
                # Functions have columns as arguments; the name of a result is not a column.
                names = re.findall(r"\w+", re.sub(r" AS \w+|\w+\(", " ", columns))
                asked.setdefault(table, set()).update(names)
    assert asked["system.local"] >= {"host_id", "schema_version", "truncated_at"}
    assert {"system.cdc_streams", "system.cdc_timestamps", "system_schema.tables"} <= asked.keys()
    # Read only if the row of a table has it, as in Cassandra 6.0.
    asked["system_schema.tables"].remove("fast_path")
    for table, names in asked.items():
        assert names <= set(known[table]) | {"now"}, table
