"""The fingerprints by which Avro names schemas (Apache Avro 1.12 Specification, "Single-object encoding")."""

import struct
from typing import Any

from fastavro import schema as avro_schema


def fingerprint(schema: Any) -> int:
    """Return the CRC-64-AVRO of a schema's canonical form."""
    digest = avro_schema.fingerprint(avro_schema.to_parsing_canonical_form(schema), "CRC-64-AVRO")
    return int.from_bytes(bytes.fromhex(digest), "little")


def single_object_header(schema: Any) -> bytes:
    """Return the header of a value in the single-object encoding: a marker, and the schema's fingerprint."""
    return b"\xc3\x01" + struct.pack("<Q", fingerprint(schema))
