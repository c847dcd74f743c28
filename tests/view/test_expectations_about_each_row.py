"""Great Expectations' own expectations about each row, found by validating rows together and alone."""

import inspect
import subprocess
import sys
from typing import Any

import pandas as pd
import pytest

from writetime.clients.great_expectations import Finding, gxe, validate_portions
from writetime.view.expected_rows import of_each_row

pytestmark = pytest.mark.long

# Numbers that repeat, rise, fall, and have an outlier.
_ROWS = pd.DataFrame(
    {
        "number": [1.0, 2.0, 2.0, 3.0, 1.0, 4.0, 2.0, 3.0, 1.0, 2.0, 3.0, 999.0],
        "other": [1.0, 2.0, 2.0, 1.0, 1.0, 4.0, 9.0, 3.0, 1.0, 2.0, 3.0, 0.0],
        "text": ["a", "b", "2026-01-01", "[1]", "{}", "ab", "abc", "abcd", "a", "b", "12:00", "x"],
    }
)
_OF_TEXT = ("Regex", "Like", "Strftime", "Json", "Dateutil", "Lengths")
_ARGUMENTS: dict[str, Any] = {
    "column_A": "number",
    "column_B": "other",
    "column_list": ["number", "other"],
    "value_set": [1.0, 2.0],
    "value_pairs_set": [(1.0, 1.0), (2.0, 2.0)],
    "regex": "^a",
    "regex_list": ["^a", "b$"],
    "like_pattern": "a%",
    "like_pattern_list": ["a%"],
    "strftime_format": "%Y-%m-%d",
    "json_schema": {"type": "object"},
    "min_value": 2,
    "max_value": 3,
    "value": 2,
    "sum_total": 4.0,
    "type_": "float",
    "type_list": ["float"],
    "threshold": 2.0,
    "double_sided": True,
    "method": "iqr",
}
# They depend on the engine, whose types have other names in Spark.
_OF_TYPES = {"ExpectColumnValuesToBeOfType", "ExpectColumnValuesToBeInTypeList"}


def _about_rows() -> dict[str, Any]:
    """Return each expectation that counts rows, by the name of its class."""
    from great_expectations.expectations import expectation as kinds

    bases = (kinds.ColumnMapExpectation, kinds.ColumnPairMapExpectation, kinds.MulticolumnMapExpectation)
    found = {name: kind for name, kind in vars(gxe).items() if inspect.isclass(kind) and issubclass(kind, bases)}
    return {name: _made(name, kind) for name, kind in found.items()}


def _made(name: str, kind: Any) -> Any:
    given = {argument: value for argument, value in _ARGUMENTS.items() if argument in kind.__fields__}
    if "column" in kind.__fields__:
        given["column"] = "text" if any(word in name for word in _OF_TEXT) else "number"
    return kind(**given)


def _validated(frames: list[pd.DataFrame], expectations: dict[str, Any]) -> dict[str, Finding]:
    found = validate_portions(lambda: frames, "rows", list(expectations.values()))
    return dict(zip(expectations, found, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_expectations_about_each_row_are_those_whose_rows_may_be_validated_alone() -> None:
    expectations = _about_rows()
    together = _validated([_ROWS], expectations)
    alone = _validated([_ROWS.iloc[i : i + 1] for i in range(len(_ROWS))], expectations)
    # Pandas has no patterns of SQL.
    evaluated = {name for name in expectations if together[name].evaluated}
    assert {name for name in expectations if "LikePattern" not in name} == evaluated
    # One that all rows meet shows nothing.
    for name in evaluated:
        counts = {together[name].unexpected_count, alone[name].unexpected_count}
        assert counts != {0}, name
        is_about_each = len(counts) == 1 and name not in _OF_TYPES
        assert of_each_row([expectations[name]]) == [expectations[name]] * is_about_each, name


# Great Expectations has cyclic imports. Threads that import them at once get modules that are not complete.
_AT_ONCE = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from writetime.clients import great_expectations as library
from writetime.core.config import TableEntry
from writetime.lake.followed_tables import FollowedTable
from writetime.view.expected_rows import of_each_row, of_entry

sys.setswitchinterval(1e-6)
together = Barrier(4)
expectation = {"type": "expect_column_values_to_not_be_null", "column": "id"}
entry = FollowedTable("shop.orders", TableEntry(expect=[expectation]))

def first(use):
    together.wait()
    return use()

uses = 3 * [lambda: of_each_row(of_entry(entry))] + [lambda: library.gxe.ExpectColumnValuesToNotBeNull]
with ThreadPoolExecutor(len(uses)) as threads:
    list(threads.map(first, uses))
"""


def test_threads_use_the_library_first_at_once() -> None:
    answer = subprocess.run([sys.executable, "-c", _AT_ONCE], check=False, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
