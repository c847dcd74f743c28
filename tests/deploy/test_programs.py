"""The programs of containers, by the commands, settings and probes of the compose file, as processes: they start
without the rights of root, write to their volumes only, answer their probes, and end on SIGTERM.
"""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.files import CONTAINERS, ROOT
from tests.deploy.processes import Container, environment, keep_compiled, running
from tests.support import read_only
from tests.support.following import shown
from tests.support.waiting import wait_for
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.servers.process import free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not read_only.is_possible(), reason="needs Landlock, of Linux 6.2"),
    pytest.mark.cassandra_only("the agent reads the node's commit log"),
]
TOKEN = "sixteen-characters"
# The port of each program in its container, and its setting.
PORTS = {
    "agent": (18081, "WRITETIME_CAPTURE__METRICS_PORT"),
    "follow": (18082, "WRITETIME_FOLLOW__METRICS_PORT"),
    "serve": (18080, "WRITETIME_INGEST__PORT"),
    "sink": (18083, "WRITETIME_INGEST__SINK_METRICS_PORT"),
    "work": (18084, "WRITETIME_WORKQUEUE__METRICS_PORT"),
}


@pytest.fixture
def home(tmp_path: Path, is_long: bool) -> Path:
    """The only folder that containers can write to. At full length they compile all that numba compiles."""
    (tmp_path / "home/tmp").mkdir(parents=True)
    if not is_long:
        keep_compiled(tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def ports() -> dict[str, str]:
    return {name: str(free_port()) for name in PORTS}


@pytest.fixture
def containers(settings: Settings, queue_tables: None, home: Path, ports: dict[str, str]) -> Iterator[list[Container]]:
    """A container of each program, healthy; when the test ends, all end as they should."""
    own = environment(home, **of_this_test(settings, home))
    own |= {setting: ports[name] for name, (_, setting) in PORTS.items()}
    fitted = {str(port): ports[name] for name, (port, _) in PORTS.items()}
    fitted |= {"${WRITETIME_TOKEN:?}": TOKEN, "/etc/writetime/handlers": f"{ROOT}:{CONTAINERS / 'handlers'}"}
    started = ((name, Container(name, home, own, fitted)) for name in PORTS)
    with running(started) as found:
        yield list(found.values())
        assert {name: container.stop() for name, container in found.items()} == dict.fromkeys(PORTS, 0)
    for container in found.values():
        container.assert_no_fault()


def of_this_test(settings: Settings, home: Path) -> dict[str, str]:
    """The servers and folders that replace those of the settings file."""
    return {
        "WRITETIME_CASSANDRA__CONTACT_POINTS": '["127.0.0.1"]',
        "WRITETIME_CASSANDRA__PORT": str(settings.cassandra.port),
        "WRITETIME_CASSANDRA__KEYSPACE": settings.cassandra.keyspace,
        "WRITETIME_KAFKA__BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers,
        "WRITETIME_ZOOKEEPER__HOSTS": settings.zookeeper.hosts,
        "WRITETIME_INGEST__TOPIC": settings.ingest.topic,
        "WRITETIME_INGEST__DEAD_LETTER_TOPIC": settings.ingest.dead_letter_topic,
        "WRITETIME_INGEST__GROUP": settings.ingest.group,
        "WRITETIME_CAPTURE__STATE_DIR": str(home / "agent"),
        # Other tests have the same node.
        "WRITETIME_CAPTURE__FINISHED": "keep",
        "WRITETIME_LAKE__PATH": str(home / "lake"),
        "WRITETIME_LAKE__CACHE": str(home / "cache"),
    }


def test_programs_start_and_end_as_in_their_containers(containers: list[Container]) -> None:
    assert all(container.process.poll() is None for container in containers)


@pytest.mark.usefixtures("containers")
@pytest.mark.long_only("each container compiles what numba compiles")
def test_data_goes_through_the_containers(settings: Settings, home: Path, ports: dict[str, str]) -> None:
    """From the ingress into a table, from a table into the lake, and through a queue."""
    keyspace = settings.cassandra.keyspace
    post(ports, "events", {"userId": "u", "eventType": "t", "payload": {}})
    post(ports, "queues/mails/items", {"payload": {"to": "ada"}})
    with connect(settings) as session:
        session.execute(f"CREATE TABLE {keyspace}.t (id int PRIMARY KEY, v text) WITH cdc = true")
        for i in range(5):
            session.execute(f"INSERT INTO {keyspace}.t (id, v) VALUES ({i}, 'v')")
        events, results = (f"SELECT {what} FROM {keyspace}" for what in ("user_id", "result"))
        wait_for(lambda: list(session.execute(f"{events}.user_events")))
        wait_for(lambda: any(row.result for row in session.execute(f"{results}.queue_state")))
    lake = settings.lake.model_copy(update={"path": str(home / "lake")})
    own = settings.model_copy(update={"lake": lake})
    wait_for(lambda: len(shown(own, f"{keyspace}.t")) == 5)


def post(ports: dict[str, str], path: str, body: dict[str, Any]) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    address = f"http://127.0.0.1:{ports['serve']}/{path}"
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 202
