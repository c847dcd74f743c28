"""A database that demands credentials and certificates: settings alone get in, and nothing less does."""

import datetime as dt
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from pydantic import SecretStr

from writetime import config, database
from writetime.config import Cassandra, Settings
from writetime.errors import WritetimeError
from writetime.servers.cassandra import CassandraServer
from writetime.servers.process import free_port

STORE_PASSWORD = "keystore"


@dataclass(frozen=True)
class Identity:
    """A key with its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write certificate and key as PEM files."""
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        key.write_bytes(
            self.key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, key


def issue(name: str, authority: Identity | None = None) -> Identity:
    """Make an authority, or an identity that one vouches for."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer = authority.certificate.subject if authority else subject
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
    )
    return Identity(key, builder.sign(authority.key if authority else key, hashes.SHA256()))


class SecuredServer(CassandraServer):
    """A node that lets no one in without a password and a certificate of its authority."""

    def __init__(self, settings: Settings, authority: Identity) -> None:
        super().__init__(settings)
        self._authority = authority

    def command(self) -> list[str]:
        # By default the first role is made ten seconds after the start.
        command = super().command()
        return [command[0], "-Dcassandra.superuser_setup_delay_ms=0", *command[1:]]

    def configuration(self) -> dict[str, object]:
        node = issue("node", self._authority)
        encryption = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
        keys, trusted = self.folder / "keys.p12", self.folder / "trusted.p12"
        keys.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"node", node.key, node.certificate, [self._authority.certificate], encryption
            )
        )
        authority = pkcs12.PKCS12Certificate(self._authority.certificate, b"authority")
        trusted.write_bytes(pkcs12.serialize_java_truststore([authority], encryption))
        return super().configuration() | {
            "authenticator": "PasswordAuthenticator",
            "authorizer": "CassandraAuthorizer",
            "client_encryption_options": {
                "enabled": True,
                "optional": False,
                "require_client_auth": True,
                "store_type": "PKCS12",
                "keystore": str(keys),
                "keystore_password": STORE_PASSWORD,
                "truststore": str(trusted),
                "truststore_password": STORE_PASSWORD,
            },
        }

    def ready(self) -> bool:
        try:
            with database.connect(self._settings):
                return True
        except WritetimeError:
            return False


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    home = tmp_path_factory.mktemp("secured")
    authority = issue("authority")
    ca_file, _ = authority.write(home, "authority")
    certificate_file, key_file = issue("client", authority).write(home, "client")
    settings = config.load(
        cassandra={
            "port": free_port(),
            "username": "cassandra",
            "password": SecretStr("cassandra"),
            "tls_ca_file": ca_file,
            "tls_certificate_file": certificate_file,
            "tls_key_file": key_file,
        },
        embedded={"home": home, "cassandra_storage_port": free_port(), "cassandra_heap_mb": 512},
    )
    server = SecuredServer(settings, authority)
    try:
        server.start()
        yield settings
    finally:
        server.stop()


def test_credentials_and_certificates_of_the_settings_get_in(secured: Settings) -> None:
    assert database.apply_schema(secured)
    with database.connect(secured) as session:
        encrypted = session.execute("SELECT username, ssl_enabled FROM system_views.clients").one()
    assert (encrypted.username, encrypted.ssl_enabled) == ("cassandra", True)


def refused(settings: Settings, **changed: object) -> str:
    cassandra = Cassandra.model_validate(settings.cassandra.model_dump() | changed)
    with (
        pytest.raises(WritetimeError, match="no database answers") as caught,
        database.connect(settings.model_copy(update={"cassandra": cassandra})),
    ):
        pass
    return str(caught.value)


def test_a_wrong_password_is_named(secured: Settings) -> None:
    assert "cassandra and/or password are incorrect" in refused(secured, password="wrong")


def test_a_server_of_another_authority_is_refused(secured: Settings, tmp_path: Path) -> None:
    other, _ = issue("other").write(tmp_path, "other")
    assert "CERTIFICATE_VERIFY_FAILED" in refused(secured, tls_ca_file=other)


def test_a_client_without_a_certificate_is_refused(secured: Settings) -> None:
    refused(secured, tls_certificate_file=None, tls_key_file=None)
