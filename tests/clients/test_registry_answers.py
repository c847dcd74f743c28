"""A schema registry with any answers: the agent waits for temporary faults, and a refusal names the remedy.

Oracle: none about values: any answer must give a result or a documented error.
"""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import certifi
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.fake_registry import (
    BAD_ANSWERS,
    JSON_ANSWERS,
    Answer,
    FakeRegistry,
    answer,
    bomb,
    error,
    fake_registry,
    flood,
)
from tests.support.waiting import wait_for
from writetime.clients import schema_registry
from writetime.clients.schema_registry import Registry, SchemaRefused
from writetime.core import config
from writetime.core.errors import Transient, WritetimeError
from writetime.servers.process import free_port

pytestmark = pytest.mark.slow

TOPIC, SUBJECT = "changes.ks.t", "changes.ks.t-value"
AVRO = {"type": "record", "name": "t", "namespace": "ks", "fields": []}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "TIMEOUT_SECONDS", 1.0)


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as server:
        yield server


@pytest.fixture(autouse=True)
def _one_authority(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client reads its authorities, and to read those of the system takes longer than most answers."""
    path = tmp_path_factory.getbasetemp() / "one.crt"
    end = "-----END CERTIFICATE-----\n"
    path.write_text(certifi.contents().partition(end)[0] + end)
    monkeypatch.setenv("WRITETIME_SCHEMA_REGISTRY__TLS_CA_FILE", str(path))


def client(url: str, **login: str) -> Registry:
    return Registry(config.load(schema_registry={"url": url, **login}))


def register(client: Registry) -> int:
    return client.register(TOPIC, AVRO, "FULL_TRANSITIVE")


# Of a compatibility that was set, only the status counts; and no versions means that the subject is new.
METHODS = {name: ["GET", "POST"] if name in JSON_ANSWERS else ["GET", "POST", "PUT"] for name in BAD_ANSWERS}
METHODS["list"].remove("GET")
OTHERS = pytest.mark.long_only("each answer, and each method, is in another case")
CASES = [
    pytest.param(method, name, marks=[] if own == number % len(methods) else [OTHERS])
    for number, (name, methods) in enumerate(METHODS.items())
    for own, method in enumerate(methods)
]


@pytest.mark.parametrize(("method", "name"), CASES)
def test_a_bad_answer_is_retried(fake: FakeRegistry, method: str, name: str) -> None:
    """At each call of a registration; the same client continues after the fault."""
    own = client(fake.url)
    fake.instead = lambda m, path: BAD_ANSWERS[name] if m == method else None
    begin = time.monotonic()
    with pytest.raises(Transient, match=f"schema registry {fake.url} does not answer"):
        register(own)
    assert time.monotonic() - begin < 10
    fake.instead = lambda m, path: None
    assert register(own) == 1
    assert fake.compatibility == {SUBJECT: "FULL_TRANSITIVE"}
    # Nothing waits for the rest of an answer.
    wait_for(lambda: "schema registry" not in [thread.name for thread in threading.enumerate()])


@pytest.mark.parametrize("act", [flood, bomb])
def test_an_answer_without_an_end_takes_little_memory(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch, act: Answer
) -> None:
    monkeypatch.setattr(schema_registry, "TIMEOUT_SECONDS", 15.0)
    fake.instead = lambda m, path: act
    before = psutil.Process().memory_info().rss
    with pytest.raises(Transient, match=r"bytes|encoding"):
        register(client(fake.url))
    assert psutil.Process().memory_info().rss - before < 256 << 20


def test_no_versions(fake: FakeRegistry) -> None:
    fake.instead = lambda m, path: answer(b"[]") if m == "GET" else None
    assert register(client(fake.url)) == 1
    assert fake.compatibility == {SUBJECT: "FULL_TRANSITIVE"}


def test_a_registry_that_is_not_running() -> None:
    with pytest.raises(Transient, match=r"registry http://127\.0\.0\.1:\d+/api does not answer: .*refused"):
        register(client(f"http://127.0.0.1:{free_port()}/api"))


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (301, "schema_registry.url"),
        (400, "400"),
        (401, "schema_registry.username"),
        (403, "grant"),
        (404, "schema_registry.url"),
        (405, "schema_registry.url"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_a_refusal_names_the_remedy(fake: FakeRegistry, method: str, status: int, remedy: str) -> None:
    def refuses(m: str, path: str) -> Answer | None:
        return answer(b"<html>no</html>", status, Location="/") if m == method else None

    fake.instead = refuses
    with pytest.raises(WritetimeError) as caught:
        register(client(fake.url))
    assert not isinstance(caught.value, (Transient, SchemaRefused))
    for text in (fake.url, f"subject {SUBJECT}", str(status), remedy, "no"):
        assert text in str(caught.value)


@pytest.mark.parametrize("refusal", [error(409, 409, "not compatible"), error(422, 42201, "not Avro")])
def test_a_schema_that_is_refused(fake: FakeRegistry, refusal: Answer) -> None:
    fake.instead = lambda m, path: refusal if m == "POST" else None
    with pytest.raises(SchemaRefused, match=f"{fake.url}.*refuses the schema of {TOPIC}.*not .*{SUBJECT}"):
        register(client(fake.url))


def test_known_schemas_are_not_registered_again(fake: FakeRegistry) -> None:
    """A subject that is there keeps its compatibility."""
    own = client(fake.url)
    register(own)
    calls = len(fake.calls)
    assert register(own) == 1
    assert len(fake.calls) == calls
    fake.compatibility[SUBJECT] = "NONE"
    assert own.register(TOPIC, AVRO | {"doc": "newer"}, "FULL_TRANSITIVE") == 2
    assert fake.compatibility[SUBJECT] == "NONE"


def test_a_registry_that_knows_only_subjects_with_schemas(fake: FakeRegistry) -> None:
    def refuses(method: str, path: str) -> Answer | None:
        is_new = method == "PUT" and not fake.subjects
        return error(404, 40401, "Subject not found") if is_new else None

    fake.instead = refuses
    assert register(client(fake.url)) == 1
    assert fake.compatibility == {SUBJECT: "FULL_TRANSITIVE"}


def test_authorities_that_cannot_be_read(fake: FakeRegistry, tmp_path: Any) -> None:
    (tmp_path / "ca.crt").write_text("none")
    for name in ("missing.crt", "ca.crt"):
        with pytest.raises(WritetimeError, match=rf"schema_registry\.tls_ca_file.*{name}") as caught:
            register(client(fake.url, tls_ca_file=str(tmp_path / name)))
        assert not isinstance(caught.value, Transient)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["id", "schema", "schemaType"]) | st.text(), inner),
    max_leaves=6,
)


@examples(60)
@given(st.sampled_from([200, 201, 202, 299, 304, 400, 404, 418, 500, 599]), JSON)
def test_any_json_is_an_answer_or_an_error(fake: FakeRegistry, status: int, content: Any) -> None:
    fake.instead = lambda m, path: answer(json.dumps(content).encode(), status)
    try:
        register(client(fake.url))
    except Transient:
        assert status < 300 or status >= 500
    except WritetimeError:
        assert status >= 300
    else:
        assert status < 300
