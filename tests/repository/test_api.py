"""The reference of the Python interface."""

import re
from pathlib import Path

import writetime
from tools import api


def test_the_reference_has_each_public_name_and_no_other(tmp_path: Path) -> None:
    page = api.write(tmp_path).read_text()
    assert {path.name for path in tmp_path.glob("*.html")} == {"index.html", "writetime.html"}
    assert set(re.findall(r'<section id="(\w+)">', page)) == set(writetime.__all__)
    methods = set(re.findall(r'id="Table\.(\w+)"', page))
    assert methods - {"__init__"} == {
        "name",
        "schema",
        "view",
        "lookup",
        "between",
        "row_events",
        "restore",
        "plan_undo",
        "apply_undo",
        "erase",
    }
    # From a docstring: the reason of an error.
    assert "the lake has no such table" in page
