"""Images against changes: they agree, until writes are missing from the log."""

import random

import pyarrow as pa

from tests.scylla_cdc.databases import SECOND, CdcDatabase
from tests.scylla_cdc.test_refusals import Odd
from writetime.scylla_cdc.images import Disagreement, disagreements
from writetime.scylla_cdc.offsets import interval
from writetime.scylla_cdc.source import open_source


def compared(odd: Odd) -> list[Disagreement]:
    with open_source(odd.cdc.settings, odd.name) as source:
        pieces = interval(source, None, None, None)
        changes = pa.Table.from_batches(list(source.read(pieces)))
        return list(disagreements(source.images(pieces), changes, source.schema))


def test_images_show_writes_that_the_log_lacks(cdc: CdcDatabase) -> None:
    """Images are what the database answers before and after each write, as ScyllaDB reads them."""
    odd = Odd(cdc, "p int, c int, s int static, v int, w int, PRIMARY KEY (p, c)")
    r = random.Random(5)

    def image(operation: int, c: int | None) -> list[dict[str, int | None]]:
        where = "p = 1" if c is None else f"p = 1 AND c = {c}"
        found = cdc.session.execute(f"SELECT * FROM {odd.name} WHERE {where} LIMIT 1").one()
        if found is None or (c is None and found.s is None):
            return []
        shown = {"s": found.s} if c is None else {"c": c, "v": found.v, "w": found.w}
        return [{"operation": operation, "p": 1, **shown}]

    def write(second: int, *, logged: bool = True) -> None:
        column, value, c = r.choice("svw"), r.randint(0, 99), r.randint(1, 3)
        clustering = None if column == "s" else c
        where = "p = 1" if clustering is None else f"p = 1 AND c = {c}"
        using = f"USING TIMESTAMP {odd.start + second * SECOND}"
        delete = clustering is not None and r.random() < 0.2
        before = image(0, clustering)
        what = f"DELETE FROM {odd.name} {using}" if delete else f"UPDATE {odd.name} {using} SET {column} = {value}"
        cdc.session.execute(f"{what} WHERE {where}")
        after = [] if delete else image(9, clustering)
        key = {"p": 1} if clustering is None else {"p": 1, "c": c}
        delta = {"operation": 3, **key} if delete else {"operation": 1, **key, column: value}
        if logged:
            odd.log(second, *before, delta, *after)

    for second in range(1, 25):
        write(second)
    assert compared(odd) == []
    # As if CDC had been off.
    for second in range(25, 35):
        write(second, logged=False)
    for second in range(35, 50):
        write(second)
    found = compared(odd)
    assert found
    assert {d.kind for d in found} == {"preimage", "postimage"}
    assert min(d.write_time for d in found) >= odd.start + 35 * SECOND
    assert all(d.image != d.changes for d in found)


def test_images_that_cannot_be_compared(cdc: CdcDatabase) -> None:
    odd = Odd(cdc)
    key = {"p": 1, "c": 1}
    odd.log(1, {"operation": 1, **key, "v": 1}, {"operation": 9, **key, "v": 9})
    assert [(d.kind, d.column, d.image, d.changes) for d in compared(odd)] == [("postimage", "v", 9, 1)]
    odd.log(2, {"operation": 1, **key, "v": 2})  # newer than the image
    assert compared(odd) == []
    odd.log(3, {"operation": 1, **key, "v": 3, "ttl": 1}, {"operation": 9, **key, "v": None})  # expires
    odd.log(4, {"operation": 0, "p": 1, "c": 2, "v": 4}, {"operation": 1, "p": 1, "c": 2, "v": 5})
    odd.log(5, {"operation": 5, "p": 1, "c": 2}, {"operation": 7, "p": 1})  # deleted since
    assert compared(odd) == []
