"""Compiles numba's functions once, before the tests: `python -m tools.compile`, as `make test` does.

numba compiles a function at its first call, and stores the result on disk. On a fresh clone, test processes that start
together would each compile the same functions.
"""

import tempfile
from pathlib import Path

import writetime
from writetime.core.arrow import one_chunk
from writetime.merge import merge
from writetime.row_events.ids import event_ids
from writetime.schema.cql import parse_schemas
from writetime.schema.fingerprints import fingerprint
from writetime.storage.sstable_writer import SSTableWriter
from writetime.wire.change_messages import ChangeDecoder, ChangeEncoder, change_avro

_DATA = Path(__file__).parents[1] / "tests" / "data" / "cassandra"


def main() -> None:
    """Read SSTables and a segment of each version, and encode, decode, merge, number and write their changes."""
    for version in _DATA.iterdir():
        if not version.is_dir():
            continue
        cql = (version / "schema.cql").read_text()
        for schema in parse_schemas(cql):
            avro = change_avro(schema)
            encoder, decoder = ChangeEncoder(schema), ChangeDecoder(schema, {fingerprint(avro): avro})
            sstables = writetime.read_sstable(str(version / schema.name))
            segments = writetime.read_commitlog(str(version), cql, table=schema.full_name)
            changes = [decoder.decode(encoder.encode(batch)) for source in (sstables, segments) for batch in source]
            state = merge(changes, schema)
            event_ids(schema, 0, 0, one_chunk(state["key"]), one_chunk(state["position"]))
            with tempfile.TemporaryDirectory() as folder, SSTableWriter(folder, schema) as writer:
                for part in state.to_batches():
                    writer.write(part)


if __name__ == "__main__":
    main()
