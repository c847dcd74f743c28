"""Programs share the tables out: each table has one, and a program that dies leaves its tables to the others."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.waiting import wait_for
from writetime.core.config import Settings
from writetime.follow import shares as module
from writetime.follow.shares import Shares, shares

TABLES = [f"k.t{i}" for i in range(60)]


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.0)
    return iter(())


def sharing(settings: Settings) -> Settings:
    return settings.model_copy(update={"follow": settings.follow.model_copy(update={"share": True})})


def owners(programs: list[Shares]) -> list[list[int]]:
    """For each table, the programs that have it."""
    for program in programs:
        program.look()
    return [[i for i, program in enumerate(programs) if program.has(table)] for table in TABLES]


def test_a_single_program_has_all_tables(zookeeper: Settings) -> None:
    with shares(zookeeper) as alone:
        assert owners([alone]) == [[0]] * len(TABLES)


def test_each_table_has_one_program(zookeeper: Settings) -> None:
    with ExitStack() as stack:
        programs = [stack.enter_context(shares(sharing(zookeeper))) for _ in range(3)]
        wait_for(lambda: all(len(found) == 1 for found in owners(programs)))
        before = [found[0] for found in owners(programs)]
        assert {before.count(i) > 5 for i in range(3)} == {True}
        # The one that goes leaves its tables; the others keep theirs.
        last = programs.pop()
        assert last._client is not None
        last._client.stop()
        wait_for(lambda: all(len(found) == 1 for found in owners(programs)))
        after = [found[0] for found in owners(programs)]
        assert all(now == was for now, was in zip(after, before, strict=True) if was != 2)


def test_tables_stay_while_zookeeper_is_away(zookeeper: Settings) -> None:
    with shares(sharing(zookeeper)) as one, shares(sharing(zookeeper)) as other:
        wait_for(lambda: all(len(found) == 1 for found in owners([one, other])))
        before = owners([one, other])
        for program in (one, other):
            assert program._client is not None
            program._client.stop()
        assert owners([one, other]) == before
