"""The tests' own writer of logs, compared with the known log rows of ScyllaDB for a statement."""

from typing import Any

import pytest

from tests.scylla_cdc.conftest import Written
from tests.scylla_cdc.examples import CASES, EXAMPLES
from tests.scylla_cdc.writer import Row
from writetime.schema.values import decoder
from writetime.scylla_cdc.log import log_table

TYPES = {c.name: c.type for c in log_table(EXAMPLES).columns}


def shown(row: Row) -> dict[str, Any]:
    names = {"operation": "cdc$operation", "ttl": "cdc$ttl"}
    found = {n: decoder(TYPES[names.get(n, n)])(v) for n, v in row.items() if v is not None and n != "p"}
    found["op"] = found.pop("operation")
    return found


@pytest.mark.parametrize("number", range(len(CASES)), ids=[text for text, _ in CASES])
def test_the_log_rows_of_a_statement(written: Written, number: int) -> None:
    groups = [g for g in written.groups[EXAMPLES.name] if int.from_bytes(g.key, "big") == number]
    found = [(g.time - written.base - 10 * number, list(map(shown, g.rows))) for g in groups]
    assert found == CASES[number][1]
