"""Each row of the comparison has links to existing tests."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/comparison.md").read_text()
TESTS = {
    number: (path, name)
    for number, path, name in re.findall(r'^\[(\d+)\]: \.\./(tests/[\w/]+\.py) "(\w+)"$', PAGE, re.MULTILINE)
}


def test_the_tests_that_it_links_exist() -> None:
    assert len(TESTS) > 20
    for path, name in TESTS.values():
        assert f"\ndef {name}(" in (ROOT / path).read_text(), f"{path}::{name} is linked in docs/comparison.md"


def test_each_row_has_links_and_all_links_are_used() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| \w", line)]
    linked = {row: re.findall(r"\[(\d+)\](?!\()", row) for row in rows}
    assert len(rows) > 20
    assert [row for row, numbers in linked.items() if not numbers] == []
    assert {number for numbers in linked.values() for number in numbers} == TESTS.keys()
