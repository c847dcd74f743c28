"""A condition cannot reach files, networks, extensions, settings and variables of the program."""

from collections import Counter
from pathlib import Path

import pytest

from writetime.cli.view import rows_where
from writetime.core.errors import WritetimeError
from writetime.lake.table import LakeTable

# `{file}` is a file that exists, `{new}` one that does not.
OUTSIDE = [
    *(
        f"EXISTS (SELECT * FROM {function}('{{file}}'))"
        for function in (
            "read_csv",
            "read_csv_auto",
            "read_text",
            "read_blob",
            "read_json",
            "read_ndjson_objects",
            "read_parquet",
            "parquet_metadata",
            "sniff_csv",
            "glob",
            "read_duckdb",
        )
    ),
    "EXISTS (SELECT * FROM '{file}')",
    "EXISTS (SELECT * FROM query('SELECT * FROM read_text(''{file}'')'))",
    "EXISTS (SELECT * FROM read_csv('http://127.0.0.1:1/x'))",
    "EXISTS (SELECT * FROM read_parquet('s3://bucket/x'))",
    "EXISTS (SELECT * FROM sqlite_scan('{file}', 'x'))",
    "true; COPY (SELECT 1) TO '{new}'",
    "EXISTS (SELECT * FROM query('COPY (SELECT 1) TO ''{new}'''))",
    "true; ATTACH '{new}'",
    "true; EXPORT DATABASE '{new}'",
    "true; INSTALL httpfs",
    "true; LOAD httpfs",
    "true; SET enable_external_access = true",
    "true; RESET lock_configuration",
    "id IN (SELECT id FROM numbered)",
    "id IN (SELECT id FROM rows)",
]


@pytest.mark.parametrize("keyed", ["", "id = 1 AND ", "id > 0 AND token(id) < 0 AND "])
@pytest.mark.parametrize("condition", OUTSIDE)
def test_a_condition_has_no_access_outside(table: LakeTable, condition: str, keyed: str, tmp_path: Path) -> None:
    file, new = tmp_path / "secret", tmp_path / "new"
    file.write_text("secret\n")
    with pytest.raises(WritetimeError, match="--where"):
        list(rows_where(table, keyed + condition.format(file=file, new=new), None, Counter()))
    assert not new.exists()
    assert sum(map(len, rows_where(table, f"{keyed}id = 1", None, Counter())))


@pytest.mark.parametrize(
    "condition",
    [
        "v LIKE '1%'",
        "id IN (SELECT unnest([1, 2]))",
        "regexp_matches(v, '^1')",
        "strftime(TIMESTAMP '2026-11-01', '%Y') = '2026'",
        "TIMESTAMPTZ '2026-11-01' < now() OR true",
        "json_valid(v) OR id % 2 = 0",
    ],
)
def test_other_conditions_work(table: LakeTable, condition: str) -> None:
    assert sum(map(len, rows_where(table, condition, None, Counter())))
