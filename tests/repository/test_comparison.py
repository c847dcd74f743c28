"""Every test that the comparison names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_that_it_names_exist() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/comparison.md").read_text()))
    assert len(named) > 20
    for path, name in sorted(named):
        assert f"\ndef {name}(" in (ROOT / path).read_text(), f"{path}::{name} is named in docs/comparison.md"


def test_each_of_our_rows_names_one() -> None:
    rows = [line for line in (ROOT / "docs/comparison.md").read_text().splitlines() if line.startswith("| ")]
    without = [row for row in rows if "::" not in row and " --- " not in row and not row.endswith("| shown by |")]
    assert without == []
