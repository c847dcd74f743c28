"""`writetime follow` checks new rows of a view with pandas. The oracle is Great Expectations on Spark."""

import dataclasses
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.made import settings_at
from writetime.clients import great_expectations
from writetime.core.config import TableEntry
from writetime.delta.parquet import COLD_LAYOUT, WrittenFile, write_file
from writetime.files import merging
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import LakeTable, create_table, view_schema
from writetime.schema.cql import parse_table
from writetime.view import expected_rows
from writetime.view.expected_rows import ExpectedRows, Unexpected, of_entry
from writetime_dagster.assets import expectations

pytestmark = pytest.mark.long

SCHEMA = parse_table(
    "CREATE TYPE shop.place (city text);"
    'CREATE TABLE shop.kinds (id bigint PRIMARY KEY, n int, price decimal, d double, v text, "a.b" int, at timestamp, '
    "day date, home frozen<place>, b boolean)"
)
HUGE = 1 << 60
NOT_NULL, BETWEEN, IN_SET = (f"expect_column_values_to_{what}" for what in ("not_be_null", "be_between", "be_in_set"))
PAIR = "expect_column_pair_values_a_to_be_greater_than_b"
# Each with and without a row that does not meet it.
CASES: list[dict[str, Any]] = [
    {"type": NOT_NULL, "column": "v"},
    {"type": NOT_NULL, "column": "n"},
    {"type": NOT_NULL, "column": "home.city"},
    {"type": "expect_column_values_to_be_null", "column": "n"},
    {"type": BETWEEN, "column": "n", "min_value": 0, "max_value": 9},
    {"type": BETWEEN, "column": "n", "min_value": 2},
    {"type": BETWEEN, "column": "id", "min_value": HUGE},
    {"type": BETWEEN, "column": "id", "min_value": HUGE + 1},
    {"type": BETWEEN, "column": "d", "max_value": 0.75},
    {"type": BETWEEN, "column": "d", "max_value": 0.75, "strict_max": True},
    {"type": BETWEEN, "column": "`a.b`", "max_value": 3},
    {"type": BETWEEN, "column": "`a.b`", "max_value": 2},
    {"type": IN_SET, "column": "v", "value_set": ["v0", "v1", "v2", "v3"]},
    {"type": IN_SET, "column": "v", "value_set": ["v0"]},
    {"type": IN_SET, "column": "n", "value_set": [1, 2, 3]},
    {"type": IN_SET, "column": "n", "value_set": [1, 2]},
    {"type": IN_SET, "column": "home.city", "value_set": ["c0", "c1", "c2", "c3"]},
    {"type": IN_SET, "column": "b", "value_set": [True]},
    {"type": "expect_column_values_to_not_be_in_set", "column": "v", "value_set": ["v9"]},
    {"type": "expect_column_values_to_match_regex", "column": "v", "regex": "^v[0-9]$"},
    {"type": "expect_column_values_to_match_regex", "column": "v", "regex": "^v[0-2]$"},
    {"type": "expect_column_values_to_not_match_regex", "column": "v", "regex": "3"},
    {"type": "expect_column_value_lengths_to_equal", "column": "v", "value": 2},
    {"type": "expect_column_value_lengths_to_be_between", "column": "price", "min_value": 2},
    {"type": "expect_column_pair_values_to_be_equal", "column_A": "`a.b`", "column_B": "`a.b`"},
    {"type": PAIR, "column_A": "id", "column_B": "`a.b`"},
    {"type": PAIR, "column_A": "`a.b`", "column_B": "id"},
]


def row(number: int) -> dict[str, Any]:
    return {
        "id": HUGE + number,
        "n": number or None,
        "price": str(number / 4),
        "d": number / 4,
        "v": f"v{number}",
        "a.b": number,
        "at": datetime(2026, 1, 1 + number, tzinfo=UTC),
        "day": date(2026, 1, 1 + number),
        "home": {"city": f"c{number}"},
        "b": True,
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[LakeTable, list[WrittenFile]]:
    """New files of a view, of which no commit is aware."""
    table = create_table(settings_at(tmp_path_factory.mktemp("lake")), SCHEMA)
    parts = [pa.Table.from_pylist([row(n) for n in part], view_schema(SCHEMA)) for part in ((0, 1), (2, 3))]
    return table, [write_file(table.view.storage, part, bucket, None) for bucket, part in enumerate(parts)]


def checked(table: LakeTable, files: list[WrittenFile], *expect: dict[str, Any], whole: bool = False) -> str | None:
    """Why the rows are not as expected."""
    entry = FollowedTable(SCHEMA.full_name, TableEntry(expect=list(expect)), SCHEMA)
    try:
        ExpectedRows(table, entry)(files, whole=whole)
    except Unexpected as e:
        return str(e)
    return None


def met_in_spark(frame: DataFrame) -> list[bool]:
    """Whether each case is met, by few calls, which take seconds. The library returns the findings of a call in another
    order, so they are matched by kind and column; a call has each pair once.
    """
    expectations_of = of_entry(FollowedTable(SCHEMA.full_name, TableEntry(expect=CASES), SCHEMA))
    calls: list[dict[tuple[str, str], int]] = [{}, {}]
    for number, case in enumerate(CASES):
        place = case["type"], ", ".join(value for name, value in case.items() if name.startswith("column"))
        calls[place in calls[0]][place] = number
    met = dict[int, bool]()
    for numbers in calls:
        for finding in great_expectations.validate(frame, "kinds", [expectations_of[n] for n in numbers.values()]):
            met[numbers[f"expect_{finding.expectation.replace(' ', '_')}", finding.column]] = finding.success
    return [met[number] for number in range(len(CASES))]


def test_as_spark_does(written: tuple[LakeTable, list[WrittenFile]], spark: SparkSession) -> None:
    table, files = written
    frame = expectations.view(spark, table, files)
    by_spark = met_in_spark(frame)
    assert {True, False} == set(by_spark)
    ours = [checked(table, files, case) is None for case in CASES]
    differing = [(case, ours[n], by_spark[n]) for n, case in enumerate(CASES) if ours[n] != by_spark[n]]
    assert differing == []


def test_the_reason_names_the_rows(written: tuple[LakeTable, list[WrittenFile]]) -> None:
    case = {"type": BETWEEN, "column": "`a.b`", "max_value": 2}
    assert checked(*written, case) == (
        "the view stays empty, because rows are not as expected: `a.b` at most 2: 1 of 4 rows fail, "
        "e.g. 3 (id 1152921504606846979); correct these rows in the database, or `expect` in "
        f"[tables.{SCHEMA.full_name}]"
    )


def test_rows_are_checked_in_portions(
    written: tuple[LakeTable, list[WrittenFile]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view that is written whole does not have to fit into memory."""
    monkeypatch.setattr(merging, "PORTION_BYTES", 1)
    made: list[int] = []

    def counted(rows: pa.Table) -> pd.DataFrame:
        made.append(rows.num_rows)
        return frame(rows)

    frame = expected_rows._frame
    monkeypatch.setattr(expected_rows, "_frame", counted)
    assert checked(*written, {"type": BETWEEN, "column": "d", "max_value": 0.1}, whole=True) == (
        "the view stays empty, because rows are not as expected: `d` at most 0.1: 3 of 4 rows fail, "
        "e.g. 0.25 (id 1152921504606846977), 0.5 (id 1152921504606846978), 0.75 (id 1152921504606846979); "
        f"correct these rows in the database, or `expect` in [tables.{SCHEMA.full_name}]"
    )
    # Twice, because the details are computed only if an expectation is not met.
    assert set(made) == {1}


def test_nulls_count_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group of many columns that are mostly null has up to 65,536 rows."""
    monkeypatch.setattr(merging, "PORTION_BYTES", 256 << 10)
    table = create_table(settings_at(tmp_path), SCHEMA)
    rows = pa.Table.from_pylist([{"id": n} for n in range(1 << 14)], view_schema(SCHEMA))
    made: list[pa.Table] = []

    def noted(rows: pa.Table) -> pd.DataFrame:
        made.append(rows)
        return frame(rows)

    frame = expected_rows._frame
    monkeypatch.setattr(expected_rows, "_frame", noted)
    assert checked(table, [write_file(table.view.storage, rows, 0, None)], {"type": NOT_NULL, "column": "id"}) is None
    assert pa.concat_tables(made)["id"].to_pylist() == list(range(1 << 14))
    assert max(part.nbytes for part in made) < 300_000 < rows.nbytes // 2


def test_large_rows_in_a_row_are_in_several_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The average row of a file does not show them."""
    monkeypatch.setattr(merging, "PORTION_BYTES", 4 << 20)
    table = create_table(settings_at(tmp_path), SCHEMA)
    texts = ["a"] * 20_000 + ["x" * 100_000] * 100 + ["a"] * 20_000
    rows = pa.Table.from_pylist([{"id": n, "v": text} for n, text in enumerate(texts)], view_schema(SCHEMA))
    made: list[int] = []

    def noted(rows: pa.Table) -> pd.DataFrame:
        made.append(rows.nbytes)
        return frame(rows)

    frame = expected_rows._frame
    monkeypatch.setattr(expected_rows, "_frame", noted)
    layout = dataclasses.replace(COLD_LAYOUT, row_group_bytes=1 << 20)
    files = [write_file(table.view.storage, rows, 0, None, layout=layout)]
    assert checked(table, files, {"type": NOT_NULL, "column": "id"}) is None
    assert max(made) < 5 << 20


@pytest.mark.parametrize("whole", [False, True])
def test_expectations_about_all_rows_are_checked_on_a_schedule(
    written: tuple[LakeTable, list[WrittenFile]], *, whole: bool
) -> None:
    assert checked(*written, {"type": "expect_table_row_count_to_equal", "value": 9}, whole=whole) is None


def test_no_rows_are_as_expected(written: tuple[LakeTable, list[WrittenFile]]) -> None:
    assert checked(written[0], [], {"type": NOT_NULL, "column": "n"}) is None


def test_an_entry_without_expectations_checks_nothing(written: tuple[LakeTable, list[WrittenFile]]) -> None:
    missing = [dataclasses.replace(file, path="missing") for file in written[1]]
    assert checked(written[0], missing) is None
