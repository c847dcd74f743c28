"""The benchmark of a table's upkeep compares events and view with DuckDB; here it does so for a small table."""

import sys

import pytest

from bench.rows import __main__ as rows

pytestmark = pytest.mark.long


def test_the_benchmark_of_rows_finds_no_difference_and_prints_each_kind_of_batches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Two batches of each kind, as the rows of one expire before the next.
    monkeypatch.setattr(rows, "COLD", 1)
    monkeypatch.setattr(sys, "argv", ["bench.rows", "--rows", "2000", "--batches", "1", "--peers"])
    rows.main()
    printed = capsys.readouterr().out
    for shape in ("a row per partition", "100,000 rows per partition"):
        _, _, text = printed.partition(f"{shape}, 2,000 rows: ")
        titles = [line.strip() for line in text.splitlines()[1:11:2]]
        assert titles == [
            "updates of 100 rows",
            "updates of 200 rows",
            "deletions of 200 rows",
            "200 rows expire, 200 are written with a TTL",
            "updates of 200 rows, 1 % of them late",
        ]
