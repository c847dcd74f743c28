"""A schema registry with the REST API of Confluent's, and the wire format of messages that name its schemas.

A message begins with a zero byte and the schema's id (four bytes, big-endian); the subject of a topic's values is
`<topic>-value`. References: "Schema Registry API Reference" and "Formats, Serializers, and Deserializers" (wire format,
TopicNameStrategy) of Confluent Platform's documentation.
"""

import base64
import json
import ssl
import struct
import urllib.error
import urllib.request
from typing import Any, Literal

from writetime import tls
from writetime.config import Settings
from writetime.errors import WritetimeError

HEADER_BYTES = 5
_TIMEOUT_SECONDS = 15.0
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"

Compatibility = Literal["FULL_TRANSITIVE", "BACKWARD_TRANSITIVE"]


class SchemaRefused(WritetimeError):
    """The registry answered that a schema does not go with those that its subject has, or that it is none."""


class Registry:
    """The registry of the settings."""

    def __init__(self, settings: Settings) -> None:
        registry = settings.schema_registry
        assert registry.url is not None
        self._url = registry.url.rstrip("/")
        self._headers = {"Accept": f"{_CONTENT_TYPE}, application/json", "Content-Type": _CONTENT_TYPE}
        self._login: str | None = None
        self._ca_file = registry.tls_ca_file
        if registry.username is not None and registry.password is not None:
            login = f"{registry.username}:{registry.password.get_secret_value()}"
            self._login = f"Basic {base64.b64encode(login.encode()).decode()}"
        self._ids: dict[tuple[str, str], int] = {}
        self._schemas: dict[int, Any] = {}

    def register(self, topic: str, avro: Any, compatibility: Compatibility) -> int:
        """Register the schema of a topic's values; return its id, which it has already if it was registered before.

        A new subject gets this compatibility; one that is there keeps what it has.

        Raises:
            SchemaRefused: the registry takes no such schema.
            WritetimeError: the registry does not answer, or refuses the login.
        """
        subject, text = f"{topic}-value", json.dumps(avro)
        found = self._ids.get((subject, text))
        if found is None:
            is_new = self._answer(f"/subjects/{subject}/versions") is None
            try:
                found = int(self._ask("POST", f"/subjects/{subject}/versions", {"schema": text})["id"])
            except _Answer as e:
                if e.status not in (409, 422):
                    raise
                raise SchemaRefused(
                    f"the schema registry refuses the schema of {topic} ({e.text}): change the compatibility of the "
                    f"subject {subject} there, or delete the subject"
                ) from None
            if is_new:
                self._ask("PUT", f"/config/{subject}", {"compatibility": compatibility})
            self._ids[subject, text] = found
        return found

    def get(self, schema_id: int) -> Any | None:
        """Return the Avro schema with an id; None if the registry has none.

        Raises:
            WritetimeError: the registry does not answer, or the id is of no Avro schema.
        """
        if schema_id not in self._schemas:
            answer = self._answer(f"/schemas/ids/{schema_id}")
            if answer is None:
                return None
            if (kind := answer.get("schemaType", "AVRO")) != "AVRO":
                raise WritetimeError(f"the schema {schema_id} of the registry {self._url} is {kind}, not Avro")
            self._schemas[schema_id] = json.loads(answer["schema"])
        return self._schemas[schema_id]

    def _answer(self, path: str) -> Any | None:
        """Return what the registry says; None if it has no such thing."""
        try:
            return self._ask("GET", path)
        except _Answer as e:
            if e.status != 404:
                raise
            return None

    def _ask(self, method: str, path: str, content: Any = None) -> Any:
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._url + path, body, self._headers, method=method)
        if self._login is not None:
            # Not to where an answer redirects.
            request.add_unredirected_header("Authorization", self._login)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS, context=self._tls()) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as e:
            text = e.read().decode(errors="replace")[:1000]
            raise _Answer(f"schema registry {self._url}: {method} {path}: {e.code} {text}", e.code, text) from None
        except (OSError, ValueError) as e:
            what_to_do = tls.remedy(str(e), "schema_registry")
            raise WritetimeError(
                f"schema registry {self._url} does not answer: {e}" + (f"; {what_to_do}" if what_to_do else "")
            ) from None

    def _tls(self) -> ssl.SSLContext | None:
        """Made for each call, as tasks of Spark take this object along."""
        return None if self._ca_file is None else ssl.create_default_context(cafile=str(self._ca_file))


class _Answer(WritetimeError):
    """An answer of the registry that is an error."""

    def __init__(self, message: str, status: int, text: str) -> None:
        super().__init__(message)
        self.status = status
        self.text = text


def registry_of(settings: Settings) -> Registry | None:
    """Return the registry of the settings, if they name one."""
    return Registry(settings) if settings.schema_registry.url else None


def wire_header(schema_id: int) -> bytes:
    """Return what precedes a value that names a schema of a registry."""
    return b"\0" + struct.pack(">I", schema_id)
