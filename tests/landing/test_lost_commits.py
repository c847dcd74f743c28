"""The changes of a table lose their newest commit: landing reads its messages again, and no row stays out of a view."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker import without_database
from tests.support.published import command, publish, published, schema_of
from writetime.core.config import Settings
from writetime.lake.table import table_storage

pytestmark = pytest.mark.long


@pytest.fixture
def settings(kafka: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    return without_database(kafka, tmp_path, monkeypatch)


def repaired(*given: str) -> str:
    """Run a command, and the remedies of its errors."""
    answer = command(*given)
    for _ in range(3):
        if answer.exit_code == 0:
            break
        found = re.search(r"`writetime (rebuild [\w. ]+)`", answer.stderr)
        assert found, answer.stderr
        assert command(*found[1].split()).exit_code == 0
        answer = command(*given)
    assert answer.exit_code == 0, answer.stderr
    return answer.stdout


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"{")]
)
@pytest.mark.parametrize("lands_first", [False, True])
def test_the_newest_commit_is_lost(settings: Settings, damage: Callable[[Path], object], *, lands_first: bool) -> None:
    (name,) = published(settings, "a")
    for step in (("land",), ("publish", "--lake-only"), ("maintain",)):
        repaired(step[0], name, *step[1:])
    publish(settings, schema_of(settings, "a"), 4, 5)
    for step in (("land",), ("publish", "--lake-only"), ("maintain",)):
        repaired(step[0], name, *step[1:])
    log = Path(table_storage(settings, name).address, "changes", "_delta_log")
    damage(max(log.glob("*.json")))
    # Its number goes to a commit with other rows.
    publish(settings, schema_of(settings, "a"), 6, 7)
    order = ("land", "maintain", "view") if lands_first else ("maintain", "land", "view")
    for step in order:
        repaired(step, name)
    repaired("maintain", name)
    rows = map(json.loads, repaired("view", name, "--format", "jsonl").splitlines())
    assert sorted(row["id"] for row in rows) == [1, 2, 3, 4, 5, 6, 7]
    repaired("publish", name, "--lake-only")
    assert repaired("land", name) == f"0 changes of {name}\n"
