"""Attacks landing with messages of the topics that it reads: changes, schemas, watermarks.

Each trial attacks a table of its own. Two other tables must land exactly, regardless of the messages. One process lands
all of them, like `writetime follow`. The error of a refused message must name its place, and only messages of the
attack may be refused. Then the message is skipped, as an operator does. At the end, the attacked table has each valid
change, and one change for each hostile message that was read. Its watermark is before the refused messages.
"""

import json
import random
import re
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from confluent_kafka import Message, Producer

from tests.attack import hostile
from tests.attack.command import numbers
from tests.attack.watched import Limits
from tests.support.landing_once import look
from tests.support.made import cell
from writetime.capture.change_publisher import ChangePublisher
from writetime.changes.model import change_schema, field_name
from writetime.changes.position import AT, position_encoder
from writetime.clients.kafka import client_config
from writetime.clients.schema_registry import HEADER_BYTES as REGISTRY_HEADER_BYTES
from writetime.clients.schema_registry import wire_header
from writetime.core.config import Settings
from writetime.delta.parquet import read_file
from writetime.lake import state, views
from writetime.lake.horizon import captured_until
from writetime.lake.table import open_table
from writetime.lake.views import time_now
from writetime.landing import following, landing
from writetime.landing.following import LandedTables
from writetime.landing.skipping import MessagePlace, skip
from writetime.landing.tasks import decode
from writetime.merge import live_rows, merge
from writetime.schema.cql import parse_table
from writetime.schema.fingerprints import fingerprint
from writetime.schema.serialise import serialiser
from writetime.schema.table import TableSchema
from writetime.schema.types import Native
from writetime.storage.kernel.primitives import token
from writetime.wire import watermarks
from writetime.wire.change_messages import HEADER_BYTES, ChangeDecoder, ChangeEncoder, change_avro
from writetime.wire.publishing import SCHEMAS_TOPIC, Sender
from writetime.wire.topic_names import changes_topic
from writetime.wire.watermarks import WATERMARKS_TOPIC, LandingReport, SourceMarks, TableMark, ensure_watermarks_topic

# The lake and Arrow reserve more than they touch.
LIMITS = Limits(seconds=60.0, touched_mib=512, reserved_mib=16_384)
_PARTITIONS = 2
_HOSTILE = 6
_SOUND = 8
_DECODED = 100
_PLACE = re.compile(r"topic (\S+), partition (\d+), offset (\d+)")
_TEXT = Native("text")
_COLUMNS = """
    p int, c text, s int static, v text, n bigint, d decimal, l list<int>, m map<text, int>, f frozen<set<text>>,
    i varint, a inet, u uuid, e vector<decimal, 2>, t tuple<inet, timeuuid>, o duration, z frozen<map<uuid, decimal>>,
    PRIMARY KEY (p, c)
"""
_UUID = "00000001-0000-1000-8000-00000000000a"
_WATERMARKS = "attack"


@dataclass
class _Expected:
    """The changes that the lake must have of a table, by their partition key, and their number."""

    keys: Counter[int]
    count: int


class Landings:
    """Tables that are landed, of which one at a time is attacked."""

    def __init__(self, settings: Settings) -> None:
        # Nothing is waited for, and watermarks are landed at once.
        for name in ("PAUSE_SECONDS", "SET_ASIDE_SECONDS", "REPORT_SECONDS"):
            setattr(following, name, 0.0)
        landing.WATERMARK_MICROS = 1
        capture = settings.capture.model_copy(update={"partitions": _PARTITIONS})
        lake = settings.lake.model_copy(update={"buckets": 2})
        self._settings = settings.model_copy(update={"capture": capture, "lake": lake})
        self._keyspace = f"a{time_now():x}"
        self._source = f"{_WATERMARKS}-{self._keyspace}"
        self._producer = Producer(client_config(self._settings))
        self._publisher = ChangePublisher(self._settings)
        self._keys = iter(range(1, 1 << 30))
        self._expected: dict[str, _Expected] = {}
        self._until: dict[str, int] = {}
        ensure_watermarks_topic(self._settings)
        self._sound = [self._new_table("sound0"), self._new_table("sound1")]
        self._names = [schema.full_name for schema in self._sound]
        self._tables = LandedTables(self._settings, self._names)

    def trials(
        self, seed: int, first: int, rounds: int | None, seconds: float | None
    ) -> Iterator[tuple[int, str, Callable[[], str | list[str]]]]:
        """Yield attacks by their numbers."""
        for number in numbers(first, rounds, seconds):
            r = random.Random(f"{seed}/{number}")
            kinds: list[tuple[str, Callable[[random.Random, TableSchema], list[str]]]] = [
                ("changes.<table>", self._attack_changes),
                ("changes.<table>, decoded", self._attack_decoder),
                (SCHEMAS_TOPIC, self._attack_schemas),
                (WATERMARKS_TOPIC, self._attack_marks),
            ]
            ((target, attack),) = r.choices(kinds, [4, 1, 1, 1])
            attacked = self._new_table(f"attacked{number}")
            yield number, target, partial(attack, r, attacked)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _new_table(self, name: str) -> TableSchema:
        schema = parse_table(f"CREATE TABLE {self._keyspace}.{name} ({_COLUMNS})")
        self._publisher.announce(schema)
        assert self._publisher.flush()
        self._expected[schema.full_name] = _Expected(Counter(), 0)
        return schema

    def _begin(self, r: random.Random, attacked: TableSchema) -> None:
        """Let the attacked table and the others land sound changes, and know a watermark."""
        self._names[2:] = [attacked.full_name]
        for schema in (attacked, *self._sound):
            self._send(schema, self._changes(r, schema, 2))
        self._mark()
        self._look()
        for schema in (attacked, *self._sound):
            self._check(schema)

    def _changes(self, r: random.Random, schema: TableSchema, count: int) -> list[bytes]:
        """Make sound messages, which the lake is to have."""
        keys = [next(self._keys) for _ in range(count)]
        expected = self._expected[schema.full_name]
        expected.keys.update(keys)
        expected.count += count
        return _messages(schema, [_change(r, key, schema) for key in keys])

    def _send(self, schema: TableSchema, values: list[bytes]) -> None:
        for i, value in enumerate(values):
            self._producer.produce(changes_topic(schema.full_name), value, b"k", i % _PARTITIONS)
        assert self._producer.flush(30) == 0

    def _mark(self) -> None:
        """Report as an agent does that all is published that was written up to now."""
        now = time_now()
        self._until = dict.fromkeys(self._names, now)
        sender = Sender(self._settings, "attack")
        watermarks.send(sender, self._source, SourceMarks({name: TableMark(now) for name in self._names}))
        assert sender.flush()

    def _look(self, tables: LandedTables | None = None) -> None:
        look(tables or self._tables)

    def _fault(self, table: str) -> str | None:
        landed = self._tables._tables.get(table)
        assert landed is not None, "no table is landed"
        return landed.report.fault

    # --- attacks ------------------------------------------------------------------------------------------------------

    def _attack_changes(self, r: random.Random, attacked: TableSchema) -> list[str]:
        self._begin(r, attacked)
        name = attacked.full_name
        before = self._until[name]
        bases = _messages(attacked, [_change(r, -1 - i, attacked) for i in range(_HOSTILE)])
        others = _messages(self._sound[0], [_change(r, -100 - i, self._sound[0]) for i in range(3)])
        made: list[tuple[str, hostile.Value] | None] = [hostile.avro(r, base, others) for base in bases]
        sound = iter(self._changes(r, attacked, _SOUND))
        order = [*made, *[None] * _SOUND]
        r.shuffle(order)
        kinds: dict[tuple[int, int], str] = {}
        for one in order:
            value, kind = (next(sound), None) if one is None else (one[1], one[0])
            partition = r.randrange(_PARTITIONS)
            key, headers = (b"k", []) if kind is None else (hostile.key(r, b"k"), hostile.headers(r))

            def delivered(error: object, message: Message, kind: str | None = kind) -> None:
                assert error is None, error
                if kind is not None:
                    kinds[message.partition() or 0, message.offset() or 0] = kind

            self._producer.produce(changes_topic(name), value, key, partition, delivered, headers=headers)
        for schema in self._sound:
            self._send(schema, self._changes(r, schema, 3))
        assert self._producer.flush(30) == 0
        self._mark()
        outcomes = self._land_and_skip(name, kinds)
        self._expected[name].count += outcomes.count("read")
        self._check(attacked)
        for schema in self._sound:
            self._check(schema)
        landed_until = captured_until(open_table(self._settings, name).changes.load())
        wanted = before if "refused" in outcomes else self._until[name]
        assert landed_until == wanted, f"the watermark is {landed_until}, not {wanted} ({Counter(outcomes)})"
        self._merge(name)
        return outcomes

    def _land_and_skip(self, name: str, kinds: dict[tuple[int, int], str]) -> list[str]:
        """Land until nothing is refused; return the outcome of each hostile message."""
        refused: set[tuple[int, int]] = set()
        while True:
            self._look()
            for schema in self._sound:
                self._check(schema)
            fault = self._fault(name)
            if fault is None:
                return ["refused" if place in refused else "read" for place in kinds]
            found = _PLACE.search(fault)
            assert found is not None, f"an error without a place: {fault[:300]}"
            place = int(found[2]), int(found[3])
            assert found[1] == changes_topic(name), f"another topic is named: {fault[:300]}"
            assert place in kinds, f"a sound message is refused: {fault[:300]}"
            assert place not in refused, f"a message is refused that was skipped: {fault[:300]}"
            assert self._tables._tables[name].report.status == "set aside", fault
            refused.add(place)
            skip(self._settings, MessagePlace(name, *place))

    def _attack_decoder(self, r: random.Random, attacked: TableSchema) -> list[str]:
        """Decode many messages without Kafka, and merge those that can be read with valid changes."""
        other = self._sound[0]
        avros = [change_avro(schema) for schema in (attacked, other)]
        names = [fingerprint(avro) for avro in avros]
        decoder = ChangeDecoder(attacked, dict(zip(names, avros, strict=True)), {i: [n] for i, n in enumerate(names)})
        outcomes = []
        for key in range(_DECODED):
            # In the single-object encoding, or in Confluent's wire format with the ids 0 and 1 of a registry.
            registered = r.random() < 0.5
            headers = [wire_header(i) if registered else None for i in (0, 1)]
            bases = _messages(attacked, [_change(r, key, attacked) for _ in range(3)], headers[0])
            others = _messages(other, [_change(r, 0, other) for _ in range(3)], headers[1])
            _, value = hostile.avro(r, bases[0], others, REGISTRY_HEADER_BYTES if registered else HEADER_BYTES)
            try:
                found = decode(decoder, attacked, [value])
            except Exception:
                # Landing catches every error at its message.
                outcomes.append("refused")
                continue
            found.validate(full=True)
            rows = live_rows(merge([decoder.decode(bases), found], attacked), attacked, int(time.time()))
            rows.validate(full=True)
            outcomes.append("read")
        return outcomes

    def _attack_schemas(self, r: random.Random, attacked: TableSchema) -> list[str]:
        """The attacked table's schemas must not affect other tables."""
        self._begin(r, attacked)
        avro = change_avro(attacked)
        own = f"{fingerprint(avro):016x}".encode()
        for _ in range(_HOSTILE):
            kind, value = hostile.json_text(r, avro)
            if kind == "wrong fields" and r.random() < 0.3:
                value = json.dumps(avro | {"table": hostile.spoiled(r, avro["table"])}).encode()
            key = r.choice([own, own, own + b":7", b"%016x" % r.getrandbits(64), hostile.key(r, own)])
            self._producer.produce(SCHEMAS_TOPIC, value, key, 0)
        return [self._others_land(r, attacked)] * _HOSTILE

    def _attack_marks(self, r: random.Random, attacked: TableSchema) -> list[str]:
        self._begin(r, attacked)
        name = attacked.full_name
        place = self._tables._tables[name].report.place
        report = asdict(LandingReport(time.time(), place=place))
        mark = asdict(SourceMarks({name: TableMark(time_now(), time_now())}, status={"at": time.time()}))
        for _ in range(_HOSTILE):
            sound, own = r.choice([(report, f"landing/{name}"), (mark, r.choice([self._source + "x", "a", ""]))])
            _, value = hostile.json_text(r, sound)
            key = r.choice([own.encode(), own.encode(), hostile.key(r, own.encode())])
            if key == self._source.encode():
                key = b"x"
            self._producer.produce(WATERMARKS_TOPIC, value, key, 0)
        # A landing that starts anew believes no report that does not fit the lake.
        assert self._producer.flush(30) == 0
        self._tables = LandedTables(self._settings, self._names)
        return [self._others_land(r, attacked)] * _HOSTILE

    def _others_land(self, r: random.Random, attacked: TableSchema) -> str:
        """Check that the valid tables land, and return the outcome of the attacked one."""
        for schema in (attacked, *self._sound):
            self._send(schema, self._changes(r, schema, 3))
        self._mark()
        self._look()
        for schema in self._sound:
            self._check(schema)
        fault = self._fault(attacked.full_name)
        if fault is None:
            self._check(attacked)
            return "its table landed"
        return "its table set aside"

    # --- expectations -------------------------------------------------------------------------------------------------

    def _check(self, schema: TableSchema) -> None:
        """Compare a table's changes in the lake with those that were sent."""
        name = schema.full_name
        is_sound = schema in self._sound
        fault = self._fault(name)
        if fault is not None:
            assert not is_sound, f"{name}: {fault}"
            return
        table = open_table(self._settings, name)
        now = table.changes.load()
        wanted = change_schema(table.schema(now)) if is_sound else pa.schema([("p", pa.int32())])
        found: Counter[int] = Counter()
        for file in now.files:
            found.update(read_file(table.changes.storage, file.path, wanted)["p"].to_pylist())
        expected = self._expected[name]
        missing = expected.keys - found
        assert not missing, f"{name}: {len(missing)} of {expected.count} changes are missing"
        assert found.total() == expected.count, f"{name}: {found.total()} changes, not {expected.count}"
        until = captured_until(now)
        assert not is_sound or until == self._until[name], f"{name}: watermark {until}, not {self._until[name]}"

    def _merge(self, name: str) -> None:
        """Merge the landed changes: no message that landing accepts may stop the views of its table."""
        table = open_table(self._settings, name)
        for batch in views.virtual(table):
            batch.validate(full=True)
        state.fold(table)


def _change(r: random.Random, key: int, schema: TableSchema) -> dict[str, Any]:
    """Make an INSERT of a row."""
    data, at = struct.pack(">i", key), r.choice([1000, 1000, r.randrange(1 << 50)])
    clustering = r.choice(["", "a", "é", "x" * 300])

    def element(path: Any, value: Any) -> dict[str, Any]:
        return {"path": path, **cell(value, at)}

    columns = {
        "v": cell(r.choice(["", "b", "中" * 50]), at),
        "n": cell(r.choice([0, -1, (1 << 63) - 1]), at),
        "d": cell(r.choice(["1.0", "-1E+30"]), at),
        "l": {
            "tombstone": {"write_time": at - 1, "deletion_time": 5} if r.random() < 0.5 else None,
            "elements": [element(f"0000000{i}-0000-1000-8000-00000000000a", i) for i in range(r.randrange(4))],
        },
        "m": {"elements": [element(text, 1) for text in r.sample(["a", "b", "é"], 2)]},
        "f": cell(["a", "b"], at),
        "i": cell(str(r.choice([0, -1, 10**30])), at),
        "a": cell(r.choice(["127.0.0.1", "2001:db8::ff00:42:8329"]), at),
        "u": cell(_UUID, at),
        "e": cell(["1.0", "-1E+30"], at),
        "t": cell({"_1": "::1", "_2": _UUID}, at),
        "o": cell({"months": -1, "days": 0, "nanoseconds": 1 << 40}, at),
        "z": cell([(_UUID, "1.10")], at),
    }
    chosen = r.sample(list(columns), r.randrange(1, len(columns) + 1))
    regular = {column.name: column for column in schema.regular}
    return {
        "p": key,
        "key": data,
        "token": token(data),
        "kind": "row",
        "c": clustering,
        "position": position_encoder(schema.clustering)([serialiser(_TEXT)(clustering)], AT),
        "marker": {"write_time": at} if r.random() < 0.8 else None,
        **{field_name(regular[name]): columns[name] for name in chosen},
    }


def _messages(schema: TableSchema, changes: list[dict[str, Any]], header: bytes | None = None) -> list[bytes]:
    batch = pa.RecordBatch.from_pylist(changes, change_schema(schema))
    return ChangeEncoder(schema, header).encode(batch).to_pylist()
