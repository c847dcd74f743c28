"""A database that requires credentials and certificates: the settings suffice, and all of them are needed."""

import contextlib
import logging
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.conftest import USER, Secured
from tests.security.servers import issue
from writetime.clients import database
from writetime.core.errors import WritetimeError
from writetime.core.server_settings import Cassandra

pytestmark = pytest.mark.long

ELSEWHERE = "127.0.0.2"


def with_changes(secured: Secured, **changed: object) -> Cassandra:
    return Cassandra.model_validate(secured.settings.cassandra.model_dump() | changed)


def refused(secured: Secured, **changed: object) -> str:
    settings = secured.settings.model_copy(update={"cassandra": with_changes(secured, **changed)})
    with pytest.raises(WritetimeError, match="no database answers") as caught, database.connect(settings):
        pass
    return str(caught.value)


def test_credentials_and_certificates_of_the_settings_get_in(secured: Secured) -> None:
    with database.connect(secured.settings) as session, database.connect(secured.admin) as admin:
        session.execute("SELECT key FROM system.local")
        clients = [tuple(row) for row in admin.execute("SELECT username, ssl_enabled FROM system_views.clients")]
    assert (USER, True) in clients
    assert all(encrypted for _, encrypted in clients)


def test_a_wrong_password_is_named_and_not_shown(secured: Secured) -> None:
    said = refused(secured, password="a-wrong-password")
    assert f"{USER} and/or password are incorrect" in said
    assert "a-wrong-password" not in said


def test_a_server_of_another_authority_is_refused(secured: Secured, tmp_path: Path) -> None:
    other, _ = issue("other").write(tmp_path, "other")
    assert "CERTIFICATE_VERIFY_FAILED" in refused(secured, tls_ca_file=other)


def test_a_client_without_a_certificate_is_refused(secured: Secured) -> None:
    refused(secured, tls_certificate_file=None, tls_key_file=None)


@pytest.fixture
def elsewhere(secured: Secured) -> Iterator[None]:
    """The node at an address that its certificate does not name."""
    port = secured.settings.cassandra.port
    proxy = socketserver.ThreadingTCPServer((ELSEWHERE, port), _Proxy)
    proxy.daemon_threads = True
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        yield
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()


class _Proxy(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.server_address[1])) as node:  # type: ignore[misc]
            back = threading.Thread(target=_pass_on, args=(node, self.request))
            back.start()
            _pass_on(self.request, node)
            back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@pytest.mark.usefixtures("elsewhere")
def test_a_certificate_for_another_address_is_refused(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    assert f"not valid for '{ELSEWHERE}'" in refused(secured, contact_points=[ELSEWHERE])
    unchecked = with_changes(secured, contact_points=[ELSEWHERE], tls_check_addresses=False)
    with (
        caplog.at_level(logging.WARNING),
        database.connect(secured.settings.model_copy(update={"cassandra": unchecked})) as session,
    ):
        assert session.execute("SELECT key FROM system.local").one()
    assert "is accepted for a node: tls_check_addresses is off" in caplog.text
