"""A secured database, broker and ZooKeeper, and a user with exactly the permissions that the platform needs."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from tests.security.servers import (
    LOOPBACK,
    Identity,
    SecuredCassandra,
    SecuredKafka,
    SecuredZooKeeper,
    allow,
    grant,
    issue,
)
from tests.support.settings import write_settings
from writetime.clients.database import apply_schema, connect
from writetime.core import config
from writetime.core.config import Settings
from writetime.ingest.topics import ensure_ingest_topics
from writetime.servers.process import EmbeddedServer, free_port

# The rights that our user needs, by docs/security.md.
PERMISSIONS = ["CREATE ON ALL KEYSPACES", "SELECT ON ALL KEYSPACES", "SELECT ON KEYSPACE system_views"]
ON_TOPICS = [
    *(AclOperation.CREATE, AclOperation.READ, AclOperation.WRITE),
    *(AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS),
]
RIGHTS = {
    **{(ResourceType.TOPIC, prefix): ON_TOPICS for prefix in ("user-events", "changes.", "row_events.", "writetime.")},
    (ResourceType.GROUP, "writetime"): [AclOperation.READ, AclOperation.DESCRIBE],
    (ResourceType.TRANSACTIONAL_ID, "writetime"): [AclOperation.WRITE, AclOperation.DESCRIBE],
    (ResourceType.BROKER, "kafka-cluster"): [AclOperation.IDEMPOTENT_WRITE],
}
SECRETS = {
    "cassandra": "hush-of-the-database",
    "kafka": "hush-of-the-brokers",
    "zookeeper": "hush-of-zookeeper",
    "registry": "hush-of-the-registry",
    "storage": "hush-of-the-object-store",
    "spark": "hush-of-spark-itself",
    "token": "hush-of-the-first-caller",
    "other token": "hush-of-the-second-caller",
}
USER = "writer"
# An address that the node may move to.
OTHER_ADDRESS = "127.0.0.3"


@dataclass(frozen=True)
class Secured:
    """Settings of our user, and of who may do everything."""

    settings: Settings
    admin: Settings
    authority: Identity
    home: Path
    servers: list[EmbeddedServer]


def kafka_client(user: str, password: str, ca_file: Path, certificate_file: Path, key_file: Path) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
        "ssl.ca.location": str(ca_file),
        "ssl.certificate.location": str(certificate_file),
        "ssl.key.location": str(key_file),
    }


@pytest.fixture(scope="package")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home = tmp_path_factory.mktemp("secured")
    authority = issue("authority")
    ca_file, _ = authority.write(home, "authority")
    certificate_file, key_file = issue("client", authority).write(home, "client")
    tls = {"tls_ca_file": ca_file, "tls_certificate_file": certificate_file, "tls_key_file": key_file}
    ports = {name: free_port() for name in ("cassandra", "kafka", "zookeeper")}
    broker = f"127.0.0.1:{ports['kafka']}"

    def settings(user: str, passwords: dict[str, str]) -> Settings:
        return config.load(
            cassandra={"port": ports["cassandra"], "username": user, "password": passwords["cassandra"], **tls},
            kafka={
                "bootstrap_servers": broker,
                "client": kafka_client(user, passwords["kafka"], ca_file, certificate_file, key_file),
            },
            zookeeper={
                "hosts": f"127.0.0.1:{ports['zookeeper']}",
                "username": user,
                "password": passwords["zookeeper"],
                **tls,
            },
            embedded={
                "home": home,
                "cassandra_storage_port": free_port(),
                "kafka_controller_port": free_port(),
                "cassandra_heap_mb": 512,
            },
            lake={"path": str(home / "lake"), "storage_options": {"AWS_SECRET_ACCESS_KEY": SECRETS["storage"]}},
            spark={"master": "local[2]", "conf": {"spark.hadoop.fs.s3a.secret.key": SECRETS["spark"]}},
            capture={"state_dir": home / "capture", "snapshot": "schema-only"},
            ingest={
                "port": free_port(),
                "tokens": [SECRETS["token"], SECRETS["other token"]],
                "tls_certificate_file": certificate_file,
                "tls_key_file": key_file,
                "session_timeout_seconds": 3.0,
            },
            workqueue={"queues": {"jobs": {"shards": 1}}},
        )

    # Who may do everything has the same name as the one that Cassandra makes by itself.
    admin = settings("cassandra", dict.fromkeys(("cassandra", "kafka", "zookeeper"), "cassandra"))
    ours = settings(USER, SECRETS)
    servers: list[EmbeddedServer] = [
        SecuredCassandra(admin, authority, (*LOOPBACK, OTHER_ADDRESS)),
        SecuredKafka(admin, authority, {"cassandra": "cassandra", USER: SECRETS["kafka"], "stranger": "stranger"}),
        SecuredZooKeeper(admin, authority),
    ]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_ready()
        with connect(admin) as session:
            grant(session, USER, SECRETS["cassandra"], PERMISSIONS)
            grant(session, "stranger", "stranger", [])
        allow(admin, USER, RIGHTS)
        apply_schema(ours)
        ensure_ingest_topics(ours)
        yield Secured(ours, admin, authority, home, servers)
    finally:
        for server in servers:
            server.stop()


@pytest.fixture
def in_force(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of our user, which commands and resources use, too."""
    write_settings(secured.settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    return config.load()
