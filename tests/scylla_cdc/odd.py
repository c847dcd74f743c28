"""Tables whose logs are written row by row."""

import time
from collections import Counter
from typing import Any
from uuid import UUID

import pyarrow as pa

from tests.scylla_cdc.databases import SECOND, CdcDatabase, StreamSet, now
from writetime.schema.cql import parse_table
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema
from writetime.schema.types import quote_name
from writetime.scylla_cdc.log import first_uuid
from writetime.scylla_cdc.offsets import interval
from writetime.scylla_cdc.source import open_source

STREAM = bytes(7) + b"\x01" + bytes(8)


class Odd:
    """A table whose log is written row by row."""

    def __init__(self, cdc: CdcDatabase, text: str = "p int, c int, s int static, v int, PRIMARY KEY (p, c)") -> None:
        self.cdc = cdc
        name = f"odd{time.time_ns()}"
        self.schema = cdc.create(parse_table(f"CREATE TABLE generated.{name} ({text})"))
        self.start = now() - 60 * SECOND
        self.name = self.schema.full_name
        cdc.announce_tablets(self.schema, [StreamSet(self.start // 1000 * 1000, (STREAM,))])

    def log(self, time: int, *rows: dict[str, Any], complete: bool = True, random: int = 0) -> None:
        """Write a group, `time` seconds after the start; `random` distinguishes it from others of the same time."""
        uuid = UUID(int=first_uuid(self.start + time * SECOND).int + random)
        for i, row in enumerate(rows):
            end = {"cdc$end_of_batch": True} if complete and i == len(rows) - 1 else {}
            key = {"cdc$stream_id": STREAM, "cdc$time": uuid, "cdc$batch_seq_no": i}
            named = {("cdc$" + n if n in ("operation", "ttl") else n): v for n, v in row.items()}
            values = {**key, **end, **named}
            names = ", ".join(map(quote_name, values))
            places = ", ".join(["%s"] * len(values))
            log = f"{self.name}_scylla_cdc_log"
            self.cdc.session.execute(f"INSERT INTO {log} ({names}) VALUES ({places})", list(values.values()))

    def alter(self, change: str, log_change: str | None = None) -> None:
        """Alter the table and its log."""
        self.cdc.session.execute(f"ALTER TABLE {self.name} {change}")
        self.cdc.session.execute(f"ALTER TABLE {self.name}_scylla_cdc_log {log_change or change}")

    def changes(self, **scylla_cdc: object) -> pa.Table:
        with open_source(self.cdc.with_options(**scylla_cdc), self.name) as source:
            return pa.Table.from_batches(list(source.read(interval(source, None, None, None))))

    def current(self) -> TableSchema:
        return read_schema(self.cdc.session, self.name)


def read(odd: Odd, snapshot_at: int | None = None) -> tuple[pa.Table, dict[str, int]]:
    """Return the changes of a log, and the counts of its other rows."""
    found: Counter[str] = Counter()
    with open_source(odd.cdc.settings, odd.name) as source:
        pieces = interval(source, None, None, None)
        batches = list(source.read(pieces, snapshot_at=snapshot_at, found=found))
        list(source.images(pieces))
    return pa.Table.from_batches(batches), {kind: count for kind, count in found.items() if count}
