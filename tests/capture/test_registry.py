"""Messages in Confluent's wire format with a real registry. Another library reads them, and they land with older
messages.

Oracle: another Avro library reads the messages; the writes that the test made are the expected changes.
"""

import io
import json
import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import fastavro
import pytest

from tests.capture.agents import assert_view, complete, progress_of, put_back, status_of
from tests.capture.registry import RegistryServer, with_login
from tests.support.avro import before_milliseconds, plain
from tests.support.captured import Captured
from tests.support.fake_registry import BAD_ANSWERS, Answer, FakeRegistry, answer, error, fake_registry
from tests.support.generate import SEED
from tests.support.messages import messages
from tests.support.servers import running
from tests.support.waiting import wait_for
from writetime.clients import schema_registry as client
from writetime.clients.schema_registry import Registry
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.core.server_settings import SchemaRegistry
from writetime.lake.table import open_table
from writetime.landing.forgetting import find_traces
from writetime.landing.landing import Landing
from writetime.row_events import publish, stream
from writetime.row_events.messages import event_avro
from writetime.schema.cql import parse_schemas
from writetime.wire.change_messages import change_avro
from writetime.wire.publishing import SCHEMAS_TOPIC
from writetime.wire.topic_names import changes_topic, row_events_topic

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with running(RegistryServer(tmp_path_factory.mktemp("registry"))) as server:
        yield server


@pytest.fixture
def registered(landed: Captured, registry: RegistryServer) -> Captured:
    """A captured keyspace, with a separate lake and the registry."""
    landed.settings = landed.settings.model_copy(update={"schema_registry": SchemaRegistry(url=registry.url)})
    return landed


def register(settings: Settings) -> int:
    """Register a schema with the registry of the settings."""
    return Registry(settings).register("a", {"type": "record", "name": "a", "fields": []}, "FULL_TRANSITIVE")


def read(registry: RegistryServer, value: bytes) -> Any:
    """Read a message by another library, with its schema from the registry."""
    magic, schema_id = struct.unpack(">bI", value[:5])
    assert magic == 0
    schema = json.loads(registry.ask("GET", f"/schemas/ids/{schema_id}")["schema"])
    stream = io.BytesIO(value[5:])
    found = fastavro.schemaless_reader(stream, fastavro.parse_schema(plain(schema)), None)
    assert not stream.read()
    return found


def test_messages_of_both_forms(registered: Captured, registry: RegistryServer) -> None:
    """Those by a registry, and in the same topic those without one."""
    name = f"{registered.keyspace}.t"
    topic = changes_topic(name)
    publish_while_the_schema_changes(registered)
    found = [read(registry, value) for _, _, value in messages(registered.settings, topic)]
    assert len(found) == 12
    wanted = registered.changes("t").to_pylist()
    assert [(r["kind"], r["key"], r["position"], r["token"]) for r in found] == [
        (r["kind"], r["key"], r["position"], r["token"]) for r in wanted
    ]
    assert {r["w"]["fields"]["b"]["value"] for r in found if r["w"] and r["w"]["fields"].get("b")} == {"b"}
    assert len(registry.ask("GET", f"/subjects/{topic}-value/versions")) > 1
    assert registry.ask("GET", f"/config/{topic}-value")["compatibilityLevel"] == "FULL_TRANSITIVE"
    own = registered.settings
    registered.settings = own.model_copy(update={"schema_registry": SchemaRegistry()})
    with registered.agent():
        registered.write("INSERT INTO {ks}.t (k, c, m) VALUES (0, 2, {'b': 2})")
        wait_for(lambda: len(messages(own, topic)) == 13)
    assert {value[0] for _, _, value in messages(own, topic)} == {0x00, 0xC3}
    assert Landing(registered.settings, name).drain() == 13
    registered.settings = own
    assert_view(registered, "t")
    registered.assert_same("t")
    assert_row_events(registered, registry)


def publish_while_the_schema_changes(registered: Captured) -> None:
    """Let an agent publish twelve changes of a table, whose type and columns change."""
    registered.write(
        "CREATE TYPE {ks}.u (a int)",
        "CREATE TABLE {ks}.t (k int, c int, v text, w u, x frozen<u>, s int static, PRIMARY KEY (k, c)) "
        "WITH cdc = true",
    )
    with registered.agent():
        registered.write(*(f"INSERT INTO {{ks}}.t (k, c, v, w) VALUES ({i}, 0, 'a', {{a: {i}}})" for i in range(9)))
        registered.settle()
        registered.write(
            "ALTER TYPE {ks}.u ADD b text",
            "ALTER TABLE {ks}.t ADD m map<text, int>",
            "INSERT INTO {ks}.t (k, c, m, w, x) VALUES (0, 1, {'a': 1}, {a: 1, b: 'b'}, {a: 2, b: 'c'})",
            "ALTER TABLE {ks}.t DROP v",
            "UPDATE {ks}.t SET s = 1 WHERE k = 1",
            "DELETE FROM {ks}.t WHERE k = 2",
        )
        registered.settle()


def assert_row_events(registered: Captured, registry: RegistryServer) -> None:
    """Another library reads them, too, and they are those of the database's rows."""
    name = f"{registered.keyspace}.t"
    table = open_table(registered.settings, name)
    stream.extend(table)
    assert publish.publish(registered.settings, table) > 0
    events = [read(registry, value) for _, _, value in messages(registered.settings, row_events_topic(name))]
    assert {e["kind"] for e in events} == {"CREATE"}
    assert sorted((e["after"]["k"], e["after"]["c"]) for e in events) == sorted(
        (r.k, r.c) for r in registered.node.session().execute(f"SELECT k, c FROM {name}").all()
    )
    assert registry.ask("GET", f"/config/row_events.{name}-value")["compatibilityLevel"] == "BACKWARD_TRANSITIVE"


def test_rows_without_a_required_key_column(registered: Captured, registry: RegistryServer) -> None:
    """The registry takes their schema, and then only others with nullable keys."""
    registered.write("CREATE TABLE {ks}.t (k int, c inet, v int, PRIMARY KEY (k, c)) WITH cdc = true")
    name, table = f"{registered.keyspace}.t", None
    for number, change in enumerate(("", "ALTER TABLE {ks}.t ADD w int")):
        with registered.agent():
            registered.write(*[change] if change else [])
            registered.write(
                *(f"INSERT INTO {{ks}}.t (k, c) VALUES ({number}, {c})" for c in ("blobAsInet(0x)", "'::1'"))
            )
            registered.settle()
        assert Landing(registered.settings, name).drain()
        table = table or open_table(registered.settings, name)
        stream.extend(table)
        assert publish.publish(registered.settings, table) == 2
    events = [read(registry, value) for _, _, value in messages(registered.settings, row_events_topic(name))]
    found = [(e["after"]["k"], e["after"]["c"], "w" in e["after"]) for e in events]
    assert sorted(found, key=str) == [(k, c, bool(k)) for k in (0, 1) for c in ("::1", None)]


def test_schemas_from_before_milliseconds_are_followed(registry: RegistryServer) -> None:
    """The namespace changed, timestamps became milliseconds, and key columns with timestamps nullable."""
    own = Registry(config.load(schema_registry={"url": registry.url}))
    table = "CREATE TYPE ks.u (a timestamp); CREATE TABLE ks.t (p timestamp, c int, v timestamp, u u, l list<text>"
    schema, grown = (parse_schemas(f"{table}{more}, PRIMARY KEY (p, c))")[0] for more in ("", ", w timestamp"))
    avro = change_avro(schema)
    versions = [own.register("changes.ks.t", a, "FULL_TRANSITIVE") for a in (before_milliseconds(avro), avro)]
    versions.append(own.register("changes.ks.t", change_avro(grown), "FULL_TRANSITIVE"))
    assert len(set(versions)) == 3
    events = event_avro(schema)
    earlier = json.loads(json.dumps(events))
    key = next(f for f in earlier["fields"] if f["name"] == "before")["type"][1]["fields"][0]
    assert key["name"] == "p"
    key["type"] = key["type"][1]
    del key["default"]
    assert own.register("row_events.ks.t", earlier, "BACKWARD_TRANSITIVE") != own.register(
        "row_events.ks.t", events, "BACKWARD_TRANSITIVE"
    )


def test_a_refused_schema_does_not_stop_other_tables(registered: Captured, registry: RegistryServer) -> None:
    name = f"{registered.keyspace}.t"
    subject = f"{changes_topic(name)}-value"
    other = {"type": "record", "name": "other", "fields": [{"name": "kind", "type": "long"}]}
    registry.ask("POST", f"/subjects/{subject}/versions", {"schema": json.dumps(other)})
    registry.ask("PUT", f"/config/{subject}", {"compatibility": "FULL"})
    registered.write("CREATE TABLE {ks}.t (k int PRIMARY KEY) WITH cdc = true", "INSERT INTO {ks}.t (k) VALUES (1)")
    registered.fill(1)
    aside = registered.settings.capture.state_dir / "aside"
    with registered.agent():
        registered.settle()
        wait_for(lambda: list(aside.glob("*.reason.json")))
        wait_for(lambda: not complete(registered))
    (file,) = aside.glob("*.reason.json")
    reason = json.loads(file.read_text())
    assert f"refuses the schema of {changes_topic(name)}" in reason["reason"]
    assert reason["changes_set_aside"] == progress_of(registered)["totals"]["changes_set_aside"] == 1
    registered.assert_same("marks")
    # Once the subject takes it, the segment is put back.
    registry.ask("PUT", f"/config/{subject}", {"compatibility": "NONE"})
    put_back(registered, aside)
    with registered.agent():
        wait_for(lambda: not list(aside.glob("*.reason.json")))
    registered.assert_same("t", "marks")


@pytest.fixture
def fake(landed: Captured, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    """A registry in this process, of a captured keyspace with a separate lake."""
    monkeypatch.setattr(client, "TIMEOUT_SECONDS", 0.5)
    landed.pace = replace(landed.pace, pause=0.1)
    with fake_registry() as server:
        landed.settings = landed.settings.model_copy(update={"schema_registry": SchemaRegistry(url=server.url)})
        yield server


def test_the_agent_waits_for_a_registry_that_answers_anything(
    landed: Captured, fake: FakeRegistry, *, is_long: bool
) -> None:
    """Nothing is set aside, whatever it answers, and landing does not need it. The client is tried with each answer by
    tests/clients."""
    every = list(BAD_ANSWERS.values())
    name = f"{landed.keyspace}.t"
    landed.write("CREATE TABLE {ks}.t (k int PRIMARY KEY) WITH cdc = true", "INSERT INTO {ks}.t (k) VALUES (1)")
    landed.fill(1)
    fake.instead = lambda method, path: BAD_ANSWERS["500"]
    with landed.agent():
        for bad in every if is_long else random.Random(SEED).sample(every, len(every) // 4):
            said: list[str] = []

            def instead(method: str, path: str, bad: Answer = bad, said: list[str] = said) -> Answer | None:
                said.append(method)
                return bad if method == "POST" else None

            fake.instead = instead
            wait_for(lambda said=said: said.count("POST") > 1)
        assert not fake.schemas
        assert complete(landed)
        assert "errors" in status_of(landed)
        fake.instead = lambda method, path: None
        landed.settle()
        wait_for(lambda: not status_of(landed)["held_by"])
    assert not list((landed.settings.capture.state_dir / "aside").glob("*.reason.json"))
    landed.assert_same("t", "marks")
    fake.instead = lambda method, path: BAD_ANSWERS["503"]
    assert Landing(landed.settings, name).drain() == 1


@pytest.mark.parametrize("is_wrong_at_registration", [False, True])
def test_a_registry_that_confuses_the_versions_of_a_table_loses_nothing(
    landed: Captured, fake: FakeRegistry, *, is_wrong_at_registration: bool
) -> None:
    """The messages of the two versions have one form: a value of `a` would become one of `b`."""
    name = f"{landed.keyspace}.t"
    if is_wrong_at_registration:
        fake.instead = lambda method, path: answer(b'{"id": 1}') if method == "POST" and name in path else None
    landed.write("CREATE TABLE {ks}.t (k int PRIMARY KEY, a int) WITH cdc = true")
    with landed.agent():
        landed.write("INSERT INTO {ks}.t (k, a) VALUES (1, 1)")
        landed.settle()
        landed.write("ALTER TABLE {ks}.t DROP a", "ALTER TABLE {ks}.t ADD b int")
        landed.write("INSERT INTO {ks}.t (k, b) VALUES (2, 2)")
        landed.settle()
    fake.schemas.reverse()
    landing = Landing(landed.settings, name)
    if is_wrong_at_registration:
        with pytest.raises(WritetimeError, match=rf"{changes_topic(name)}.*the id 1, .* id to several schemas"):
            landing.drain()
        for trace in find_traces(landed.settings, name):
            trace.delete()
        last = {key: value for _, key, value in messages(landed.settings, SCHEMAS_TOPIC)}
        assert changes_topic(name).encode() not in last.values()
    else:
        assert landing.drain() == 2
        assert_view(landed, "t")


def test_a_subject_that_the_user_may_not_write_does_not_stop_other_tables(landed: Captured, fake: FakeRegistry) -> None:
    name = f"{landed.keyspace}.t"
    subject = f"{changes_topic(name)}-value"
    fake.instead = lambda method, path: error(403, 40301, "not yours") if subject in path else None
    landed.write("CREATE TABLE {ks}.t (k int PRIMARY KEY) WITH cdc = true", "INSERT INTO {ks}.t (k) VALUES (1)")
    landed.fill(1)
    aside = landed.settings.capture.state_dir / "aside"
    with landed.agent():
        landed.settle()
        wait_for(lambda: list(aside.glob("*.reason.json")))
        wait_for(lambda: list(status_of(landed)["held"]) == [name])
    (file,) = aside.glob("*.reason.json")
    assert f"{fake.url} refuses the subject {subject}: 403 not yours; grant" in json.loads(file.read_text())["reason"]
    landed.assert_same("marks")
    fake.instead = lambda method, path: None
    put_back(landed, aside)
    with landed.agent():
        wait_for(lambda: not list(aside.glob("*.reason.json")))
    landed.assert_same("t", "marks")


def test_a_registry_that_does_not_answer(registered: Captured) -> None:
    settings = registered.settings.model_copy(update={"schema_registry": SchemaRegistry(url="http://127.0.0.1:1/api")})
    with pytest.raises(Transient, match=r"registry http://127\.0\.0\.1:1/api does not answer"):
        register(settings)


def test_a_registry_that_requires_a_login(registered: Captured, registry: RegistryServer) -> None:
    """The agent registers with it, and a client without a valid login gets an error."""
    name, password = f"{registered.keyspace}.marks", "p\u00e4ss:word"
    with with_login(registry.url, "writetime", password) as (url, answers):

        def settings(**login: str) -> Settings:
            section = SchemaRegistry.model_validate({"url": url, **login})
            return registered.settings.model_copy(update={"schema_registry": section})

        for login in ({}, {"username": "writetime", "password": "guessed"}):
            with pytest.raises(WritetimeError, match=f"schema registry {url} refuses the subject .*: 401 who are you"):
                register(settings(**login))
        assert answers == {401: 2}
        registered.settings = settings(username="writetime", password=password)
        with registered.agent():
            registered.settle()
        assert {value[0] for _, _, value in messages(registered.settings, changes_topic(name))} == {0x00}
        assert Landing(registered.settings, name).drain() == 2
        assert answers[401] == 2
        assert answers[200] >= 2
