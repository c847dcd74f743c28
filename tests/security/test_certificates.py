"""The certificates that these tests issue, verified as Python 3.13 and later verify by default. No server is needed."""

import ssl
from pathlib import Path

import pytest

from tests.security.servers import Identity, issue


def server_context(identity: Identity, folder: Path, clients: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*identity.write(folder, "node"))
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    return context


def strict(context: ssl.SSLContext) -> ssl.SSLContext:
    """Set what `ssl.create_default_context` sets from Python 3.13 on."""
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
