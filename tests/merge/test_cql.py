"""The live rows of a state from any source of changes, compared with the database's rows."""

import random

import pytest

from tests.support.expected import assert_same
from tests.support.merged import History, assert_answers, assert_times
from writetime.merge import merge

pytestmark = pytest.mark.long


def test_sstables_give_the_rows_that_the_database_returns(histories: list[History]) -> None:
    assert any(len(history.sstables) > 2 for history in histories)
    for history in histories:
        assert_answers(merge(history.sstables, history.schema), history)


def test_the_commit_log_gives_the_rows_that_the_database_returns(histories: list[History]) -> None:
    for history in histories:
        assert_answers(merge([history.log], history.schema), history)


def test_reading_twice_or_in_pieces_gives_the_same_state(histories: list[History]) -> None:
    for seed, history in enumerate(histories):
        chooser = random.Random(seed)
        whole = merge([history.log, *history.sstables], history.schema)
        pieces = [history.log.slice(i, 7) for i in range(0, len(history.log), 7)]
        pieces += chooser.choices(pieces, k=5) + history.sstables
        chooser.shuffle(pieces)
        middle = merge(pieces[: len(pieces) // 2], history.schema)
        assert_same(merge([middle, *pieces[len(pieces) // 2 :]], history.schema), whole)
        # The database need not have kept in its files all that it logged, as long as it answers the same.
        assert_answers(whole, history)


def test_cells_have_the_write_times_and_expiry_that_the_database_answers(histories: list[History]) -> None:
    for history in histories:
        assert_times(merge(history.sstables, history.schema), history.schema, history.as_of, history.write_times)
