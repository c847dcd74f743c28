"""Each path through the platform works with secured servers."""

import ipaddress
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from cassandra import Unauthorized
from click.testing import CliRunner
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.handlers.threading import KazooTimeoutError
from pydantic import SecretStr

from tests.security.conftest import SECRETS, USER, Secured
from tests.security.servers import issue
from tests.security.steps import command, in_thread, landed, until
from writetime.capture.commitlog_agent import run as run_agent
from writetime.cli.main import main
from writetime.clients.database import connect, count_rows
from writetime.clients.kafka import NoTopic, client_config, end_offsets, topic_names
from writetime.clients.zookeeper import client_options
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.core.server_settings import ZooKeeper
from writetime.ingest import event_sink
from writetime.lake.table import open_table
from writetime.replay import lag
from writetime.verify.comparison import verify
from writetime.workqueue import Worker
from writetime_dagster.resources import DatabaseResource, KafkaResource, ZooKeeperResource

pytestmark = pytest.mark.long


def without_login(settings: Settings) -> Settings:
    """Settings of somebody with a certificate and no password for ZooKeeper."""
    zookeeper = settings.zookeeper.model_copy(update={"username": None, "password": None})
    return settings.model_copy(update={"zookeeper": zookeeper})


def as_stranger(settings: Settings) -> Settings:
    """Settings of a user who may log in everywhere, and do nothing."""
    password = SecretStr("stranger")
    client = settings.kafka.client | {"sasl.username": SecretStr("stranger"), "sasl.password": password}
    login = {"username": "stranger", "password": password}
    return settings.model_copy(
        update={
            "cassandra": settings.cassandra.model_copy(update=login),
            "zookeeper": settings.zookeeper.model_copy(update=login),
            "kafka": settings.kafka.model_copy(update={"client": client}),
        }
    )


@pytest.fixture
def https(in_force: Settings, secured: Secured) -> Iterator[httpx.Client]:
    """A caller of `writetime serve`, without a token."""
    process = subprocess.Popen([sys.executable, "-m", "writetime", "serve"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        assert said == f"listening on https://127.0.0.1:{in_force.ingest.port}\n"
        trusted = ssl.create_default_context(cafile=str(secured.home / "authority.crt"))
        with httpx.Client(base_url=said.split()[-1], verify=trusted, timeout=60) as client:
            yield client
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_servers_of_ours_listen_on_loopback(secured: Secured) -> None:
    for server in secured.servers:
        listening = [c for c in psutil.Process(server.pid()).net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert {ipaddress.ip_address(c.laddr.ip.removeprefix("::ffff:")).is_loopback for c in listening} == {True}
        assert {c.laddr.port for c in listening} >= set(server.ports.values())


def test_events_and_items(https: httpx.Client, in_force: Settings) -> None:
    event = {"userId": "ada", "eventType": "departed"}
    for headers in ({}, {"Authorization": "Bearer of-nothing-known"}, {"Authorization": SECRETS["token"]}):
        for path in ("/events", "/queues/jobs/items"):
            answer = https.post(path, json=event, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert https.get("/metrics", headers=headers).status_code == 401
    assert [https.get(path).status_code for path in ("/health", "/ready")] == [200, 200]
    for token in ("token", "other token"):
        https.headers["Authorization"] = f"Bearer {SECRETS[token]}"
        assert https.post("/events", json=event).status_code == 202
        assert https.post("/queues/jobs/items", json={"payload": token}).status_code == 202
    assert "writetime_ingress_unauthorized_total 9.0" in https.get("/metrics").text
    described = https.get("/openapi.json").json()["paths"]
    assert {path for path, of in described.items() if not all("401" in o["responses"] for o in of.values())} == {
        "/health",
        "/ready",
        "/queues",
    }
    page = https.get("/queues", headers={"Authorization": ""})
    assert (page.status_code, "jobs" in page.text) == (200, False)

    table = f"{in_force.cassandra.keyspace}.user_events"
    with connect(in_force) as session, in_thread(event_sink.run, in_force) as outcome:
        until(lambda: count_rows(session, table, "user_id") == 2, outcome)
    assert sum(outcome.result().values()) == 2
    seen: list[Any] = []
    assert Worker(in_force, {"jobs": lambda item: seen.append(item.payload)}).run(until_idle=True) == {"completed": 2}
    assert sorted(seen) == ["other token", "token"]
    assert '"depth": 0' in command("queue", "inspect", "jobs")


def test_replay_queues_are_for_their_user_alone(secured: Secured, in_force: Settings) -> None:
    assert command("replay", "publish", "flights", given=b"one\ntwo\n") == "flights-1\n"
    assert command("replay", "work", "flights", "p", "--handler", "builtins:id", "--until-idle") == "1 batch\n"
    assert json.loads(command("replay", "lag", "flights"))["batches"] == 0
    with ZooKeeperResource().connect() as client:
        nodes = ["/queues", "/queues/flights", "/queues/flights/processors/p"]
        answers: Any = [client.get_acls(node) for node in nodes]
    assert {(acl.id.scheme, acl.id.id.split(":")[0]) for acls, _ in answers for acl in acls} == {("digest", USER)}
    for settings in (without_login(in_force), as_stranger(in_force)):
        client = KazooClient(**client_options(settings))
        client.start(timeout=15)
        try:
            for forbidden in (client.get, client.delete, client.get_children):
                with pytest.raises(NoAuthError):
                    forbidden("/queues/flights")
            with pytest.raises(NoAuthError):
                client.set("/queues/flights", b"flights-99")
            with pytest.raises(NoAuthError):
                client.create("/queues/flights/processors/q", b"")
        finally:
            client.stop()
            client.close()
    with pytest.raises(WritetimeError, match="ZooKeeper refuses access"):
        lag(without_login(in_force), "flights")


def test_capture_lake_and_verification(secured: Secured, in_force: Settings) -> None:
    with connect(secured.admin) as session:
        session.execute("CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        session.execute("CREATE TABLE shop.orders (id int PRIMARY KEY, total int) WITH cdc = true")
        with in_thread(run_agent, in_force) as outcome:
            for i in range(20):
                session.execute(f"INSERT INTO shop.orders (id, total) VALUES ({i}, {i * i})")
            landed(in_force, "shop.orders", 20, outcome)
            # An agent reports every few seconds.
            until(lambda: "shop.orders: 20 rows" in command("status", "--agents"), outcome)
    assert len(command("view", "shop.orders", "--format", "jsonl").splitlines()) == 20
    assert verify(in_force, open_table(in_force, "shop.orders"), 0).proven
    folders = command("snapshot", "shop.orders").split()
    assert "20 changes added" in command("backfill", "shop.orders", *folders)
    assert "0 differ" in CliRunner().invoke(main, ["verify", "shop.orders"]).stderr
    assert command("publish", "shop.orders")
    assert "row_events.shop.orders" in topic_names(in_force)


def test_resources_of_dagster(in_force: Settings) -> None:
    with DatabaseResource().connect() as session:
        assert session.execute("SELECT key FROM system.local").one()
    assert KafkaResource().progress(in_force.ingest.topic, in_force.ingest.group).ends
    with ZooKeeperResource().connect() as client:
        assert client.connected


def test_a_user_without_grants_gets_the_reason(in_force: Settings) -> None:
    stranger = as_stranger(in_force)
    # The broker answers the same for a topic that does not exist, so a stranger learns nothing, and none is created.
    for topic in (in_force.ingest.topic, "no.such.topic"):
        with pytest.raises(WritetimeError, match=f"topic {topic}: TOPIC_AUTHORIZATION_FAILED") as refused:
            end_offsets(stranger, topic)
        assert not isinstance(refused.value, (NoTopic, Transient))
    with connect(stranger) as session, pytest.raises(Unauthorized):
        session.execute(f"SELECT * FROM {in_force.cassandra.keyspace}.user_events")


def test_brokers_refuse_less(in_force: Settings) -> None:
    less: list[dict[str, str | None]] = [
        {"security.protocol": "SASL_PLAINTEXT"},
        {"sasl.password": "wrong"},
        {"ssl.ca.location": None},
        {"ssl.certificate.location": None, "ssl.key.location": None},
    ]

    def refused(changed: dict[str, str | None]) -> bool:
        config = {name: v for name, v in (client_config(in_force, log_level=0) | changed).items() if v is not None}
        try:
            AdminClient(config).list_topics(timeout=4)
            return False
        except KafkaException:
            return True

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(refused, [*less, {}])) == [True] * len(less) + [False]


@pytest.mark.parametrize("missing", ["tls_ca_file", "tls_certificate_file"])
def test_zookeeper_refuses_less(in_force: Settings, secured: Secured, tmp_path: Path, missing: str) -> None:
    other, _ = issue("other").write(tmp_path, "other")
    changed = (
        {"tls_ca_file": other} if missing == "tls_ca_file" else {"tls_certificate_file": None, "tls_key_file": None}
    )
    zookeeper = ZooKeeper.model_validate(in_force.zookeeper.model_dump() | changed)
    client = KazooClient(**client_options(in_force.model_copy(update={"zookeeper": zookeeper})))
    with pytest.raises(KazooTimeoutError):
        client.start(timeout=2)
    client.stop()
    client.close()
