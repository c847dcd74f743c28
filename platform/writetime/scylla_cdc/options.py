"""A table's CDC options, and the time since which it has had them.

ScyllaDB 2026.1 keeps the options in `system_schema.tables.extensions`, older versions in `system_schema.scylla_tables`.
It does not keep earlier options. But each ALTER TABLE writes all columns of the table's row in `system_schema.tables`
(`add_table_params_to_mutations` in `db/schema_tables.cc`). So the write time of `extensions` is the time of the last
ALTER TABLE of any kind, and the options have not changed since then.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from cassandra import InvalidRequest

from writetime.core.config import ScyllaCdc
from writetime.schema.types import Collection, Native, freeze, quote_table
from writetime.schema.values import decoder
from writetime.scylla_cdc.log import LogError
from writetime.scylla_cdc.pages import Pages

_STRINGS = decoder(freeze(Collection("map", (Native("text"), Native("text")))))
_EXTENSIONS = decoder(freeze(Collection("map", (Native("text"), Native("blob")))))
_OF_TABLE = "WHERE keyspace_name = ? AND table_name = ?"


@dataclass(frozen=True)
class CdcOptions:
    """The options by name, and a time (microseconds) since which they have not changed."""

    values: Mapping[str, str]
    since: int


# Of a database without such options: all writes are logged, and there may be preimages.
_UNKNOWN = CdcOptions({"enabled": "true", "preimage": "true"}, 0)


def cdc_options(pages: Pages, settings: ScyllaCdc, keyspace: str, table: str) -> CdcOptions:
    """Return a table's CDC options, empty if it has none, and assumed ones if the database has no place for them,
    because it is not ScyllaDB. Raise a `LogError` if they are not in the form that ScyllaDB writes.
    """
    query = pages.prepare(f"SELECT extensions, writetime(extensions) FROM system_schema.tables {_OF_TABLE}")
    data, since = _first(pages.rows(query, [keyspace, table]))
    extensions = dict(_EXTENSIONS(data)) if data else {}
    if "cdc" in extensions:
        return CdcOptions(_options(extensions["cdc"], f"{keyspace}.{table}"), since)
    try:
        query = pages.prepare(f"SELECT cdc, writetime(cdc) FROM {quote_table(settings.table_options)} {_OF_TABLE}")
    except InvalidRequest:
        return _UNKNOWN
    data, cdc_since = _first(pages.rows(query, [keyspace, table]))
    return CdcOptions(dict(_STRINGS(data)) if data else {}, max(since, cdc_since))


def _first(found: pa.Table) -> tuple[bytes | None, int]:
    """Return a value and its write time, from the first row."""
    if not found.num_rows:
        return None, 0
    data, time = (column[0].as_py() for column in found.columns)
    return data, int.from_bytes(time or b"", "big", signed=True)


def _options(data: bytes, table: str) -> dict[str, str]:
    """Decode `extensions['cdc']`: the number of options, then each option's name and value with their lengths before
    them. Numbers are little-endian 32-bit integers (`cdc/cdc_extension.hh` of ScyllaDB).
    """
    texts = []
    try:
        (count,) = struct.unpack_from("<I", data)
        at = 4
        for _ in range(2 * count):
            (length,) = struct.unpack_from("<I", data, at)
            (text,) = struct.unpack_from(f"{length}s", data, at + 4)
            texts.append(text.decode())
            at += 4 + length
    except (struct.error, UnicodeDecodeError):
        at = -1
    if at != len(data):
        raise LogError(
            f"the CDC options of {table} in system_schema.tables.extensions are not in a known form: 0x{data.hex()}"
        )
    return dict(zip(texts[::2], texts[1::2], strict=True))
