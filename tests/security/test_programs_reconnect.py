"""Whole programs go on by themselves once logins are accepted again."""

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from uuid import uuid4

import httpx
import pytest
from cassandra.cluster import Session

from tests.security.conftest import SECRETS, Secured
from tests.security.logins import change_password, end_connections, restore_password
from tests.security.servers import SecuredCassandra
from tests.security.steps import command
from tests.support.following import rows_shown
from tests.support.programs import Program
from tests.support.settings import write_settings
from writetime.clients import database
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.cassandra_only("the agent reads the node's commit log")]

# How long logins are refused: several attempts of each connection of each program.
REFUSED_SECONDS = 15.0
AGAIN_SECONDS = 180.0
TABLE = "reconnecting.rows"
HANDLERS = """
def note(line):
    with open({log!r}, "a") as log:
        log.write(line + "\\n")

def item(found):
    note(f"item {{found.payload}}")

def batch(found):
    for line in found.items:
        note(bytes(line).decode())
"""
PROGRAMS = {
    "serve": (),
    "sink": (),
    "agent": (),
    "follow": (TABLE,),
    "work": ("--queue", "reconnecting", "--handler", "handlers:item"),
    "replay": ("work", "reconnecting", "p", "--handler", "handlers:batch"),
}


@pytest.fixture(scope="module")
def own(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings of our user, in a folder of its own, and a captured table."""
    home = tmp_path_factory.mktemp("programs")
    write_settings(secured.settings, home / "writetime.toml")
    (home / "handlers.py").write_text(HANDLERS.format(log=str(home / "handled")))
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    with database.connect(secured.admin) as admin:
        admin.execute(f"CREATE KEYSPACE reconnecting WITH replication = {replication}")
        admin.execute(f"CREATE TABLE {TABLE} (id int PRIMARY KEY) WITH cdc = true")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WRITETIME_CONFIG", str(home / "writetime.toml"))
        patch.setenv("PYTHONPATH", str(home))
        yield config.load()
    with database.connect(secured.admin) as admin:
        admin.execute("DROP KEYSPACE reconnecting")


@pytest.fixture(scope="module")
def handled(own: Settings, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], list[str]]:
    """What the handlers were given."""
    log = next(tmp_path_factory.getbasetemp().glob("programs*")) / "handled"
    return lambda: log.read_text().splitlines() if log.exists() else []


@pytest.fixture(scope="module")
def programs(own: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Program]]:
    home = next(tmp_path_factory.getbasetemp().glob("programs*"))
    found = {name: Program(home, name, name, *arguments) for name, arguments in PROGRAMS.items()}
    with ExitStack() as stack:
        for program in found.values():
            stack.callback(program.end)
            program.start()
        yield found


@pytest.fixture(scope="module")
def node(secured: Secured) -> SecuredCassandra:
    found = secured.servers[0]
    assert isinstance(found, SecuredCassandra)
    return found


class Round:
    """One event, work item, batch and row, each with the same number."""

    def __init__(self, secured: Secured, own: Settings, handled: Callable[[], list[str]]) -> None:
        self._secured, self._own, self._handled = secured, own, handled
        self.id = uuid4().int % 2**31
        self._before = rows_shown(own, TABLE)

    def _post(self, path: str, body: object) -> bool:
        trusted = ssl.create_default_context(cafile=str(self._secured.home / "authority.crt"))
        url = f"https://127.0.0.1:{self._own.ingest.port}{path}"
        headers = {"Authorization": f"Bearer {SECRETS['token']}"}
        with suppress(httpx.TransportError):
            return httpx.post(url, json=body, headers=headers, verify=trusted, timeout=60).status_code == 202
        return False

    def send(self, admin: Session) -> None:
        """Send all four, each as soon as it is accepted."""
        event = {"userId": f"user-{self.id}", "eventType": "departed"}
        assert wait_until(lambda: self._post("/events", event), AGAIN_SECONDS, 0.5), "no event is accepted"
        item = {"payload": self.id}
        path = "/queues/reconnecting/items"
        assert wait_until(lambda: self._post(path, item), AGAIN_SECONDS, 0.5), "no work item is accepted"
        command("replay", "publish", "reconnecting", given=f"batch {self.id}\n".encode())
        admin.execute(f"INSERT INTO {TABLE} (id) VALUES ({self.id})")

    def missing(self, admin: Session) -> list[str]:
        """What has not arrived yet."""
        stored = admin.execute(
            f"SELECT user_id FROM {self._own.cassandra.keyspace}.user_events WHERE user_id = %s LIMIT 1",
            [f"user-{self.id}"],
        ).one()
        lines = self._handled()
        landed = False
        with suppress(WritetimeError):
            landed = rows_shown(self._own, TABLE) > self._before
        arrived = {
            "event": stored is not None,
            "item": f"item {self.id}" in lines,
            "batch": f"batch {self.id}" in lines,
            "row": landed,
        }
        return [name for name, is_there in arrived.items() if not is_there]


def assert_all_work(
    secured: Secured, own: Settings, handled: Callable[[], list[str]], logs: dict[str, Program]
) -> None:
    sent = Round(secured, own, handled)
    with database.connect(secured.admin) as admin:
        sent.send(admin)
        wait_until(lambda: not sent.missing(admin), AGAIN_SECONDS, 0.5)
        missing = sent.missing(admin)
    assert not missing, (missing, {name: program.tail()[-800:] for name, program in logs.items()})
    assert {name: dict(program.ends) for name, program in logs.items()} == {name: {} for name in logs}


@pytest.mark.parametrize("restarts", [False, True])
def test_programs_go_on_after_refused_logins(
    secured: Secured,
    own: Settings,
    node: SecuredCassandra,
    handled: Callable[[], list[str]],
    programs: dict[str, Program],
    restarts: bool,
) -> None:
    assert_all_work(secured, own, handled, programs)
    with database.connect(secured.admin) as admin:
        change_password(admin)
    try:
        if restarts:
            node.stop()
            node.start()
        else:
            end_connections(node)
        time.sleep(REFUSED_SECONDS)
        with pytest.raises(database.DatabaseUnreachable), database.connect(own):
            pass
    finally:
        with database.connect(secured.admin) as admin:
            restore_password(admin)
    assert_all_work(secured, own, handled, programs)
