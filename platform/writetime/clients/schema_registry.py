"""A schema registry with Confluent's REST API, and the wire format of messages that name its schemas.

A message begins with a zero byte and the schema's id (four bytes, big-endian); the subject of a topic's values is
`<topic>-value`. References: "Schema Registry API Reference" and "Formats, Serializers, and Deserializers" (wire format,
TopicNameStrategy) of Confluent Platform's documentation.

The client is that of confluent-kafka. It returns any JSON that it receives, of any size, and its timeout applies to
each read. So each answer is checked here, and each call has limits of time and bytes.
"""

import json
import ssl
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from writetime.clients import tls
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

HEADER_BYTES = 5
TIMEOUT_SECONDS = 15.0
"""The time limit of a call, from its connection to the end of its answer."""

ANSWER_BYTES = 16 << 20
"""The limit of an answer. Confluent's registry accepts schemas of up to 1 MB by default."""

# Statuses below 500 that may pass by themselves, and those of a rejected schema.
_MAY_PASS = (408, 425, 429)
_REFUSES_SCHEMA = (409, 422)
# Characters of an answer that an error quotes.
_SHOWN = 1000

Compatibility = Literal["FULL_TRANSITIVE", "BACKWARD_TRANSITIVE"]
T = TypeVar("T")


class SchemaRefused(WritetimeError):
    """The registry answered that a schema is invalid, or not compatible with others of its subject."""


class Registry:
    """The registry of the settings."""

    def __init__(self, settings: Settings) -> None:
        registry = settings.schema_registry
        assert registry.url is not None
        self._url = registry.url.rstrip("/")
        self._ca_file = registry.tls_ca_file
        # This timeout applies to each read. It ends the thread of an abandoned call.
        self._configuration: dict[str, Any] = {"url": self._url, "max.retries": 0, "timeout": TIMEOUT_SECONDS}
        if registry.username is not None and registry.password is not None:
            login = f"{registry.username}:{registry.password.get_secret_value()}"
            self._configuration["basic.auth.user.info"] = login
        self._client: SchemaRegistryClient | None = None
        self._ids: dict[tuple[str, str], int] = {}

    def register(self, topic: str, avro: Any, compatibility: Compatibility) -> int:
        """Register the schema of a topic's values, if it is not registered yet, and return its id.

        A new subject gets this compatibility; an existing one keeps its own. Raises SchemaRefused: the registry rejects
        the schema; Transient: the registry does not answer, or not as a registry does; WritetimeError: the registry
        refuses the call.
        """
        from confluent_kafka.schema_registry import Schema

        subject, text = f"{topic}-value", json.dumps(avro)
        found = self._ids.get((subject, text))
        if found is None:
            what = f"the subject {subject}"
            is_new = not self._ask(what, lambda c: c.get_versions(subject), _versions, [])
            if is_new:
                # Before the schema is registered, so that no fault can leave a subject without it. Some registries
                # accept it only for subjects that have a schema.
                with suppress(_Refusal):
                    self._set(subject, compatibility)
            try:
                found = self._ask(what, lambda c: c.register_schema(subject, Schema(text, "AVRO")), _id)
            except _Refusal as e:
                if e.status not in _REFUSES_SCHEMA:
                    raise
                raise SchemaRefused(
                    f"the schema registry {self._url} refuses the schema of {topic} ({e.text}): change the "
                    f"compatibility or the mode of the subject {subject} there, or delete the subject"
                ) from None
            if is_new:
                self._set(subject, compatibility)
            self._ids[subject, text] = found
        return found

    def _set(self, subject: str, compatibility: Compatibility) -> None:
        self._ask(f"the subject {subject}", lambda c: c.set_compatibility(subject, compatibility), lambda _: None)

    def _ask(
        self, what: str, call: Callable[["SchemaRegistryClient"], Any], read: Callable[[Any], T], missing: Any = ...
    ) -> T:
        """Return the result of `read` for an answer, or `missing` if that is given and the registry has none."""
        from confluent_kafka.schema_registry import SchemaRegistryError

        client = self._connected()
        try:
            return read(_within(TIMEOUT_SECONDS, lambda: call(client)))
        except MemoryError:
            raise
        except SchemaRegistryError as e:
            status = e.http_status_code
            if status >= 500 or status in _MAY_PASS:
                raise self._does_not_answer(f"{what}: {status} {str(e.error_message)[:_SHOWN]}") from None
            # Confluent's codes for missing things are 40401 and similar; others do not come from its API.
            if missing is not ... and isinstance(e.error_code, int) and e.error_code // 100 == 404:
                return missing
            raise _Refusal(self._url, what, status, str(e.error_message)[:_SHOWN]) from None
        except (AttributeError, TypeError) as e:
            # The client expects an object, with text in the text fields.
            raise self._does_not_answer(f"{what}: its answer is not that of a schema registry ({e})") from None
        except Exception as e:
            raise self._does_not_answer(f"{what}: {str(e)[:_SHOWN] or type(e).__name__}") from None

    def _connected(self) -> "SchemaRegistryClient":
        """Return the client. It is created on first use, because its import takes a third of a second."""
        client = self._client
        if client is None:
            from confluent_kafka.schema_registry import SchemaRegistryClient

            authorities = {"ssl.ca.location": self._authorities()}
            try:
                client = self._client = SchemaRegistryClient(self._configuration | authorities)
            except OSError as e:
                raise WritetimeError(f"schema_registry.tls_ca_file: {self._ca_file} cannot be read: {e}") from None
            session = client._rest_client.session
            # A few bytes of a compressed answer may be as large as the memory.
            session.headers["Accept-Encoding"] = "identity"
            session.event_hooks = {"response": [_limit]}
        return client

    def _authorities(self) -> str | None:
        """Return the file or folder of the authorities; by default the system's, and not those of certifi."""
        if self._ca_file is not None:
            return str(self._ca_file)
        paths = ssl.get_default_verify_paths()
        return paths.cafile or paths.capath

    def _does_not_answer(self, reason: str) -> Transient:
        """Return the error, and drop the client: it may have cached an invalid answer, or may still be reading one."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                client.close()
        what_to_do = tls.remedy(reason, "schema_registry")
        return Transient(
            f"schema registry {self._url} does not answer: {reason}" + (f"; {what_to_do}" if what_to_do else "")
        )


class _Refusal(WritetimeError):
    """The registry refuses a call, and would refuse it again."""

    def __init__(self, url: str, what: str, status: int, text: str) -> None:
        self.status = status
        self.text = text
        match status:
            case 401:
                remedy = "set schema_registry.username and schema_registry.password to a valid login"
            case 403:
                remedy = (
                    "grant the user of schema_registry.username read and write on the subject and its compatibility"
                )
            case 404 | 405 | 406:
                remedy = "set schema_registry.url to the address of its REST API"
            case _ if 300 <= status < 400:
                remedy = "it redirects: set schema_registry.url to the address that it redirects to"
            case _:
                remedy = "see its log"
        super().__init__(f"schema registry {url} refuses {what}: {status} {text}; {remedy}")


def _limit(answer: Any) -> None:
    """Read the body of an answer up to the limit of bytes. The client would read it whole."""
    if (encoding := answer.headers.get("Content-Encoding", "identity")) != "identity":
        raise ValueError(f"it answered in the encoding {encoding!r}, which was not accepted")
    body = bytearray()
    for part in answer.iter_raw():
        body += part
        if len(body) > ANSWER_BYTES:
            raise ValueError(f"its answer has more than {ANSWER_BYTES:,} bytes")
    answer._content = bytes(body)


def _versions(answer: Any) -> list[Any]:
    if not isinstance(answer, list):
        raise _no_answer(answer, "a list of versions")
    return answer


def _id(answer: Any) -> int:
    """Return an id that fits into the four bytes of a message."""
    if type(answer) is not int or not 0 <= answer < 1 << 32:
        raise _no_answer(answer, "the id of a schema")
    return answer


def _no_answer(answer: Any, wanted: str) -> ValueError:
    return ValueError(f"it answered {str(answer)[:_SHOWN]!r} and not {wanted}")


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a call. Raises TimeoutError: it did not return in time; it continues in its thread, which
    ends with the connections.
    """
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as e:
            found.set_exception(e)

    threading.Thread(target=run, name="schema registry", daemon=True).start()
    try:
        return found.result(seconds)
    except TimeoutError:
        raise TimeoutError(f"no answer within {seconds:g} s") from None


def registry_of(settings: Settings) -> Registry | None:
    """Return the registry of the settings, if they name one."""
    return Registry(settings) if settings.schema_registry.url else None


def wire_header(schema_id: int) -> bytes:
    """Return the header of a value that names a schema of a registry."""
    return b"\0" + struct.pack(">I", schema_id)
