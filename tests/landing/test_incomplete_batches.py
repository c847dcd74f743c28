"""A task of landing loses or repeats a change: nothing of its batch lands, in each way to run landing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.broker import without_database
from tests.support.landing_once import look
from tests.support.published import command, hurry, published, reports
from writetime.core.config import Settings
from writetime.lake.table import is_in_lake, open_table
from writetime.landing import landing
from writetime.landing.following import LandedTables
from writetime.landing.landing import Incomplete, Landing
from writetime.landing.tasks import LandedFiles, MessageRange, write_part


@pytest.fixture
def settings(kafka: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    return without_database(kafka, tmp_path, monkeypatch)


def loses_one(part: MessageRange) -> LandedFiles:
    """Read all messages but the last one of a partition."""
    last = max(part.ends)
    return write_part(replace(part, ends={**part.ends, last: part.ends[last] - 1}))


def repeats(part: MessageRange) -> LandedFiles:
    """Write each change twice."""
    written = write_part(part)
    return replace(written, files=[*written.files, *write_part(part).files])


def changes(settings: Settings, table: str) -> int:
    """The number of changes in the lake."""
    if not is_in_lake(settings, table):
        return 0
    return sum(file.rows for file in open_table(settings, table).changes.load().files)


@pytest.mark.parametrize(("task", "found"), [(loses_one, 2), (repeats, 6)])
def test_an_incomplete_batch_does_not_land(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, task: Callable[[MessageRange], LandedFiles], found: int
) -> None:
    (name,) = published(settings, "a")
    with monkeypatch.context() as broken:
        broken.setattr(landing, "write_part", task)
        with pytest.raises(Incomplete, match=rf"changes\.\w+\.a: 3 messages gave {found} changes .*\d@\d-\d"):
            Landing(settings, name).drain()
        answer = command("land", name)
        assert answer.exit_code == 1
        assert f"3 messages gave {found} changes" in answer.stderr
        assert changes(settings, name) == 0
    drains = Landing(settings, name)
    assert drains.drain() == drains.offsets_landed == changes(settings, name) == 3


def test_follow_sets_the_table_aside_and_lands_the_others(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    broken, sound = published(settings, "a", "b")
    with monkeypatch.context() as lossy:
        lossy.setattr(
            landing,
            "write_part",
            lambda part: (loses_one if part.writer.schema.full_name == broken else write_part)(part),
        )
        tables = LandedTables(settings, [broken, sound])
        look(tables)
        assert (changes(settings, broken), changes(settings, sound)) == (0, 3)
        assert "3 messages gave 2 changes" in str(reports(settings)[broken].fault)
        assert reports(settings)[broken].status == "set aside"
    look(tables)
    assert changes(settings, broken) == 3
