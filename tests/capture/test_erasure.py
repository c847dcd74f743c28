"""`writetime erase` while writers, an agent and `writetime follow` run.

Oracle: a search of all files of the lake by other programs, and the database's answers.
"""

import itertools
import random
from pathlib import Path

import pytest

from tests.support.bytes_left import found_in, texts_below
from tests.support.captured import Captured
from tests.support.following import following
from tests.support.lake_answers import cql_rows, view_rows
from tests.support.repeated import repeated
from tests.support.view_readers import by_query
from tests.support.waiting import wait_for
from writetime.core.errors import Transient
from writetime.erasure.certificate import erase
from writetime.erasure.keys import ranges_of
from writetime.lake.table import is_in_lake, open_table

pytestmark = pytest.mark.long

_CHOOSER = random.Random(0)
TEXTS = {(i, n): f"{_CHOOSER.getrandbits(96):024x}" for i in range(4) for n in range(2)}
GONE = [TEXTS[0, 0], TEXTS[0, 1], TEXTS[1, 0]]
LEFT = [text for text in TEXTS.values() if text not in GONE]


@pytest.fixture
def used(landed: Captured, tmp_path: Path) -> Captured:
    """A table, of which the agent archives the segments: the archive keeps what is erased, and the lake does not."""
    follow = landed.settings.follow.model_copy(update={"events_seconds": 0.1, "view_seconds": 0.1})
    landed.settings = landed.with_options(finished="archive", archive=str(tmp_path / "archive"))
    lake = landed.settings.lake.model_copy(update={"cache": str(tmp_path / "cache")})
    landed.settings = landed.settings.model_copy(update={"follow": follow, "lake": lake})
    landed.write("CREATE TABLE {ks}.t (id int, n int, v text, PRIMARY KEY (id, n)) WITH cdc = true")
    return landed


def insert(place: tuple[int, int], text: str) -> str:
    return f"INSERT INTO {{ks}}.t (id, n, v) VALUES ({place[0]}, {place[1]}, '{text}')"


def is_shown(used: Captured) -> bool:
    """Whether the view has the rows of the database."""
    name, schema = f"{used.keyspace}.t", used.schema("t")
    if not is_in_lake(used.settings, name):
        return False
    table = open_table(used.settings, name)
    if not table.view.load().files:
        return False
    shown = view_rows([by_query(table.view.storage.address).select([c.name for c in schema.columns])])
    return sorted(map(repr, shown)) == sorted(map(repr, cql_rows(used.node.session(), schema)))


def erased(used: Captured) -> None:
    """Erase a partition, and a row of another one. Other programs may have to do something first."""
    table = open_table(used.settings, f"{used.keyspace}.t")
    ranges = ranges_of(['{"id": 0}', '{"id": 1, "n": 0}'], table.schema())

    def is_done() -> bool:
        try:
            erase(used.settings, table, ranges, delete_records=True)
        except Transient:
            return False
        return True

    wait_for(is_done)


def left(tmp_path: Path) -> list[str]:
    """The texts that the lake has, and the decoded files."""
    found = found_in(texts_below(tmp_path / "lake", tmp_path / "cache"), TEXTS.values())
    return [text for text, files in found.items() if files]


def test_a_table_that_is_used(used: Captured, tmp_path: Path) -> None:
    name, numbers = f"{used.keyspace}.t", itertools.count(100)
    with used.agent(), following(used.settings, name):
        used.write(*(insert(place, text) for place, text in TEXTS.items()))
        wait_for(lambda: is_shown(used))
        assert left(tmp_path) == list(TEXTS.values())
        used.write("DELETE FROM {ks}.t WHERE id = 0", "DELETE FROM {ks}.t WHERE id = 1 AND n = 0")
        wait_for(lambda: is_shown(used))
        with repeated(lambda: used.write(insert((next(numbers), 0), "meanwhile")), 0.05):
            erased(used)
            # A task of `follow` may have been about to write or decode old data.
            erased(used)
        wait_for(lambda: is_shown(used))
        assert left(tmp_path) == LEFT
