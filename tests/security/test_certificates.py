"""Certificates, verified by the default rules of Python 3.13 and later, and the reports of rejected ones.

No Cassandra, Kafka or ZooKeeper is needed.
"""

import contextlib
import os
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from tests.security.servers import Identity, SecuredCassandra, issue
from writetime.clients import database, kafka, tls, zookeeper
from writetime.clients.schema_registry import Registry
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError


def server_context(identity: Identity, folder: Path, clients: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*identity.write(folder, "node"))
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    return context


def strict(context: ssl.SSLContext) -> ssl.SSLContext:
    """Set the flags that `ssl.create_default_context` sets from Python 3.13 on."""
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass


def test_servers_and_clients_accept_each_other_strictly(tmp_path: Path) -> None:
    authority = issue("authority")
    ca_file, _ = authority.write(tmp_path, "authority")
    client = strict(ssl.create_default_context(cafile=ca_file))
    client.load_cert_chain(*issue("client", authority).write(tmp_path, "client"))
    server = strict(server_context(issue("node", authority), tmp_path, ca_file))
    shake_hands(client, server)
    other, _ = issue("other").write(tmp_path, "other")
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        shake_hands(strict(ssl.create_default_context(cafile=other)), server)


class _Listener(socketserver.ThreadingTCPServer):
    """A server of TLS only."""

    daemon_threads = True

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.context = context


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Listener)
        # A client that refuses the certificate ends the connection.
        with (
            contextlib.suppress(OSError),
            self.server.context.wrap_socket(self.request, server_side=True) as connection,
        ):
            connection.recv(1)


@contextmanager
def listening(context: ssl.SSLContext) -> Iterator[int]:
    """Return the port of a TLS server."""
    with _Listener(context) as server:
        # How often it checks whether it must stop: by default, each stop takes half a second.
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def issued_again(identity: Identity, signer: Identity, without: Any = None, uncritical: Any = None) -> Identity:
    """Return an identity with a certificate that lacks an extension, or has one that is not critical."""
    old = identity.certificate
    builder = x509.CertificateBuilder(
        old.issuer, old.subject, old.public_key(), old.serial_number, old.not_valid_before_utc, old.not_valid_after_utc
    )
    for extension in old.extensions:
        if type(extension.value) is not without:
            critical = extension.critical and type(extension.value) is not uncritical
            builder = builder.add_extension(extension.value, critical)
    return Identity(identity.key, builder.sign(signer.key, hashes.SHA256()))


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Missing Authority Key Identifier": ({}, {"without": x509.AuthorityKeyIdentifier}),
    "Missing Subject Key Identifier": ({"without": x509.SubjectKeyIdentifier}, {}),
    "CA cert does not include key usage extension": ({"without": x509.KeyUsage}, {}),
    "Basic Constraints of CA cert not marked critical": ({"uncritical": x509.BasicConstraints}, {}),
}
"""OpenSSL's errors for certificates of an authority and of a node with these changes."""
ISSUE_AGAIN = r"Python 3\.13 .*issue them again"


@pytest.fixture(params=REFUSED)
def refused(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, int, Path]]:
    """OpenSSL's error, the port of a server whose certificates a strict client refuses, and their authority."""
    default = ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda **options: strict(default(**options)))
    of_authority, of_node = REFUSED[request.param]
    authority = issue("authority")
    authority = issued_again(authority, authority, **of_authority)
    node = issued_again(issue("node", authority), authority, **of_node)
    ca_file, _ = authority.write(tmp_path, "authority")
    with listening(server_context(node, tmp_path)) as port:
        yield request.param, port, ca_file


def connect(settings: Settings) -> None:
    with database.connect(settings):
        pass


def test_a_node_whose_certificate_lacks_an_extension(refused: tuple[str, int, Path]) -> None:
    reason, port, ca_file = refused
    with pytest.raises(WritetimeError, match=f"no database answers at 127.0.0.1:{port} .*{reason}.*{ISSUE_AGAIN}"):
        connect(config.load(cassandra={"port": port, "tls_ca_file": ca_file}))


def register(settings: Settings) -> int:
    return Registry(settings).register("a", {"type": "record", "name": "a", "fields": []}, "FULL_TRANSITIVE")


def test_a_registry_whose_certificate_lacks_an_extension(refused: tuple[str, int, Path]) -> None:
    reason, port, ca_file = refused
    settings = config.load(schema_registry={"url": f"https://127.0.0.1:{port}", "tls_ca_file": ca_file})
    with pytest.raises(WritetimeError, match=f"schema registry .* does not answer: .*{reason}.*{ISSUE_AGAIN}"):
        register(settings)


def wait(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a server that runs and does not get ready."""
    server = SecuredCassandra(settings, issue("authority"))
    monkeypatch.setattr(server, "pid", os.getpid)
    server.wait_ready()


def test_a_wait_for_a_server_reports_why_it_refuses(
    refused: tuple[str, int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason, port, ca_file = refused
    settings = config.load(
        cassandra={"port": port, "tls_ca_file": ca_file},
        embedded={"start_timeout_seconds": 0.1, "home": ca_file.parent},
    )
    with pytest.raises(WritetimeError, match=f"cassandra was not ready after 0.1 s .*{reason}"):
        wait(settings, monkeypatch)


def ask_zookeeper(settings: Settings) -> None:
    with zookeeper.connect(settings, 1):
        pass


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (connect, r"CERTIFICATE_VERIFY_FAILED.*cassandra\.tls_ca_file"),
        (register, r"CERTIFICATE_VERIFY_FAILED.*schema_registry\.tls_ca_file"),
        (kafka.topic_names, r"certificate verify failed.*kafka\.client"),
        (ask_zookeeper, r"CERTIFICATE_VERIFY_FAILED.*zookeeper\.tls_ca_file"),
    ],
    ids=["cassandra", "registry", "kafka", "zookeeper"],
)
def test_a_certificate_of_another_authority(
    question: Callable[[Settings], Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(kafka, "_admin_of", kafka._admin_of.__wrapped__)
    other, _ = issue("other").write(tmp_path, "other")
    with listening(server_context(issue("node", issue("authority")), tmp_path)) as port:
        settings = config.load(
            cassandra={"port": port, "tls_ca_file": other},
            schema_registry={"url": f"https://127.0.0.1:{port}", "tls_ca_file": other},
            kafka={
                "bootstrap_servers": f"127.0.0.1:{port}",
                "client": {"security.protocol": "SSL", "ssl.ca.location": str(other)},
            },
            zookeeper={"hosts": f"127.0.0.1:{port}", "tls_ca_file": other},
        )
        with pytest.raises(WritetimeError, match=reason) as caught:
            question(settings)
    assert "Python 3.13" not in str(caught.value)


def test_a_server_that_requires_a_certificate_of_its_clients() -> None:
    """The alert that ScyllaDB sends. Other servers may only close the connection."""
    reason = "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required (_ssl.c:2580)"
    assert "set cassandra.tls_certificate_file and tls_key_file" in (tls.remedy(reason, "cassandra") or "")


def test_the_reasons_of_all_contact_points_are_named(tmp_path: Path) -> None:
    """Of two nodes one is down, and the other's certificate is refused."""
    other, _ = issue("other").write(tmp_path, "other")
    with listening(server_context(issue("node", issue("authority")), tmp_path)) as port:
        points = {"contact_points": ["127.0.0.2", "127.0.0.1"], "port": port, "tls_ca_file": other}
        with pytest.raises(WritetimeError, match="CERTIFICATE_VERIFY_FAILED") as caught:
            connect(config.load(cassandra=points))
    assert "Connection refused" in str(caught.value)
