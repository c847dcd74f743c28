"""All programs of the platform as processes at one database, and what is sent to them while the database fails."""

import itertools
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from deltalake.exceptions import DeltaError

from tests.support.programs import Program
from tests.support.settings import write_settings
from tests.support.view_readers import by_query
from writetime.clients import database
from writetime.clients.database import DRIVER_FAULTS
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.waiting import wait_until
from writetime.lake.table import LakeTable, table_storage
from writetime.replay.publisher import Publisher

AGAIN_SECONDS = 300.0
"""How long the programs may take until all works again. No test measures this."""
_QUEUE = f"q{uuid4().hex[:12]}"
_HANDLERS = """
def note(line):
    with open({log!r}, "a") as log:
        log.write(line + "\\n")

def item(found):
    note(f"item {{found.payload}}")

def batch(found):
    for line in found.items:
        note(bytes(line).decode())
"""
_numbers = itertools.count(int(time.time()))


class Platform:
    """The running programs, and what they have done with what was sent to them.

    Args:
        settings: those of the programs.
        admin: those of a user who may write to the table.
        home: their folder.
        table: a captured table with the column `id int`.
        programs: by their names.
    """

    def __init__(
        self, settings: Settings, admin: Settings, home: Path, table: str, programs: dict[str, Program]
    ) -> None:
        self.settings, self.admin, self.table = settings, admin, table
        self.programs = programs
        self._handled = home / "handled"

    def connections(self) -> dict[str, set[tuple[int, str]]]:
        """Return the connections of each program to the database: its own port, and the address of the node."""
        port = self.settings.cassandra.port
        return {name: program.connections(port) for name, program in self.programs.items()}

    @contextmanager
    def sending(self) -> Iterator["Sender"]:
        """Send things meanwhile. At the end all that were accepted must be there, and no program may have ended."""
        sender = Sender(self)
        sender.start()
        try:
            yield sender
        finally:
            sender.stop()
        wait_until(lambda: not any(self._missing(sender).values()), AGAIN_SECONDS, 1.0)
        assert not any(self._missing(sender).values()), self.described(self._missing(sender))
        ends = {name: dict(program.ends) for name, program in self.programs.items() if program.ends}
        assert not ends, self.described(ends)

    def described(self, found: object) -> str:
        """Return what was found, with the ends of the programs' logs."""
        return "\n".join([str(found), *(f"--- {name}\n{p.tail()[-1500:]}" for name, p in self.programs.items())])

    def _missing(self, sender: "Sender") -> dict[str, set[int]]:
        """Return what was accepted and is not there, and rows that only the lake or only the database has."""
        lines = self._handled.read_text().splitlines() if self._handled.exists() else []
        try:
            with database.connect(self.admin) as session:
                users = list(session.execute(f"SELECT user_id FROM {self.settings.cassandra.keyspace}.user_events"))
                rows = {row.id for row in session.execute(f"SELECT id FROM {self.table}")}
            view = by_query(LakeTable(table_storage(self.settings, self.table)).view.storage.address)
        except (*DRIVER_FAULTS, DeltaError, WritetimeError, OSError) as e:
            return {f"nothing can be read: {e}": {0}}
        there = {
            "event": {int(row.user_id.removeprefix("user-")) for row in users if row.user_id.startswith("user-")},
            "item": _numbers_of("item ", lines),
            "batch": _numbers_of("batch ", lines),
            "row": rows,
        }
        lost = {kind: accepted - there[kind] for kind, accepted in sender.accepted.items()}
        return {**lost, "rows in one of database and lake": rows ^ {int(n) for n in view["id"].to_pylist()}}


class Sender(threading.Thread):
    """Sends events, work items, batches and rows, and records those that are accepted."""

    def __init__(self, platform: Platform) -> None:
        super().__init__()
        self._platform = platform
        self._ended = threading.Event()
        self._kinds: Mapping[str, Callable[[int], bool]] = {
            "event": lambda n: self._post("/events", {"userId": f"user-{n}", "eventType": "departed"}),
            "item": lambda n: self._post(f"/queues/{_QUEUE}/items", {"payload": n}),
            "batch": self._publish,
            "row": self._insert,
        }
        self.accepted: dict[str, set[int]] = {kind: set() for kind in self._kinds}
        self.refused: dict[str, int] = dict.fromkeys(self._kinds, 0)

    def run(self) -> None:
        while not self._ended.wait(1.0):
            for kind, send in self._kinds.items():
                n = next(_numbers)
                is_accepted = False
                with suppress(httpx.TransportError, WritetimeError, *DRIVER_FAULTS):
                    is_accepted = send(n)
                if is_accepted:
                    self.accepted[kind].add(n)
                else:
                    self.refused[kind] += 1

    def stop(self) -> None:
        """End, after what is being sent."""
        self._ended.set()
        self.join()

    def wait_until_accepted(self) -> None:
        """Wait until one more of each kind is accepted."""
        # What is being sent may be accepted in spite of a fault that begins now.
        for _ in range(2):
            before = {kind: len(found) for kind, found in self.accepted.items()}

            def accepted(before: dict[str, int] = before) -> bool:
                return all(len(found) > before[kind] for kind, found in self.accepted.items())

            assert wait_until(accepted, AGAIN_SECONDS), self._platform.described((before, self.accepted, self.refused))

    def wait_until_refused(self, *kinds: str) -> None:
        """Wait until one more of each of these kinds is refused."""
        before = dict(self.refused)

        def refused() -> bool:
            return all(self.refused[kind] > before[kind] for kind in kinds)

        assert wait_until(refused, AGAIN_SECONDS), (before, self.refused)

    def _post(self, path: str, body: object) -> bool:
        ingest = self._platform.settings.ingest
        scheme, verify = "http", ssl.create_default_context()
        if ingest.tls_certificate_file is not None:
            scheme = "https"
            verify.load_verify_locations(self._platform.settings.cassandra.tls_ca_file)
        headers = {"Authorization": f"Bearer {ingest.tokens[0].get_secret_value()}"} if ingest.tokens else {}
        url = f"{scheme}://127.0.0.1:{ingest.port}{path}"
        return httpx.post(url, json=body, headers=headers, verify=verify, timeout=60).status_code == 202

    def _publish(self, n: int) -> bool:
        with Publisher(self._platform.settings, _QUEUE) as publisher:
            publisher.publish([f"batch {n}".encode()])
        return True

    def _insert(self, n: int) -> bool:
        with database.connect(self._platform.admin) as session:
            session.execute(f"INSERT INTO {self._platform.table} (id) VALUES ({n})")
        return True


def _numbers_of(beginning: str, lines: list[str]) -> set[int]:
    return {int(line.removeprefix(beginning)) for line in lines if line.startswith(beginning)}


@contextmanager
def running_platform(
    settings: Settings, admin: Settings, home: Path, table: str, agents: Mapping[str, Settings]
) -> Iterator[Platform]:
    """Run all programs, and wait until they work: those of settings, and one agent per node with its own."""
    (home / "handlers.py").write_text(_HANDLERS.format(log=str(home / "handled")))
    arguments = {
        "serve": (),
        "sink": (),
        "follow": (table,),
        "work": ("--queue", _QUEUE, "--handler", "handlers:item"),
        "replay": ("work", _QUEUE, "p", "--handler", "handlers:batch"),
    }
    write_settings(settings, home / "writetime.toml")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("PYTHONPATH", str(home))
        programs = {name: Program(home, name, name, *given) for name, given in arguments.items()}
        for name, own in agents.items():
            folder = home / name
            folder.mkdir()
            write_settings(own, folder / "writetime.toml")
            programs[name] = Program(folder, name, "agent")
        for program in programs.values():
            stack.callback(program.end)
            program.start()
        platform = Platform(settings, admin, home, table, programs)
        # A program that starts while the database does not answer ends.
        with platform.sending() as sender:
            sender.wait_until_accepted()
        yield platform
