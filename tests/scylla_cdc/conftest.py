"""Generated tables with their logs, in sets of streams that change twice."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from pyspark.sql import SparkSession

from tests.scylla_cdc.databases import SECOND, CdcDatabase, StreamSet, Timed, groups_of, now, stream_set
from tests.scylla_cdc.examples import EXAMPLES, LATE, examples, late_writes
from tests.scylla_cdc.writer import Group
from tests.support.generate import SEED, Generator, create_udts
from tests.support.tables import every_type
from writetime.core.config import Settings
from writetime.schema.table import TableSchema
from writetime.sources.scylla_cdc import ScyllaCdcSource

TABLES = 6
WRITES = 70


@dataclass
class Logged:
    """A base table and the groups of its log, which are written already or will be by a test."""

    schema: TableSchema
    groups: list[Group]
    sets: list[StreamSet]
    origins: list[str]


@pytest.fixture(scope="session")
def cdc(server_settings: Settings) -> Iterator[CdcDatabase]:
    database = CdcDatabase(server_settings)
    database.write(create_udts())
    yield database
    database.close()


@pytest.fixture(scope="session")
def spark(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(ScyllaCdcSource)
    return spark


def sets_of_streams(r: random.Random, base: int, *, tablets: bool) -> list[StreamSet]:
    """Three sets: with tablets, the middle ones are split, and then the first ones merged."""
    quarter = 1 << 62
    ends = [-quarter, 0, quarter, (1 << 63) - 1]
    first = stream_set(r, base - 100 * SECOND, ends)
    if not tablets:
        # The ends of ranges of tokens differ, and one wraps around.
        others = [[r.randrange(-(1 << 63), (1 << 63)) for _ in range(6)] for _ in range(2)]
        return [first, *(stream_set(r, base + (20 + 20 * i) * SECOND, e) for i, e in enumerate(others))]
    low, high = first.streams[0], first.streams[-1]
    split = stream_set(r, base + 20 * SECOND, [-quarter // 2, 0, quarter // 2, quarter])
    second = StreamSet(split.time, (low, *split.streams, high))
    merged = stream_set(r, base + 40 * SECOND, [-quarter // 2])
    return [first, second, StreamSet(merged.time, (*merged.streams, *second.streams[2:]))]


# Just before, at and after the times at which sets and windows of 10 seconds begin, too.
TIMES = [0, 1, SECOND, 5 * SECOND, 10 * SECOND - 1, 10 * SECOND, 15 * SECOND, 20 * SECOND - 1]
TIMES += [20 * SECOND, 20 * SECOND + 1, 30 * SECOND, 40 * SECOND - 1, 40 * SECOND, 50 * SECOND, 60 * SECOND]


@dataclass
class Written:
    """Base tables that were written to, and the groups that their logs should have, from `base` on (microseconds)."""

    base: int
    schemas: dict[str, TableSchema]
    groups: dict[str, list[Group]]


@pytest.fixture(scope="session")
def written(cdc: CdcDatabase) -> Written:
    """Tables, their logs empty as yet."""
    generator = Generator(SEED + 5)
    generator._ttls = [1, 100_000]
    base = (now() // SECOND - 120) * SECOND
    made = [generator.schema(f"cdc{i}") for i in range(TABLES)] + [replace(every_type(), name="cdc_types")]
    writes = {s.name: list(map(Timed(i, base, TIMES), generator.writes(s, WRITES))) for i, s in enumerate(made)}
    for name, statements in ((EXAMPLES.name, examples(base)), (LATE.name, late_writes(base))):
        writes[name] = statements
    schemas = {}
    for schema in [*made, EXAMPLES, LATE]:
        schemas[schema.name] = cdc.create(schema)
        cdc.write(writes[schema.name])
    found = cdc.mutations(list(schemas.values()))
    return Written(base, schemas, {name: groups_of(schema, found) for name, schema in schemas.items()})


@pytest.fixture(scope="session")
def logged(cdc: CdcDatabase, written: Written) -> list[Logged]:
    """The generated tables with their logs, with vnodes and tablets in turn."""
    r = random.Random(SEED)
    generations = sets_of_streams(r, written.base, tablets=False)
    cdc.announce_generations(generations)
    logs = []
    for i, schema in enumerate(s for s in written.schemas.values() if s.name not in (EXAMPLES.name, LATE.name)):
        sets = sets_of_streams(r, written.base, tablets=True) if i % 2 else generations
        if i % 2:
            cdc.announce_tablets(schema, sets)
        groups = written.groups[schema.name]
        logs.append(Logged(schema, groups, sets, cdc.log(schema, groups, sets, i)))
    return logs


@pytest.fixture
def late(cdc: CdcDatabase, written: Written) -> Logged:
    """A new table for each test, with its own sets of streams and an empty log."""
    name = f"late{time.time_ns()}"
    schema = cdc.create(replace(LATE, name=name))
    sets = sets_of_streams(random.Random(2), written.base, tablets=True)
    return Logged(schema, written.groups[LATE.name], sets, [])
