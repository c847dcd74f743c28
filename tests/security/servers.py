"""Servers that admit only clients with a certificate of their authority and a password, with granted rights only."""

import datetime as dt
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cassandra.cluster import Session
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from writetime.clients import database, zookeeper
from writetime.clients.kafka import client_config, fault_of_connections
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.servers.cassandra import CassandraServer
from writetime.servers.kafka import KafkaServer
from writetime.servers.zookeeper import ZooKeeperServer

STORE_PASSWORD = "keystore"
LOOPBACK = ("127.0.0.1",)
# `permissions_validity`, and a little more.
ROLES_SECONDS = 2.5


@dataclass(frozen=True)
class Identity:
    """A key with its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def pem(self) -> tuple[bytes, bytes]:
        """The certificate and the key."""
        key = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return self.certificate.public_bytes(serialization.Encoding.PEM), key

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write certificate and key as PEM files."""
        files = folder / f"{name}.crt", folder / f"{name}.key"
        for file, content in zip(files, self.pem(), strict=True):
            file.write_bytes(content)
        return files


def issue(name: str, authority: Identity | None = None, addresses: Sequence[str] = LOOPBACK) -> Identity:
    """Make an authority, or an identity that one vouches for, with the extensions that RFC 5280 (4.2.1) demands."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer = authority.certificate.subject if authority else subject
    signer = authority.key if authority else key
    now = dt.datetime.now(dt.UTC)
    names = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .add_extension(_usage(authority is None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName([*names, x509.DNSName(name)]), critical=False)
    )
    return Identity(key, builder.sign(signer, hashes.SHA256()))


def _usage(is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


class Stores:
    """The key store and the trust store of a server, which asks its clients for certificates of the authority."""

    def __init__(self, folder: Path, authority: Identity, addresses: Sequence[str] = LOOPBACK) -> None:
        node = issue("node", authority, addresses)
        encryption = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
        self.keys, self.trusted = folder / "keys.p12", folder / "trusted.p12"
        keys = pkcs12.serialize_key_and_certificates(
            b"node", node.key, node.certificate, [authority.certificate], encryption
        )
        self.keys.write_bytes(keys)
        trusted = pkcs12.PKCS12Certificate(authority.certificate, b"authority")
        self.trusted.write_bytes(pkcs12.serialize_java_truststore([trusted], encryption))


class SecuredCassandra(CassandraServer):
    """A node with mutual TLS, passwords and permissions."""

    def __init__(self, settings: Settings, authority: Identity, addresses: Sequence[str] = LOOPBACK) -> None:
        super().__init__(settings)
        self._authority = authority
        self._addresses = addresses
        # The level at which logins and rights are read; of more replicas than there are, they are all refused.
        self.auth_reads = "LOCAL_QUORUM"

    def command(self) -> list[str]:
        # By default the first role is made ten seconds after the start.
        command = super().command()
        return [command[0], "-Dcassandra.superuser_setup_delay_ms=0", *command[1:]]

    def configuration(self) -> dict[str, object]:
        stores = Stores(self.folder, self._authority, self._addresses)
        return super().configuration() | {
            "authenticator": "PasswordAuthenticator",
            "authorizer": "CassandraAuthorizer",
            "auth_read_consistency_level": self.auth_reads,
            "dynamic_data_masking_enabled": True,
            "client_encryption_options": {
                "enabled": True,
                "optional": False,
                "require_client_auth": True,
                "store_type": "PKCS12",
                "keystore": str(stores.keys),
                "keystore_password": STORE_PASSWORD,
                "truststore": str(stores.trusted),
                "truststore_password": STORE_PASSWORD,
            },
        }

    def fault(self) -> str | None:
        cassandra = self._settings.cassandra.model_copy(update={"contact_points": [self.address]})
        try:
            with database.connect(self._settings.model_copy(update={"cassandra": cassandra})):
                return None
        except WritetimeError as e:
            return str(e)


def grant(session: Session, role: str, password: str, permissions: Sequence[str]) -> None:
    """Make a role that may log in, with these rights only."""
    session.execute(f"CREATE ROLE {role} WITH PASSWORD = '{password}' AND LOGIN = true")
    for permission in permissions:
        session.execute(f"GRANT {permission} TO {role}")


class SecuredKafka(KafkaServer):
    """A broker with mutual TLS, passwords and access control lists; its first user may do everything."""

    def __init__(self, settings: Settings, authority: Identity, users: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._settings = settings
        self._authority = authority
        self._users = users

    def fault(self) -> str | None:
        try:
            found = AdminClient(client_config(self._settings, log_level=0)).list_topics(timeout=5)
        except KafkaException as e:
            return fault_of_connections(self._settings) or e.args[0].str()
        return None if found.brokers else "it lists no broker"

    def configuration(self) -> dict[str, object]:
        stores = Stores(self.folder, self._authority)
        admin = next(iter(self._users))
        users = "".join(f' user_{name}="{password}"' for name, password in self._users.items())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        plain = super().configuration()
        return plain | {
            "listeners": str(plain["listeners"]).replace("PLAINTEXT:", "SASL_SSL:"),
            "advertised.listeners": str(plain["advertised.listeners"]).replace("PLAINTEXT:", "SASL_SSL:"),
            "listener.security.protocol.map": "SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "SASL_SSL",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{module} required username="{admin}" '
            f'password="{self._users[admin]}"{users};',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{admin};User:ANONYMOUS",
            # Without the listener's name it has no effect if SASL is on.
            "listener.name.sasl_ssl.ssl.client.auth": "required",
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": stores.keys,
            "ssl.keystore.password": STORE_PASSWORD,
            "ssl.truststore.type": "PKCS12",
            "ssl.truststore.location": stores.trusted,
            "ssl.truststore.password": STORE_PASSWORD,
        }


def allow(settings: Settings, user: str, rights: Mapping[tuple[ResourceType, str], Sequence[AclOperation]]) -> None:
    """Grant a user operations on resources whose names begin in some way."""
    acls = [
        AclBinding(
            kind,
            name,
            ResourcePatternType.LITERAL if name == "kafka-cluster" else ResourcePatternType.PREFIXED,
            f"User:{user}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for (kind, name), operations in rights.items()
        for operation in operations
    ]
    admin = AdminClient(client_config(settings))
    for future in admin.create_acls(acls).values():
        future.result()


class SecuredZooKeeper(ZooKeeperServer):
    """A server with mutual TLS and no other port."""

    def __init__(self, settings: Settings, authority: Identity) -> None:
        super().__init__(settings)
        self._settings = settings
        self._authority = authority

    def command(self) -> list[str]:
        command = super().command()
        stores = Stores(self.folder, self._authority)
        config = self.folder / "zoo.cfg"
        lines = [line.replace("clientPort", "secureClientPort") for line in config.read_text().splitlines()]
        lines += [
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"ssl.keyStore.location={stores.keys}",
            f"ssl.keyStore.password={STORE_PASSWORD}",
            f"ssl.trustStore.location={stores.trusted}",
            f"ssl.trustStore.password={STORE_PASSWORD}",
            "ssl.clientAuth=need",
        ]
        config.write_text("\n".join(lines) + "\n")
        return command

    def fault(self) -> str | None:
        try:
            with zookeeper.connect(self._settings, 5):
                return None
        except WritetimeError as e:
            return str(e)
