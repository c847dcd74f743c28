"""Each row of a table in a document has the columns of the table's head: Markdown shows any other row wrongly."""

import re
from collections.abc import Iterator

from tests.support.documents import ROOT, documents


def rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of each table, with the number of the table's first line; blocks of code have none."""
    text = re.sub(r"(?ms)^ *```.*?^ *```", lambda block: re.sub(r"[^\n]", "", block.group()), text)
    first = 0
    for number, line in enumerate(text.split("\n"), 1):
        if not line.lstrip().startswith("|"):
            first = 0
            continue
        first = first or number
        plain = re.sub(r"\\\|", "", line.strip())
        yield first, plain.strip("|").split("|")


def test_rows_have_the_columns_of_their_head() -> None:
    wrong = []
    for document in [*documents(), "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]:
        heads: dict[int, int] = {}
        for first, cells in rows((ROOT / document).read_text()):
            if len(cells) != heads.setdefault(first, len(cells)):
                wrong.append(f"{document}: {cells[0].strip()}")
    assert not wrong


def test_two_rows_on_one_line_are_found() -> None:
    assert [len(cells) for _, cells in rows("| a | b |\n| --- | --- |\n| 1 | 2 | | 3 | 4 |\n")] == [2, 2, 5]
