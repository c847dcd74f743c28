"""The settings of the servers that Writetime is a client of. `core.config` has the other sections."""

import ipaddress
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from writetime.core.setting_types import Addresses, ConnectAddress, LocalPath, Port, RequestSeconds, Text

# Options that turn off the check of a broker's certificate, or of the name in it.
_KAFKA_UNVERIFIED = {
    "enable.ssl.certificate.verification": {"false", "f", "0", "no", "off"},
    "ssl.endpoint.identification.algorithm": {"none"},
}


def is_loopback(host: str) -> bool:
    """Return whether an address can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class SettingsSection(BaseModel):
    """A section of the settings. Unknown settings are refused."""

    # A value in the wrong place may be a password.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_flag(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject true and false for a number: pydantic would take them for 1 and 0."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError("true and false are not accepted here")
        return value


class LoginSettings(SettingsSection):
    """A user name with its password, or neither."""

    username: Text | None = None
    password: SecretStr | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """Reject a user name or a password alone: it would silently mean no login."""
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password must be set together")
        return self


class ClientSettings(LoginSettings):
    """The login and the certificates of a client of the database or of ZooKeeper."""

    tls_ca_file: LocalPath | None = Field(default=None, description="CA certificates; naming them turns TLS on.")
    tls_certificate_file: LocalPath | None = Field(
        default=None, description="The client's certificate, for mutual TLS."
    )
    tls_key_file: LocalPath | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Reject incomplete TLS settings: they would silently mean no encryption."""
        if self.tls_ca_file is None and (self.tls_certificate_file or self.tls_key_file):
            raise ValueError("tls_certificate_file and tls_key_file need tls_ca_file")
        return self


class Cassandra(ClientSettings):
    """The database to work with: Apache Cassandra or ScyllaDB."""

    contact_points: list[Text] = Field(default=["127.0.0.1"], min_length=1)
    port: Port = 19042
    local_datacenter: Text = "datacenter1"
    keyspace: str = Field(default="writetime", pattern=r"^[a-z][a-z0-9_]{0,47}$")
    replication: dict[str, str | int] = {"class": "NetworkTopologyStrategy", "datacenter1": 1}
    consistency: Literal["LOCAL_ONE", "LOCAL_QUORUM", "QUORUM", "EACH_QUORUM", "ALL"] = "LOCAL_QUORUM"
    serial_consistency: Literal["LOCAL_SERIAL", "SERIAL"] = "LOCAL_SERIAL"
    request_timeout_seconds: RequestSeconds = 10.0
    tls_check_addresses: bool = Field(
        default=True,
        description="Whether a node's certificate must name its address. If not, any certificate of "
        "the authority is accepted for any node, and each connection logs a warning.",
    )


class NamedCluster(Cassandra):
    """Another database, which a table is compared with or replicated to."""

    sstables: Text | None = Field(
        default=None,
        description="A folder, local or a URL, that all its nodes can reach. A replication writes SSTables there: of a "
        "whole table, and of changes that CQL cannot write.",
    )


class Kafka(SettingsSection):
    """The Kafka brokers. `client` is passed unchanged to every client (librdkafka names: `security.protocol`, ...)."""

    bootstrap_servers: Addresses = "127.0.0.1:19092"
    replication_factor: int = Field(default=1, ge=1, le=32_767)
    retention_days: float = Field(
        default=7.0, ge=1, le=36_500, description="Retention of new topics of events, changes and row events."
    )
    client: dict[str, SecretStr] = {}

    @model_validator(mode="after")
    def _verified(self) -> Self:
        """Reject options that accept any server as a broker."""
        for name, off in _KAFKA_UNVERIFIED.items():
            value = self.client.get(name)
            if value is not None and value.get_secret_value().strip().lower() in off:
                raise ValueError(
                    f"client: {name} would accept any server as a broker; name its authority instead (ssl.ca.location)"
                )
        return self


class SchemaRegistry(LoginSettings):
    """A registry with Confluent's REST API. With a `url`, messages in Avro name their schemas by its ids."""

    url: str | None = Field(default=None, pattern=r"^https?://[^@\s/]+[^@\s]*$")
    tls_ca_file: LocalPath | None = Field(default=None, description="CA certificates, instead of the system's.")


class ZooKeeper(ClientSettings):
    """The ZooKeeper ensemble. With a user name, the nodes created there are for that user alone."""

    hosts: Addresses = "127.0.0.1:12181"

    @model_validator(mode="after")
    def _whole_certificate(self) -> Self:
        """Reject a certificate without its key, which Cassandra's may have in its file."""
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_certificate_file and tls_key_file must be set together")
        return self


class Spark(SettingsSection):
    """The Spark master or the Spark Connect server, and additional configuration of the session."""

    master: Text = "local[*]"
    remote: ConnectAddress | None = Field(
        default=None, description="A Spark Connect server, as sc://host:port/;use_ssl=true;..., instead of `master`."
    )
    conf: dict[str, SecretStr] = {}
