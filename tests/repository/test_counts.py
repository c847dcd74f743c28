"""A count and its noun agree in all messages, logs and output: `1 row`, and not `1 rows`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from writetime.core.counts import pluralize

ROOT = Path(__file__).parents[2]
FOLDERS = ("platform/writetime", "assets", "resources", "demo")
_NOUNS = (
    "attempts|batches|blocks|brokers|buckets|bytes|calls|changes|checks|checksums|differences|errors|events|faults|files|"
    "findings|handlers|items|keys|letters|messages|mutations|offsets|partitions|programs|queues|ranges|records|requests|"
    "rows|schemas|segments|shards|snapshots|sstables|subjects|sums|tables|topics|windows|writes"
)
_BEFORE = "broken|chunk|compressed|dead|differing|message|more|new|other|token"
_AFTER = re.compile(rf" (({_BEFORE}) )?({_NOUNS})\b", re.IGNORECASE)
_CONSTANT = re.compile(r"(\w+\.)?_?[A-Z][A-Z_]+\b")
_PERCENT = re.compile(rf"%[\d,.]*d (({_BEFORE}) )?({_NOUNS})\b", re.IGNORECASE)


@pytest.mark.parametrize(("count", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1000, "1000 rows")])
def test_a_count_with_its_noun(count: int, text: str) -> None:
    assert pluralize(count, "row") == text


def test_forms() -> None:
    assert pluralize(1000, "dead letter", ",") == "1,000 dead letters"
    assert [pluralize(n, "batch") for n in (1, 2)] == ["1 batch", "2 batches"]


def test_each_count_agrees_with_its_noun() -> None:
    found = [place for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) for place in _places(path)]
    assert not found, "use `pluralize` of writetime.core.counts:\n" + "\n".join(found)


def _places(path: Path) -> Iterator[str]:
    """Yield the counts of a module that are followed by a plural, without constants such as `MAX_ITEMS`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _PERCENT.search(node.value):
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, after in zip(node.values, node.values[1:], strict=False):
            if (
                isinstance(value, ast.FormattedValue)
                and isinstance(after, ast.Constant)
                and _AFTER.match(str(after.value))
            ):
                written = ast.unparse(value.value)
                if not written.startswith("counted(") and not _CONSTANT.match(written):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {{{written}}}{after.value}"
