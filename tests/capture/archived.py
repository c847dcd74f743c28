"""A table whose changes are in complete segments, and copies of these."""

import os
import shutil
from pathlib import Path

from cassandra.concurrent import execute_concurrent_with_args

from tests.capture.agents import complete
from tests.support.captured import Captured


def index_of(path: Path) -> Path:
    """The `_cdc.idx` of a segment."""
    return path.with_name(f"{path.stem}_cdc.idx")


def copy(path: Path, folder: Path) -> Path:
    """Copy a segment with its index."""
    folder.mkdir(exist_ok=True)
    shutil.copy(path, folder)
    shutil.copy(index_of(path), folder)
    return folder / path.name


def write_table(captured: Captured) -> list[Path]:
    """Write to a table `t`, of 40 rows, and return the segments that the node is done with since."""
    before = set(complete(captured))
    captured.write(
        "CREATE TABLE {ks}.t (k int, c int, s text static, v blob, l list<int>, PRIMARY KEY (k, c)) WITH cdc = true",
        "INSERT INTO {ks}.t (k, c, s, l) VALUES (1, -1, 's', [1, 2])",
        "UPDATE {ks}.t USING TTL 100000 SET l = l + [3] WHERE k = 1 AND c = -1",
        "DELETE FROM {ks}.t WHERE k = 1 AND c > 1000",
        "DELETE FROM {ks}.t WHERE k = 5",
    )
    session = captured.node.session()
    insert = session.prepare(f"INSERT INTO {captured.keyspace}.t (k, c, v) VALUES (?, ?, ?)")
    execute_concurrent_with_args(session, insert, [(i % 4, i, os.urandom(60_000)) for i in range(40)])
    captured.fill(1)
    found = [path for path in complete(captured) if path not in before]
    assert len(found) >= 3
    return found
