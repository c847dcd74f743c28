"""Compression dictionaries of Cassandra 6.0, which the node itself trains."""

import json
import random
from collections.abc import Iterable

from tests.support.format_server import FormatServer

COMPRESSION = "{'class': 'ZstdDictionaryCompressor', 'chunk_length_in_kb': 4}"
_SAMPLES = "dictionaries.samples"


def use_dictionary(server: FormatServer, keyspace: str, tables: Iterable[str]) -> None:
    """Train a dictionary on a table of texts. Let the next SSTables of other tables be compressed with it. These tables
    have `COMPRESSION`.
    """
    r = random.Random(1)
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    server.write_one(f"CREATE KEYSPACE dictionaries WITH replication = {replication}")
    server.write_one(f"CREATE TABLE {_SAMPLES} (k int PRIMARY KEY, v text) WITH compression = {COMPRESSION}")
    for k in range(150):
        text = f"order {k} of customer {r.randrange(10**9)}: {r.getrandbits(2400):x}"
        server.write_one(f"INSERT INTO {_SAMPLES} (k, v) VALUES ({k}, '{text}')")
    server.nodetool("compressiondictionary", "train", "-f", "--max-dict-size", "1KiB", *_SAMPLES.split("."))
    file = server.folder / "dictionary.json"
    server.nodetool("compressiondictionary", "export", *_SAMPLES.split("."), str(file))
    exported = json.loads(file.read_text())
    for schema in server.schemas():
        if schema.keyspace == keyspace and schema.name in tables:
            other = {"keyspace": keyspace, "table": schema.name, "tableId": str(schema.id)}
            file.write_text(json.dumps(exported | other))
            server.nodetool("compressiondictionary", "import", str(file))
