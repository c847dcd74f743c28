"""Schemas that change while they are captured, agents that are killed, a broker and a node that come and go."""

import json
import random
import signal
import time

from cassandra import InvalidRequest

from tests.capture.harness import Captured
from tests.storage.databases import FormatServer
from tests.storage.generate import SEED, UDTS, Generator
from writetime.config import Settings
from writetime.schema.table import TableSchema
from writetime.schema.types import quote_name
from writetime.servers.kafka import KafkaServer


def test_schemas_that_change(captured: Captured) -> None:
    """Each write comes right after the change that it needs, with the agent there or not."""
    before = [
        "CREATE TYPE {ks}.point (x int, y int)",
        "CREATE TABLE {ks}.t (k int, c int, s text static, a int, l list<int>, f frozen<point>, u point, "
        "PRIMARY KEY (k, c)) WITH cdc = true",
        "INSERT INTO {ks}.t (k, c, s, a, l, f, u) VALUES (1, 1, 's', 1, [1], {x: 1, y: 1}, {x: 1, y: 1})",
    ]
    after = [
        "ALTER TABLE {ks}.t ADD late decimal",
        "INSERT INTO {ks}.t (k, c, late) VALUES (1, 2, 1.50)",
        "ALTER TYPE {ks}.point ADD z text",
        "INSERT INTO {ks}.t (k, c, f, u) VALUES (1, 3, {x: 1, z: 'new'}, {y: 2, z: 'new'})",
        "ALTER TABLE {ks}.t DROP a",
        "ALTER TABLE {ks}.t DROP l",
        "INSERT INTO {ks}.t (k, c, s) VALUES (2, 1, 'after')",
        "ALTER TABLE {ks}.t ADD a int",
        "INSERT INTO {ks}.t (k, c, a) VALUES (2, 2, 7)",
        "CREATE TABLE {ks}.young (k int PRIMARY KEY, v text) WITH cdc = true",
        "INSERT INTO {ks}.young (k, v) VALUES (1, 'v')",
        "CREATE TABLE {ks}.gone (k int PRIMARY KEY) WITH cdc = true",
        "INSERT INTO {ks}.gone (k) VALUES (1)",
    ]
    with captured.agent():
        captured.write(*before)
        captured.settle()
        captured.write(*after)
        gone = captured.schema("gone")
        captured.settle()
        # Known to the agent, dropped before it reads the last write.
        captured.write("INSERT INTO {ks}.gone (k) VALUES (2)", "DROP TABLE {ks}.gone")
        captured.settle()
    captured.write("ALTER TABLE {ks}.young ADD w int", "INSERT INTO {ks}.young (k, w) VALUES (2, 2)")
    captured.write("UPDATE {ks}.t SET a = 8 WHERE k = 1 AND c = 1")
    with captured.agent():
        captured.settle()
    captured.assert_same("t", "young")
    assert sorted(captured.changes("gone", gone)["k"].to_pylist()) == [1, 2]
    progress = json.loads((captured.settings.capture.state / "progress.json").read_text())
    assert all(not s["set_aside"] and s["reason"] is None for s in progress["segments"].values())
    kept = [json.loads(p.read_text()) for p in (captured.settings.capture.state / "schemas").glob("*.json")]
    assert any(len(k["versions"]) >= 4 for k in kept)


def generated(captured: Captured, seed: int) -> list[tuple[TableSchema, list[str]]]:
    """Tables with writes of every kind."""
    generator = Generator(seed)
    tables = []
    for i in range(3):
        schema = generator.schema(f"t{i}", clusterings=i, regulars=4)
        tables.append((schema, generator.writes(schema, 150)))
    return tables


def test_nothing_is_lost_whoever_is_killed(captured: Captured, node: FormatServer, server_settings: Settings) -> None:
    """A random workload, while the agent is killed, the broker is restarted and the node crashes."""
    chooser = random.Random(SEED)
    for udt in UDTS.values():
        fields = ", ".join(f"{quote_name(n)} {t}" for n, t in udt.fields)
        captured.write(f"CREATE TYPE {{ks}}.{udt.name} ({fields})")
    tables = generated(captured, SEED)
    for schema, _ in tables:
        create = schema.create_statement().replace(f"{schema.keyspace}.", "{ks}.")
        captured.write(create + (" AND" if " WITH " in create else " WITH") + " cdc = true")
    writes = [w.replace("generated.", "{ks}.") for _, statements in tables for w in statements]
    chooser.shuffle(writes)
    writes[len(writes) // 2 : 0] = ["ALTER TABLE {ks}.t1 ADD late list<int>", "ALTER TABLE {ks}.t2 ADD late text"]
    steps = sorted(chooser.sample(range(50, len(writes)), 4))
    kafka = KafkaServer(server_settings)
    agent = captured.program()
    try:
        for number, statement in enumerate(writes):
            try:
                captured.write(statement)
            except InvalidRequest as e:
                # The generator does not know that a range must not be empty, nor a key.
                if "DELETE" not in statement and "BATCH" not in statement and "Key may not be empty" not in str(e):
                    raise
            if number in steps[:2]:
                time.sleep(chooser.random() * 6)
                agent.send_signal(signal.SIGKILL)
                agent.wait()
                agent = captured.program()
            elif number == steps[2]:
                kafka.stop()
                kafka.start()
            elif number == steps[3]:
                # As the log is synced only every 20 ms.
                time.sleep(0.1)
                node.stop(signal.SIGKILL)
                node.start()
        captured.fill(2)
        captured.settle(120)
        # Those that the crash left are complete, too, since the node has replayed them.
        deadline = time.monotonic() + 60
        while len(list(node.cdc_raw.glob("*_cdc.idx"))) > 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 0
    finally:
        agent.kill()
        agent.wait()
    captured.assert_same(*(schema.name for schema, _ in tables), "marks")
    progress = json.loads((captured.settings.capture.state / "progress.json").read_text())
    for segment in progress["segments"].values():
        assert segment["decoded"] == segment["published"]
    assert progress["totals"]["segments"] > 0
    assert progress["totals"]["segments_vanished"] == progress["totals"]["segments_set_aside"] == 0
    lines = [json.loads(line) for line in captured.log.read_text().splitlines() if line.startswith("{")]
    assert any("is captured" in line["message"] for line in lines)
