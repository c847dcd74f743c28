"""The row form of values: timestamps in microseconds, null if they do not fit, at any depth.

Oracle: plain Python in the test, on the generated values.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.avro import made, numbers
from tests.support.examples import examples
from tests.support.generate import Generator
from tests.support.made import add, settings_at, write
from tests.support.row_form import FIRST, LAST, row_form
from tests.support.settings import write_settings
from writetime.changes.model import change_schema
from writetime.cli.main import main
from writetime.core.errors import WritetimeError
from writetime.files.row_form import to_micros
from writetime.lake.changes import ChangeWriter
from writetime.lake.table import create_table
from writetime.schema.cql import parse_table
from writetime.schema.mapping import arrow_type, stored_type
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector

EXAMPLES = examples(100)
SCHEMA = parse_table("CREATE TABLE shop.items (id int, n int, v timestamp, w set<timestamp>, PRIMARY KEY (id, n))")


def plain(value: Any, cql_type: CqlType) -> Any:
    """A value of an Arrow array, with lists for structs, maps and entries."""
    if value is None:
        return None
    match cql_type:
        case Collection("map", (key, item)):
            entries = [list(e.values()) if isinstance(e, dict) else e for e in value]
            return [[plain(k, key), plain(v, item)] for k, v in entries]
        case Collection(_, (element,)) | Vector(element, _):
            return [plain(v, element) for v in value]
        case Tuple(arguments):
            return [plain(v, t) for v, t in zip(value.values(), arguments, strict=True)]
        case Udt(_, _, fields):
            return [plain(v, t) for v, (_, t) in zip(value.values(), fields, strict=True)]
    return value


class WithTimestamps(Generator):
    """Makes types of which many have timestamps."""

    def cql_type(self, depth: int = 2, *, key: bool = False) -> CqlType:
        """Make a type."""
        if self.random.random() < 0.3:
            return Native("timestamp")
        return super().cql_type(depth, key=key)


@given(st.integers(0, 2**32))
@example(0)
@EXAMPLES
def test_values_of_every_type(seed: int) -> None:
    r = random.Random(seed)
    generator = WithTimestamps(seed)
    columns = tuple(Column(f"c{i}", generator.cql_type(3)) for i in range(4))
    schema = TableSchema("ks", "t", columns[:1], regular=columns[1:], clustering=(), static=())
    stored = pa.table(
        {
            c.name: pa.array(
                [None if r.random() < 0.2 else made(r, stored_type(c.type)) for _ in range(9)],
                numbers(stored_type(c.type)),
            ).cast(stored_type(c.type))
            for c in columns
        }
    ).slice(1, 7)
    unfit: Counter[str] = Counter()
    found = to_micros(stored, schema, unfit)
    found.validate(full=True)
    wanted_unfit: Counter[str] = Counter()
    for c in columns:
        assert found[c.name].type == arrow_type(c.type)
        values = stored[c.name].combine_chunks().cast(numbers(stored_type(c.type))).to_pylist()
        wanted = [row_form(v, c.type) for v in values]
        wanted_unfit[c.name] = sum(lost for _, lost in wanted)
        array = found[c.name].combine_chunks().cast(numbers(arrow_type(c.type)))
        assert repr([plain(v, c.type) for v in array.to_pylist()]) == repr([v for v, _ in wanted])
    assert unfit == +wanted_unfit


def test_commands_name_columns_and_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_at(tmp_path)
    write_settings(settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    table = create_table(settings, SCHEMA)
    add(table, [write(1, i, 5, v=v) for i, v in enumerate((LAST, FIRST, 9_223_372_036_854_775, 0))], 1, SCHEMA)
    answer = CliRunner(catch_exceptions=False).invoke(main, ["view", "shop.items", "--format", "jsonl"])
    assert [line.split('"v":')[1].split(",")[0] for line in answer.stdout.splitlines()] == [
        "null",
        "null",
        '"294247-01-10T04:00:54.775000Z"',
        '"1970-01-01T00:00:00.000000Z"',
    ]
    wanted = (
        "shop.items: timestamps outside of the years -290308 to 294247 are null in views and row events: v (2 rows)"
    )
    assert answer.stderr.splitlines() == [wanted]
    assert wanted in CliRunner(catch_exceptions=False).invoke(main, ["maintain", "shop.items"]).stderr


def test_changes_of_microseconds_are_not_read_as_milliseconds(tmp_path: Path) -> None:
    table = create_table(settings_at(tmp_path), SCHEMA)
    full = change_schema(SCHEMA)
    index = full.get_field_index("v")
    parts = [(f.name, pa.timestamp("us", "UTC") if f.name == "value" else f.type) for f in full.field("v").type]
    wrong = full.set(index, pa.field("v", pa.struct(parts)))
    with pytest.raises(WritetimeError, match="column v"):
        ChangeWriter.of(table, SCHEMA).write([pa.RecordBatch.from_pylist([write(1, 1, 5, v=0)], wrong)])
