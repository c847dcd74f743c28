"""Programs share the tables: each table has one program, and the others take over the tables of a program that dies."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.support.waiting import wait_for
from writetime.core import config
from writetime.core.config import Settings
from writetime.follow.shares import TableShares, shares
from writetime.servers.process import free_port
from writetime.servers.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.long

TABLES = [f"k.t{i}" for i in range(60)]
# They check at once.
joined = partial(shares, look_seconds=0.0)


def sharing(settings: Settings) -> Settings:
    return settings.model_copy(update={"follow": settings.follow.model_copy(update={"share": True})})


def owners(programs: list[TableShares]) -> list[list[int]]:
    """For each table, the programs that have it."""
    for program in programs:
        program.look()
    return [[i for i, program in enumerate(programs) if program.has(table)] for table in TABLES]


def test_a_single_program_has_all_tables(zookeeper: Settings) -> None:
    with joined(zookeeper) as alone:
        assert owners([alone]) == [[0]] * len(TABLES)


def test_each_table_has_one_program(zookeeper: Settings) -> None:
    with ExitStack() as stack:
        programs = [stack.enter_context(joined(sharing(zookeeper))) for _ in range(3)]
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


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[Settings]:
    """A server that runs, and that a test may stop."""
    settings = config.load(zookeeper={"hosts": f"127.0.0.1:{free_port()}"}, embedded={"home": tmp_path})
    ZooKeeperServer(settings).start()
    yield sharing(settings)
    ZooKeeperServer(settings).stop()


@contextmanager
def away(settings: Settings, fault: str) -> Iterator[None]:
    """Stop a server for a block, or keep it from answering."""
    server = ZooKeeperServer(settings)
    pid = server.pid()
    assert pid is not None
    if fault == "stopped":
        server.stop()
    else:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if fault == "stopped":
            server.start()
        else:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def soon() -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < 4


@pytest.mark.parametrize("fault", ["stopped", "silent"])
def test_tables_stay_while_zookeeper_is_away(own_zookeeper: Settings, fault: str) -> None:
    with joined(own_zookeeper) as one, joined(own_zookeeper) as other:
        wait_for(lambda: all(len(found) == 1 for found in owners([one, other])))
        before = owners([one, other])
        with away(own_zookeeper, fault):
            for _ in range(2):
                with soon():
                    one.look()
                with soon():
                    other.look()
            assert [[i for i, each in enumerate((one, other)) if each.has(table)] for table in TABLES] == before
        with joined(own_zookeeper) as third:
            wait_for(lambda: {tuple(found) for found in owners([one, other, third])} == {(0,), (1,), (2,)})


def test_a_program_ends_while_zookeeper_is_away(own_zookeeper: Settings) -> None:
    with ExitStack() as stack:
        program = stack.enter_context(joined(own_zookeeper))
        program.look()
        with away(own_zookeeper, "stopped"):
            program.look()
            with soon():
                stack.close()


def test_no_program_is_known(own_zookeeper: Settings) -> None:
    """Its own node may be deleted between the two requests of one read."""
    with joined(own_zookeeper) as program:
        program._programs = []
        assert not program.has(TABLES[0])
        program.look()
        assert program.has(TABLES[0])
